//! Claims of a kind that come to nothing: when many in a row have, most of the next ones are not made.

use std::sync::atomic::{AtomicU32, Ordering};

/// This many claims in a row that came to nothing show that claims of that kind do not pay now: …
const MANY: u32 = 64;
/// … from then on only one in this many is made at once.
const PROBE: u32 = 64;

/// Claims of one kind.
#[derive(Debug)]
pub(crate) struct Vain {
    /// How many in a row came to nothing; beyond [`MANY`], how many were not made since the last
    /// one that was.
    count: AtomicU32,
}

impl Vain {
    /// None was made yet.
    pub(crate) const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
        }
    }

    /// Whether to make the next claim at once.
    pub(crate) fn pays(&self) -> bool {
        let Some(since) = self.count.load(Ordering::Relaxed).checked_sub(MANY) else {
            return true;
        };
        let next = (since + 1) % PROBE;
        self.count.store(MANY + next, Ordering::Relaxed);
        next == 0
    }

    /// A claim has come to nothing.
    pub(crate) fn note(&self) {
        if self.count.load(Ordering::Relaxed) < MANY {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A claim was worth it.
    pub(crate) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_many_in_vain_one_of_many_is_made_until_one_is_worth_it() {
        let vain = Vain::new();
        (0..MANY - 1).for_each(|_| vain.note());
        assert!(vain.pays());
        vain.note();
        let made = (0..2 * PROBE).filter(|_| vain.pays()).count();
        assert_eq!(made, 2);
        // Those that are made and come to nothing change nothing.
        vain.note();
        assert!((0..PROBE).filter(|_| vain.pays()).count() == 1);
        vain.reset();
        assert!(vain.pays() && vain.pays());
    }
}
