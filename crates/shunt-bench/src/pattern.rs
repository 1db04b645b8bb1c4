//! What is sent: bytes that the receiver knows by their offset in the stream.

/// The stream repeats after this many bytes. It is no power of two, so that a message lost, doubled
/// or moved by a page shows.
const PERIOD: usize = 65_521;

/// A stream's bytes, with room for a message at any offset.
pub(crate) struct Pattern {
    bytes: Vec<u8>,
}

impl Pattern {
    /// For messages of up to `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let period: Vec<u8> = (0..PERIOD)
            .map(|_| {
                // Marsaglia's xorshift.
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word as u8
            })
            .collect();
        let bytes = period.iter().copied().cycle().take(PERIOD + size);
        Self {
            bytes: bytes.collect(),
        }
    }

    /// The bytes of the stream from `offset` on.
    #[inline]
    pub(crate) fn at(&self, offset: u64, size: usize) -> &[u8] {
        let from = (offset % PERIOD as u64) as usize;
        &self.bytes[from..from + size]
    }

    /// Whether these are the stream's bytes from `offset` on.
    #[inline]
    pub(crate) fn is_at(&self, offset: u64, bytes: &[u8]) -> bool {
        self.at(offset, bytes.len()) == bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_another_place_is_seen() {
        let pattern = Pattern::new(4096);
        let message = pattern.at(65_500, 4096).to_vec();
        assert!(pattern.is_at(65_500, &message));
        for offset in [65_499, 65_500 + 4096, 65_500 + (64 << 10), 0] {
            assert!(!pattern.is_at(offset, &message), "{offset}");
        }
    }
}
