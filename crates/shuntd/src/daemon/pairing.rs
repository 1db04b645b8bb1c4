//! From a claim to a slot. By what two ends are known to be one connection stands in [`super::crossing`] (`counterpart`).
//!
//! ```text
//!            resolved            match            memory
//! Unresolved ────────> Waiting ────────> Parked ────────> Paired
//!      └──────────────────┴─────────────────┴───> Refused
//! ```

use shunt_abi::message::{
    FLAG_ADOPTED, FLAG_AGAIN, FLAG_CROSSES, FLAG_MATCHED, FLAG_NEW_LINK, FLAG_REACHES, FLAG_TRIAL,
    Kind, Message, Role,
};
use shunt_abi::{Reason, layout};

use super::Daemon;
use crate::client::Passed;
use crate::end::{End, EndId, State};
use crate::foreign::Foreign;
use crate::inspect::Look;
use crate::link::Seat;
use crate::quota::Charge;
use crate::tuple::named;

/// Unresolved claims looked at again for a claim without a match.
const RETRIES: usize = 64;
/// Unresolved claims of a client looked at again for each message of its.
const OWN_RETRIES: usize = 4;

impl Daemon {
    /// A client names one of its sockets.
    pub(super) fn claim(&mut self, id: EndId, message: &Message, role: Role) {
        let (mut status, mut former) = (None, Vec::new());
        let adopted = message.flags & FLAG_ADOPTED != 0;
        let is_paired = |end: &End| matches!(end.state, State::Paired(_));
        let is_used = adopted && self.ends.get(id).is_some_and(is_paired) && self.is_used(id);
        if let Some(old) = self.ends.get_mut(id) {
            match old.state {
                State::Paired(seat) if message.flags & FLAG_AGAIN != 0 => {
                    return self.pair_again(id, seat);
                }
                State::Paired(_) if is_used => {
                    old.kept = true;
                    return self.send_unpaired(id, message.fd, Reason::Passed as u8);
                }
                State::Paired(seat) => {
                    // Claimed again, perhaps because the answer was lost by an
                    // exec: the same answer once more.
                    return self.send_paired(id, seat, None);
                }
                State::Parked(_) => return old.answer |= Self::wants_answer(message),
                _ => (status, former) = (old.status, std::mem::take(&mut old.former)),
            }
        } else if !self.may_add_end(id.client) {
            return self.send_unpaired(id, message.fd, Reason::NoResources as u8);
        }
        let mut end = End::new(message.fd, role, State::Unresolved);
        end.answer = Self::wants_answer(message);
        (end.status, end.former) = (status, former);
        end.named = named(message);
        end.reaches = message.flags & FLAG_REACHES != 0;
        if let (Role::Connector, Some(client)) = (role, self.clients.get(&id.client))
            && message.flags & FLAG_TRIAL != 0
        {
            end.trial = Some(client.board.begin_trial(message.port));
        }
        self.add_end(id, end);
        match self.look_at_claim(id) {
            Look::Found(found) if found.is_one_end() => self.refuse(id, Reason::SelfConnected),
            Look::Found(found) => {
                self.ends.resolve(id, found);
                if let Some(reason) = self.is_beyond(id, found.tuple) {
                    self.drop_claim(id, reason);
                } else if adopted {
                    self.set_state(id, State::Adopting);
                    self.await_adoption(id, message.index);
                } else {
                    self.match_up(id);
                }
            }
            // A claim ahead of `connect` cannot know its addresses.
            Look::NotConnected | Look::Unnamed => self.await_match(id),
            Look::Gone => self.drop_claim(id, Reason::NotEstablished),
            Look::Denied => self.refuse(id, Reason::NoProof),
            Look::NoRoom => self.refuse(id, Reason::NoResources),
        }
    }

    /// Whether a slot of an end has been used: as its client has said, or shows.
    fn is_used(&self, id: EndId) -> bool {
        let told = self.ends.get(id).is_some_and(|end| end.used);
        let client = self.clients.get(&id.client);
        told || client
            .and_then(|client| client.account.as_ref())
            .is_some_and(|account| account.shows_attached(id.cookie))
    }

    /// Who held the other end has handed it on: this one waits for the next, and
    /// keeps its slot to the end of its life, as its client may still look at it.
    fn pair_again(&mut self, id: EndId, seat: Seat) {
        /// More than a client asks for.
        const MOST: usize = 8;
        let Some(end) = self.ends.get_mut(id) else {
            return;
        };
        if end.former.len() >= MOST {
            return self.refuse(id, Reason::NoResources);
        }
        end.former.push(seat);
        end.state = State::Waiting;
        self.match_up(id);
    }

    /// A client has handed a connection on before it was used: its claim is void.
    pub(super) fn withdraw(&mut self, id: EndId) {
        let Some(end) = self.ends.get_mut(id) else {
            return;
        };
        match end.state {
            State::Paired(seat) => end.former.push(seat),
            State::Parked(other) => self.unpark_pair(id, other),
            State::Unresolved | State::Adopting | State::Waiting | State::Met => {}
            State::Reported | State::Refused => return,
        }
        self.ends.refuse(id);
        self.leave_hosts(id);
    }

    pub(super) fn set_state(&mut self, id: EndId, state: State) {
        if let Some(end) = self.ends.get_mut(id) {
            end.state = state;
        }
    }

    /// Looks again at claims that were made before their `connect`.
    fn resolve_all(&mut self, ids: Vec<EndId>) {
        for id in ids {
            match self.look(id) {
                Look::Found(found) if found.is_one_end() => {
                    self.refuse(id, Reason::SelfConnected);
                }
                Look::Found(found) => {
                    self.ends.resolve(id, found);
                    match self.counterpart(id) {
                        Some(other) => self.pair(id, other),
                        None => self.look_abroad(id),
                    }
                }
                Look::Gone => self.forget_end(id),
                Look::Denied => self.refuse(id, Reason::NoProof),
                Look::NotConnected | Look::Unnamed | Look::NoRoom => {}
            }
        }
    }

    /// What a claim made before its `connect` is about may lead to another host.
    fn look_abroad(&mut self, id: EndId) {
        if let Some(reason) = self.ask_host(id) {
            self.drop_claim(id, reason);
        }
    }

    /// Another host has an acceptor's claim: its connector may be among those that were made before their `connect`.
    pub(super) fn resolve_connectors(&mut self) {
        self.resolve_all(self.ends.unresolved(0, true, RETRIES));
    }

    /// A sign of life of a client: its `connect` may have come through.
    pub(super) fn retry_of(&mut self, client: u64) {
        self.resolve_all(self.ends.unresolved_of(client, OWN_RETRIES));
    }

    /// Looks again at the claims that may turn out to be the other end of `id`.
    fn resolve_possible(&mut self, id: EndId) {
        let user = self.user(id.client);
        let everybody = self.config.policy.cross_user;
        let ids = self.ends.unresolved(user, everybody, RETRIES);
        self.resolve_all(ids.clone());
        if self.is_in(id, State::Waiting)
            && let Some((other, found)) = self.unnamed_partner(id, &ids)
        {
            self.ends.resolve(other, found);
            self.pair(id, other);
        }
    }

    /// Pairs a resolved end if its other end is known, or turns out to be one
    /// of the unresolved ones.
    pub(super) fn match_up(&mut self, id: EndId) {
        self.find_match(id);
        if !self.is_in(id, State::Waiting) {
            return;
        }
        match self.ask_host(id) {
            Some(reason) => self.drop_claim(id, reason),
            None => {
                self.list_accepted(id);
                self.await_match(id);
            }
        }
    }

    /// An accepted connection waits: its connector finds the port on the board, also if the listener is closed by now.
    fn list_accepted(&mut self, id: EndId) {
        let (Some(end), Some(client)) = (self.ends.get_mut(id), self.clients.get(&id.client))
        else {
            return;
        };
        let tuple = end.tuple().filter(|tuple| tuple.netns == client.netns);
        if let (Some(tuple), Role::Acceptor, None) = (tuple, end.role, &end.listed) {
            end.listed = Some(client.board.list(tuple.local.1));
        }
    }

    fn find_match(&mut self, id: EndId) {
        match self.counterpart(id) {
            Some(other) => self.pair(id, other),
            None => self.resolve_possible(id),
        }
    }

    pub(super) fn is_in(&self, id: EndId, state: State) -> bool {
        self.ends.get(id).is_some_and(|end| end.state == state)
    }

    /// Leaves a claim pending; whoever waits for an answer gets it once every
    /// queue has been looked through.
    fn await_match(&mut self, id: EndId) {
        if self.ends.get(id).is_some_and(|end| end.answer) {
            self.unanswered.push(id);
        }
    }

    /// All queues have been looked through: what has no match now gets told so.
    pub(super) fn settle(&mut self) {
        for id in std::mem::take(&mut self.unanswered) {
            if self.is_in(id, State::Unresolved) {
                self.resolve_all(vec![id]);
            }
            if self.is_in(id, State::Waiting) {
                self.find_match(id);
            }
            if self.is_in(id, State::Waiting) || self.is_in(id, State::Unresolved) {
                self.answer_not_yet(id);
            }
        }
    }

    /// "Nobody claims the other end yet", said once to who waits for an answer.
    pub(super) fn answer_not_yet(&mut self, id: EndId) {
        if let Some(end) = self.ends.get_mut(id)
            && std::mem::take(&mut end.answer)
        {
            let fd = end.fd;
            // Who connects eagerly has claimed it before; who does not may yet.
            if end.role == Role::Acceptor && end.state == State::Waiting {
                end.status = Some(Reason::PeerPlain as u8);
            }
            let mut unpaired = Self::unpaired(id, fd, 0);
            if matches!(end.state, State::Parked(_)) {
                unpaired.flags = FLAG_MATCHED;
            }
            self.post(id.client, unpaired, None);
        }
    }

    /// Gives two matching ends a slot, or parks them until there is memory.
    pub(super) fn pair(&mut self, a: EndId, b: EndId) {
        if let Some(reason) = self.against(a, b) {
            return self.refuse_both([a, b], reason);
        }
        // The connector first, so that the ends of a link of a client with
        // itself take the same sides each time.
        let connects = |id| {
            self.ends
                .get(id)
                .is_some_and(|end| end.role == Role::Connector)
        };
        let [a, b] = if connects(b) && !connects(a) {
            [b, a]
        } else {
            [a, b]
        };
        let clients = [a.client, b.client];
        if !self.have_room(clients, Charge::SLOT) {
            return self.refuse_both([a, b], Reason::Quota);
        }
        if let Some(seats) = self.links.take(clients) {
            self.seat([a, b], seats, [None, None]);
            return self.provide(clients);
        }
        if self.links.is_full(clients) {
            return self.refuse_both([a, b], Reason::NoResources);
        }
        let next = layout::arena_bytes(self.links.next_slots(clients));
        if !self.have_room(clients, Charge::link(next)) {
            return self.refuse_both([a, b], Reason::Quota);
        }
        // Of one namespace, although a process has left it: what it cannot be told by a call, it hears
        // by TCP.
        if self.introduce(clients).is_err() && self.crosses([a, b]) {
            return self.refuse_both([a, b], Reason::OtherNamespace);
        }
        let Some([spare_a, spare_b]) = self.take_spares(clients) else {
            return self.park(a, b);
        };
        let slots = spare_a.slots.min(spare_b.slots);
        let arenas = [spare_a.arena, spare_b.arena];
        for lost in self.links.open(clients, arenas, slots) {
            self.charge(lost.client, Charge::link(lost.memory));
        }
        if let Some(seats) = self.links.take(clients) {
            // Each gets the memory that the other writes.
            self.seat([a, b], seats, [Some(spare_b.file), Some(spare_a.file)]);
        }
        for client in clients {
            self.want_spares(client, 0);
        }
        self.provide(clients);
    }

    fn seat(&mut self, ids: [EndId; 2], seats: [Seat; 2], files: [Option<Foreign>; 2]) {
        let mates = ids.map(|id| self.ends.mate(id));
        let turned = mates.into_iter().rev();
        for (((id, mate), seat), file) in ids.into_iter().zip(turned).zip(seats).zip(files) {
            if let Some(end) = self.ends.get_mut(id) {
                end.state = State::Paired(seat);
                (end.mate, end.listed, end.trial) = (mate, None, None);
                end.status = end.status.filter(|&s| s != Reason::PeerPlain as u8);
                end.answer = false;
            }
            self.charge(id.client, Charge::SLOT);
            self.leave_hosts(id);
            self.send_paired(id, seat, file);
        }
        let Seat { link, slot, .. } = seats[0];
        let clients = [ids[0].client, ids[1].client];
        self.log
            .event(|| format!("clients {clients:?} paired: link {link} slot {slot}"));
    }

    /// Forgets an end: closed by its client, or its client has gone.
    pub(super) fn forget_end(&mut self, id: EndId) {
        let Some(end) = self.remove_end(id) else {
            return;
        };
        for &seat in &end.former {
            self.links.release(seat);
        }
        match end.state {
            State::Paired(seat) => self.links.release(seat),
            State::Parked(other) => self.unpark_pair(id, other),
            _ => {}
        }
        let slots = end.former.len() + usize::from(matches!(end.state, State::Paired(_)));
        self.refund(id.client, Charge::SLOT.times(slots as u64));
        self.refund_links();
    }

    /// Answers a claim of which nothing becomes now. An end that has slots still, which its
    /// client may look at, stays until that says that it is closed.
    pub(super) fn drop_claim(&mut self, id: EndId, reason: Reason) {
        let Some(end) = self.ends.get(id) else {
            return;
        };
        let fd = end.fd;
        if end.former.is_empty() {
            self.remove_end(id);
        } else {
            self.ends.refuse(id);
            self.leave_hosts(id);
        }
        self.send_unpaired(id, fd, reason as u8);
    }

    /// A client has closed an end. Who connected it, and has not used it in shared memory,
    /// may wait for another process that has this end now; not if that is a relative since a fork,
    /// which has the slot, too. `used`: both ends were attached.
    pub(super) fn release(&mut self, id: EndId, used: bool) {
        let left = self.ends.get(id);
        let left = left.map(|end| (end.state, end.tuple(), end.mate));
        if self.ends.get(id).is_some_and(|end| end.kept) {
            return;
        }
        self.forget_end(id);
        let Some((State::Paired(seat), Some(tuple), mate)) = left else {
            return;
        };
        self.leave_behind(id, tuple, mate);
        if used || !self.links.has(seat.link) {
            return;
        }
        let others = self.ends.with_tuple(tuple.flipped()).iter().copied();
        let waits = |id: &EndId| {
            self.ends.get(*id).is_some_and(|end| {
                let same = |s: Seat| {
                    (s.link, s.slot, s.generation) == (seat.link, seat.slot, seat.generation)
                };
                matches!(end.state, State::Paired(s) if same(s))
                    && end.role == Role::Connector
                    && !end.used
            })
        };
        if let Some(other) = others.chain(mate.map(|mate| mate.id)).find(waits) {
            let mut left = Message::new(Kind::Unpaired);
            left.cookie = other.cookie;
            left.fd = self.ends.get(other).map_or(-1, |end| end.fd);
            left.status = Reason::PeerLeft as u8;
            (left.link, left.slot, left.generation) = (seat.link, seat.slot, seat.generation);
            self.post(other.client, left, None);
        }
    }

    fn refuse_both(&mut self, ends: [EndId; 2], reason: Reason) {
        for id in ends {
            self.refuse(id, reason);
        }
    }

    pub(super) fn refuse(&mut self, id: EndId, reason: Reason) {
        self.ends.refuse(id);
        self.leave_hosts(id);
        let Some(end) = self.ends.get_mut(id) else {
            return;
        };
        end.answer = false;
        end.status = Some(reason as u8);
        let fd = end.fd;
        self.send_unpaired(id, fd, reason as u8);
    }

    fn send_paired(&mut self, id: EndId, seat: Seat, file: Option<Foreign>) {
        let mut paired = Message::new(Kind::Paired);
        paired.cookie = id.cookie;
        paired.fd = self.ends.get(id).map_or(-1, |end| end.fd);
        paired.link = seat.link;
        paired.slot = seat.slot;
        paired.generation = seat.generation;
        paired.arena = self.links.arena(seat).unwrap_or(0);
        let mate = self.ends.get(id).and_then(|end| end.mate);
        if file.is_some() {
            paired.flags |= FLAG_NEW_LINK;
            self.pass_cores(id.client, id.client);
            if let Some(mate) = mate {
                self.pass_cores(id.client, mate.id.client);
            }
        }
        if mate.is_some_and(|mate| self.crosses([id, mate.id])) {
            paired.flags |= FLAG_CROSSES;
        }
        self.post(id.client, paired, file.map(Passed::Arena));
    }

    /// Passes the page of the cores that a client's group shares with another client's, if it has not got it. Without, it only
    /// sees less.
    fn pass_cores(&mut self, id: u64, other: u64) {
        let group = |id| {
            self.clients
                .get(&id)
                .map(|client| (client.uid, client.netns))
        };
        let (Some(own), Some(others)) = (group(id), group(other)) else {
            return;
        };
        let (Ok(page), Some(client)) = (self.cores.of(own, others), self.clients.get_mut(&id))
        else {
            return;
        };
        if let Some(place) = client.cores.add(&page, own == others) {
            let mut cores = Message::new(Kind::Cores);
            cores.index = place;
            self.post(id, cores, Some(Passed::Cores(page)));
        }
    }

    pub(super) fn send_unpaired(&mut self, id: EndId, fd: i32, status: u8) {
        self.post(id.client, Self::unpaired(id, fd, status), None);
    }

    fn unpaired(id: EndId, fd: i32, status: u8) -> Message {
        let mut unpaired = Message::new(Kind::Unpaired);
        (unpaired.fd, unpaired.cookie, unpaired.status) = (fd, id.cookie, status);
        unpaired
    }
}
