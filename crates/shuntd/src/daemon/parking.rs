//! Pairs that wait for memory: what each of two clients has in stock is asked for before it is needed,
//! and a pair is parked where it has not come yet.

use std::cmp::Reverse;

use shunt_abi::Reason;
use shunt_abi::layout::FIRST_SLOTS;

use super::Daemon;
use crate::client::Spare;
use crate::end::{EndId, State};

impl Daemon {
    /// Asks for the memory of two clients' next link, if they will need it soon.
    pub(super) fn provide(&mut self, clients: [u64; 2]) {
        if !self.links.is_short(clients) {
            return;
        }
        let most = |id| self.clients.get(&id).map_or(0, |client| client.most_slots);
        let [a, b] = clients;
        let slots = self.links.next_slots(clients).min(most(a)).min(most(b));
        if slots <= FIRST_SLOTS {
            return; // That is in stock anyway.
        }
        for id in clients {
            self.ask_for_spares(id, slots, 1 + usize::from(a == b));
        }
    }

    /// One spare of each client, two different ones if it is the same: those that make the
    /// link as large as it is to be, if there are such, and waste least.
    pub(super) fn take_spares(&mut self, clients: [u64; 2]) -> Option<[Spare; 2]> {
        let wanted = self.links.next_slots(clients);
        let [a, b] = clients;
        let sizes = |id| -> Vec<u32> {
            let client = self.clients.get(&id);
            client.map_or_else(Vec::new, |c| c.spares.iter().map(|s| s.slots).collect())
        };
        let (of_a, of_b) = (sizes(a), sizes(b));
        let (of_a, of_b) = (of_a.iter().enumerate(), of_b.iter().enumerate());
        let (i, j, _) = of_a
            .flat_map(|(i, &x)| of_b.clone().map(move |(j, &y)| (i, j, [x, y])))
            .filter(|&(i, j, _)| a != b || i > j)
            .max_by_key(|&(_, _, [x, y])| (x.min(y).min(wanted), Reverse(x.max(y))))?;
        let mut take = |id, at| Some(self.clients.get_mut(&id)?.spares.remove(at));
        // If they are of one client, this is the one behind: the other does not move.
        Some([take(a, i)?, take(b, j)?])
    }

    /// Asks a client for spares for a first link: as many as it keeps in stock, or `least`.
    pub(super) fn want_spares(&mut self, id: u64, least: usize) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.stock = client.stock.max(least);
        let wanted = client.stock;
        self.ask_for_spares(id, FIRST_SLOTS, wanted);
    }

    fn ask_for_spares(&mut self, id: u64, slots: u32, wanted: usize) {
        let limit = self.outbox_limit();
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.want_spares(slots, wanted, limit).is_err() {
            self.doomed.push(id);
        }
        self.watch(id);
    }

    pub(super) fn park(&mut self, a: EndId, b: EndId) {
        for (id, other) in [(a, b), (b, a)] {
            if let Some(end) = self.ends.get_mut(id) {
                end.state = State::Parked(other);
            }
        }
        self.parked.push([a, b]);
        let least = if a.client == b.client { 2 } else { 1 };
        for (id, other) in [(a, b), (b, a)] {
            self.want_spares(id.client, least);
            // Nobody is kept waiting for what another process has to do.
            let stock = |id: u64| self.clients.get(&id).map_or(0, |c| c.spares.len());
            if id.client != other.client && stock(other.client) == 0 {
                self.answer_not_yet(id);
            }
        }
    }

    /// A client has brought memory: its parked pairs are tried again.
    pub(super) fn unpark(&mut self, client: u64) {
        let involved = |pair: &[EndId; 2]| pair.iter().any(|id| id.client == client);
        let (ready, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(involved);
        self.parked = rest;
        for [a, b] in ready {
            self.pair(a, b);
        }
    }

    /// A client cannot make memory: its parked pairs that need more arenas of it than are
    /// there stay on TCP.
    pub(super) fn refuse_parked(&mut self, client: u64, there: usize, reason: Reason) {
        let involved = |pair: &[EndId; 2]| {
            let needed = pair.iter().filter(|id| id.client == client).count();
            needed > there
        };
        let gone: Vec<_> = self.parked.iter().copied().filter(involved).collect();
        self.parked.retain(|pair| !involved(pair));
        for id in gone.into_iter().flatten() {
            self.refuse(id, reason);
        }
    }

    /// One of two that waited for memory leaves the other.
    pub(super) fn unpark_pair(&mut self, leaving: EndId, other: EndId) {
        self.parked.retain(|pair| !pair.contains(&leaving));
        self.set_state(other, State::Waiting);
        self.answer_not_yet(other);
    }
}
