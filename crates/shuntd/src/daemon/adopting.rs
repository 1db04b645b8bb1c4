//! Claims of sockets that their claimants did not make: inherited by exec, or passed
//! in a message. Each waits until the processes have been looked through, and for a
//! while longer if another still has the socket, as who passes one on closes its copy
//! soon. One look serves all that wait, and looks take a tenth of the daemon's time.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use shunt_abi::Reason;

use super::Daemon;
use crate::end::{EndId, State};
use crate::{holders, inspect};

/// The daemon looks this many times as long as a look took elsewhere.
const REST: u32 = 9;
/// At least this long it looks elsewhere.
const BREAK: Duration = Duration::from_millis(1);
/// So long a claim waits; later its client asks again.
const PATIENCE: Duration = Duration::from_millis(200);

/// A claim that waits for a look.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: EndId,
    /// How many descriptors of its claimant name the socket.
    copies: u32,
    until: Instant,
}

/// Claims that wait for a look.
#[derive(Debug, Default)]
pub(super) struct Adopting {
    claims: Vec<Waiting>,
    rests_until: Option<Instant>,
}

impl Adopting {
    /// One more claim waits.
    pub(super) fn add(&mut self, id: EndId, copies: u32) {
        self.claims.push(Waiting {
            id,
            copies,
            until: Instant::now() + PATIENCE,
        });
    }

    /// How long until the next look; `None`: nobody waits for one.
    pub(super) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = self.rests_until.unwrap_or(now);
        (!self.claims.is_empty()).then(|| until.saturating_duration_since(now))
    }
}

impl Daemon {
    /// Looks who has the sockets that wait for it, if it is time.
    pub(super) fn adopt(&mut self) {
        if self.adopting.left() != Some(Duration::ZERO) {
            return;
        }
        let start = Instant::now();
        let claims: Vec<_> = std::mem::take(&mut self.adopting.claims)
            .into_iter()
            .filter_map(|claim| Some((claim, self.inode(claim.id)?)))
            .collect();
        let found = holders::of(claims.iter().map(|claim| claim.1));
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
        let rest = (now - start) * REST;
        self.adopting.rests_until = Some(now + rest.max(BREAK));
        self.log
            .event(|| format!("looked through the processes in {:?}", now - start));
    }

    /// The number of the socket of a claim that still waits.
    fn inode(&mut self, id: EndId) -> Option<u64> {
        let end = self.ends.get(id)?;
        if end.state != State::Adopting {
            return None;
        }
        let client = self.clients.get(&id.client)?;
        let copy = inspect::copy(client.pidfd.as_fd(), end.fd, id.cookie, &client.lane).ok();
        let inode = copy.and_then(|socket| {
            let stat = rustix::fs::fstat(&socket);
            socket.close_now();
            Some(stat.ok()?.st_ino)
        });
        if inode.is_none() {
            self.answer_adopted(id, false);
        }
        inode
    }

    fn answer_adopted(&mut self, id: EndId, alone: bool) {
        let Some(end) = self.ends.get_mut(id) else {
            return;
        };
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
