//! Notes: what two sides say to each other beside payload, at most [`NOTE_BYTES`] each.
//!
//! ```text
//! kind (1) | 0 (1) | receives granted (2) | slot (4) | up to five words of 8 bytes, as the kind has them
//! ```
//! All little endian. A note of another length or kind ends the queue pair.

use crate::immediate::SLOTS;
use crate::transport::NOTE_BYTES;

/// What a note says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Only what it grants.
    Grant,
    /// What follows for this slot is of this life; the view of its ring is empty.
    Begin {
        /// Which.
        slot: u32,
        /// Never 0.
        life: u32,
    },
    /// This side honours the peer's ring of that life, which is to be written there.
    Ready {
        /// Which.
        slot: u32,
        /// The peer's.
        life: u32,
        /// Of the memory.
        key: u32,
        /// Bytes of the ring.
        size: u32,
        /// Of its first byte.
        address: u64,
    },
    /// The ring may carry the stream from that byte of TCP's on: nothing has been sent behind it.
    Switch {
        /// Which.
        slot: u32,
        /// Offset in the stream of TCP.
        at: u64,
    },
    /// The answer: this side has heard that, and looks for a resume record there.
    Switched {
        /// Which.
        slot: u32,
        /// As the peer has named it.
        at: u64,
    },
    /// How far the peer's ring is read.
    Credit {
        /// Which.
        slot: u32,
        /// [`Position`](shunt_shm::ring::Position) of the next unread byte.
        read: u64,
        /// Stream bytes read.
        bytes: u64,
        /// Payload bytes left of the frame there.
        left: u32,
    },
    /// A credit is wanted once `bytes` bytes have been read.
    Room {
        /// Which.
        slot: u32,
        /// Stream bytes.
        bytes: u64,
    },
    /// The peer is to leave its ring: this side reads it no more.
    Recall {
        /// Which.
        slot: u32,
    },
    /// Nothing follows in the ring; `bytes` bytes of the stream were in it.
    End {
        /// Which.
        slot: u32,
        /// Stream bytes.
        bytes: u64,
    },
}

/// A note as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    bytes: [u8; NOTE_BYTES],
    length: usize,
}

impl Packed {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

const HEADER: usize = 8;

impl Note {
    /// As bytes, with what it grants.
    #[must_use]
    pub fn pack(&self, granted: u16) -> Packed {
        let none = [0; 3];
        let one = |word| [word, 0, 0];
        let (kind, slot, words, count) = match *self {
            Self::Grant => (1, 0, none, 0),
            Self::Begin { slot, life } => (2, slot, one(u64::from(life)), 1),
            Self::Ready {
                slot,
                life,
                key,
                size,
                address,
            } => (3, slot, [two(life, key), u64::from(size), address], 3),
            Self::Switch { slot, at } => (4, slot, one(at), 1),
            Self::Credit {
                slot,
                read,
                bytes,
                left,
            } => (5, slot, [read, bytes, u64::from(left)], 3),
            Self::Room { slot, bytes } => (6, slot, one(bytes), 1),
            Self::Recall { slot } => (7, slot, none, 0),
            Self::End { slot, bytes } => (8, slot, one(bytes), 1),
            Self::Switched { slot, at } => (9, slot, one(at), 1),
        };
        let mut packed = Packed {
            bytes: [0; NOTE_BYTES],
            length: HEADER + 8 * count,
        };
        packed.bytes[0] = kind;
        packed.bytes[2..4].copy_from_slice(&granted.to_le_bytes());
        packed.bytes[4..8].copy_from_slice(&slot.to_le_bytes());
        for (place, word) in packed.bytes[HEADER..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        packed
    }

    /// From the peer's bytes, with what it grants; `None`: they are no note.
    #[must_use]
    pub fn parse(bytes: &[u8; NOTE_BYTES], length: u32) -> Option<(Self, u16)> {
        let word = |n: usize| {
            let at = HEADER + 8 * n;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let half = |n: usize| u32::try_from(word(n)).ok();
        let slot = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        let (note, words) = match bytes[0] {
            1 => (Self::Grant, 0),
            2 => {
                let life = half(0).filter(|&life| life != 0)?;
                (Self::Begin { slot, life }, 1)
            }
            3 => {
                let note = Self::Ready {
                    slot,
                    life: word(0) as u32,
                    key: (word(0) >> 32) as u32,
                    size: half(1)?,
                    address: word(2),
                };
                (note, 3)
            }
            4 => (Self::Switch { slot, at: word(0) }, 1),
            5 => {
                let note = Self::Credit {
                    slot,
                    read: word(0),
                    bytes: word(1),
                    left: half(2)?,
                };
                (note, 3)
            }
            6 => {
                let bytes = word(0);
                (Self::Room { slot, bytes }, 1)
            }
            7 => (Self::Recall { slot }, 0),
            8 => {
                let bytes = word(0);
                (Self::End { slot, bytes }, 1)
            }
            9 => (Self::Switched { slot, at: word(0) }, 1),
            _ => return None,
        };
        let granted = u16::from_le_bytes([bytes[2], bytes[3]]);
        let is_sound = length as usize == HEADER + 8 * words && slot < SLOTS && bytes[1] == 0;
        is_sound.then_some((note, granted))
    }
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn note() -> impl Strategy<Value = Note> {
        let slot = 0..SLOTS;
        prop_oneof![
            Just(Note::Grant),
            (slot.clone(), 1..u32::MAX).prop_map(|(slot, life)| Note::Begin { slot, life }),
            (slot.clone(), any::<(u32, u32, u32, u64)>()).prop_map(
                |(slot, (life, key, size, address))| Note::Ready {
                    slot,
                    life,
                    key,
                    size,
                    address
                }
            ),
            (slot.clone(), any::<u64>()).prop_map(|(slot, at)| Note::Switch { slot, at }),
            (slot.clone(), any::<u64>()).prop_map(|(slot, at)| Note::Switched { slot, at }),
            (slot.clone(), any::<(u64, u64, u32)>()).prop_map(|(slot, (read, bytes, left))| {
                Note::Credit {
                    slot,
                    read,
                    bytes,
                    left,
                }
            }),
            (slot.clone(), any::<u64>()).prop_map(|(slot, bytes)| Note::Room { slot, bytes }),
            slot.clone().prop_map(|slot| Note::Recall { slot }),
            (slot, any::<u64>()).prop_map(|(slot, bytes)| Note::End { slot, bytes }),
        ]
    }

    fn parse(bytes: &[u8]) -> Option<(Note, u16)> {
        let mut all = [0; NOTE_BYTES];
        all[..bytes.len()].copy_from_slice(bytes);
        Note::parse(&all, bytes.len() as u32)
    }

    proptest! {
        #[test]
        fn a_note_comes_back_from_its_bytes(note in note(), granted in any::<u16>()) {
            let packed = note.pack(granted);
            prop_assert_eq!(parse(packed.bytes()), Some((note, granted)));
            // One that is cut off, or has something behind, is none.
            prop_assert_eq!(parse(&packed.bytes()[..packed.length - 1]), None);
            prop_assert_eq!(Note::parse(&packed.bytes, packed.length as u32 + 8), None);
        }

        #[test]
        fn any_bytes_are_a_note_or_none(bytes in prop::collection::vec(any::<u8>(), NOTE_BYTES), length in 0..=64u32) {
            let bytes: [u8; NOTE_BYTES] = bytes.try_into().unwrap();
            if let Some((note, granted)) = Note::parse(&bytes, length) {
                let packed = note.pack(granted);
                prop_assert_eq!(packed.bytes(), &bytes[..length as usize]);
            }
        }
    }
}
