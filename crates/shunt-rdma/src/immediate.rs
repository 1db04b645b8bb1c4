//! The 32 bits that come with a write.
//!
//! ```text
//! kind (3 bits) | slot (10 bits) | offset in the ring / 8 (19 bits)
//! ```

/// Slots that an immediate can name.
pub const SLOTS: u32 = 1 << 10;
/// Bytes of a ring whose places an immediate can name.
pub const RING: u32 = 8 << 19;

/// What has been written; see [`Run`](shunt_shm::ring::mirror::Run).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The payload of one frame.
    Frame = 1,
    /// Several frames, and a copy of the first header.
    Frames = 2,
    /// Nothing: a jump.
    Jump = 3,
}

/// An immediate, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// What.
    pub kind: Kind,
    /// In whose ring; below [`SLOTS`].
    pub slot: u32,
    /// Of the first header, or where a jump leads; a multiple of 8 below [`RING`].
    pub offset: u32,
}

impl Immediate {
    /// As 32 bits.
    #[must_use]
    pub fn pack(self) -> u32 {
        debug_assert!(self.slot < SLOTS && self.offset < RING && self.offset.is_multiple_of(8));
        (self.kind as u32) << 29 | self.slot << 19 | (self.offset / 8)
    }

    /// From the peer's 32 bits; `None`: they are nothing.
    #[must_use]
    pub fn unpack(word: u32) -> Option<Self> {
        let kind = match word >> 29 {
            1 => Kind::Frame,
            2 => Kind::Frames,
            3 => Kind::Jump,
            _ => return None,
        };
        Some(Self {
            kind,
            slot: word >> 19 & (SLOTS - 1),
            offset: (word & (RING / 8 - 1)) * 8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_immediate_is_its_word(word in any::<u32>()) {
            let known = (1..=3).contains(&(word >> 29));
            prop_assert_eq!(Immediate::unpack(word).map(Immediate::pack), known.then_some(word));
        }
    }
}
