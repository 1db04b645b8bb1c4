//! The table of connection ends: what clients claim and report, and the search
//! for the end that matches another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use shunt_abi::Reason;
use shunt_abi::message::Role;

use crate::board::{Listed, Trial};
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
    /// Has met its other end on another host.
    Met,
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

/// How an end went from shared memory to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The how many-th time it was.
    pub(crate) count: u32,
    /// The reason that its client gave.
    pub(crate) reason: u8,
    /// When (seconds of the monotonic clock).
    pub(crate) at: u32,
}

/// One end of a connection.
#[derive(Debug)]
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
    /// How it went from shared memory to TCP the last time.
    pub(crate) left: Option<Left>,
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
    /// It was accepted, and waits for the claim of its connector, who makes one if the port is listed.
    pub(crate) listed: Option<Listed>,
    /// Its connector has claimed it as a trial, and its acceptor has not yet.
    pub(crate) trial: Option<Trial>,
    /// Its client can use it if the other end is on another host.
    pub(crate) reaches: bool,
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
            left: None,
            former: Vec::new(),
            asks: None,
            told: false,
            used: false,
            kept: false,
            mate: None,
            listed: None,
            trial: None,
            reaches: false,
            named: None,
            socket: None,
            user: 0,
            turn: 0,
        }
    }

    /// Its client says `now` by which way it goes.
    pub(crate) fn tell(&mut self, status: u8, has_used: bool, now: u32) {
        let was_shunted = self.status.is_none_or(|before| before == 0);
        self.used |= status == 0 || has_used;
        // Who ends a connection goes nowhere.
        if self.used && was_shunted && status != 0 && status != Reason::Ended as u8 {
            let before = self.left.map_or(0, |left| left.count);
            self.left = Some(Left {
                count: before.saturating_add(1),
                reason: status,
                at: now,
            });
        }
        self.status = Some(status);
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
    /// How many ends whose addresses are known each network namespace has.
    per_namespace: HashMap<u64, usize>,
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
            one_less(&mut self.per_namespace, tuple.netns);
        }
        if let Some(clients) = self.by_cookie.get_mut(&id.cookie) {
            clients.retain(|client| *client != id.client);
            if clients.is_empty() {
                self.by_cookie.remove(&id.cookie);
            }
        }
        one_less(&mut self.per_client, id.client);
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
        *self.per_namespace.entry(socket.tuple.netns).or_default() += 1;
    }

    /// An end will not be paired; its addresses stay known.
    pub(crate) fn refuse(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(&id) else {
            return;
        };
        (end.state, end.listed, end.trial) = (State::Refused, None, None);
        self.unresolved.remove(end.user, end.turn, id);
    }

    /// The waiting end that is the other end of `id`, the latest if there are
    /// more (a socket shared by `fork`). A socket connected to itself is no
    /// match for itself, hence the cookies.
    ///
    /// A client releases an end when it closes the socket, so a later connection between the same addresses finds no
    /// former claim. One whose client was killed just now may still be here. Nothing comes of that match: a side uses
    /// its ring only once its peer has said `READY` there.
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

    /// All ends of connections between two addresses, in any network namespace, and those that have one of these as
    /// their other end: that has other addresses if some are translated on the way.
    pub(crate) fn between(&self, [one, other]: [(IpAddr, u16); 2]) -> BTreeSet<EndId> {
        let in_one = |&netns: &u64| {
            let tuple = Tuple {
                netns,
                local: one,
                peer: other,
            };
            [tuple, tuple.flipped()]
        };
        let tuples = self.per_namespace.keys().flat_map(in_one);
        let named: BTreeSet<EndId> = tuples.flat_map(|t| self.with_tuple(t)).copied().collect();
        let mate = |id: &EndId| Some(self.ends.get(id)?.mate?.id);
        // All who have that socket.
        let others = named.iter().filter_map(mate);
        let others = others.flat_map(|mate| self.with_cookie(mate.cookie));
        let is_mate = |id: &EndId| mate(id).is_some_and(|mate| named.contains(&mate));
        let mates: Vec<EndId> = others.filter(is_mate).collect();
        named.into_iter().chain(mates).collect()
    }
}

fn one_less(counts: &mut HashMap<u64, usize>, of: u64) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests;
