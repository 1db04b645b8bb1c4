//! The ring: one producer, one consumer, a byte stream cut into frames.
//!
//! ```text
//!   ┌────────┬─────────────┬────────┬──────┬────────┬ ─ ─
//!   │ header │ payload…    │ header │ pay… │   0    │
//!   └────────┴─────────────┴────────┴──────┴────────┴ ─ ─
//!    8 bytes  padded to 8                    ▲ consumer waits here
//! ```
//!
//! A header is one word: kind and length. It is written last, with release
//! order, after the payload and after the *next* header was cleared, so the
//! consumer finds a frame by looking at one word, and a small message moves in
//! one cache line.
//!
//! The producer need not fill the ring in order: a [`Kind::Jump`] frame sends
//! the consumer to another offset. A *lap* is the stretch between two jumps.
//! So a drained ring starts over at offset 0 (small connections stay in their
//! first page, warm) and a crowded one uses whatever is free. Up to four laps
//! are in flight; the consumer's position names lap and offset, and what lies
//! before it is free.

use crate::atomic::Ordering;
use crate::slot::Sending;

mod consumer;
mod memory;
#[cfg(not(model))]
pub mod mirror;
mod producer;
#[cfg(all(test, not(model)))]
mod tests;

pub use consumer::{Consumer, Found};
pub use memory::{BadBuffer, Memory};
pub use producer::{Producer, STEP};

const HEADER: u32 = 8;

/// A gap below this is not worth a jump.
const WORTHWHILE: u32 = 256;

/// A ring that is drained past this offset starts over: messages of up to some 450 bytes
/// stay in one page.
pub const SMALL: u32 = 4096 - 512;

/// A lap and an offset, packed into one word so that they change together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Counts jumps, wrapping.
    pub lap: u32,
    /// Byte offset in the ring.
    pub offset: u32,
}

impl Position {
    /// From its word.
    #[inline(always)]
    #[must_use]
    pub fn unpack(word: u64) -> Self {
        Self {
            lap: (word >> 32) as u32,
            offset: word as u32,
        }
    }

    /// As a word.
    #[inline(always)]
    #[must_use]
    pub fn pack(self) -> u64 {
        (u64::from(self.lap) << 32) | u64::from(self.offset)
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Payload of the stream.
    Data = 1,
    /// The next frame is at the offset in the length field.
    Jump = 2,
    /// The stream goes on over TCP, at the stream offset in the payload.
    Back = 3,
}

fn header(kind: Kind, length: u32) -> u64 {
    (kind as u64) << 32 | u64::from(length)
}

/// The peer wrote something that no correct peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Why bytes could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The peer broke the protocol.
    Fault,
    /// The program's buffer is bad; this many bytes were moved before.
    BadBuffer(usize),
}

impl From<Fault> for Stopped {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// Clears the first header of a ring that starts a new life.
pub fn begin(memory: Memory, sending: &Sending) {
    memory.word(0).store(0, Ordering::Relaxed);
    begin_untouched(memory, sending);
}

/// [`begin`] for a ring that has never had memory, and so is empty: it gets none before something
/// is sent.
pub fn begin_untouched(memory: Memory, sending: &Sending) {
    let whole = Position {
        lap: 0,
        offset: memory.size(),
    };
    sending.segments[0].store(whole.pack(), Ordering::Relaxed);
}
