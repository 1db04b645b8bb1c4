//! The list of connections for `shunt ss`.

use std::collections::HashSet;

use shunt_abi::Reason;
use shunt_abi::message::{FLAG_SHUNTED, Kind, Message, Role};

use super::dispatch::Malformed;
use super::{Daemon, LISTS, Scope};
use crate::client::Client;
use crate::end::{End, EndId, State};
use crate::inspect::Look;
use crate::tuple::{FAMILIES, Tuple, bytes};

impl Daemon {
    /// Queues a row per connection; they are sent as fast as the client reads.
    pub(super) fn list(&mut self, id: u64) -> Result<(), Malformed> {
        let Some(client) = self.clients.get(&id) else {
            return Ok(());
        };
        if client.has_unsent() {
            return Err(Malformed); // It has not read its last list yet.
        }
        let uid = client.uid;
        if self.per_user.get(&uid).is_some_and(|s| s.lists >= LISTS) {
            return Err(Malformed); // Nor have others of its user.
        }
        self.resolve_reported();
        let mut rows = self.rows(uid);
        rows.push(Message::new(Kind::End));
        if let Some(client) = self.clients.get_mut(&id) {
            client.rows = rows.into();
            if client.flush(&self.board).is_err() {
                self.doomed.push(id);
            }
        }
        self.watch(id);
        Ok(())
    }

    /// Looks up the addresses of ends that were reported but never claimed, and
    /// forgets those that are closed.
    fn resolve_reported(&mut self) {
        let unknown =
            |(_, end): &(EndId, &End)| matches!(end.state, State::Reported | State::Unresolved);
        let ids: Vec<_> = self.ends.iter().filter(unknown).map(|(id, _)| id).collect();
        for id in ids {
            match self.look(id) {
                Look::Found(tuple) => self.ends.resolve(id, tuple),
                Look::Gone => self.forget_end(id),
                Look::NotConnected | Look::Denied | Look::NoRoom => {}
            }
        }
    }

    /// Both ends of a connection make one row. The accepting end comes first.
    fn rows(&self, uid: u32) -> Vec<Message> {
        let mut seen = HashSet::new();
        let mut rows = Vec::new();
        for (_, end) in self.ends.iter() {
            let Some(tuple) = end.tuple() else { continue };
            if !seen.insert(tuple) {
                continue;
            }
            seen.insert(tuple.flipped());
            let (own, other) = (self.best(tuple), self.best(tuple.flipped()));
            let own_accepts =
                own.is_some_and(|id| self.accepts(id)) || other.is_some_and(|id| !self.accepts(id));
            let ends = if own_accepts {
                [own, other]
            } else {
                [other, own]
            };
            if ends.iter().flatten().any(|id| self.may_see(uid, *id)) {
                rows.push(self.row(if own_accepts { tuple } else { tuple.flipped() }, ends));
            }
        }
        rows
    }

    fn accepts(&self, id: EndId) -> bool {
        let Some(end) = self.ends.get(id) else {
            return false;
        };
        // A report need not name the role, but an accepted connection has its
        // listener's port.
        let port = end.tuple().map(|tuple| tuple.local.1);
        let listens = |client: &Client| client.listeners.values().any(|p| Some(*p) == port);
        end.role == Role::Acceptor
            || end.state == State::Reported && self.clients.get(&id.client).is_some_and(listens)
    }

    /// Of several holders of the same end (`fork`), the one that is paired.
    fn best(&self, tuple: Tuple) -> Option<EndId> {
        let ids = self.ends.with_tuple(tuple);
        let paired = |id: &&EndId| {
            self.ends
                .get(**id)
                .is_some_and(|e| matches!(e.state, State::Paired(_)))
        };
        ids.iter().find(paired).or(ids.last()).copied()
    }

    /// A user sees his own processes' connections, root sees all.
    fn may_see(&self, uid: u32, id: EndId) -> bool {
        self.scope != Scope::Host
            || uid == 0
            || self
                .clients
                .get(&id.client)
                .is_some_and(|client| client.uid == uid)
    }

    /// What the two ends of a connection report. "Shunted" is believed of an end
    /// that has a slot; after a restart of the daemon nobody has one, and then
    /// both ends must say so.
    fn reports(&self, ends: [Option<EndId>; 2]) -> [Option<u8>; 2] {
        let known = ends.map(|end| end.and_then(|id| self.ends.get(id)));
        let agreed = known
            .iter()
            .all(|end| end.is_some_and(|end| end.status == Some(0)));
        known.map(|end| {
            let end = end?;
            let believed = agreed || matches!(end.state, State::Paired(_));
            end.status.filter(|&status| status != 0 || believed)
        })
    }

    fn row(&self, tuple: Tuple, ends: [Option<EndId>; 2]) -> Message {
        let mut row = Message::new(Kind::Row);
        row.family = if tuple.local.0.is_ipv4() {
            FAMILIES.0
        } else {
            FAMILIES.1
        };
        row.addresses = [bytes(tuple.local.0), bytes(tuple.peer.0)];
        row.ports = [tuple.local.1, tuple.peer.1];
        let holder = |end: Option<EndId>| end.and_then(|id| self.clients.get(&id.client));
        if let Some(client) = holder(ends[0]) {
            row.pids[0] = client.pid;
            row.name = client.comm;
        }
        if let Some(client) = holder(ends[1]) {
            row.pids[1] = client.pid;
            row.peer_name = client.comm;
        }
        let reports = self.reports(ends);
        row.status = overall(reports);
        if row.status == 0 {
            row.flags |= FLAG_SHUNTED;
        }
        row
    }
}

/// One status for a connection out of what its ends reported.
fn overall(reports: [Option<u8>; 2]) -> u8 {
    let reasons = || {
        reports
            .iter()
            .flatten()
            .copied()
            .filter(|&status| status != 0)
    };
    // "The other end could not" says less than what the other end itself says.
    reasons()
        .find(|&status| status != Reason::PeerRefused as u8)
        .or_else(|| reasons().next())
        .or_else(|| reports.iter().flatten().next().copied())
        .unwrap_or(Reason::Pending as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_telling_reason_wins() {
        let refused = Reason::PeerRefused as u8;
        assert_eq!(overall([None, None]), Reason::Pending as u8);
        assert_eq!(overall([Some(0), None]), 0);
        assert_eq!(overall([Some(refused), Some(13)]), 13);
        assert_eq!(overall([Some(refused), None]), refused);
        assert_eq!(overall([Some(0), Some(13)]), 13);
    }
}
