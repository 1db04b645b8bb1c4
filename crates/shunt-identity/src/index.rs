//! What the records of the log say together: which end belongs to a cookie, and which ends have the same numbers.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::identity::{Identity, Numbers, Side};
use crate::log::{Found, Record, Records};

#[cfg(test)]
mod tests;

/// How much later than its connector an acceptor may have ended the handshake. A connector whose
/// last segment of the handshake is lost sends it again when it is asked once more, after a second.
pub const HANDSHAKE: Duration = Duration::from_secs(2);

/// A log, and where in it is what.
#[derive(Debug)]
pub(crate) struct Index<R> {
    records: R,
    /// The number of the newest record that was looked at.
    last: u64,
    /// Numbers of older ones that the kernel was still writing.
    in_work: Vec<u64>,
    /// What is known, about in the order of the log.
    entered: VecDeque<Entered>,
    /// By the socket's cookie, the number of its record. A socket that has connected anew is its last connection.
    ends: HashMap<u64, u64>,
    pairs: HashMap<Numbers, Pair>,
}

#[derive(Debug)]
struct Entered {
    serial: u64,
    cookie: u64,
    numbers: Numbers,
}

/// Who has the numbers of a connection: the records of its connector and its acceptor.
#[derive(Debug)]
struct Pair {
    /// The record by which it came to be. Both ends are forgotten with it, so that nobody takes the place of one beside the
    /// other.
    first: u64,
    places: [u64; 2],
}

/// In the place of a record's number. None has either.
const NOBODY: u64 = 0;
const SEVERAL: u64 = u64::MAX;

/// Which of the places is a side's.
const fn place(side: Side) -> usize {
    match side {
        Side::Connector => 0,
        Side::Acceptor => 1,
    }
}

impl<R: Records> Index<R> {
    pub(crate) fn new(records: R) -> Self {
        Self {
            records,
            last: 0,
            in_work: Vec::new(),
            entered: VecDeque::new(),
            ends: HashMap::new(),
            pairs: HashMap::new(),
        }
    }

    /// Takes in what is new in the log, and forgets what has made room for it.
    pub(crate) fn catch_up(&mut self) {
        let last = self.records.last();
        let gone = last.saturating_sub(self.records.capacity());
        self.forget(gone);
        let new = self.last.max(gone) + 1..=last;
        let before = std::mem::take(&mut self.in_work);
        let before = before.into_iter().filter(|serial| *serial > gone);
        for serial in before.chain(new) {
            match self.records.read(serial) {
                Found::Complete(record) => self.enter(&record),
                Found::InWork => self.in_work.push(serial),
                Found::Gone => (),
            }
        }
        self.last = last;
    }

    /// Everything up to this record.
    fn forget(&mut self, gone: u64) {
        while let Some(old) = self.entered.pop_front_if(|old| old.serial <= gone) {
            if self.ends.get(&old.cookie) == Some(&old.serial) {
                self.ends.remove(&old.cookie);
            }
            if self.pairs.get(&old.numbers).map(|pair| pair.first) == Some(old.serial) {
                self.pairs.remove(&old.numbers);
            }
        }
    }

    fn enter(&mut self, record: &Record) {
        let Some(identity) = Identity::of(record) else {
            return;
        };
        let (serial, cookie, numbers) = (record.serial, record.cookie, identity.numbers());
        self.entered.push_back(Entered {
            serial,
            cookie,
            numbers,
        });
        self.ends.insert(cookie, serial);
        let new = || Pair {
            first: serial,
            places: [NOBODY; 2],
        };
        let pair = self.pairs.entry(numbers).or_insert_with(new);
        let place = &mut pair.places[place(identity.side)];
        *place = if *place == NOBODY { serial } else { SEVERAL };
    }

    /// What [`crate::Identities::of`] says.
    pub(crate) fn of(&self, cookie: u64) -> Option<Identity> {
        let serial = self.ends.get(&cookie)?;
        Some(self.one(*serial)?.1)
    }

    /// What [`crate::Identities::mirror`] says.
    pub(crate) fn mirror(&self, of: &Identity) -> Option<(u64, Identity)> {
        let [own, other] = self.places(of.side, of.numbers())?;
        let is_own = self.one(own)?.1 == *of;
        self.one(other)
            .filter(|(_, other)| is_own && is_one_handshake(of, other))
    }

    /// What [`crate::Identities::opposite`] says.
    pub(crate) fn opposite(&self, side: Side, numbers: Numbers) -> Option<(u64, Identity)> {
        let [own, other] = self.places(side, numbers)?;
        self.one(own).filter(|_| other == NOBODY)
    }

    /// Who has these numbers on this side, and on the other.
    fn places(&self, side: Side, numbers: Numbers) -> Option<[u64; 2]> {
        let places = self.pairs.get(&numbers)?.places;
        let own = place(side);
        Some([places[own], places[1 - own]])
    }

    /// The socket of a record, unless it has connected anew since.
    fn one(&self, serial: u64) -> Option<(u64, Identity)> {
        if [NOBODY, SEVERAL].contains(&serial) {
            return None;
        }
        let Found::Complete(record) = self.records.read(serial) else {
            return None;
        };
        let is_last = self.ends.get(&record.cookie) == Some(&serial);
        let identity = Identity::of(&record).filter(|_| is_last)?;
        Some((record.cookie, identity))
    }
}

/// Whether two ends with mirrored numbers have ended their handshakes as those of one connection do:
/// an acceptor does so by the answer of a connector that has done so.
fn is_one_handshake(one: &Identity, other: &Identity) -> bool {
    let (connector, acceptor) = match (one.side, other.side) {
        (Side::Connector, Side::Acceptor) => (one, other),
        (Side::Acceptor, Side::Connector) => (other, one),
        _ => return false,
    };
    let later = acceptor.established.checked_sub(connector.established);
    later.is_some_and(|later| later <= HANDSHAKE)
}
