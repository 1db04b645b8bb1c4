//! Who knocks, and who is let in.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};

use super::posting::interest;
use super::{Daemon, LISTENER, PIDFD, SOCKET, Scope, dispatch};
use crate::client::Client;
use crate::foreign::{Foreign, Lane};
use crate::{sys, wire};

/// Guests are processes of users whom root's own daemon does not serve; they had been root's
/// before. It lists them, and writes their lines of statistics. The most of them that it takes in
/// all, …
const GUESTS: usize = 1024;
/// … and the most of one user.
const GUESTS_PER_USER: usize = GUESTS / 4;
/// Clients that one process may be. It is one, and for a moment another by `exec` or by
/// `shunt downgrade`.
const PER_PROCESS: usize = 64;

impl Daemon {
    /// Takes everybody who knocks.
    pub(super) fn accept(&mut self) {
        loop {
            // First: who is let in must not take the one by which others are turned away.
            if self.reserve.is_none() && !self.keep_reserve() {
                return self.hear(false);
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match self.next_guest(flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Turn the client away, or its connection would wake us for
                    // ever: it stays on TCP.
                    self.reserve = None;
                    // EMFILE comes before a look at the queue, which may be empty.
                    let Ok(socket) = self.next_guest(flags) else {
                        self.reserve = spare_descriptor();
                        return;
                    };
                    let uid = sys::peer_credentials(&socket).map_or(u32::MAX, |(_, uid)| uid);
                    drop(Foreign::new(socket, &self.lanes.of(uid)));
                    self.reserve = spare_descriptor();
                    self.log
                        .error("out of descriptors: a client was turned away; raise LimitNOFILE");
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Who knocks next, at the address or at the file.
    fn next_guest(&self, flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
        let accept = |listener| rustix::net::accept_with(listener, flags);
        match (accept(&self.listener), &self.file) {
            (Err(Errno::AGAIN), Some(file)) => accept(file),
            (guest, _) => guest,
        }
    }

    /// Makes a spare descriptor. `false`: there is none, and we are told of the next.
    fn keep_reserve(&mut self) -> bool {
        // One may become free just before that.
        self.lanes.room.want();
        self.reserve = spare_descriptor();
        self.reserve.is_some()
    }

    /// Starts or stops to listen; stopped while there is no descriptor at all.
    pub(super) fn hear(&mut self, on: bool) {
        if on != self.deaf {
            return;
        }
        let flags = if on {
            epoll::EventFlags::IN
        } else {
            epoll::EventFlags::empty()
        };
        let data = epoll::EventData::new_u64(LISTENER);
        let listeners = [Some(&self.listener), self.file.as_ref()];
        let hear = |listener| epoll::modify(&self.epoll, listener, data, flags);
        if listeners.into_iter().flatten().map(hear).all(|h| h.is_ok()) {
            self.deaf = !on;
        }
        if on {
            self.reserve = spare_descriptor();
        }
    }

    /// Whether one more process of a user may be known here, of whom `known` are, and so
    /// many of users who are not served.
    pub(super) fn has_room_for(&self, uid: u32, known: usize, guests: usize) -> bool {
        if self.serves(uid) {
            return known < self.config.limits.clients_per_user;
        }
        // Who has been another user's trusts no daemon of his any more.
        self.scope == Scope::User(0) && known < GUESTS_PER_USER && guests < GUESTS
    }

    /// Whether a process may be one more client, and its network namespace may have one more of its
    /// user. Root of each container is one user, so a part of a user's places is kept for the
    /// daemon's own namespace, and no other one gets more than another part.
    fn has_place_for(&self, pid: u32, uid: u32, netns: u64) -> bool {
        let part = (self.config.limits.clients_per_user / 4).max(1);
        let for_others = self.config.limits.clients_per_user.saturating_sub(part);
        let [mut of_process, mut of_namespace, mut of_others] = [0; 3];
        for client in self.clients.values().filter(|client| client.uid == uid) {
            let is_there = client.netns == netns;
            // Processes of PID namespaces that we cannot see have no number.
            of_process += usize::from(is_there && pid != 0 && client.pid == pid);
            of_namespace += usize::from(is_there);
            of_others += usize::from(client.netns != self.address.0);
        }
        let is_ours = netns == self.address.0;
        of_process < PER_PROCESS && (is_ours || of_namespace < part && of_others < for_others)
    }

    /// Makes a client of a new connection, or turns it away.
    fn admit(&mut self, socket: OwnedFd) {
        let (pid, uid) = sys::peer_credentials(&socket).unwrap_or((0, u32::MAX));
        let lane = self.lanes.of(uid);
        let socket = Foreign::new(socket, &lane);
        let known = self.per_user.get(&uid).map_or(0, |share| share.clients);
        let guests = self.clients.values().filter(|c| !self.serves(c.uid));
        // The kernel has made it in the namespace of whoever connected.
        let netns = sys::netns_cookie(&socket).unwrap_or(0);
        if !self.has_room_for(uid, known, guests.count())
            || !self.has_place_for(pid, uid, netns)
            || lane.is_full()
        {
            let reason = if !self.serves(uid) {
                Reason::OtherUser
            } else {
                Reason::NoResources
            };
            self.log
                .event(|| format!("pid {pid} of user {uid} turned away: {}", reason.name()));
            return turn_away(&socket, &lane, reason);
        }
        let Ok(board) = self.board(netns) else {
            return turn_away(&socket, &lane, Reason::NoResources);
        };
        let by_number = || {
            let pid = Pid::from_raw(pid.cast_signed()).ok_or(Errno::SRCH)?;
            rustix::process::pidfd_open(pid, PidfdFlags::empty())
        };
        let Ok(pidfd) = sys::peer_pidfd(&socket).or_else(|_| by_number()) else {
            return;
        };
        self.last_client += 1;
        let id = self.last_client;
        let data = |kind| epoll::EventData::new_u64(id << 2 | kind);
        let watched = epoll::add(&self.epoll, &socket, data(SOCKET), interest(false, true))
            .and_then(|()| epoll::add(&self.epoll, &pidfd, data(PIDFD), epoll::EventFlags::IN));
        if watched.is_ok() {
            self.per_user.entry(uid).or_default().clients += 1;
            let client = Client::new(socket, lane, pidfd, (pid, uid), (netns, board));
            self.clients.insert(id, client);
        }
    }
}

/// Says why it is not served, and that it hears that.
fn turn_away(socket: &Foreign, lane: &Arc<Lane>, reason: Reason) {
    let mut refusal = Message::new(Kind::Welcome);
    refusal.status = reason as u8;
    let _ = wire::send(socket.as_fd(), &refusal, None);
    dispatch::drain(socket, lane);
}

/// A descriptor that exists only to be closed when none is left.
pub(super) fn spare_descriptor() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}
