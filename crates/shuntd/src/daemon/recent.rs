//! What the kernel said of sockets a moment ago. Of a listener, and of a connection in shared memory, it is asked every
//! eight seconds at most, however often somebody asks for a list: that takes seven system calls or more for each socket,
//! while what changes all the time is in the counters regions. They also say when the kernel has answered a call on such
//! a connection: then it is asked anew after two seconds. The next looks are spread over another eight seconds, so
//! that no list takes long: whoever shares a core with the daemon waits meanwhile.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shunt_abi::counters::{Record, Stage};

use crate::end::EndId;
use crate::inspect::Seen;

/// An answer counts for this time, …
const LASTS: Duration = Duration::from_secs(8);
/// … and, so that not all run out at once, for up to this many steps more, by the number of the socket, …
const SPREAD: u64 = 16;
/// … each of this length.
const STEP: Duration = Duration::from_millis(8000 / SPREAD);
/// The most answers that are kept: a client can make sockets without end.
const MOST: usize = 1 << 16;
/// While the kernel answers calls on the connection an answer counts for this time.
const IN_USE: Duration = Duration::from_secs(2);
/// A search for peers counts for this time.
const SEARCHED: Duration = Duration::from_secs(1);

/// A socket as a client's record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    client: u64,
    cookie: u64,
    fd: i32,
    /// Its slot: another one is looked at anew.
    seat: (u64, u32),
    /// Calls that sent and received and that the kernel answered: only these move bytes past the rings.
    kernel_calls: [u64; 2],
}

impl Name {
    /// `None`: the kernel is asked each time, as it moves the bytes, or as its name for the socket is not known.
    pub(super) fn of(client: u64, record: &Record) -> Option<Self> {
        let is_settled = match record.stage() {
            Stage::Listener => true,
            Stage::Attached | Stage::Aside => record.downgraded.load(Ordering::Relaxed) == 0,
            _ => false,
        };
        let cookie = record.cookie.load(Ordering::Relaxed);
        (is_settled && cookie != 0).then(|| Self {
            client,
            cookie,
            fd: record.fd.load(Ordering::Relaxed),
            seat: (
                record.link.load(Ordering::Relaxed),
                record.generation.load(Ordering::Relaxed),
            ),
            kernel_calls: [&record.tx, &record.rx]
                .map(|counts| counts.kernel_calls.load(Ordering::Relaxed)),
        })
    }
}

/// Client, cookie and number. What else a client writes into its record, as often as it likes, makes no further entry.
type Socket = (u64, u64, i32);

/// What the kernel has said of a socket.
#[derive(Debug)]
struct Answer {
    name: Name,
    seen: Seen,
    at: Instant,
    /// Until when it counts, as long as the kernel answers no other call there.
    until: Instant,
}

impl Answer {
    fn counts(&self, name: &Name, now: Instant) -> bool {
        let is_in_use = self.name.kernel_calls != name.kernel_calls;
        self.until > now && (!is_in_use || now < self.at + IN_USE)
    }
}

#[derive(Debug, Default)]
pub(super) struct Recent {
    seen: HashMap<Socket, Answer>,
    /// Ends whose peers were searched for, until when that counts.
    searched: HashMap<EndId, Instant>,
    /// When the last of them has got too old.
    until: Option<Instant>,
}

impl Recent {
    /// What is known of a socket, or else what `look` says, which is told what was known.
    pub(super) fn seen(
        &mut self,
        name: Option<Name>,
        now: Instant,
        look: impl FnOnce(Option<&Seen>) -> Option<Seen>,
    ) -> Option<Seen> {
        let Some(name) = name else { return look(None) };
        let socket = (name.client, name.cookie, name.fd);
        let known = self.seen.get(&socket);
        let known = known.filter(|known| known.name.seat == name.seat);
        if let Some(known) = known
            && known.counts(&name, now)
        {
            return Some(known.seen);
        }
        let (is_known, seen) = (known.is_some(), look(known.map(|known| &known.seen))?);
        if !is_known && self.seen.len() >= MOST {
            return Some(seen);
        }
        let until = now + LASTS + STEP * (name.cookie % SPREAD) as u32;
        let answer = Answer {
            name,
            seen,
            at: now,
            until,
        };
        self.seen.insert(socket, answer);
        self.until = self.until.max(Some(until));
        Some(seen)
    }

    /// Forgets what is known of a socket: the kernel moves its bytes now.
    pub(super) fn forget(&mut self, client: u64, record: &Record) {
        let cookie = record.cookie.load(Ordering::Relaxed);
        let fd = record.fd.load(Ordering::Relaxed);
        self.seen.remove(&(client, cookie, fd));
    }

    /// Whether the peers of these ends are to be searched for: of one of them that was not done a moment ago.
    /// Then it is done for all.
    pub(super) fn is_to_search(
        &mut self,
        ends: impl Iterator<Item = EndId> + Clone,
        now: Instant,
    ) -> bool {
        let is_known = |end| self.searched.get(&end).is_some_and(|until| *until > now);
        if ends.clone().all(is_known) {
            return false;
        }
        let until = now + SEARCHED;
        self.searched = ends.map(|end| (end, until)).collect();
        self.until = self.until.max(Some(until));
        true
    }

    /// Forgets what is too old, once all is.
    pub(super) fn forget_old(&mut self, now: Instant) {
        if self.until.is_some_and(|until| until <= now) {
            *self = Self::default();
        }
    }

    /// Forgets each answer that has been too old for a while: nobody has asked for it since.
    pub(super) fn begin_list(&mut self, now: Instant) {
        self.seen.retain(|_, answer| answer.until + LASTS > now);
    }

    /// How long until something is to be forgotten.
    pub(super) fn left(&self) -> Option<Duration> {
        Some(self.until?.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_abi::counters::Record;

    fn record(stage: Stage, cookie: u64) -> Record {
        let record = Record::default();
        record.stage.store(stage as u8, Ordering::Relaxed);
        record.cookie.store(cookie, Ordering::Relaxed);
        record
    }

    fn answer(sent: u64) -> Option<Seen> {
        let local = ([127, 0, 0, 1], 80).into();
        let (tuple, carried) = (None, (sent, 0));
        Some(Seen {
            local,
            tuple,
            carried,
            netns: None,
        })
    }

    #[test]
    fn an_answer_counts_for_eight_to_sixteen_seconds() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let [name, later] =
            [SPREAD, 2 * SPREAD - 1].map(|c| Name::of(1, &record(Stage::Attached, c)));
        let mut sent_at = |millis, sent| {
            let now = now + Duration::from_millis(millis);
            recent.begin_list(now);
            let mut of = |name| recent.seen(name, now, |_| answer(sent)).unwrap().carried.0;
            [of(name), of(later)]
        };
        assert_eq!(sent_at(0, 5), [5, 5]);
        assert_eq!(sent_at(7_999, 6), [5, 5]);
        assert_eq!(sent_at(8_000, 7), [7, 5]);
        assert_eq!(sent_at(15_400, 8), [7, 5]);
        assert_eq!(sent_at(16_000, 9), [9, 9]);
        assert!(recent.left().is_some());
        recent.forget_old(now + Duration::from_secs(40));
        assert_eq!(recent.left(), None);
        // A socket that is not found may be there the next time.
        assert!(recent.seen(name, now, |_| None).is_none());
        assert!(recent.seen(name, now, |_| answer(1)).is_some());
    }

    #[test]
    fn who_looks_anew_is_told_what_was_known_of_the_same_name() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        let record = record(Stage::Attached, SPREAD);
        let mut told_at = |millis, record| {
            let now = start + Duration::from_millis(millis);
            recent.begin_list(now);
            let mut told = None;
            recent.seen(Name::of(1, record), now, |known| {
                told = known.map(|seen| seen.carried.0);
                answer(millis)
            });
            told
        };
        assert_eq!(told_at(1, &record), None);
        assert_eq!(told_at(10_000, &record), Some(1));
        record.generation.store(2, Ordering::Relaxed);
        assert_eq!(told_at(20_000, &record), None);
        // Nobody has asked for a while.
        assert_eq!(told_at(38_000, &record), None);
        assert_eq!(recent.seen.len(), 1);
    }

    #[test]
    fn what_was_known_before_a_stretch_of_tcp_is_not_told_after_it() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let record = record(Stage::Attached, 7);
        recent.seen(Name::of(1, &record), now, |_| answer(5));
        recent.forget(1, &record);
        let seen = recent.seen(Name::of(1, &record), now, |_| answer(6));
        assert_eq!(seen.unwrap().carried.0, 6);
    }

    #[test]
    fn no_more_answers_are_kept_than_a_list_may_be_long() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        for cookie in 1..=MOST as u64 + 10 {
            let name = Name::of(1, &record(Stage::Attached, cookie));
            assert!(recent.seen(name, now, |_| answer(cookie)).is_some());
        }
        assert_eq!(recent.seen.len(), MOST);
    }

    #[test]
    fn each_socket_has_an_answer_of_its_own() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let name = |client, cookie, fd| {
            let record = record(Stage::Attached, cookie);
            record.fd.store(fd, Ordering::Relaxed);
            Name::of(client, &record)
        };
        // They differ in the client, in the cookie, and in the number.
        let sockets = [(1, 7, 3), (2, 7, 3), (1, 8, 3), (1, 7, 4)];
        let names = sockets.map(|(client, cookie, fd)| name(client, cookie, fd));
        for (sent, name) in (1..).zip(names) {
            recent.seen(name, now, |_| answer(sent));
        }
        for (sent, name) in (1..).zip(names) {
            let known = recent.seen(name, now, |_| panic!("{name:?} is looked at again"));
            assert_eq!(known.unwrap().carried.0, sent);
        }
    }

    #[test]
    fn a_socket_whose_record_names_another_slot_is_looked_at_again_and_has_one_answer() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let record = record(Stage::Attached, 7);
        for generation in 1..=9 {
            record.generation.store(generation, Ordering::Relaxed);
            let sent = u64::from(generation);
            let seen = recent.seen(Name::of(1, &record), now, |_| answer(sent));
            assert_eq!(seen.unwrap().carried.0, sent);
        }
        assert_eq!(recent.seen.len(), 1);
    }

    #[test]
    fn a_socket_on_which_the_kernel_answers_calls_is_looked_at_every_two_seconds() {
        let (mut recent, begin) = (Recent::default(), Instant::now());
        let record = record(Stage::Attached, 7);
        let mut look_at = |milliseconds, sent| {
            let now = begin + Duration::from_millis(milliseconds);
            let seen = recent.seen(Name::of(1, &record), now, |_| answer(sent));
            seen.unwrap().carried.0
        };
        assert_eq!([look_at(0, 1), look_at(2_500, 2)], [1, 1]);
        record.tx.kernel_calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!([look_at(2_600, 3), look_at(4_500, 4)], [3, 3]);
        record.rx.kernel_calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!([look_at(4_550, 5), look_at(4_600, 6)], [3, 6]);
        record.rx.user_calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(look_at(9_000, 7), 6);
    }

    #[test]
    fn peers_are_searched_for_once_a_second_and_for_whoever_is_new() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let end = |cookie| EndId { client: 1, cookie };
        let mut is_to_search = |cookies: &[u64], millis| {
            let ends = cookies.iter().copied().map(end);
            recent.is_to_search(ends, now + Duration::from_millis(millis))
        };
        assert!(is_to_search(&[1, 2], 0));
        assert!(!is_to_search(&[2, 1], 900));
        assert!(is_to_search(&[1, 2, 3], 950));
        assert!(!is_to_search(&[3], 1900));
        assert!(is_to_search(&[3], 1950));
        assert!(is_to_search(&[1], 1960));
    }

    #[test]
    fn what_the_kernel_moves_has_no_name_and_what_has_changed_another_one() {
        for stage in [Stage::Fresh, Stage::Candidate, Stage::Paired, Stage::Plain] {
            assert_eq!(Name::of(1, &record(stage, 7)), None, "{stage:?}");
        }
        assert_eq!(Name::of(1, &record(Stage::Attached, 0)), None);
        let attached = record(Stage::Attached, 7);
        let name = Name::of(1, &attached);
        assert_eq!(name, Name::of(1, &record(Stage::Aside, 7)));
        assert_ne!(name, Name::of(2, &attached));
        attached.generation.store(9, Ordering::Relaxed);
        assert_ne!(name, Name::of(1, &attached));
        attached.downgraded.store(1, Ordering::Relaxed);
        assert_eq!(Name::of(1, &attached), None);
    }
}
