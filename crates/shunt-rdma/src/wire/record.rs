//! What is said by a connection between two emulated NICs, in records of one size: they never go in parts.

use super::Registered;
use crate::transport::{NOTE_BYTES, Target, Write};

/// Bytes of a record.
pub(super) const BYTES: usize = 24 + NOTE_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The first: this connection is to the queue pair of that number.
    Hello(u32),
    /// `length` bytes have been written to `target`.
    Written {
        immediate: u32,
        length: u32,
        target: Target,
    },
    /// A note.
    Note([u8; NOTE_BYTES], u32),
}

impl Record {
    pub(super) fn note(note: &[u8]) -> Self {
        let mut bytes = [0; NOTE_BYTES];
        bytes[..note.len()].copy_from_slice(note);
        Self::Note(bytes, note.len() as u32)
    }

    pub(super) fn written(write: &Write<'_, Registered>, length: usize) -> Self {
        Self::Written {
            immediate: write.immediate,
            length: length as u32,
            target: write.target,
        }
    }

    pub(super) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let (kind, numbers, address) = match self {
            Self::Hello(number) => (1, [number, 0, 0], 0),
            Self::Written {
                immediate,
                length,
                target,
            } => (2, [immediate, length, target.key], target.address),
            Self::Note(note, length) => {
                bytes[24..].copy_from_slice(&note);
                (3, [0, length, 0], 0)
            }
        };
        let words = [kind, numbers[0], numbers[1], numbers[2]];
        for (place, word) in bytes[..16].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&address.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let number = |at: usize| {
            let word = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(word)
        };
        let address = bytes[16..24].try_into().expect("eight bytes");
        Some(match number(0) {
            1 => Self::Hello(number(4)),
            2 => Self::Written {
                immediate: number(4),
                length: number(8),
                target: Target {
                    key: number(12),
                    address: u64::from_le_bytes(address),
                },
            },
            3 => Self::Note(bytes[24..].try_into().expect("a note"), number(8)),
            _ => return None,
        })
    }
}
