//! Claims of sockets that their claimants did not make: inherited by exec, or passed
//! in a message. Each waits until the processes have been looked through, and for a
//! while longer if another still has the socket, as who passes one on closes its copy
//! soon. And questions of the same kind: whether a process alone has one of its
//! connections, which may come back to its rings then.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};

use super::{Daemon, Scope};
use crate::end::{End, EndId, State};
use crate::holders::{self, Holders};
use crate::inspect::{self, Look};
use crate::scan::Scan;

/// How long a claim waits for a look; later its client asks again.
const PATIENCE: Duration = Duration::from_millis(200);

/// A claim that waits for a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    id: EndId,
    /// How many descriptors of its claimant name the socket.
    copies: u32,
    until: Instant,
    /// The number of its socket, once it is looked for.
    inode: u64,
    /// It is a question of that number, and no claim.
    question: Option<u32>,
}

/// Claims that wait, and who has their sockets.
pub(super) type Adopting = Scan<Claim, HashMap<u64, Holders>>;

impl Daemon {
    /// One more claim waits.
    pub(super) fn await_adoption(&mut self, id: EndId, copies: u32) {
        self.adopting.add(Claim {
            id,
            copies,
            until: Instant::now() + PATIENCE,
            inode: 0,
            question: None,
        });
    }

    /// A client asks whether it alone has a connection of its.
    pub(super) fn ask_alone(&mut self, id: EndId, question: &Message) {
        let number = question.generation;
        let Some(end) = self.ends.get_mut(id) else {
            return self.say_alone(id, question.fd, number, false);
        };
        end.fd = question.fd;
        end.asks = Some(number);
        let claim = Claim {
            id,
            copies: question.index,
            until: Instant::now(),
            inode: 0,
            question: Some(number),
        };
        // A look that is under way may have passed by who has it since.
        let waits = |other: &&mut Claim| other.id == id && other.question.is_some();
        if let Some(waiting) = self.adopting.waiting().find(waits) {
            *waiting = claim;
        } else {
            self.adopting.add(claim);
        }
    }

    fn say_alone(&mut self, id: EndId, fd: i32, question: u32, alone: bool) {
        let mut answer = Message::new(Kind::Alone);
        answer.generation = question;
        (answer.cookie, answer.fd) = (id.cookie, fd);
        answer.status = if alone { 0 } else { Reason::Held as u8 };
        self.post(id.client, answer, None);
    }

    /// Begins to look who has the sockets that wait for it, if it is time.
    pub(super) fn adopt(&mut self) {
        let mut claims = self.adopting.take();
        claims.retain_mut(|claim| {
            let inode = self.inode(*claim);
            claim.inode = inode.unwrap_or(0);
            inode.is_some()
        });
        if claims.is_empty() {
            return;
        }
        let inodes: Vec<_> = claims.iter().map(|claim| claim.inode).collect();
        // We hold copies for moments only, unless we live in a client's process.
        let own = std::process::id();
        let lives_in = |id: EndId| self.clients.get(&id.client).is_some_and(|c| c.pid == own);
        let except = (!claims.iter().any(|claim| lives_in(claim.id))).then_some(own);
        let look = move || holders::of(&inodes, except);
        if let Err(claims) = self.adopting.begin(claims, look) {
            for claim in claims {
                self.answer_adopted(claim, false);
            }
        }
    }

    /// A look may be done.
    pub(super) fn adopt_found(&mut self) {
        // Nothing is found, should it have failed: then everybody asks again.
        let Some((claims, found)) = self.adopting.finish() else {
            return;
        };
        let now = Instant::now();
        for claim in claims {
            let pid = self.clients.get(&claim.id.client).map(|client| client.pid);
            let alone = pid
                .zip(found.get(&claim.inode))
                .is_some_and(|(pid, holders)| {
                    holders.len() == 1 && holders.get(&pid) == Some(&claim.copies)
                });
            if alone || now >= claim.until {
                self.answer_adopted(claim, alone);
            } else {
                self.adopting.add(claim);
            }
        }
    }

    /// The number of the socket of a claim that still waits. One that another user's
    /// process has made may have holders that only root can see.
    fn inode(&mut self, claim: Claim) -> Option<u64> {
        let id = claim.id;
        let end = self.ends.get(id).filter(|end| claim.is_open(end))?;
        let client = self.clients.get(&id.client)?;
        let user = geteuid();
        let found = match inspect::copy(client.pidfd.as_fd(), end.fd, Some(id.cookie), &client.lane)
        {
            Ok(socket) => {
                let stat = rustix::fs::fstat(&socket);
                socket.close_now();
                stat.ok().map(|stat| (stat.st_ino, stat.st_uid))
            }
            // What a user's own daemon may believe of him: see `looking`.
            Err(Look::Denied) if self.scope != Scope::Host => self.socket_of(id),
            Err(_) => None,
        };
        let seen = |owner: u32| user.is_root() || owner == user.as_raw();
        let inode = found.filter(|found| seen(found.1)).map(|found| found.0);
        if inode.is_none() {
            self.answer_adopted(claim, false);
        }
        inode
    }

    /// What has been found out of a claim, or of a question.
    fn answer_adopted(&mut self, claim: Claim, alone: bool) {
        let id = claim.id;
        let Some(end) = self.ends.get_mut(id).filter(|end| claim.is_open(end)) else {
            return;
        };
        if let Some(question) = claim.question {
            end.asks = None;
            let (fd, mate) = (end.fd, end.mate);
            // What is not allowed any more stays on TCP.
            let is_denied = mate.is_some_and(|mate| self.denies(id, mate.id));
            return self.say_alone(id, fd, question, alone && !is_denied);
        }
        if alone {
            end.state = State::Waiting;
            self.match_up(id);
        } else {
            self.drop_claim(id, Reason::Held);
        }
    }
}

impl Claim {
    /// Whether its client still waits for what is found.
    fn is_open(&self, end: &End) -> bool {
        match self.question {
            Some(_) => end.asks == self.question,
            None => end.state == State::Adopting,
        }
    }
}
