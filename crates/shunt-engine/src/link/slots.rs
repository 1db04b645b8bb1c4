//! A set of slots, a bit for each.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use shunt_abi::layout::MOST_SLOTS;

const WORDS: usize = MOST_SLOTS as usize / 64;

/// See the module. One thread at a time changes it.
#[derive(Default)]
pub(super) struct Slots([AtomicU64; WORDS]);

impl Slots {
    /// None.
    pub(super) fn clear(&self) {
        self.fill(0);
    }

    /// Puts the first `slots` slots into the set.
    pub(super) fn fill(&self, slots: u32) {
        for (i, word) in self.0.iter().enumerate() {
            let here = slots.saturating_sub(i as u32 * 64).min(64);
            let bits = if here == 64 {
                u64::MAX
            } else {
                (1 << here) - 1
            };
            word.store(bits, Ordering::Relaxed);
        }
    }

    pub(super) fn add(&self, slots: Range<u32>) {
        self.change(slots, |word, bits| word | bits);
    }

    pub(super) fn remove(&self, slots: Range<u32>) {
        self.change(slots, |word, bits| word & !bits);
    }

    fn change(&self, slots: Range<u32>, change: impl Fn(u64, u64) -> u64) {
        for slot in slots {
            let word = &self.0[slot as usize / 64];
            let changed = change(word.load(Ordering::Relaxed), 1 << (slot % 64));
            word.store(changed, Ordering::Relaxed);
        }
    }

    pub(super) fn has(&self, slot: u32) -> bool {
        let word = self.0.get(slot as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (slot % 64) & 1 != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Keeps only the slots that are in both sets.
    pub(super) fn keep(&self, other: &Self) {
        for (word, other) in self.0.iter().zip(&other.0) {
            let both = word.load(Ordering::Relaxed) & other.load(Ordering::Relaxed);
            word.store(both, Ordering::Relaxed);
        }
    }

    /// Calls `visit` with the runs of slots that are here and not there.
    pub(super) fn each_run_without(&self, other: &Self, mut visit: impl FnMut(Range<u32>)) {
        let mut begun = None;
        for (i, (word, other)) in self.0.iter().zip(&other.0).enumerate() {
            let bits = word.load(Ordering::Relaxed) & !other.load(Ordering::Relaxed);
            if bits == 0 && begun.is_none() {
                continue;
            }
            for (slot, bit) in (i as u32 * 64..).zip(0..64) {
                let is_one = bits >> bit & 1 != 0;
                match begun {
                    None if is_one => begun = Some(slot),
                    Some(first) if !is_one => {
                        visit(first..slot);
                        begun = None;
                    }
                    _ => {}
                }
            }
        }
        if let Some(first) = begun {
            visit(first..MOST_SLOTS);
        }
    }
}

#[cfg(test)]
// A set of one run is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn of<const N: usize>(slots: [Range<u32>; N]) -> Slots {
        let set = Slots::default();
        slots.iter().for_each(|run| set.add(run.clone()));
        set
    }

    #[test]
    fn runs_are_told_apart_across_words() {
        let (all, few) = (of([]), of([0..3, 60..70, 1023..1024]));
        all.fill(MOST_SLOTS);
        let mut runs = Vec::new();
        all.each_run_without(&few, |run| runs.push(run));
        assert_eq!(runs, [3..60, 70..1023]);
        runs.clear();
        few.each_run_without(&of([1..2, 1..2]), |run| runs.push(run));
        assert_eq!(runs, [0..1, 2..3, 60..70, 1023..1024]);
    }

    #[test]
    fn a_run_ends_with_its_word_though_nothing_is_in_the_next_one() {
        let mut runs = Vec::new();
        of([60..64, 200..201]).each_run_without(&of([]), |run| runs.push(run));
        assert_eq!(runs, [60..64, 200..201]);
    }

    #[test]
    fn slots_come_and_go() {
        let set = of([5..6, 6..7]);
        set.remove(5..6);
        assert!(!set.has(5) && set.has(6) && !set.has(MOST_SLOTS));
        set.keep(&of([0..5, 5..6]));
        assert!(set.is_empty());
        set.fill(65);
        assert!(set.has(64) && !set.has(65));
    }
}
