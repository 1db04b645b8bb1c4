//! The path of one direction of a connection: kernel TCP, the ring, kernel TCP again, and so on,
//! each stretch from an exact offset of the TCP stream on.
//!
//! ```text
//!          switch                leave, withdraw, recall            the next life
//!   Tcp ───────────> Ring ─────────────────────────────> TcpAgain ───────────────> Tcp …
//!     ^                │└──> Owing: what was not read is sent again ──┘
//!     └────────────────┘ between hosts: the sender has never entered it
//! ```
//!
//! | who changes it | how | module |
//! |---|---|---|
//! | the sender | says from which offset on the ring carries the stream | [`switch`] |
//! | the sender | ends its ring by a frame that names an offset | [`leave`] |
//! | the sender | sends again by TCP what is unread, while the receiver is in no operation | [`withdrawal`] |
//! | the receiver | has it sent again, or sends it itself in the sender's name | [`recall`] |
//! | both | say that they are ready, and begin their slots anew | [`life`] |
//! | between hosts, the sender | sends a record by TCP, and again what is unread | [`record`] |
//! | a relative | finishes what a process began that died with a token | [`death`] |
//!
//! Here is what both ends decide, and the words that they exchange. Nothing here makes a system
//! call, moves payload or waits: what the kernel says of its socket comes in as an argument or is
//! asked for by a closure, and what is to be done comes out. So the same code runs in the engine and
//! in the models, where loom tries every order of the steps of small scenes and shuttle random
//! orders of long ones.

use crate::atomic::Ordering;
use crate::slot::{self, Slot, Way};

pub mod death;
pub mod leave;
pub mod life;
pub mod recall;
pub mod record;
mod step;
pub mod switch;
pub mod unread;
pub mod withdrawal;

pub use step::{pause_with, step};

/// The side that sends. What changes something is called with its sending token.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// This side's slot.
    pub own: &'a Slot,
    /// The slot of the other side.
    pub peer: &'a Slot,
    /// The life of the slot that both are in.
    pub life: u32,
}

/// The side that receives. What changes something is called with its receiving token.
#[derive(Clone, Copy, Debug)]
pub struct Receiver<'a> {
    /// This side's slot.
    pub own: &'a Slot,
    /// The slot of the other side.
    pub peer: &'a Slot,
    /// The life of the slot that both are in.
    pub life: u32,
}

impl Sender<'_> {
    /// Where outgoing bytes go.
    #[inline(always)]
    #[must_use]
    pub fn way(&self) -> Way {
        Way::load(&self.own.sending.way)
    }

    /// The peer's state bits; none before it has begun this life.
    #[inline(always)]
    #[must_use]
    pub fn peer_state(&self) -> u32 {
        self.peer.state(self.life).unwrap_or(0)
    }

    /// Whether this side has shut the direction down.
    #[inline(always)]
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.own.face.state.load(Ordering::Relaxed) & (slot::SHUT_WR | slot::CLOSED) != 0
    }
}

impl Receiver<'_> {
    /// Where incoming bytes come from.
    #[inline(always)]
    #[must_use]
    pub fn way(&self) -> Way {
        Way::load(&self.own.receiving.way)
    }

    /// Whether the peer's words are of this life, and not of one before.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.peer.state(self.life).is_some()
    }

    /// The peer's state bits; none before it has begun this life.
    #[inline(always)]
    #[must_use]
    pub fn peer_state(&self) -> u32 {
        self.peer.state(self.life).unwrap_or(0)
    }

    /// Bytes taken from the base socket so far, by this side's own count.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.own.receiving.kernel_bytes.load(Ordering::Relaxed)
    }
}

/// Whether a side in this state has shut down both halves. From then on the kernel answers what
/// comes by TCP with a reset, and drops what is in its queue.
#[must_use]
pub fn is_deaf(state: u32) -> bool {
    const BOTH: u32 = slot::SHUT_RD | slot::SHUT_WR;
    state & BOTH == BOTH
}

#[cfg(all(test, model))]
mod model;

#[cfg(all(test, not(model), not(miri)))]
mod tests;
