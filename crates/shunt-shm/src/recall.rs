//! The handshake of a recall: who sends again over TCP what a receiver has not read of a ring?
//!
//! ```text
//! receiver                                  sender, with its token
//!   TRYING, RECALLED ───────────────────────> waits while it is TRYING or TAKEN
//!   heavy barrier, looks at that token
//!     free: TAKEN, sends it itself, DONE ───> goes on behind that
//!     taken: ASKED ─────────────────────────> sends it: AGREED; or cannot: REFUSED
//!     nobody comes: NONE, not RECALLED ─────> goes on in the ring
//! ```
//!
//! A sender that is in no operation cannot begin one without seeing that it is recalled, so
//! either it answers, or the receiver may do as it likes. What is sent, and how, is for the two
//! sides to know: here are only the words that they exchange.

use crate::atomic::{Ordering, heavy, light};
use crate::publish;
use crate::slot::{RECALLED, Recall, Slot, Way};

/// The side that recalls what its peer sends. Each function with its receiving token.
#[derive(Clone, Copy, Debug)]
pub struct Receiver<'a> {
    /// This side's slot.
    pub own: &'a Slot,
    /// The other one's.
    pub peer: &'a Slot,
}

impl Receiver<'_> {
    /// Reads the ring no more. [`Self::take_part`] follows.
    pub fn begin(&self) {
        self.own.receiving.awaits.store(1, Ordering::Relaxed);
        light();
        Way::TcpAgain.store(&self.own.receiving.way);
        publish::half(&self.own.recall.stage, Recall::TRYING);
        publish::set_bits(&self.own.face.state, RECALLED);
    }

    /// Whether this side is to send what is unread: the sender is in no operation, has neither
    /// answered nor left the ring, and `can` says so, which is asked when the sender is known to
    /// wait. Otherwise the sender is asked. `begun`: whether it may look at this side's words at all.
    /// [`Self::done`] follows what is sent.
    pub fn take_part(&self, begun: impl FnOnce() -> bool, can: impl FnOnce() -> bool) -> bool {
        publish::half(&self.own.recall.stage, Recall::TRYING);
        // Either we see its token taken, or it sees, with its token, that it is recalled.
        heavy();
        let busy = begun()
            && (self.is_in_operation()
                || self.peer.recall.answered.load(Ordering::Acquire) != 0
                || self.peer.output.back_at.load(Ordering::Acquire) != 0);
        let takes = can() && !busy;
        let stage = if takes { Recall::TAKEN } else { Recall::ASKED };
        publish::half(&self.own.recall.stage, stage);
        takes
    }

    /// All is sent that this side could send.
    pub fn done(&self) {
        publish::half(&self.own.recall.stage, Recall::DONE);
    }

    /// Takes the recall back, unless the sender is in an operation or has answered: then it is
    /// asked on. `true`: what arrives is read where it was before, which `way` says.
    pub fn take_back_in_time(&self, way: Way) -> bool {
        publish::half(&self.own.recall.stage, Recall::TRYING);
        // Either we see its token taken, or it waits, with its token, for the next stage.
        heavy();
        let answers =
            self.is_in_operation() || self.peer.recall.answered.load(Ordering::Acquire) != 0;
        if answers {
            publish::half(&self.own.recall.stage, Recall::ASKED);
        } else {
            self.take_back(way);
        }
        !answers
    }

    /// Takes the recall back: what arrives is read where it was before.
    pub fn take_back(&self, way: Way) {
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
        publish::half(&self.own.recall.stage, Recall::NONE);
        publish::clear_bits(&self.own.face.state, RECALLED);
        way.store(&self.own.receiving.way);
    }

    /// Whether the sender is in an operation.
    fn is_in_operation(&self) -> bool {
        self.peer.sending.token.is_taken()
    }
}

/// How far a receiver is with its recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The sender is to wait, and to look again.
    Wait,
    /// The sender is to send what is unread.
    Asked,
    /// The receiver has.
    Done,
    /// It has taken the recall back.
    TakenBack,
    /// Its word is nonsense.
    Nonsense,
}

/// The side whose stream is recalled. Each function with its sending token.
#[derive(Clone, Copy, Debug)]
pub struct Sender<'a> {
    /// This side's slot.
    pub own: &'a Slot,
    /// The other one's.
    pub peer: &'a Slot,
    /// The life of the slot that both are in.
    pub life: u32,
}

impl Sender<'_> {
    /// Whether the receiver reads this side's ring no more.
    #[inline(always)]
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.peer.state(self.life).unwrap_or(0) & RECALLED != 0
    }

    /// Whether that has not been answered.
    #[inline(always)]
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.is_recalled() && self.own.recall.answered.load(Ordering::Relaxed) == 0
    }

    /// Looks once.
    #[must_use]
    pub fn look(&self) -> Look {
        match self.peer.recall.stage.load(Ordering::Acquire) {
            Recall::DONE => Look::Done,
            Recall::NONE if !self.is_recalled() => Look::TakenBack,
            Recall::ASKED => Look::Asked,
            Recall::NONE | Recall::TRYING | Recall::TAKEN => Look::Wait,
            _ => Look::Nonsense,
        }
    }

    /// Answers: [`Recall::AGREED`] or [`Recall::REFUSED`], and where bytes go from here on.
    pub fn answer(&self, answer: u32, way: Way) {
        way.store(&self.own.sending.way);
        publish::half(&self.own.recall.answered, answer);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
