//! Connections between network namespaces: which claimed end is the other end of one, whom that is
//! said to, and by what the two processes call each other.
//!
//! A connector looks at the board of its namespace before it claims anything, and that knows the
//! ports of listeners in the same namespace only. So the first claim is the acceptor's. It tells the
//! daemon who has the other end, and at which port that sees its peer: the board of the connector's
//! namespace lists that port from then on, the connector finds it there at its next call, and claims
//! its end.

use std::io;
use std::rc::Rc;

use shunt_abi::Reason;
use shunt_abi::message::{FLAG_ANSWER, Kind, MOST_SOCKETS, Message, Role, SOCKETS};

use super::Daemon;
use crate::between::Between;
use crate::board::Board;
use crate::client::{Client, Passed};
use crate::end::{End, EndId, State};
use crate::inspect::Look;
use crate::mirror::{Counterpart, Mirror, Mirrors};
use crate::namespaces;
use crate::tuple::Tuple;

impl Daemon {
    /// From now on it finds the other end of a connection by what the kernel has seen of both, if
    /// that is possible here, and says which.
    pub fn find_by_mirrors(&mut self) {
        match Mirrors::attach() {
            Ok(mirrors) => {
                self.mirrors = mirrors;
                self.log
                    .event(|| "ends are paired by mirrored sequence numbers".into());
                self.make_between();
                self.boards.set_asked(self.hosting.is_some());
            }
            Err(why) => self
                .log
                .event(|| format!("ends are paired by their addresses: {why}")),
        }
    }

    /// Makes the place where processes of different network namespaces call each other: also where the policy keeps
    /// them apart, as a later one may not, and the rights that this takes are given up by then.
    fn make_between(&mut self) {
        match Between::new() {
            Ok(between) => {
                self.between = Some(between);
                self.cross_as_allowed();
            }
            Err(error) => self.log.event(|| {
                format!("no network namespace for calls between others, which stay apart: {error}")
            }),
        }
    }

    /// From now on processes of different network namespaces are paired if the policy allows that, and if they can call
    /// each other.
    pub(super) fn cross_as_allowed(&mut self) {
        let can = self.between.is_some();
        self.boards
            .set_cross(can && self.config.policy.cross_namespace);
    }

    /// The claimed end that is the other end of `id`. What the kernel has seen comes before
    /// addresses, which some other connection may have, too.
    pub(super) fn counterpart(&mut self, id: EndId) -> Option<EndId> {
        match self.mirrors.counterpart(id.cookie) {
            Counterpart::Found(mirror) => {
                let claimed = self.claimed(mirror);
                if claimed.is_none() {
                    self.list_reached(id, mirror);
                }
                claimed
            }
            Counterpart::Nobody | Counterpart::Early | Counterpart::Unknown => {
                self.ends.partner(id)
            }
        }
    }

    /// The end of this socket that waits for its match. Its claimant may not have it: that is looked at.
    fn claimed(&mut self, mirror: Mirror) -> Option<EndId> {
        let ids = self.ends.with_cookie(mirror.cookie);
        ids.into_iter().rev().find(|&id| {
            let state = self.ends.get(id).map(|end| end.state);
            match state {
                Some(State::Waiting) => true,
                Some(State::Unresolved) => {
                    let look = self.look(id);
                    if let Look::Found(found) = look {
                        self.ends.resolve(id, found);
                    }
                    matches!(look, Look::Found(_))
                }
                _ => false,
            }
        })
    }

    /// An accepted connection comes from a namespace whose board does not say that its port is worth a
    /// claim: it does from now on, or as soon as there is one.
    fn list_reached(&mut self, id: EndId, mirror: Mirror) {
        let accepts = |end: &End| end.role == Role::Acceptor;
        let (Some(client), true) = (
            self.clients.get_mut(&id.client),
            self.ends.get(id).is_some_and(accepts),
        ) else {
            return;
        };
        let board = self.boards.get(mirror.netns);
        if board.is_some_and(|board| board.lists(mirror.peer_port)) {
            return;
        }
        let Some(gone) = client.reached.add(mirror.netns, mirror.peer_port) else {
            return;
        };
        if let Some(board) = board {
            board.add_listener(mirror.peer_port);
        }
        self.unlist(gone);
    }

    /// The board of a namespace; the first client there may come later than connections from there
    /// were accepted.
    pub(super) fn board(&mut self, netns: u64) -> io::Result<Rc<Board>> {
        let is_new = self.boards.get(netns).is_none();
        let board = self.boards.of(netns)?;
        if is_new {
            let clients = self.clients.values();
            let reached = clients.flat_map(|client| client.reached.of(netns));
            let listed = self.hosting.iter().flat_map(|h| h.listed_in(netns));
            for port in reached.chain(listed) {
                board.add_listener(port);
            }
        }
        Ok(board)
    }

    /// Its listeners are gone.
    pub(super) fn forget_reached(&self, client: &Client) {
        self.unlist(client.reached.all());
    }

    /// Boards that no client has any more go, and with them what was noted for them: the number of a
    /// namespace that is gone never comes back.
    pub(super) fn forget_boards(&mut self) {
        for netns in self.boards.forget_unused() {
            for client in self.clients.values_mut() {
                client.reached.forget(netns);
            }
            if let Some(hosting) = &mut self.hosting {
                hosting.forget_namespace(netns);
            }
        }
    }

    pub(super) fn unlist(&self, reached: impl IntoIterator<Item = (u64, u16)>) {
        for (netns, port) in reached {
            if let Some(board) = self.boards.get(netns) {
                board.remove_listener(port);
            }
        }
    }

    /// Why a connection whose addresses leave its namespace has no other end here, if it has none.
    pub(super) fn is_beyond(&mut self, id: EndId, tuple: Tuple) -> Option<Reason> {
        let leaves = namespaces::leaves(namespaces::ends(tuple)).is_some();
        if !leaves || self.ends.partner(id).is_some() {
            return None;
        }
        let is_asked = self.may_ask_host(tuple.peer.0);
        if !self.mirrors.is_on() {
            // Without other hosts nobody claims such a connection.
            return (self.hosting.is_some() && !is_asked).then_some(Reason::NotLocal);
        }
        match self.mirrors.counterpart(id.cookie) {
            Counterpart::Found(_) => None,
            Counterpart::Early => {
                self.note_early(id);
                None
            }
            Counterpart::Nobody | Counterpart::Unknown if is_asked => None,
            Counterpart::Nobody => Some(Reason::NotLocal),
            Counterpart::Unknown => Some(Reason::Older),
        }
    }

    /// Whether two ends are of different network namespaces.
    pub(super) fn crosses(&self, [a, b]: [EndId; 2]) -> bool {
        let netns = |id| Some(self.ends.get(id)?.tuple()?.netns);
        netns(a) != netns(b)
    }

    /// Sees to it that two clients that have no link yet can call each other. `Err`: they cannot.
    pub(super) fn introduce(&mut self, clients: [u64; 2]) -> io::Result<()> {
        if !self.boards.cross() {
            let netns = clients.map(|id| self.clients.get(&id).map(|client| client.netns));
            let is_one = netns[0] == netns[1];
            return is_one
                .then_some(())
                .ok_or(io::ErrorKind::Unsupported.into());
        }
        // Of the same namespace, too: who has peers elsewhere is called there by all.
        for id in clients {
            self.give_sender(id)?;
        }
        let [a, b] = clients.map(|id| self.clients.get(&id).map(|c| (c.netns, c.sockets)));
        if let (Some((of_a, has_a)), Some((of_b, has_b))) = (a, b)
            && of_a != of_b
        {
            for (id, has) in clients.into_iter().zip([has_a, has_b]) {
                if has == 0 {
                    self.give_sockets(id, SOCKETS)?;
                }
            }
        }
        Ok(())
    }

    /// A client wants `wanted` more sockets to be called at. It asks nothing more before it knows how many it has got.
    pub(super) fn give_more_sockets(&mut self, id: u64, wanted: u32) {
        /// More than a process has places and epoll sets, and than it loses by a fork now and then.
        const MOST: u32 = 2048;
        let had = self.sockets(id);
        let more = wanted.min(MOST_SOCKETS).min(MOST.saturating_sub(had));
        if self.boards.cross() && more > 0 {
            // Without, it is called in its own namespace only.
            let _ = self
                .give_sender(id)
                .and_then(|()| self.give_sockets(id, more));
        }
        let mut complete = Message::new(Kind::Abroad);
        complete.flags = FLAG_ANSWER;
        complete.role = Role::Acceptor as u8;
        complete.index = self.sockets(id) - had;
        self.post(id, complete, None);
    }

    /// How many sockets to be called at a client was given.
    fn sockets(&self, id: u64) -> u32 {
        self.clients.get(&id).map_or(0, |client| client.sockets)
    }

    /// Gives a client a socket to call by, unless it has one. That comes before those to be called at: who
    /// has some of a former daemon's namespace does without them from then on.
    fn give_sender(&mut self, id: u64) -> io::Result<()> {
        let lacks = |client: &Client| !client.may_call;
        if self.clients.get(&id).is_some_and(lacks) {
            self.give_socket(id, Role::Connector)?;
        }
        Ok(())
    }

    fn give_sockets(&mut self, id: u64, count: u32) -> io::Result<()> {
        (0..count).try_for_each(|_| self.give_socket(id, Role::Acceptor))
    }

    /// Gives a client a socket to call by (as a connector), or one to be called at.
    fn give_socket(&mut self, id: u64, role: Role) -> io::Result<()> {
        let between = self.between.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        let socket = between.socket()?;
        if let Some(client) = self.clients.get_mut(&id) {
            client.may_call |= role == Role::Connector;
            client.sockets += u32::from(role == Role::Acceptor);
        }
        let mut abroad = Message::new(Kind::Abroad);
        abroad.role = role as u8;
        self.post(id, abroad, Some(Passed::Between(socket)));
        Ok(())
    }
}
