//! Claims of sockets that their claimants did not make: inherited by exec, or passed
//! in a message. Each waits until the processes have been looked through, and for a
//! while longer if another still has the socket, as who passes one on closes its copy
//! soon. A thread of its own looks, for all that wait at once, and rests nine times as
//! long as that kept a core busy.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};
use shunt_abi::Reason;

use super::{Daemon, Scope};
use crate::end::{EndId, State};
use crate::holders::{self, Holders};
use crate::inspect::{self, Look as Seen};

/// See the module.
const REST: u32 = 9;
/// At least this long it rests.
const BREAK: Duration = Duration::from_millis(1);
/// So long a claim waits; later its client asks again.
const PATIENCE: Duration = Duration::from_millis(200);

/// A claim that waits for a look.
#[derive(Clone, Copy, Debug)]
struct Claim {
    id: EndId,
    /// How many descriptors of its claimant name the socket.
    copies: u32,
    until: Instant,
}

/// What a look has found, and how long it kept a core busy.
type Found = (HashMap<u64, Holders>, Duration);

/// A look under way.
#[derive(Debug)]
struct Look {
    /// With the inode numbers of their sockets.
    claims: Vec<(Claim, u64)>,
    found: Receiver<Found>,
}

/// Claims that wait.
#[derive(Debug)]
pub(super) struct Adopting {
    claims: Vec<Claim>,
    look: Option<Look>,
    rests_until: Option<Instant>,
    bell: Arc<OwnedFd>,
}

impl Adopting {
    /// No claims yet.
    pub(super) fn new() -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            claims: Vec::new(),
            look: None,
            rests_until: None,
            bell: Arc::new(eventfd(0, flags)?),
        })
    }

    /// Readable when a look is done.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// One more claim waits.
    pub(super) fn add(&mut self, id: EndId, copies: u32) {
        self.claims.push(Claim {
            id,
            copies,
            until: Instant::now() + PATIENCE,
        });
    }

    /// How long until the next look; `None`: nobody waits for one, or one is under way.
    pub(super) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = self.rests_until.unwrap_or(now);
        let waits = !self.claims.is_empty() && self.look.is_none();
        waits.then(|| until.saturating_duration_since(now))
    }
}

impl Daemon {
    /// Begins to look who has the sockets that wait for it, if it is time.
    pub(super) fn adopt(&mut self) {
        if self.adopting.left() != Some(Duration::ZERO) {
            return;
        }
        let claims: Vec<_> = std::mem::take(&mut self.adopting.claims)
            .into_iter()
            .filter_map(|claim| Some((claim, self.inode(claim.id)?)))
            .collect();
        if claims.is_empty() {
            return;
        }
        let inodes: Vec<_> = claims.iter().map(|claim| claim.1).collect();
        let (done, found) = sync_channel(1);
        let bell = Arc::clone(&self.adopting.bell);
        // We hold copies for moments only, unless we live in a client's process.
        let own = std::process::id();
        let lives_in = |id: EndId| self.clients.get(&id.client).is_some_and(|c| c.pid == own);
        let except = (!claims.iter().any(|(claim, _)| lives_in(claim.id))).then_some(own);
        let look = move || {
            let holders = holders::of(&inodes, except);
            let busy = clock_gettime(ClockId::ThreadCPUTime);
            let busy = Duration::try_from(busy).unwrap_or_default();
            let _ = done.send((holders, busy));
            let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
        };
        let thread = std::thread::Builder::new().name("shuntd-look".to_owned());
        if thread.spawn(look).is_ok() {
            self.adopting.look = Some(Look { claims, found });
        } else {
            for (claim, _) in claims {
                self.answer_adopted(claim.id, false);
            }
        }
    }

    /// A look is done.
    pub(super) fn adopt_found(&mut self) {
        let _ = rustix::io::read(self.adopting.bell(), &mut [0; 8][..]);
        let Some(Look { claims, found }) = self.adopting.look.take() else {
            return;
        };
        // Nothing, should it have failed: then everybody asks again.
        let (found, busy) = found.recv().unwrap_or_default();
        let now = Instant::now();
        for (claim, inode) in claims {
            let pid = self.clients.get(&claim.id.client).map(|client| client.pid);
            let alone = pid.zip(found.get(&inode)).is_some_and(|(pid, holders)| {
                holders.len() == 1 && holders.get(&pid) == Some(&claim.copies)
            });
            if alone || now >= claim.until {
                self.answer_adopted(claim.id, alone);
            } else {
                self.adopting.claims.push(claim);
            }
        }
        self.adopting.rests_until = Some(now + (busy * REST).max(BREAK));
        self.log
            .event(|| format!("looked through the processes for {busy:?}"));
    }

    /// The number of the socket of a claim that still waits. One that another user's
    /// process has made may have holders that only root can see.
    fn inode(&mut self, id: EndId) -> Option<u64> {
        let end = self.ends.get(id)?;
        if end.state != State::Adopting {
            return None;
        }
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
            Err(Seen::Denied) if self.scope != Scope::Host => self.socket_of(id),
            Err(_) => None,
        };
        let seen = |owner: u32| user.is_root() || owner == user.as_raw();
        let inode = found.filter(|found| seen(found.1)).map(|found| found.0);
        if inode.is_none() {
            self.answer_adopted(id, false);
        }
        inode
    }

    fn answer_adopted(&mut self, id: EndId, alone: bool) {
        let Some(end) = self.ends.get_mut(id) else {
            return;
        };
        if end.state != State::Adopting {
            return;
        }
        if alone {
            end.state = State::Waiting;
            self.match_up(id);
        } else {
            let fd = end.fd;
            self.remove_end(id);
            self.send_unpaired(id, fd, Reason::Held as u8);
        }
    }
}
