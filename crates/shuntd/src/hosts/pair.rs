//! Links between processes of two hosts: their slots, and what they pin.

use std::collections::{BTreeSet, HashMap};

use shunt_abi::Reason;
use shunt_hosts::HostId;

use crate::config::PINNED;

/// Slots of a link.
const SLOTS: u32 = 1024;

/// What may be pinned, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// By one process.
    pub(crate) process: u64,
    /// By all.
    pub(crate) all: u64,
}

/// A connection's place on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The link, by the name that this host has for it.
    pub(crate) link: u64,
    /// Which slot.
    pub(crate) slot: u32,
    /// Changes each time the slot is given.
    pub(crate) generation: u32,
    /// It is the first one of the link.
    pub(crate) is_first: bool,
    /// This host gives the slots.
    pub(crate) is_ours: bool,
    /// What its process may still pin.
    pub(crate) left: u64,
}

/// A process of ours, another host, and that one's process.
pub(crate) type Processes = (u64, HostId, u64);

/// A link.
#[derive(Debug)]
struct Pair {
    processes: Processes,
    /// No new connection will use it.
    is_closed: bool,
    /// Slots that were never given, and that are free again.
    fresh: u32,
    free: Vec<u32>,
    generation: u32,
    /// Slots that this host has given: the other host's end, and who has still to leave: [we, they].
    given: HashMap<u32, (u64, [bool; 2])>,
    /// Connections of ours.
    used: usize,
}

/// All links.
#[derive(Debug)]
pub(crate) struct Pairs {
    budget: Budget,
    last: u64,
    pairs: HashMap<u64, Pair>,
    by_processes: HashMap<Processes, u64>,
    /// Of slots that this host has given: link and slot, by the other host's end.
    by_end: HashMap<(HostId, u64), (u64, u32)>,
    /// What each client pins, and all together.
    pinned: HashMap<u64, u64>,
    all: u64,
}

impl Pairs {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            budget,
            last: 0,
            pairs: HashMap::new(),
            by_processes: HashMap::new(),
            by_end: HashMap::new(),
            pinned: HashMap::new(),
            all: 0,
        }
    }

    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Gives a slot to a connection whose other end has this number at its host.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn give(&mut self, processes: Processes, theirs: u64) -> Result<Seat, Reason> {
        self.afford(processes.0)?;
        let link = self.link(processes);
        let Some(pair) = self.pairs.get_mut(&link) else {
            return Err(Reason::NoResources);
        };
        let fresh = (pair.fresh < SLOTS).then_some(pair.fresh);
        let slot = pair.free.pop().or_else(|| {
            pair.fresh += u32::from(fresh.is_some());
            fresh
        });
        let slot = slot.ok_or(Reason::NoResources)?;
        pair.generation = pair.generation.wrapping_add(1).max(1);
        let generation = pair.generation;
        pair.given.insert(slot, (theirs, [true, true]));
        self.by_end.insert((processes.1, theirs), (link, slot));
        Ok(self.seat(link, [slot, generation], true))
    }

    /// Takes the slot that the other host has given.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn accept(
        &mut self,
        processes: Processes,
        slot: u32,
        generation: u32,
    ) -> Result<Seat, Reason> {
        if slot >= SLOTS {
            return Err(Reason::Protocol);
        }
        self.afford(processes.0)?;
        let link = self.link(processes);
        Ok(self.seat(link, [slot, generation], false))
    }

    /// Our end of a connection is closed.
    pub(crate) fn leave(&mut self, seat: Seat) {
        let Some(pair) = self.pairs.get_mut(&seat.link) else {
            return;
        };
        pair.used -= 1;
        let client = pair.processes.0;
        if let Some(pinned) = self.pinned.get_mut(&client) {
            *pinned -= PINNED;
            self.all -= PINNED;
        }
        self.vacate(seat.link, seat.slot, 0);
        self.bury(seat.link);
    }

    /// The other host's end is.
    pub(crate) fn left(&mut self, host: HostId, theirs: u64) {
        if let Some((link, slot)) = self.by_end.remove(&(host, theirs)) {
            self.vacate(link, slot, 1);
        }
    }

    /// One of both has left a slot; when the other has, too, it is free.
    fn vacate(&mut self, link: u64, slot: u32, side: usize) {
        let Some(pair) = self.pairs.get_mut(&link) else {
            return;
        };
        let Some((_, has)) = pair.given.get_mut(&slot) else {
            return;
        };
        has[side] = false;
        if *has == [false, false] {
            pair.given.remove(&slot);
            pair.free.push(slot);
        }
    }

    /// Our name for the link between two processes, if there is one that is used.
    pub(crate) fn find(&self, client: u64, host: HostId, process: u64) -> Option<u64> {
        self.by_processes.get(&(client, host, process)).copied()
    }

    /// Who is at the other end of a client's link.
    pub(crate) fn other(&self, client: u64, link: u64) -> Option<(HostId, u64)> {
        let pair = self.pairs.get(&link)?;
        let (of, host, process) = pair.processes;
        (of == client && !pair.is_closed).then_some((host, process))
    }

    /// A client has ended; the hosts with which it had links.
    pub(crate) fn forget_client(&mut self, client: u64) -> BTreeSet<HostId> {
        self.all -= self.pinned.remove(&client).unwrap_or(0);
        let is_its = |_: &u64, pair: &mut Pair| pair.processes.0 == client;
        let hosts: BTreeSet<_> = self
            .pairs
            .extract_if(is_its)
            .filter(|(_, pair)| !pair.is_closed)
            .map(|(_, pair)| pair.processes.1)
            .collect();
        self.by_processes.retain(|(of, ..), _| *of != client);
        let pairs = &self.pairs;
        self.by_end.retain(|_, (link, _)| pairs.contains_key(link));
        hosts
    }

    /// A host is gone: client and link of each that was with it.
    pub(crate) fn forget_host(&mut self, host: HostId) -> Vec<(u64, u64)> {
        self.by_end.retain(|(at, _), _| *at != host);
        self.close(|(_, at, _)| at == host)
    }

    /// Another host's process has ended.
    pub(crate) fn forget_process(&mut self, host: HostId, process: u64) -> Vec<(u64, u64)> {
        self.close(|(_, at, of)| (at, of) == (host, process))
    }

    fn close(&mut self, which: impl Fn(Processes) -> bool) -> Vec<(u64, u64)> {
        let mut closed = Vec::new();
        for (link, pair) in &mut self.pairs {
            if which(pair.processes) && !pair.is_closed {
                pair.is_closed = true;
                self.by_processes.remove(&pair.processes);
                closed.push((pair.processes.0, *link));
            }
        }
        for (_, link) in &closed {
            self.bury(*link);
        }
        closed.sort_unstable();
        closed
    }

    /// Forgets a link that is closed, and that no connection of ours uses.
    fn bury(&mut self, link: u64) {
        let is_over = |pair: &Pair| pair.is_closed && pair.used == 0;
        if self.pairs.get(&link).is_some_and(is_over) {
            self.pairs.remove(&link);
        }
    }

    /// Whether a process may pin what one connection more needs.
    fn afford(&self, client: u64) -> Result<(), Reason> {
        let own = self.pinned.get(&client).copied().unwrap_or(0);
        let fits = own + PINNED <= self.budget.process && self.all + PINNED <= self.budget.all;
        fits.then_some(()).ok_or(Reason::Pinned)
    }

    fn link(&mut self, processes: Processes) -> u64 {
        if let Some(&link) = self.by_processes.get(&processes) {
            return link;
        }
        self.last += 1;
        let pair = Pair {
            processes,
            is_closed: false,
            fresh: 0,
            free: Vec::new(),
            generation: 0,
            given: HashMap::new(),
            used: 0,
        };
        self.pairs.insert(self.last, pair);
        self.by_processes.insert(processes, self.last);
        self.last
    }

    fn seat(&mut self, link: u64, [slot, generation]: [u32; 2], is_ours: bool) -> Seat {
        let mut seat = Seat {
            link,
            slot,
            generation,
            is_first: false,
            is_ours,
            left: 0,
        };
        if let Some(pair) = self.pairs.get_mut(&link) {
            pair.used += 1;
            // That of a link which was unused meanwhile says it again: the client may have forgotten it.
            seat.is_first = pair.used == 1;
            let pinned = self.pinned.entry(pair.processes.0).or_default();
            *pinned += PINNED;
            self.all += PINNED;
            seat.left = self.budget.process.saturating_sub(*pinned);
        }
        seat
    }
}
