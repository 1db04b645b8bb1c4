//! The list of connections for `shunt ss`.

use std::collections::HashMap;
use std::time::Instant;

use shunt_abi::Reason;
use shunt_abi::detail::{FLAG_DETAILS, FLAG_TOGETHER, MOST_TOGETHER, TOGETHER};
use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED, Kind, Message, Role};

use super::detailing::{detail, now};
use super::dispatch::Malformed;
use super::elsewhere::Open;
use super::grouping::{Side, grouped, is_paired};
use super::seeing::{Face, Faces, Sight, View, one_way};
use super::turns::Asked;
use super::{Daemon, LISTS};
use crate::client::Client;
use crate::diag::{self, dump};
use crate::end::{End, EndId, Left, State};
use crate::holders;
use crate::inspect::Look;
use crate::namespaces;
use crate::tuple::{FAMILIES, Tuple, bytes};

impl Daemon {
    /// A client asks for a list.
    pub(super) fn list(&mut self, id: u64, asked: &Message) -> Result<(), Malformed> {
        let Some(client) = self.clients.get(&id) else {
            return Ok(());
        };
        let user = client.uid;
        if client.has_unsent() || self.has_list_of(id) {
            return Err(Malformed); // It has not read its last list yet.
        }
        if self.per_user.get(&user).is_some_and(|s| s.lists >= LISTS) {
            return Err(Malformed); // Nor have others of its user.
        }
        if let Some(client) = self.clients.get_mut(&id) {
            client.together = together(asked);
        }
        self.list_in_turn(Asked {
            client: id,
            user,
            details: asked.flags & FLAG_DETAILS != 0,
        });
        Ok(())
    }

    /// Whether a client waits for a list.
    pub(super) fn has_list_of(&self, id: u64) -> bool {
        self.turns.has_list_of(id) || self.elsewhere.has_list_of(id)
    }

    /// Makes a row per connection. They are sent when nothing more can be found out about them.
    pub(super) fn make_list(
        &mut self,
        Asked {
            client: id,
            details,
            ..
        }: Asked,
    ) {
        let Some(viewer) = self.viewer(id) else {
            return;
        };
        self.resolve_reported();
        self.find_plain();
        let mut recent = std::mem::take(&mut self.recent);
        let mut faces = Faces::new(self, viewer);
        let view = self.see(&mut faces, &mut recent);
        let (mut rows, open) = self.rows(&mut faces, view, details);
        self.recent = recent;
        rows.push(Message::new(Kind::End));
        self.await_rows(id, rows, open);
    }

    /// Queues a client's rows; they are sent as fast as it reads.
    pub(super) fn send_rows(&mut self, id: u64, rows: Vec<Message>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.rows = rows.into();
            if client.flush().is_err() {
                self.doomed.push(id);
            }
        }
        self.watch(id);
    }

    /// Looks up the addresses of ends that were reported but never claimed, and
    /// forgets those that are closed.
    fn resolve_reported(&mut self) {
        let unknown =
            |(_, end): &(EndId, &End)| matches!(end.state, State::Reported | State::Unresolved);
        let ids: Vec<_> = self.ends.iter().filter(unknown).map(|(id, _)| id).collect();
        for id in ids {
            match self.look(id) {
                Look::Found(found) => self.ends.resolve(id, found),
                Look::Gone => self.forget_end(id),
                Look::NotConnected | Look::Denied | Look::Unnamed | Look::NoRoom => {}
            }
        }
    }

    /// Which accepted connections, claimed and unmatched, have a peer that no client
    /// holds. Looked up only for a list, and for each once a second, among the descriptors of the
    /// clients: nobody sends a message for it, and a claim that comes later is matched all the same.
    fn find_plain(&mut self) {
        let pending = |(_, end): &(EndId, &End)| {
            let open = end
                .status
                .is_none_or(|status| status == Reason::PeerPlain as u8);
            end.state == State::Waiting && end.role == Role::Acceptor && open
        };
        let waiting = self.ends.iter().filter(pending);
        let waiting: Vec<_> = waiting
            .filter_map(|(id, end)| Some((id, end.tuple()?.flipped())))
            .collect();
        let ids = waiting.iter().map(|(id, _)| *id);
        if waiting.is_empty() || !self.recent.is_to_search(ids, Instant::now()) {
            return;
        }
        let waiting = inodes(waiting);
        if waiting.is_empty() {
            return;
        }
        let inodes: Vec<_> = waiting.iter().map(|found| found.1).collect();
        let clients = self.clients.values().map(|client| (client.uid, client.pid));
        let orphans = self.orphans.values().map(|orphan| (orphan.uid, orphan.pid));
        // Only what is served here may claim anything.
        let served = clients.chain(orphans).filter(|(uid, _)| self.serves(*uid));
        let pids = served.map(|(_, pid)| pid);
        let Some(held) = holders::among(pids, &inodes) else {
            return; // Some client's descriptors cannot be seen.
        };
        for (id, inode) in waiting {
            if let Some(end) = self.ends.get_mut(id) {
                let plain = !held.contains(&inode);
                end.status = plain.then_some(Reason::PeerPlain as u8);
            }
        }
    }

    /// Both ends of a connection make one row. The accepting end comes first. Listeners follow. Also those of
    /// which a look may tell more.
    fn rows<'a>(
        &'a self,
        faces: &mut Faces<'_>,
        mut view: View<'a>,
        details: bool,
    ) -> (Vec<Message>, Vec<Open>) {
        let (viewer, now) = (faces.viewer, now());
        self.add_ends(&mut view);
        // Most connections have two ends here, and two messages.
        let mut rows = Vec::with_capacity(view.table.len() + view.listeners.len() + 1);
        let mut open = Vec::new();
        for [own, other] in grouped(&view.table, &self.others()) {
            let [of_own, of_other] = [own, other].map(|side| self.holder(side, faces));
            let own_accepts =
                of_own.is_some_and(|h| h.accepts) || of_other.is_some_and(|h| !h.accepts);
            let ([server, client], holders) = match own_accepts {
                true => ([own, other], [of_own, of_other]),
                false => ([other, own], [of_other, of_own]),
            };
            let mut known = holders.iter().flatten().filter_map(|holder| holder.face);
            if known.any(|face| viewer.may_see(face.uid, face.netns)) {
                let mut row = self.row(server.tuple, holders);
                let [near, far] = [server.sights, client.sights];
                row.bytes = [one_way(near, far), one_way(far, near)];
                open.extend(self.open(rows.len(), &row, server.tuple, holders));
                rows.push(row);
                if details {
                    rows.push(detail([near, far], holders, now).message());
                }
            }
        }
        rows.extend(view.listeners);
        (rows, open)
    }

    /// A row whose reason is provisional, as nobody is known who has the other end.
    fn open(
        &self,
        row: usize,
        message: &Message,
        tuple: Tuple,
        ends: [Option<Holder>; 2],
    ) -> Option<Open> {
        let (tuple, holder) = match ends {
            [Some(holder), None] => (tuple, holder),
            [None, Some(holder)] => (tuple.flipped(), holder),
            _ => return None,
        };
        let ends = namespaces::ends(tuple);
        let face = holder.face?;
        let provisional = Reason::from_number(message.status)?.is_provisional();
        (provisional && self.is_open(ends)).then_some(Open {
            row,
            ends,
            pid: face.pid,
            user: face.uid,
        })
    }

    /// Who has an end: whoever has claimed or reported it, or else whose region shows it.
    fn holder(&self, side: Side<'_>, faces: &mut Faces<'_>) -> Option<Holder> {
        let seen = side.sights.last();
        if let Some((id, end)) = side.end {
            let is_shunted = |sight: &Sight| sight.client == id.client && sight.status == 0;
            let is_shunted = side.sights.iter().any(is_shunted);
            let plain = seen
                .map(|sight| sight.status)
                .filter(|&status| status != 0 && status != Reason::Pending as u8);
            return Some(Holder {
                face: faces.of(id.client),
                accepts: self.accepts(id, end),
                // That it is shunted may be said by the region alone.
                status: is_shunted.then_some(0).or(end.status).or(plain),
                paired: is_paired(end),
                afar: end.state == State::Met,
                left: end.left,
            });
        }
        seen.map(|sight| Holder {
            face: faces.of(sight.client),
            accepts: sight.accepts,
            status: Some(sight.status),
            paired: false,
            afar: false,
            left: None,
        })
    }

    fn accepts(&self, id: EndId, end: &End) -> bool {
        // A report need not name the role, but an accepted connection has its
        // listener's port.
        let port = end.tuple().map(|tuple| tuple.local.1);
        let listens = |client: &Client| client.listeners.values().any(|p| Some(*p) == port);
        end.role == Role::Acceptor
            || end.state == State::Reported && self.clients.get(&id.client).is_some_and(listens)
    }

    fn row(&self, tuple: Tuple, ends: [Option<Holder>; 2]) -> Message {
        let mut row = Message::new(Kind::Row);
        row.family = if tuple.local.0.is_ipv4() {
            FAMILIES.0
        } else {
            FAMILIES.1
        };
        row.addresses = [bytes(tuple.local.0), bytes(tuple.peer.0)];
        row.ports = [tuple.local.1, tuple.peer.1];
        let faces = ends.map(|end| end?.face);
        let [near, far] = faces.map(Option::unwrap_or_default);
        row.pids = [near.pid, far.pid];
        (row.name, row.peer_name) = (near.comm, far.comm);
        for (process, face) in [near, far].into_iter().enumerate() {
            if let Some(container) = face.container {
                row.set_container(process, &container);
            }
        }
        row.status = overall(reports(ends));
        if let [Some(near), Some(far)] = faces
            && Reason::from_number(row.status).is_some_and(Reason::is_provisional)
            && self.keeps_apart(near.uid, far.uid)
        {
            row.status = Reason::OtherUser as u8;
        }
        if row.status == 0 {
            row.flags |= FLAG_SHUNTED;
            if ends.iter().flatten().any(|end| end.afar) {
                row.flags |= FLAG_REACHES;
            }
        }
        row
    }
}

/// How many messages of a list the asker takes in one datagram.
fn together(asked: &Message) -> usize {
    if asked.flags & FLAG_TOGETHER == 0 {
        return 1;
    }
    (asked.index as usize).clamp(TOGETHER, MOST_TOGETHER)
}

/// Up to this number the kernel is asked for sockets one by one.
const FEW: usize = 64;

/// The sockets with these addresses, by inode number: of other network namespaces, and without tcp_diag, nothing is known.
fn inodes(wanted: Vec<(EndId, Tuple)>) -> Vec<(EndId, u64)> {
    let find: Box<dyn Fn(Tuple) -> Option<u64>> = if wanted.len() <= FEW {
        Box::new(|tuple| {
            let found = diag::find(tuple.local.into(), tuple.peer.into())?;
            (found.tuple == tuple).then_some(found.inode)
        })
    } else {
        // The kernel looks through all that it has, which takes milliseconds.
        let all = dump::all().into_iter();
        let all = all.filter_map(|(inode, seen)| Some((seen.tuple?, inode)));
        let all: HashMap<_, _> = all.collect();
        Box::new(move |tuple| all.get(&tuple).copied())
    };
    let found = wanted.into_iter();
    found
        .filter_map(|(id, tuple)| Some((id, find(tuple)?)))
        .collect()
}

/// Who has one end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    /// Its process.
    pub(super) face: Option<Face>,
    accepts: bool,
    /// What it says of the connection: 0 (shunted) or a reason.
    pub(super) status: Option<u8>,
    /// It has a slot.
    paired: bool,
    /// Its other end is on another host.
    afar: bool,
    /// How it went from shared memory to TCP the last time.
    pub(super) left: Option<Left>,
}

/// What the two ends of a connection report. "Shunted" is believed of an end
/// that has a slot; after a restart of the daemon nobody has one, and then
/// both ends must say so.
fn reports(ends: [Option<Holder>; 2]) -> [Option<u8>; 2] {
    let agreed = ends
        .iter()
        .all(|end| end.is_some_and(|end| end.status == Some(0)));
    ends.map(|end| {
        let end = end?;
        end.status
            .filter(|&status| status != 0 || agreed || end.paired)
    })
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
    // What is said of the other end says less than what that says itself.
    let telling = |status: &u8| {
        !matches!(
            Reason::from_number(*status),
            Some(Reason::Pending | Reason::PeerPlain | Reason::PeerRefused | Reason::PeerLeft)
        )
    };
    reasons()
        .find(telling)
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
        for less in [Reason::Pending, Reason::PeerPlain, Reason::PeerLeft] {
            assert_eq!(overall([Some(less as u8), Some(35)]), 35);
            assert_eq!(overall([Some(less as u8), None]), less as u8);
        }
    }
}
