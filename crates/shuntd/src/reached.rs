//! Where a client's listeners are reached from other network namespaces, as far as connections have
//! shown.

use std::collections::{HashMap, VecDeque};

/// Ports of one namespace. A listener is reached by one or two from there: its own, a published one.
const PORTS: usize = 64;
/// Namespaces.
const NAMESPACES: usize = 512;

/// Ports, by the namespace (`SO_NETNS_COOKIE`) from which they are connected to. Who connects decides what is noted here, so
/// what was noted first makes room.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    ports: HashMap<u64, VecDeque<u16>>,
    /// The namespaces, as they came.
    order: VecDeque<u64>,
}

impl Reached {
    /// Notes a port, and says what had to go for it. `None`: it is known.
    pub(crate) fn add(&mut self, netns: u64, port: u16) -> Option<Vec<(u64, u16)>> {
        let ports = self.ports.entry(netns).or_default();
        if ports.contains(&port) {
            return None;
        }
        let is_new = ports.is_empty();
        ports.push_back(port);
        let former = (ports.len() > PORTS).then(|| ports.pop_front()).flatten();
        let mut gone: Vec<_> = former.map(|port| (netns, port)).into_iter().collect();
        if is_new {
            self.order.push_back(netns);
            let first = (self.order.len() > NAMESPACES).then(|| self.order.pop_front());
            if let Some(first) = first.flatten() {
                let ports = self.ports.remove(&first).unwrap_or_default();
                gone.extend(ports.into_iter().map(|port| (first, port)));
            }
        }
        Some(gone)
    }

    /// Those of a namespace.
    pub(crate) fn of(&self, netns: u64) -> impl Iterator<Item = u16> {
        self.ports.get(&netns).into_iter().flatten().copied()
    }

    /// All, with their namespaces.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u16)> {
        self.ports
            .iter()
            .flat_map(|(&netns, ports)| ports.iter().map(move |&port| (netns, port)))
    }

    /// No client lives in that namespace any more; one that comes again is told by the next connection.
    pub(crate) fn forget(&mut self, netns: u64) {
        if self.ports.remove(&netns).is_some() {
            self.order.retain(|&other| other != netns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_first_makes_room() {
        let mut reached = Reached::default();
        for port in 1..=PORTS as u16 {
            assert_eq!(reached.add(7, port), Some(vec![]));
            assert_eq!(reached.add(7, port), None);
        }
        assert_eq!(reached.add(7, 1000), Some(vec![(7, 1)]));
        for netns in 8..7 + NAMESPACES as u64 {
            assert_eq!(reached.add(netns, 80), Some(vec![]));
        }
        let gone = reached.add(5, 80).unwrap();
        assert_eq!((gone.len(), gone[0]), (PORTS, (7, 2)));
        assert!(reached.of(7).next().is_none() && reached.of(5).eq([80]));
        reached.forget(8);
        assert_eq!(reached.add(7, 1), Some(vec![]));
        assert_eq!(reached.all().count(), NAMESPACES);
    }
}
