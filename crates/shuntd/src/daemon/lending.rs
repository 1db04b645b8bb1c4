//! Lends the descriptor of a connection's other end, so that a process that gives up
//! shared memory can send to itself what it has not read there, while its peer is
//! busy elsewhere.
//!
//! Only for a connection that this daemon has paired, to who holds its other end,
//! and within one user: a copy that is kept would keep the peer's end of file back.
//!
//! Either end may be a forked child's, of which this daemon knows nothing, when the process
//! that was paired has gone. Then the processes are looked through for who has the other end.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;

use rustix::process::{Pid, PidfdFlags};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};

use super::Daemon;
use crate::client::{Client, Passed};
use crate::end::{EndId, State};
use crate::foreign::Foreign;
use crate::inspect::{self, Look};
use crate::scan::Scan;
use crate::tuple::Tuple;
use crate::{diag, holders, process};

/// Who waits for the other end of its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loan {
    asker: EndId,
    /// The other end's, as the kernel says.
    inode: u64,
    cookie: Option<u64>,
}

/// A process, and its descriptor of a socket.
type Holder = (u32, i32);

/// Loans that wait, and who has those sockets.
pub(super) type Lending = Scan<Loan, HashMap<u64, Holder>>;

/// So many finds are kept for who asks once more, having been too hasty.
const KEPT: usize = 64;

/// So many sockets at a time are looked for on behalf of one client.
const WAITING: usize = 64;

/// Ends that were paired when their clients went or let go of them, with their users: forked
/// children may go on with them.
#[derive(Debug, Default)]
pub(super) struct LeftBehind(VecDeque<(u32, u64)>);

impl LeftBehind {
    /// So many are remembered.
    const MOST: usize = 16_384;

    pub(super) fn add(&mut self, user: u32, cookie: u64) {
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((user, cookie));
    }

    fn has(&self, user: u32, cookie: u64) -> bool {
        self.0.contains(&(user, cookie))
    }
}

impl Daemon {
    /// A paired end was let go by its client, a child of which may go on with it.
    pub(super) fn leave_behind(&mut self, end: EndId) {
        if let Some(client) = self.clients.get(&end.client) {
            self.left_behind.add(client.uid, end.cookie);
        }
    }

    /// A client asks for the other end of the socket `fd`, which `asker` names.
    pub(super) fn lend(&mut self, asker: EndId, fd: i32) {
        let tuple = self.asked_for(asker, fd);
        let lent = tuple.and_then(|tuple| self.other_end(asker, tuple));
        let loan = || self.loan(asker, tuple?);
        match if lent.is_none() { loan() } else { None } {
            Some(loan) => match self.copy_of(loan) {
                None => self.look_for(loan),
                lent => self.answer_loan(asker, lent),
            },
            None => self.answer_loan(asker, lent),
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

    fn answer_loan(&mut self, asker: EndId, socket: Option<Foreign>) {
        let mut lent = Message::new(Kind::Lent);
        lent.cookie = asker.cookie;
        if socket.is_none() {
            lent.status = Reason::NotEstablished as u8;
        }
        self.post(asker.client, lent, socket.map(Passed::Socket));
    }

    /// The addresses of the other end, in the network namespace of its client: it may hold sockets of
    /// others, which it was passed, but what it is lent is never one of those.
    fn asked_for(&self, asker: EndId, fd: i32) -> Option<Tuple> {
        let client = self.clients.get(&asker.client)?;
        match inspect::look(client.pidfd.as_fd(), fd, asker.cookie, &client.lane) {
            Look::Found(tuple) if tuple.netns == client.netns => Some(tuple.flipped()),
            _ => None,
        }
    }

    /// Clients of this user with a paired end of these addresses.
    fn paired(&self, user: u32, tuple: Tuple) -> impl Iterator<Item = (EndId, i32, &Client)> {
        self.ends.with_tuple(tuple).iter().filter_map(move |id| {
            let (end, holder) = (self.ends.get(*id)?, self.clients.get(&id.client)?);
            let paired = matches!(end.state, State::Paired(_)) && holder.uid == user;
            paired.then_some((*id, end.fd, holder))
        })
    }

    fn other_end(&self, asker: EndId, tuple: Tuple) -> Option<Foreign> {
        let user = self.clients.get(&asker.client)?.uid;
        self.paired(user, tuple).find_map(|(id, fd, holder)| {
            // Its copy waits in the lane of the user who pays for it.
            inspect::copy(holder.pidfd.as_fd(), fd, Some(id.cookie), &holder.lane).ok()
        })
    }

    /// What to look for in the processes: the connection has been paired here.
    fn loan(&self, asker: EndId, tuple: Tuple) -> Option<Loan> {
        let user = self.clients.get(&asker.client)?.uid;
        let is_paired = |tuple| self.paired(user, tuple).next().is_some();
        let was_paired = || self.left_behind.has(user, asker.cookie);
        if !(is_paired(tuple.flipped()) || is_paired(tuple) || was_paired()) {
            return None;
        }
        let found = diag::find(tuple.local.into(), tuple.peer.into())?;
        (found.tuple == tuple).then_some(Loan {
            asker,
            inode: found.inode,
            cookie: found.cookie,
        })
    }

    /// A copy of a descriptor that was found at a process of the asker's user.
    fn copy_of(&self, loan: Loan) -> Option<Foreign> {
        let client = self.clients.get(&loan.asker.client)?;
        let &(pid, fd) = self.lent.get(&loan.inode)?;
        let pidfd = Pid::from_raw(pid.cast_signed())
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())?;
        // Who acts with the rights of others lends nothing.
        let status = process::status(pid)?;
        if status.user != client.uid || status.group.is_none() {
            return None;
        }
        let socket = inspect::copy(pidfd.as_fd(), fd, loan.cookie, &client.lane).ok()?;
        let is_it = rustix::fs::fstat(&socket).is_ok_and(|stat| stat.st_ino == loan.inode);
        if !is_it {
            socket.close_now();
            return None;
        }
        Some(socket)
    }

    /// Begins to look who has the sockets that are asked for, if it is time.
    pub(super) fn look_for_loans(&mut self) {
        let loans = self.lending.take();
        if loans.is_empty() {
            return;
        }
        let inodes: Vec<_> = loans.iter().map(|loan| loan.inode).collect();
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
        loans.extend(
            self.lending
                .take_done(|loan| found.contains_key(&loan.inode)),
        );
        if self.lent.len() > KEPT {
            self.lent.clear();
        }
        self.lent.extend(found);
        for loan in loans {
            let lent = self.copy_of(loan);
            self.answer_loan(loan.asker, lent);
        }
    }
}
