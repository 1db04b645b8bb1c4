//! The memory of all connections of both sides, and what streams are made of.

use shunt_shm::atomic::AtomicU64;
use shunt_shm::ring::{Consumer, Found, Memory};
use shunt_shm::slot::Slot;

use crate::bond::Lines;

/// Bytes of a ring: few, so that streams come round often.
pub(super) const RING: usize = 16 << 10;

/// The memory of all connections of both sides.
pub(super) struct Store {
    sides: [Vec<Place>; 2],
}

/// One side of one connection.
struct Place {
    own: Slot,
    view: Slot,
    out: Vec<AtomicU64>,
    inward: Vec<AtomicU64>,
}

impl Store {
    pub(super) fn new(connections: usize) -> Self {
        let words = || (0..RING / 8).map(|_| AtomicU64::new(0)).collect();
        let place = |_| Place {
            own: Slot::default(),
            view: Slot::default(),
            out: words(),
            inward: words(),
        };
        let side = || (0..connections).map(place).collect();
        Self {
            sides: [side(), side()],
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.sides[0].len()
    }

    pub(super) fn lines(&self, side: usize, slot: usize) -> Lines<'_> {
        let place = &self.sides[side][slot];
        // SAFETY: the words live as long as the lines.
        let memory = |words: &Vec<AtomicU64>| unsafe { Memory::new(words.as_ptr(), RING as u32) };
        Lines {
            own: &place.own,
            view: &place.view,
            out: memory(&place.out),
            inward: memory(&place.inward),
        }
    }
}

/// The byte of a stream at that place.
pub(super) fn byte(slot: usize, from: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (slot as u64 * 2 + from as u64 + 1));
    (mixed >> 56) as u8
}

/// Everything that a consumer has to read.
pub(super) fn all_of(consumer: &Consumer) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 1000];
    // SAFETY: the array is writable.
    while let Ok(Found::Bytes(n)) = unsafe { consumer.read(part.as_mut_ptr(), part.len(), false) } {
        all.extend_from_slice(&part[..n]);
    }
    all
}
