//! Claims of ends whose other ends are on other hosts, and the search for the one that mirrors another.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use shunt_hosts::{Claim, Numbers, Side};

/// Claims of one side: what this host has told another one, or has been told by it.
#[derive(Debug, Default)]
pub(crate) struct Index {
    claims: HashMap<u64, Claim>,
    by_numbers: HashMap<(Side, Numbers), BTreeSet<u64>>,
    by_addresses: HashMap<(Side, SocketAddr, SocketAddr), BTreeSet<u64>>,
}

impl Index {
    /// Adds a claim, in the place of one of the same number.
    pub(crate) fn insert(&mut self, claim: Claim) {
        self.remove(claim.end);
        self.claims.insert(claim.end, claim);
        if let Some(numbers) = claim.numbers {
            let of_numbers = self.by_numbers.entry((claim.side, numbers));
            of_numbers.or_default().insert(claim.end);
        }
        let of_addresses = self.by_addresses.entry(addresses(&claim));
        of_addresses.or_default().insert(claim.end);
    }

    /// Forgets a claim.
    pub(crate) fn remove(&mut self, end: u64) -> Option<Claim> {
        let claim = self.claims.remove(&end)?;
        if let Some(numbers) = claim.numbers {
            let key = (claim.side, numbers);
            if let Some(ends) = self.by_numbers.get_mut(&key) {
                ends.remove(&end);
                if ends.is_empty() {
                    self.by_numbers.remove(&key);
                }
            }
        }
        let key = addresses(&claim);
        if let Some(ends) = self.by_addresses.get_mut(&key) {
            ends.remove(&end);
            if ends.is_empty() {
                self.by_addresses.remove(&key);
            }
        }
        Some(claim)
    }

    pub(crate) fn get(&self, end: u64) -> Option<&Claim> {
        self.claims.get(&end)
    }

    pub(crate) fn len(&self) -> usize {
        self.claims.len()
    }

    /// The claim of the other end of what the other side claims, if there is one and no more: by sequence numbers, whatever
    /// lies between; where one side knows none, by addresses, which nothing may have translated then.
    pub(crate) fn mirror(&self, of: &Claim) -> Option<&Claim> {
        let side = of.side.other();
        if let Some(numbers) = of.numbers
            && let Some(ends) = self.by_numbers.get(&(side, numbers.mirrored()))
        {
            return self.only(ends);
        }
        let ends = self.by_addresses.get(&(side, of.peer, of.local))?;
        // Where both know numbers, these are another connection's: an older one's with the same addresses.
        let agrees = |claim: &&Claim| claim.numbers.is_none() || of.numbers.is_none();
        self.only(ends).filter(agrees)
    }

    fn only(&self, ends: &BTreeSet<u64>) -> Option<&Claim> {
        let end = ends.first().filter(|_| ends.len() == 1)?;
        self.claims.get(end)
    }
}

fn addresses(claim: &Claim) -> (Side, SocketAddr, SocketAddr) {
    (claim.side, claim.local, claim.peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(end: u64, side: Side, numbers: Option<(u32, u32)>, ports: [u16; 2]) -> Claim {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Claim {
            end,
            process: 1,
            side,
            numbers: numbers.map(|(sent, received)| Numbers { sent, received }),
            local: address(ports[0]),
            peer: address(ports[1]),
            obstacle: 0,
        }
    }

    fn found(index: &Index, of: Claim) -> Option<u64> {
        index.mirror(&of).map(|claim| claim.end)
    }

    #[test]
    fn numbers_come_before_addresses() {
        let mut index = Index::default();
        index.insert(claim(1, Side::Connector, Some((7, 9)), [4000, 80]));
        index.insert(claim(2, Side::Connector, Some((8, 9)), [4001, 80]));
        // Something has translated the port.
        let other = claim(5, Side::Acceptor, Some((9, 7)), [8080, 4000]);
        assert_eq!(found(&index, other), Some(1));
        // The addresses are those of 2, the numbers nobody's.
        let older = claim(5, Side::Acceptor, Some((9, 9)), [80, 4001]);
        assert_eq!(found(&index, older), None);
        // Another host that knows no numbers.
        let plain = claim(5, Side::Acceptor, None, [80, 4001]);
        assert_eq!(found(&index, plain), Some(2));
    }

    #[test]
    fn ends_of_one_side_and_ends_that_are_claimed_twice_are_nobodys_mirror() {
        let mut index = Index::default();
        index.insert(claim(1, Side::Connector, Some((7, 9)), [4000, 80]));
        let same = claim(5, Side::Connector, Some((9, 7)), [80, 4000]);
        assert_eq!(found(&index, same), None);
        let other = claim(5, Side::Acceptor, Some((9, 7)), [80, 4000]);
        assert_eq!(found(&index, other), Some(1));
        index.insert(claim(2, Side::Connector, Some((7, 9)), [4000, 80]));
        assert_eq!(found(&index, other), None);
        index.remove(1);
        assert_eq!(found(&index, other), Some(2));
        index.insert(claim(2, Side::Connector, None, [4000, 80]));
        assert_eq!(found(&index, other), Some(2));
        index.remove(2);
        assert_eq!((found(&index, other), index.len()), (None, 0));
        assert!(index.by_numbers.is_empty() && index.by_addresses.is_empty());
    }
}
