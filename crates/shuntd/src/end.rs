//! The table of connection ends: what clients claim and report, and the search
//! for the end that matches another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use shunt_abi::message::Role;

use crate::inspect::Connected;
use crate::link::Seat;
use crate::tuple::Tuple;

/// An end's name: the client that holds it and the socket's `SO_COOKIE`. (After
/// `fork` two clients hold the same socket.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EndId {
    /// Which client.
    pub(crate) client: u64,
    /// Which of its sockets.
    pub(crate) cookie: u64,
}

/// How far an end's pairing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Never claimed: known from a report only.
    Reported,
    /// Claimed, but its addresses are not known yet (`connect` is under way).
    Unresolved,
    /// Came from another process, which may still use its copy.
    Adopting,
    /// Waits for the other end's claim.
    Waiting,
    /// The other end is known; memory for a link is awaited.
    Parked(EndId),
    /// Has a slot.
    Paired(Seat),
    /// Will not be paired.
    Refused,
}

/// The other end of a connection, also when its client has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mate {
    /// Its name.
    pub(crate) id: EndId,
    /// The user of its client.
    pub(crate) user: u32,
    /// Its socket.
    pub(crate) socket: Connected,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// Its descriptor number in the client.
    pub(crate) fd: i32,
    /// Which end it is.
    pub(crate) role: Role,
    /// The client waits for an answer.
    pub(crate) answer: bool,
    /// See [`State`].
    pub(crate) state: State,
    /// What the client reported last: 0 (shunted) or a reason.
    pub(crate) status: Option<u8>,
    /// Slots that it had while others held the other end.
    pub(crate) former: Vec<Seat>,
    /// The number of its client's question whether that alone has the socket.
    pub(crate) asks: Option<u32>,
    /// Its holder has been told to go back to TCP.
    pub(crate) told: bool,
    /// Its slot has been used.
    pub(crate) used: bool,
    /// Its client has closed it without a word, as relatives may use the slot still.
    pub(crate) kept: bool,
    /// The end that it was paired with last.
    pub(crate) mate: Option<Mate>,
    /// Its own and its peer's address, as its client says.
    pub(crate) named: Option<[SocketAddr; 2]>,
    socket: Option<Connected>,
    /// The user of its client.
    user: u32,
    /// Position among the unresolved ends.
    turn: u64,
}

impl End {
    /// An end whose addresses are not known.
    pub(crate) fn new(fd: i32, role: Role, state: State) -> Self {
        Self {
            fd,
            role,
            answer: false,
            state,
            status: None,
            former: Vec::new(),
            asks: None,
            told: false,
            used: false,
            kept: false,
            mate: None,
            named: None,
            socket: None,
            user: 0,
            turn: 0,
        }
    }

    /// Its addresses, if known.
    pub(crate) fn tuple(&self) -> Option<Tuple> {
        self.socket.map(|socket| socket.tuple)
    }
}

/// Unresolved ends by user, client and age.
#[derive(Debug, Default)]
struct Unresolved {
    /// client → turn → cookie.
    of: HashMap<u64, BTreeMap<u64, u64>>,
    /// user → (turn of its newest, client).
    newest: BTreeMap<u32, BTreeSet<(u64, u64)>>,
}

impl Unresolved {
    fn insert(&mut self, user: u32, turn: u64, id: EndId) {
        self.change(user, id.client, |ends| ends.insert(turn, id.cookie));
    }

    fn remove(&mut self, user: u32, turn: u64, id: EndId) {
        if self
            .of
            .get(&id.client)
            .is_some_and(|ends| ends.contains_key(&turn))
        {
            self.change(user, id.client, |ends| ends.remove(&turn));
        }
    }

    /// Changes a client's ends and keeps its place up to date.
    fn change(
        &mut self,
        user: u32,
        client: u64,
        change: impl FnOnce(&mut BTreeMap<u64, u64>) -> Option<u64>,
    ) {
        let ends = self.of.entry(client).or_default();
        let last = |ends: &BTreeMap<u64, u64>| ends.last_key_value().map(|(turn, _)| *turn);
        let before = last(ends);
        change(ends);
        let after = last(ends);
        if after.is_none() {
            self.of.remove(&client);
        }
        if before == after {
            return;
        }
        let newest = self.newest.entry(user).or_default();
        if let Some(turn) = before {
            newest.remove(&(turn, client));
        }
        if let Some(turn) = after {
            newest.insert((turn, client));
        }
        if newest.is_empty() {
            self.newest.remove(&user);
        }
    }
}

/// All ends that a daemon knows.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    ends: BTreeMap<EndId, End>,
    by_tuple: HashMap<Tuple, Vec<EndId>>,
    /// The clients that hold a socket, the latest last.
    by_cookie: HashMap<u64, Vec<u64>>,
    unresolved: Unresolved,
    per_client: HashMap<u64, usize>,
    turns: u64,
}

impl Ends {
    /// Adds an end, or replaces the one of the same name.
    pub(crate) fn insert(&mut self, id: EndId, user: u32, mut end: End) {
        self.remove(id);
        end.user = user;
        if end.state == State::Unresolved {
            self.turns += 1;
            end.turn = self.turns;
            self.unresolved.insert(end.user, end.turn, id);
        }
        *self.per_client.entry(id.client).or_default() += 1;
        self.by_cookie.entry(id.cookie).or_default().push(id.client);
        self.ends.insert(id, end);
    }

    /// Forgets an end and returns what was known of it.
    pub(crate) fn remove(&mut self, id: EndId) -> Option<End> {
        let end = self.ends.remove(&id)?;
        self.unresolved.remove(end.user, end.turn, id);
        if let Some(tuple) = end.tuple()
            && let Some(ids) = self.by_tuple.get_mut(&tuple)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_tuple.remove(&tuple);
            }
        }
        if let Some(clients) = self.by_cookie.get_mut(&id.cookie) {
            clients.retain(|client| *client != id.client);
            if clients.is_empty() {
                self.by_cookie.remove(&id.cookie);
            }
        }
        if let Some(count) = self.per_client.get_mut(&id.client) {
            *count -= 1;
            if *count == 0 {
                self.per_client.remove(&id.client);
            }
        }
        Some(end)
    }

    /// An end.
    pub(crate) fn get(&self, id: EndId) -> Option<&End> {
        self.ends.get(&id)
    }

    /// An end, to change anything but its addresses and whether it has any.
    pub(crate) fn get_mut(&mut self, id: EndId) -> Option<&mut End> {
        self.ends.get_mut(&id)
    }

    /// How many ends a client has.
    pub(crate) fn count(&self, client: u64) -> usize {
        self.per_client.get(&client).copied().unwrap_or(0)
    }

    /// The names of a client's ends.
    pub(crate) fn of(&self, client: u64) -> Vec<EndId> {
        let id = |cookie| EndId { client, cookie };
        self.ends
            .range(id(0)..=id(u64::MAX))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Every end.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EndId, &End)> {
        self.ends.iter().map(|(id, end)| (*id, end))
    }

    /// The newest unresolved ends of a client.
    pub(crate) fn unresolved_of(&self, client: u64, most: usize) -> Vec<EndId> {
        let ends = self.unresolved.of.get(&client).into_iter().flatten();
        let id = |(_, &cookie)| EndId { client, cookie };
        ends.rev().take(most).map(id).collect()
    }

    /// The newest unresolved ends of a user's clients, or of everybody's with
    /// this user's first: each client's newest, then each one's second, and so
    /// on. Nobody hides another's by having many.
    pub(crate) fn unresolved(&self, user: u32, everybody: bool, most: usize) -> Vec<EndId> {
        let newest = &self.unresolved.newest;
        let others = newest
            .iter()
            .filter(|(other, _)| everybody && **other != user)
            .map(|(_, clients)| clients);
        // As many users, and clients of each, as there are places.
        let clients = newest.get(&user).into_iter().chain(others).take(most);
        let mut turns: Vec<_> = clients
            .flat_map(|clients| clients.iter().rev().take(most))
            .filter_map(|(_, client)| Some((*client, self.unresolved.of.get(client)?.iter().rev())))
            .collect();
        let mut ids = Vec::new();
        while !turns.is_empty() {
            turns.retain_mut(|(client, ends)| {
                let Some((_, &cookie)) = ends.next() else {
                    return false;
                };
                ids.push(EndId {
                    client: *client,
                    cookie,
                });
                true
            });
            if ids.len() >= most {
                break;
            }
        }
        ids.truncate(most);
        ids
    }

    /// Notes an end's addresses; an unresolved claim then waits for its match.
    pub(crate) fn resolve(&mut self, id: EndId, socket: Connected) {
        let Some(end) = self.ends.get_mut(&id) else {
            return;
        };
        if end.socket.is_some() {
            return;
        }
        end.socket = Some(socket);
        if end.state == State::Unresolved {
            end.state = State::Waiting;
            self.unresolved.remove(end.user, end.turn, id);
        }
        self.by_tuple.entry(socket.tuple).or_default().push(id);
    }

    /// An end will not be paired; its addresses stay known.
    pub(crate) fn refuse(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(&id) else {
            return;
        };
        end.state = State::Refused;
        self.unresolved.remove(end.user, end.turn, id);
    }

    /// The waiting end that is the other end of `id`, the latest if there are
    /// more (a socket shared by `fork`). A socket connected to itself is no
    /// match for itself, hence the cookies.
    pub(crate) fn partner(&self, id: EndId) -> Option<EndId> {
        let tuple = self.ends.get(&id)?.tuple()?;
        self.by_tuple
            .get(&tuple.flipped())?
            .iter()
            .rev()
            .copied()
            .find(|other| {
                other.cookie != id.cookie
                    && self
                        .ends
                        .get(other)
                        .is_some_and(|end| end.state == State::Waiting)
            })
    }

    /// All ends that are this socket, the latest last.
    pub(crate) fn with_cookie(&self, cookie: u64) -> Vec<EndId> {
        let clients = self.by_cookie.get(&cookie).into_iter().flatten();
        clients.map(|&client| EndId { client, cookie }).collect()
    }

    /// An end as the other one remembers it, once its socket is known.
    pub(crate) fn mate(&self, id: EndId) -> Option<Mate> {
        let end = self.ends.get(&id)?;
        Some(Mate {
            id,
            user: end.user,
            socket: end.socket?,
        })
    }

    /// All ends with these addresses.
    pub(crate) fn with_tuple(&self, tuple: Tuple) -> &[EndId] {
        self.by_tuple.get(&tuple).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: u64, cookie: u64) -> EndId {
        EndId { client, cookie }
    }

    fn tuple(local: u16, peer: u16) -> Tuple {
        let address = |port| ([127, 0, 0, 1], port).into();
        Tuple::new(1, address(local), address(peer))
    }

    fn claim(ends: &mut Ends, id: EndId, tuple: Option<Tuple>) {
        ends.insert(id, 7, End::new(3, Role::Connector, State::Unresolved));
        if let Some(tuple) = tuple {
            ends.resolve(id, Connected { tuple, inode: 1 });
        }
    }

    #[test]
    fn the_two_ends_of_a_connection_find_each_other() {
        let mut ends = Ends::default();
        claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
        assert_eq!(ends.partner(id(1, 100)), None);
        claim(&mut ends, id(2, 200), Some(tuple(80, 4000)));
        assert_eq!(ends.partner(id(1, 100)), Some(id(2, 200)));
        assert_eq!(ends.partner(id(2, 200)), Some(id(1, 100)));
    }

    #[test]
    fn another_connection_or_namespace_does_not_match() {
        let mut ends = Ends::default();
        claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
        claim(&mut ends, id(2, 200), Some(tuple(80, 4001)));
        claim(
            &mut ends,
            id(2, 201),
            Some(Tuple {
                netns: 2,
                ..tuple(80, 4000)
            }),
        );
        assert_eq!(ends.partner(id(1, 100)), None);
    }

    #[test]
    fn a_self_connected_socket_has_no_partner_even_when_two_processes_hold_it() {
        let mut ends = Ends::default();
        claim(&mut ends, id(1, 100), Some(tuple(80, 80)));
        claim(&mut ends, id(2, 100), Some(tuple(80, 80)));
        assert_eq!(ends.partner(id(1, 100)), None);
    }

    #[test]
    fn an_end_matches_only_while_it_waits() {
        let mut ends = Ends::default();
        claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
        claim(&mut ends, id(2, 200), None);
        assert_eq!(ends.unresolved(7, false, 9), [id(2, 200)]);
        assert_eq!(ends.unresolved_of(1, 9), []);
        let socket = Connected {
            tuple: tuple(80, 4000),
            inode: 1,
        };
        ends.resolve(id(2, 200), socket);
        assert!(ends.unresolved(7, false, 9).is_empty());
        ends.refuse(id(2, 200));
        assert_eq!(ends.partner(id(1, 100)), None);
        assert_eq!(ends.with_tuple(tuple(80, 4000)), [id(2, 200)]);
        claim(&mut ends, id(2, 201), None);
        ends.refuse(id(2, 201));
        assert!(ends.unresolved(7, false, 9).is_empty());
    }

    #[test]
    fn many_unresolved_ends_of_one_client_hide_nobody_elses() {
        let mut ends = Ends::default();
        claim(&mut ends, id(1, 100), None);
        claim(&mut ends, id(3, 300), None);
        for cookie in 1000..2000 {
            claim(&mut ends, id(2, cookie), None);
        }
        let found = [id(2, 1999), id(3, 300), id(1, 100), id(2, 1998)];
        assert_eq!(ends.unresolved(7, false, 4), found);
        assert_eq!(ends.unresolved_of(1, 4), [id(1, 100)]);
        assert_eq!(ends.unresolved(8, false, 4), []);
        assert_eq!(ends.unresolved(8, true, 4), found);
    }

    #[test]
    fn a_removed_end_leaves_nothing_behind() {
        let mut ends = Ends::default();
        claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
        claim(&mut ends, id(1, 101), None);
        assert_eq!(ends.of(1), [id(1, 100), id(1, 101)]);
        assert_eq!(ends.count(1), 2);
        for id in ends.of(1) {
            ends.remove(id);
        }
        assert_eq!(ends.count(1), 0);
        assert!(ends.ends.is_empty() && ends.by_tuple.is_empty());
        assert!(ends.unresolved.of.is_empty() && ends.unresolved.newest.is_empty());
        assert!(ends.per_client.is_empty() && ends.by_cookie.is_empty());
    }
}
