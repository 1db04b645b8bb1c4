//! What a process gets of its connection's other end that gives up shared memory, so that it has what it has
//! not read there sent by TCP while its peer is busy elsewhere.
//!
//! | the other end is | the process |
//! |---|---|
//! | its own user's, in its own network namespace | is lent the descriptor, for a moment, and sends by that to itself |
//! | another user's, or elsewhere | passes the bytes here, and shuntd sends them ([`crate::resend`]) |
//!
//! Only for a connection that this daemon has paired, to who holds its other end. A descriptor of another
//! user's could keep the end of that one's connection back for ever, and one of another network namespace reaches all of
//! that: the first `connect` leads elsewhere.
//!
//! Either end may be a forked child's, of which this daemon knows nothing, when the process
//! that was paired has gone. Then the processes are looked through for who has the other end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_RESENDS, Kind, Message};

use super::Daemon;
use super::dispatch::Malformed;
use crate::client::Passed;
use crate::end::{EndId, Mate, State};
use crate::foreign::{Foreign, Lane};
use crate::inspect::{self, Connected, Look};
use crate::mirror::Counterpart;
use crate::resend::Resend;
use crate::scan::Scan;
use crate::tuple::Tuple;
use crate::wire::Datagram;
use crate::{holders, process};

/// Who wants something of the other end of its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loan {
    asker: EndId,
    /// Its own end is of its own network namespace: it may hold others, which it was passed.
    is_at_home: bool,
    /// Its own end.
    own: Connected,
    far: Mate,
}

/// A copy of the other end's descriptor, in the hands of this daemon.
struct FarEnd {
    socket: Foreign,
    /// Which closes it.
    lane: Arc<Lane>,
    /// Who asks for it may have it.
    may_be_lent: bool,
}

/// A process, and its descriptor of a socket.
type Holder = (u32, i32);

/// Loans that wait, and who has those sockets.
pub(super) type Lending = Scan<Loan, HashMap<u64, Holder>>;

/// How many finds are kept for clients that ask again, since the answer came after they had stopped waiting.
const KEPT: usize = 64;

/// The most sockets that are looked for at a time on behalf of one client.
const WAITING: usize = 64;

/// Ends that were paired when their clients went or let go of them, with their users: forked
/// children may go on with them.
#[derive(Debug, Default)]
pub(super) struct LeftBehind(VecDeque<Left>);

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    user: u32,
    pub(super) cookie: u64,
    /// Its addresses.
    pub(super) tuple: Option<Tuple>,
    pub(super) mate: Mate,
}

impl LeftBehind {
    /// The most ends that are remembered.
    const MOST: usize = 16_384;

    pub(super) fn add(&mut self, user: u32, cookie: u64, tuple: Option<Tuple>, mate: Option<Mate>) {
        let Some(mate) = mate else { return };
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(Left {
            user,
            cookie,
            tuple,
            mate,
        });
    }

    /// These sockets of a user's.
    pub(super) fn of(&self, user: u32, mut cookies: HashSet<u64>) -> Vec<Left> {
        let mut found = Vec::new();
        for left in self.0.iter().rev() {
            if cookies.is_empty() {
                break;
            }
            if left.user == user && cookies.remove(&left.cookie) {
                found.push(*left);
            }
        }
        found
    }

    /// The other end of one of these.
    fn mate(&self, user: u32, cookie: u64) -> Option<Mate> {
        let mut newest = self.0.iter().rev();
        let found = newest.find(|left| (left.user, left.cookie) == (user, cookie));
        found.map(|left| left.mate)
    }
}

impl Daemon {
    /// A paired end was let go by its client, a child of which may go on with it.
    pub(super) fn leave_behind(&mut self, end: EndId, tuple: Tuple, mate: Option<Mate>) {
        if let Some(client) = self.clients.get(&end.client) {
            let user = client.uid;
            self.left_behind.add(user, end.cookie, Some(tuple), mate);
        }
    }

    /// A client asks for the other end of the socket `fd`, which `asker` names.
    pub(super) fn lend(&mut self, asker: EndId, fd: i32) {
        let Some(loan) = self.loan(asker, fd) else {
            return self.answer_loan(asker, None);
        };
        match self.far_end(&loan) {
            None => self.look_for(loan),
            found => self.answer_loan(asker, found),
        }
    }

    /// Has it looked for, unless its client has many looked for already.
    fn look_for(&mut self, loan: Loan) {
        let client = loan.asker.client;
        let of_client = |other: &&mut Loan| other.asker.client == client;
        if let Some(waiting) = self.lending.waiting().find(|w| w.asker == loan.asker) {
            *waiting = loan;
        } else if self.lending.waiting().filter(of_client).count() < WAITING {
            self.lending.add(loan);
        } else {
            self.answer_loan(loan.asker, None);
        }
    }

    fn answer_loan(&mut self, asker: EndId, found: Option<FarEnd>) {
        let mut lent = Message::new(Kind::Lent);
        lent.cookie = asker.cookie;
        let mut socket = None;
        match found {
            Some(far) if far.may_be_lent => socket = Some(Passed::Socket(far.socket)),
            Some(far) => {
                lent.flags = FLAG_RESENDS;
                far.socket.close_now();
            }
            None => {}
        }
        if socket.is_none() {
            lent.status = Reason::NotEstablished as u8;
        }
        self.post(asker.client, lent, socket);
    }

    /// A client has bytes that are to be sent by the other end of the socket `fd`, which `asker` names.
    pub(super) fn resend(
        &mut self,
        asker: EndId,
        fd: i32,
        mut datagram: Datagram,
    ) -> Result<(), Malformed> {
        let (Some(bytes), true) = (datagram.fds.pop(), datagram.fds.is_empty()) else {
            return Err(Malformed);
        };
        let far = self.loan(asker, fd).and_then(|loan| self.far_end(&loan));
        let client = self.clients.get(&asker.client);
        let answer = client.and_then(|client| {
            let copy = fcntl_dupfd_cloexec(&client.socket, 0).ok()?;
            Some(Foreign::new(copy, &client.lane))
        });
        let begun = far.zip(answer).is_some_and(|(far, answer)| {
            let resend = Resend::new(asker.cookie, far.socket, bytes, answer);
            resend.is_some_and(|resend| far.lane.resend(resend))
        });
        if !begun {
            let mut refused = Message::new(Kind::Resent);
            (refused.cookie, refused.status) = (asker.cookie, Reason::NotEstablished as u8);
            self.post(asker.client, refused, None);
        }
        Ok(())
    }

    /// What a client wants of the other end of its socket, if it has that, and it has been paired here.
    fn loan(&self, asker: EndId, fd: i32) -> Option<Loan> {
        let client = self.clients.get(&asker.client)?;
        let look = inspect::look(client.pidfd.as_fd(), fd, asker.cookie, &client.lane);
        let Look::Found(own) = look else { return None };
        let far = self.paired_with(asker.cookie, client.uid);
        Some(Loan {
            asker,
            is_at_home: own.tuple.netns == client.netns,
            own,
            far: far.or_else(|| self.far_of(asker.cookie, own))?,
        })
    }

    /// With whom a user's socket is paired, or was.
    fn paired_with(&self, cookie: u64, user: u32) -> Option<Mate> {
        let ends = self
            .paired(cookie)
            .filter(|(id, ..)| self.user(id.client) == user);
        let newest = ends.last().and_then(|(_, _, mate)| mate);
        newest.or_else(|| self.left_behind.mate(user, cookie))
    }

    /// The paired end that is the other one of a socket of which nothing is known any more.
    fn far_of(&self, cookie: u64, own: Connected) -> Option<Mate> {
        let far = match self.mirrors.counterpart(cookie) {
            Counterpart::Found(mirror) => mirror.cookie,
            _ => return self.with_addresses(own.tuple.flipped()),
        };
        let (id, ..) = self.paired(far).last()?;
        self.ends.mate(id)
    }

    fn with_addresses(&self, tuple: Tuple) -> Option<Mate> {
        let mut paired = self.ends.with_tuple(tuple).iter().rev();
        let is_paired = |id: &&EndId| self.paired(id.cookie).any(|(other, ..)| other == **id);
        self.ends.mate(*paired.find(is_paired)?)
    }

    /// The paired ends that are this socket: the name of each, its descriptor, and its other end.
    pub(super) fn paired(&self, cookie: u64) -> impl Iterator<Item = (EndId, i32, Option<Mate>)> {
        self.ends.with_cookie(cookie).into_iter().filter_map(|id| {
            let end = self.ends.get(id)?;
            matches!(end.state, State::Paired(_)).then_some((id, end.fd, end.mate))
        })
    }

    /// A copy of the other end, from who was paired with it or was found to have it; as long as that is
    /// connected as it was.
    fn far_end(&mut self, loan: &Loan) -> Option<FarEnd> {
        let found = self.of_paired(loan).or_else(|| self.of_found(loan))?;
        if inspect::look_at(&found.socket) == Look::Found(loan.far.socket) {
            return Some(found);
        }
        found.socket.close_now();
        None
    }

    fn of_paired(&self, loan: &Loan) -> Option<FarEnd> {
        self.paired(loan.far.id.cookie).find_map(|(id, fd, _)| {
            let holder = self.clients.get(&id.client)?;
            let lane = Arc::clone(&holder.lane);
            let copy = |fd| inspect::copy(holder.pidfd.as_fd(), fd, Some(id.cookie), &lane).ok();
            // It may be known by another descriptor than that by which it was claimed.
            let shown = || holder.account.as_ref()?.descriptor_of(id.cookie);
            let socket = copy(fd).or_else(|| copy(shown()?))?;
            Some(FarEnd {
                socket,
                may_be_lent: self.may_have(loan, holder.uid),
                lane,
            })
        })
    }

    /// From a process that was found to have it.
    fn of_found(&mut self, loan: &Loan) -> Option<FarEnd> {
        let &(pid, fd) = self.lent.get(&loan.far.socket.inode)?;
        let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let status = process::status(pid)?;
        let lane = self.lanes.of(status.user);
        let cookie = Some(loan.far.id.cookie);
        let socket = inspect::copy(pidfd.as_fd(), fd, cookie, &lane).ok()?;
        Some(FarEnd {
            socket,
            // Who acts with the rights of others lends nothing.
            may_be_lent: status.group.is_some() && self.may_have(loan, status.user),
            lane,
        })
    }

    /// Whether the asker may have a descriptor that is this user's.
    fn may_have(&self, loan: &Loan, owner: u32) -> bool {
        let is_near = loan.far.socket.tuple.netns == loan.own.tuple.netns;
        is_near && loan.is_at_home && owner == self.user(loan.asker.client)
    }

    /// Begins to look who has the sockets that are asked for, if it is time.
    pub(super) fn look_for_loans(&mut self) {
        let loans = self.lending.take();
        if loans.is_empty() {
            return;
        }
        let inodes: Vec<_> = loans.iter().map(|loan| loan.far.socket.inode).collect();
        let own = std::process::id();
        let look = move || holders::descriptors_of(&inodes, own);
        if let Err(loans) = self.lending.begin(loans, look) {
            for loan in loans {
                self.answer_loan(loan.asker, None);
            }
        }
    }

    /// A look may be done.
    pub(super) fn loans_found(&mut self) {
        let Some((mut loans, found)) = self.lending.finish() else {
            return;
        };
        // Who was too hasty may have asked once more meanwhile.
        let is_found = |loan: &Loan| found.contains_key(&loan.far.socket.inode);
        loans.extend(self.lending.take_done(is_found));
        if self.lent.len() > KEPT {
            self.lent.clear();
        }
        self.lent.extend(found);
        for loan in loans {
            let lent = self.far_end(&loan);
            self.answer_loan(loan.asker, lent);
        }
    }
}
