//! Links between pairs of clients and the slots of their arenas.
//!
//! A slot is handed out with a fresh generation, held by both ends, and free
//! again when both have released it. The slot freed last is used first: its
//! pages are warm. A link that nobody has had a slot of for a while is taken
//! back: its clients unmap it, and the system has its memory again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use shunt_abi::layout::{arena_bytes, slots_beside};

/// The most links that two clients may have: where memory allows, for 60,000 connections.
const MOST_LINKS: usize = 64;

/// A link that has had no connection for this time is taken back.
const UNUSED: Duration = Duration::from_secs(2);

/// Where one end of a connection sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Which link.
    pub(crate) link: u64,
    /// Which slot of its arenas.
    pub(crate) slot: u32,
    /// Sets this use of the slot apart from earlier ones.
    pub(crate) generation: u32,
    /// 0 or 1: whose arena this end writes.
    pub(crate) side: usize,
}

#[derive(Debug)]
struct Link {
    /// The client on each side; twice the same for a link with itself.
    clients: [u64; 2],
    /// Each side's own number for the arena that it writes.
    arenas: [u32; 2],
    /// How many slots both arenas have.
    slots: u32,
    free: Vec<u32>,
    /// The first slot that was never handed out.
    fresh: u32,
    held: Held,
    /// When the last slot was released, …
    unused_since: Instant,
    /// … which is looked at again when its turn in [`Links::unused`] has come.
    is_watched: bool,
}

/// The slots of a link that are in use: generation, and which sides still hold it.
type Held = HashMap<u32, (u32, [bool; 2])>;

/// A link that gets no new connection any more, while those that are there go on.
#[derive(Debug)]
struct Ending {
    clients: [u64; 2],
    slots: u32,
    held: Held,
}

/// What two clients share.
#[derive(Debug, Default)]
struct Pair {
    /// Their links, oldest first.
    links: Vec<u64>,
    /// Slots of all these together, and those in use.
    slots: u32,
    held: u32,
}

/// All links of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: HashMap<u64, Link>,
    /// By the two clients, the lower id first.
    pairs: HashMap<[u64; 2], Pair>,
    /// client → with whom it has links.
    of: HashMap<u64, BTreeSet<u64>>,
    /// Links that were unused, by when they were.
    unused: VecDeque<(Instant, u64)>,
    /// Links that clients have for their last connections only.
    ending: HashMap<u64, Ending>,
    /// What clients have had, and hold no more.
    freed: Vec<Lost>,
    last_link: u64,
    last_generation: u32,
}

/// A client of a link that was opened, or was taken back, or whose other client has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Its id.
    pub(crate) link: u64,
    /// The client.
    pub(crate) client: u64,
    /// Bytes of the arenas that this client has made for it.
    pub(crate) memory: usize,
}

impl Links {
    /// No links yet. Their ids start at the nanoseconds since boot: a client
    /// that outlived an earlier daemon meets no id twice.
    pub(crate) fn new() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let nanoseconds = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        Self {
            last_link: nanoseconds,
            ..Self::default()
        }
    }

    fn pair(&self, clients: [u64; 2]) -> Option<&Pair> {
        self.pairs.get(&sorted(clients))
    }

    /// Opens a link with `slots` slots between two clients (in either order, or one with itself).
    /// Returns whom it belongs to.
    pub(crate) fn open(&mut self, clients: [u64; 2], arenas: [u32; 2], slots: u32) -> Vec<Lost> {
        self.last_link += 1;
        let id = self.last_link;
        let link = Link {
            clients,
            arenas,
            slots,
            free: Vec::new(),
            fresh: 0,
            held: HashMap::new(),
            unused_since: Instant::now(),
            is_watched: false,
        };
        self.links.insert(id, link);
        let pair = self.pairs.entry(sorted(clients)).or_default();
        pair.links.push(id);
        pair.slots += slots;
        let [a, b] = clients;
        self.of.entry(a).or_default().insert(b);
        self.of.entry(b).or_default().insert(a);
        told(id, clients, slots)
    }

    /// Whether two clients have as many links as two may: each costs both some work at every
    /// wait of a set, however few slots it has.
    pub(crate) fn is_full(&self, clients: [u64; 2]) -> bool {
        self.pair(clients)
            .is_some_and(|pair| pair.links.len() >= MOST_LINKS)
    }

    /// How many slots the next link between two clients is to have, …
    pub(crate) fn next_slots(&self, clients: [u64; 2]) -> u32 {
        slots_beside(self.pair(clients).map_or(0, |pair| pair.slots))
    }

    /// … and whether it will soon be needed: most slots of those that they have are in use.
    pub(crate) fn is_short(&self, clients: [u64; 2]) -> bool {
        self.pair(clients)
            .is_some_and(|pair| pair.held >= pair.slots - pair.slots / 4)
    }

    /// A slot on some link between the two clients, and the seats of `clients[0]`
    /// and `clients[1]` there; `None` if they have no link with a free slot.
    pub(crate) fn take(&mut self, clients: [u64; 2]) -> Option<[Seat; 2]> {
        let pair = self.pairs.get_mut(&sorted(clients))?;
        let id = *pair.links.iter().find(|id| {
            self.links
                .get(id)
                .is_some_and(|link| !link.free.is_empty() || link.fresh < link.slots)
        })?;
        pair.held += 1;
        let link = self.links.get_mut(&id)?;
        let slot = link.free.pop().unwrap_or_else(|| {
            link.fresh += 1;
            link.fresh - 1
        });
        self.last_generation = self.last_generation.checked_add(1).unwrap_or(1);
        let generation = self.last_generation;
        link.held.insert(slot, (generation, [true; 2]));
        let first = usize::from(link.clients[0] != clients[0]);
        let seat = |side| Seat {
            link: id,
            slot,
            generation,
            side,
        };
        Some([seat(first), seat(1 - first)])
    }

    /// Whether new connections may use a link.
    pub(crate) fn has(&self, link: u64) -> bool {
        self.links.contains_key(&link)
    }

    /// The own arena number of the side that `seat` is on.
    pub(crate) fn arena(&self, seat: Seat) -> Option<u32> {
        Some(self.links.get(&seat.link)?.arenas[seat.side])
    }

    /// One end has left its seat. Ignored if the link is gone.
    pub(crate) fn release(&mut self, seat: Seat) {
        let Some(link) = self.links.get_mut(&seat.link) else {
            return self.release_last(seat);
        };
        if !leave(&mut link.held, seat) {
            return;
        }
        link.free.push(seat.slot);
        if link.held.is_empty() {
            link.unused_since = Instant::now();
            if !std::mem::replace(&mut link.is_watched, true) {
                self.unused.push_back((link.unused_since, seat.link));
            }
        }
        if let Some(pair) = self.pairs.get_mut(&sorted(link.clients)) {
            pair.held -= 1;
        }
    }

    /// One end has left its seat on a link that gets no new connections.
    fn release_last(&mut self, seat: Seat) {
        if let Some(link) = self.ending.get_mut(&seat.link)
            && leave(&mut link.held, seat)
            && link.held.is_empty()
        {
            let lost = told(seat.link, link.clients, link.slots);
            self.ending.remove(&seat.link);
            self.freed.extend(lost);
        }
    }

    /// Whose memory has become free since this was asked last: of links that are gone, and have no
    /// connection any more.
    pub(crate) fn take_freed(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.freed)
    }

    /// How long until some link may have been unused for long enough.
    pub(crate) fn left(&self) -> Option<Duration> {
        let (since, _) = self.unused.front()?;
        Some(UNUSED.saturating_sub(since.elapsed()))
    }

    /// Takes back what has been unused for long enough. Returns who is to be told.
    pub(crate) fn take_back(&mut self, now: Instant) -> Vec<Lost> {
        let mut lost = Vec::new();
        while let Some(&(since, id)) = self.unused.front()
            && now.saturating_duration_since(since) >= UNUSED
        {
            self.unused.pop_front();
            let Some(link) = self.links.get_mut(&id) else {
                continue;
            };
            link.is_watched = false;
            if !link.held.is_empty() {
                continue; // Watched again when it is unused again.
            }
            if now.saturating_duration_since(link.unused_since) < UNUSED {
                link.is_watched = true;
                // Later than those that are in the queue already.
                self.unused.push_back((now, id));
                continue;
            }
            let (clients, slots) = (link.clients, link.slots);
            self.close(id);
            lost.extend(told(id, clients, slots));
        }
        lost
    }

    /// A client says that another process, which it has forked, has memory of one of its links: no
    /// new connection may use that. The connections that are there go on in it, and their slots
    /// are never used again. Returns who is to be told.
    pub(crate) fn retire(&mut self, client: u64, id: u64) -> Vec<Lost> {
        let Some(link) = self.links.get(&id) else {
            return Vec::new(); // Taken back, or its other client has gone.
        };
        let (clients, slots) = (link.clients, link.slots);
        if !clients.contains(&client) {
            return Vec::new();
        }
        self.close(id);
        told(id, clients, slots)
    }

    /// Forgets a link.
    fn close(&mut self, id: u64) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        let ([a, b], slots, held) = (link.clients, link.slots, link.held.len() as u32);
        self.let_end(id, link);
        let Some(pair) = self.pairs.get_mut(&sorted([a, b])) else {
            return;
        };
        pair.links.retain(|other| *other != id);
        pair.slots -= slots;
        pair.held -= held;
        if pair.links.is_empty() {
            self.pairs.remove(&sorted([a, b]));
            for (one, other) in [(a, b), (b, a)] {
                if let Some(of_one) = self.of.get_mut(&one) {
                    of_one.remove(&other);
                    if of_one.is_empty() {
                        self.of.remove(&one);
                    }
                }
            }
        }
    }

    /// A link that is forgotten: its memory is free at once, or when its last connection has ended.
    fn let_end(&mut self, id: u64, link: Link) {
        let (clients, slots, held) = (link.clients, link.slots, link.held);
        if held.is_empty() {
            self.freed.extend(told(id, clients, slots));
        } else {
            let ending = Ending {
                clients,
                slots,
                held,
            };
            self.ending.insert(id, ending);
        }
    }

    /// Forgets every link of a client that has gone, and has left its seats. Its slots are never used
    /// again; survivors keep their mappings until they are done with them.
    /// Returns the survivors and the links that they lost.
    pub(crate) fn drop_client(&mut self, client: u64) -> Vec<Lost> {
        let mut lost = Vec::new();
        for other in self.of.remove(&client).unwrap_or_default() {
            let pair = self.pairs.remove(&sorted([client, other]));
            for id in pair.unwrap_or_default().links {
                let Some(link) = self.links.remove(&id) else {
                    continue;
                };
                let of_other = told(id, link.clients, link.slots);
                lost.extend(of_other.into_iter().filter(|lost| lost.client == other));
                self.let_end(id, link);
            }
            if let Some(of_other) = self.of.get_mut(&other) {
                of_other.remove(&client);
                if of_other.is_empty() {
                    self.of.remove(&other);
                }
            }
        }
        lost
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }
}

/// One end leaves its seat; whether both have left it by now.
fn leave(held: &mut Held, seat: Seat) -> bool {
    let Some((generation, sides)) = held.get_mut(&seat.slot) else {
        return false;
    };
    if *generation != seat.generation {
        return false;
    }
    sides[seat.side] = false;
    let is_free = *sides == [false; 2];
    if is_free {
        held.remove(&seat.slot);
    }
    is_free
}

/// Both clients of a link, or the one that has it with itself.
fn told(link: u64, clients: [u64; 2], slots: u32) -> Vec<Lost> {
    let both = if clients[0] == clients[1] { 1 } else { 2 };
    let memory = arena_bytes(slots) * clients.len() / both;
    let lost = |&client: &u64| Lost {
        link,
        client,
        memory,
    };
    clients[..both].iter().map(lost).collect()
}

fn sorted([a, b]: [u64; 2]) -> [u64; 2] {
    [a.min(b), a.max(b)]
}

#[cfg(test)]
mod tests;
