//! Looks at the socket of a claim: by `pidfd_getfd` or, where that is refused (ptrace
//! rules, a container's seccomp filter), by its addresses. The second way shows whose the
//! socket is (the user's), not which of his processes holds it, so it is for a daemon
//! that serves one user only: he could at worst deceive himself.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

use super::{Daemon, Scope};
use crate::client::Client;
use crate::diag;
use crate::end::{EndId, State};
use crate::inspect::{self, Connected, Look};

impl Daemon {
    /// Looks at the socket of an end.
    pub(super) fn look(&self, id: EndId) -> Look {
        let (Some(client), Some(end)) = (self.clients.get(&id.client), self.ends.get(id)) else {
            return Look::Gone;
        };
        match inspect::look(client.pidfd.as_fd(), end.fd, id.cookie, &client.lane) {
            Look::Denied => self.look_by_name(id),
            other => other,
        }
    }

    /// Looks at the socket of an end that is being claimed. A claim ahead of `connect` names no
    /// addresses, and such a socket shows nothing yet. Such claims of a client are looked at only
    /// until a look has shown that its sockets can be seen.
    pub(super) fn look_at_claim(&mut self, id: EndId) -> Look {
        let is_named = self.ends.get(id).is_some_and(|end| end.named.is_some());
        let is_open = |client: &Client| client.is_open;
        if !is_named && self.clients.get(&id.client).is_some_and(is_open) {
            return Look::NotConnected;
        }
        let look = self.look(id);
        if let Some(client) = self.clients.get_mut(&id.client) {
            client.is_open = matches!(look, Look::Found(_) | Look::NotConnected);
        }
        look
    }

    fn look_by_name(&self, id: EndId) -> Look {
        let (Scope::User(uid), Some(end)) = (self.scope, self.ends.get(id)) else {
            return Look::Denied;
        };
        let Some([local, peer]) = end.named else {
            return Look::Unnamed;
        };
        match diag::find(local, peer) {
            Some(found) if self.may_own(id, uid, &found) && self.is_socket(id, &found) => {
                Look::Found(found.connected())
            }
            _ => Look::Denied,
        }
    }

    /// Whether a client may have made the socket: it belongs to the daemon's user, or to
    /// whom the client has become since (a server that gives up root).
    fn may_own(&self, id: EndId, user: u32, found: &diag::Found) -> bool {
        let now = || self.clients.get(&id.client)?.user_now();
        found.uid == user || now() == Some(found.uid)
    }

    /// Whether an end may be the socket that the kernel has found. Its cookie says so or,
    /// where the kernel tells none, the descriptor that `/proc` shows.
    fn is_socket(&self, id: EndId, found: &diag::Found) -> bool {
        match found.cookie {
            Some(cookie) => cookie == id.cookie,
            None => self
                .socket_of(id)
                .is_some_and(|(inode, _)| inode == found.inode),
        }
    }

    /// Inode number and owner of an end's socket, as `/proc` shows it.
    pub(super) fn socket_of(&self, id: EndId) -> Option<(u64, u32)> {
        self.socket_at(self.clients.get(&id.client)?.pid, self.ends.get(id)?.fd)
    }

    /// Inode number and owner of the socket that a descriptor of a process names, as `/proc`
    /// shows it.
    pub(super) fn socket_at(&self, pid: u32, fd: i32) -> Option<(u64, u32)> {
        if pid == 0 {
            return None; // It lives in a PID namespace that we cannot see.
        }
        let sockets = rustix::fs::fstat(&self.listener).ok()?.st_dev;
        socket_at(pid, fd, sockets)
    }

    /// The other end of `id` among claims of sockets that we may not look at, and whose
    /// addresses were not known when they were made: the kernel is asked for the socket
    /// with the mirrored addresses.
    pub(super) fn unnamed_partner(
        &self,
        id: EndId,
        claims: &[EndId],
    ) -> Option<(EndId, Connected)> {
        let Scope::User(uid) = self.scope else {
            return None;
        };
        let tuple = self.ends.get(id)?.tuple()?.flipped();
        let unnamed: Vec<_> = claims
            .iter()
            .copied()
            .filter(|claim| {
                self.ends
                    .get(*claim)
                    .is_some_and(|end| end.state == State::Unresolved)
                    && self.look(*claim) == Look::Unnamed
            })
            .collect();
        if unnamed.is_empty() {
            return None;
        }
        let found = diag::find(tuple.local.into(), tuple.peer.into())?;
        let is_it = |claim: &EndId| found.tuple == tuple && self.is_socket(*claim, &found);
        let other = unnamed.into_iter().find(is_it)?;
        self.may_own(other, uid, &found)
            .then(|| (other, found.connected()))
    }
}

/// Inode number and owner of a descriptor that names a socket: numbers are the sockets' own on
/// their device only.
fn socket_at(pid: u32, fd: i32, device: u64) -> Option<(u64, u32)> {
    let found = std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
    (found.dev() == device).then(|| (found.ino(), found.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn what_is_no_socket_has_no_sockets_number() {
        let (one, other) = (
            TcpListener::bind("127.0.0.1:0").unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let pipe = rustix::pipe::pipe().unwrap().0;
        let stat = rustix::fs::fstat(&one).unwrap();
        let at = |fd: i32| {
            let device = rustix::fs::fstat(&other).unwrap().st_dev;
            socket_at(std::process::id(), fd, device)
        };
        assert_eq!(at(one.as_raw_fd()), Some((stat.st_ino, stat.st_uid)));
        assert_eq!(at(pipe.as_raw_fd()), None);
    }
}
