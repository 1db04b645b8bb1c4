//! Random choices, and streams of bytes that can be computed at any offset.

/// `SplitMix64`: small, fast, good enough to choose by.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// In `0..bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }

    /// In `low..=high`, every order of magnitude equally likely.
    pub(crate) fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low.max(1), high.max(1));
        if low >= high {
            return low;
        }
        let bits = u64::from((high / low).ilog2()) + 1;
        let shift = self.next() % bits;
        let base = low << shift;
        (base + self.next() % base).min(high)
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    mix(seed.wrapping_add(index.wrapping_mul(GOLDEN))).to_le_bytes()
}

/// The bytes of stream `seed` from `offset` on.
pub(crate) fn fill(seed: u64, mut offset: u64, mut buffer: &mut [u8]) {
    while !buffer.is_empty() {
        let bytes = word(seed, offset / 8);
        let skip = usize::try_from(offset % 8).unwrap_or(0);
        let take = (8 - skip).min(buffer.len());
        let (now, later) = buffer.split_at_mut(take);
        now.copy_from_slice(&bytes[skip..skip + take]);
        offset += take as u64;
        buffer = later;
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, fill};

    #[test]
    fn a_stream_is_the_same_from_any_offset() {
        let mut whole = [0; 100];
        fill(7, 0, &mut whole);
        for start in 0..50 {
            let mut part = [0; 37];
            fill(7, start as u64, &mut part);
            assert_eq!(part, whole[start..start + 37]);
        }
    }

    #[test]
    fn magnitudes_stay_in_range() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            assert!((3..=1000).contains(&random.magnitude(3, 1000)));
        }
        assert_eq!(random.magnitude(9, 9), 9);
    }
}
