//! Links between pairs of clients and the slots of their arenas.
//!
//! A slot is handed out with a fresh generation, held by both ends, and free
//! again when both have released it. The slot freed last is used first: its
//! pages are warm.

use std::collections::{BTreeMap, HashMap};

use shunt_abi::layout::SLOTS;

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
    free: Vec<u32>,
    /// The first slot that was never handed out.
    fresh: u32,
    /// For slots in use: generation, and which sides still hold it.
    held: HashMap<u32, (u32, [bool; 2])>,
}

/// All links of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: HashMap<u64, Link>,
    /// client → other client → their links, oldest first.
    of: HashMap<u64, BTreeMap<u64, Vec<u64>>>,
    last_link: u64,
    last_generation: u32,
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

    /// Opens a link between two clients (in either order, or one with itself).
    pub(crate) fn open(&mut self, clients: [u64; 2], arenas: [u32; 2]) {
        self.last_link += 1;
        let id = self.last_link;
        let link = Link {
            clients,
            arenas,
            free: Vec::new(),
            fresh: 0,
            held: HashMap::new(),
        };
        self.links.insert(id, link);
        let [a, b] = clients;
        self.of.entry(a).or_default().entry(b).or_default().push(id);
        if a != b {
            self.of.entry(b).or_default().entry(a).or_default().push(id);
        }
    }

    /// A slot on some link between the two clients, and the seats of `clients[0]`
    /// and `clients[1]` there; `None` if they have no link with a free slot.
    pub(crate) fn take(&mut self, clients: [u64; 2]) -> Option<[Seat; 2]> {
        let of_pair = self.of.get(&clients[0])?.get(&clients[1])?;
        let full = SLOTS as u32;
        let id = *of_pair.iter().find(|id| {
            self.links
                .get(id)
                .is_some_and(|link| !link.free.is_empty() || link.fresh < full)
        })?;
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

    /// The own arena number of the side that `seat` is on.
    pub(crate) fn arena(&self, seat: Seat) -> Option<u32> {
        Some(self.links.get(&seat.link)?.arenas[seat.side])
    }

    /// One end has left its seat. Ignored if the link is gone.
    pub(crate) fn release(&mut self, seat: Seat) {
        let Some(link) = self.links.get_mut(&seat.link) else {
            return;
        };
        let Some((generation, sides)) = link.held.get_mut(&seat.slot) else {
            return;
        };
        if *generation != seat.generation {
            return;
        }
        sides[seat.side] = false;
        if *sides == [false; 2] {
            link.held.remove(&seat.slot);
            link.free.push(seat.slot);
        }
    }

    /// Forgets every link of a client that has gone. Its slots are never used
    /// again; survivors keep their mappings until they are done with them.
    /// Returns the survivors and the links that they lost.
    pub(crate) fn drop_client(&mut self, client: u64) -> Vec<(u64, u64)> {
        let mut lost = Vec::new();
        for (other, links) in self.of.remove(&client).unwrap_or_default() {
            for id in links {
                self.links.remove(&id);
                lost.push((other, id));
            }
            if let Some(of_other) = self.of.get_mut(&other) {
                of_other.remove(&client);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(clients: [u64; 2]) -> Links {
        let mut links = Links::default();
        links.open(clients, [10, 20]);
        links
    }

    #[test]
    fn the_slot_freed_last_is_used_first_with_a_new_generation() {
        let mut links = opened([1, 2]);
        let a = links.take([1, 2]).unwrap();
        let b = links.take([2, 1]).unwrap();
        assert_eq!((a[0].slot, b[0].slot), (0, 1));
        for seat in [a[0], a[1], b[1], b[0]] {
            links.release(seat);
        }
        let c = links.take([1, 2]).unwrap();
        assert_eq!(c[0].slot, 1);
        assert_ne!(c[0].generation, b[0].generation);
        assert_eq!(links.take([1, 2]).unwrap()[0].slot, 0);
    }

    #[test]
    fn a_slot_is_held_until_both_sides_release_it() {
        let mut links = opened([1, 2]);
        let a = links.take([1, 2]).unwrap();
        links.release(a[0]);
        links.release(a[0]);
        assert_eq!(links.take([1, 2]).unwrap()[0].slot, 1);
    }

    #[test]
    fn a_late_release_does_not_touch_the_slots_next_user() {
        let mut links = opened([1, 2]);
        let old = links.take([1, 2]).unwrap();
        links.release(old[0]);
        links.release(old[1]);
        let new = links.take([1, 2]).unwrap();
        links.release(old[0]);
        links.release(old[1]);
        assert_eq!(new[0].slot, old[0].slot);
        assert_ne!(links.take([1, 2]).unwrap()[0].slot, new[0].slot);
    }

    #[test]
    fn seats_follow_the_order_in_which_clients_are_named() {
        let mut links = opened([1, 2]);
        let [two, one] = links.take([2, 1]).unwrap();
        assert_eq!((links.arena(one), links.arena(two)), (Some(10), Some(20)));
        let mut own = opened([7, 7]);
        let [first, second] = own.take([7, 7]).unwrap();
        assert_eq!((own.arena(first), own.arena(second)), (Some(10), Some(20)));
    }

    #[test]
    fn a_full_link_asks_for_another() {
        let mut links = opened([1, 2]);
        for _ in 0..SLOTS {
            assert!(links.take([1, 2]).is_some());
        }
        assert!(links.take([1, 2]).is_none());
        links.open([1, 2], [11, 21]);
        assert_eq!(links.take([1, 2]).unwrap()[0].slot, 0);
    }

    #[test]
    fn a_dead_clients_links_go_and_late_releases_are_ignored() {
        let mut links = opened([1, 2]);
        links.open([3, 2], [0, 0]);
        links.open([1, 1], [0, 0]);
        let seat = links.take([1, 2]).unwrap()[1];
        assert_eq!(links.drop_client(1), [(1, 3), (2, 1)]);
        assert_eq!(links.len(), 1);
        links.release(seat);
        assert!(links.take([2, 1]).is_none());
        assert!(links.take([2, 3]).is_some());
    }
}
