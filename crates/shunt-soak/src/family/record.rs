//! Records: whatever they hold follows from the round's seed, the way and the
//! number, so a receiver knows each one in advance.

use crate::random::{Random, fill};

pub(super) const HEADER: usize = 24;
const MAGIC: u32 = 0xFA31_1700;
/// The longest where processes may be killed: it must fit into one call.
pub(super) const SHORT: u64 = 1000;
const LONG: u64 = 200_000;

/// What a record is, before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) way: u32,
    pub(super) number: u64,
    pub(super) last: bool,
    pub(super) length: usize,
}

impl Record {
    pub(super) fn new(seed: u64, way: u32, number: u64, short: bool, last: bool) -> Self {
        let mut random = Random::new(content(seed, way, number));
        let longest = if short { SHORT } else { LONG };
        let length = if last {
            0
        } else {
            random.magnitude(1, longest)
        };
        Self {
            way,
            number,
            last,
            length: usize::try_from(length).unwrap_or(0),
        }
    }

    pub(super) fn bytes(&self, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + self.length];
        fill(
            content(seed, self.way, self.number),
            0,
            &mut bytes[HEADER..],
        );
        bytes[..4].copy_from_slice(&(MAGIC | u32::from(self.last)).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.way.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.length as u64).to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if it is none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let magic = word(0)?;
        (magic & !1 == MAGIC).then_some(Self {
            way: word(4)?,
            number: long(8)?,
            last: magic & 1 == 1,
            length: usize::try_from(long(16)?).ok()?,
        })
    }
}

fn content(seed: u64, way: u32, number: u64) -> u64 {
    seed ^ (u64::from(way) << 56) ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

#[cfg(test)]
mod tests {
    use super::Record;

    #[test]
    fn a_header_survives() {
        for number in 0..100 {
            let record = Record::new(7, 3, number, number % 2 == 0, number == 99);
            assert_eq!(Record::parse(&record.bytes(7)), Some(record));
        }
    }
}
