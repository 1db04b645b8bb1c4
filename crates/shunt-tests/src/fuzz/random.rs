//! Random numbers that are the same for a seed on every machine and in every version of any crate.

/// `SplitMix64` (Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`; 0 if there is none.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One of `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these, which are some.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let mut random = Random::new(1);
        let drawn: Vec<usize> = (0..4).map(|_| random.below(1000)).collect();
        let mut again = Random::new(1);
        assert_eq!(drawn, (0..4).map(|_| again.below(1000)).collect::<Vec<_>>());
        assert_eq!(Random::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }
}
