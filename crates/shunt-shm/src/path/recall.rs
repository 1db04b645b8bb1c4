//! From the ring to TCP, begun by the receiver: which side sends again what the receiver has not read?
//!
//! ```text
//! receiver                                  sender, with its token
//!   TRYING, RECALLED ───────────────────────> waits while it is TRYING or TAKEN
//!   heavy barrier, looks at that token
//!     free: TAKEN, sends it itself, DONE ───> goes on behind that
//!       could not send anything: ASKED ─────> (as below)
//!     taken: ASKED ─────────────────────────> sends it: AGREED; or cannot: REFUSED
//!     nobody comes: NONE, not RECALLED ─────> goes on in the ring
//! ```
//!
//! A sender that is in no operation cannot begin one without seeing that it is recalled. So either
//! the sender answers, or the receiver may act in its place.

use super::{Receiver, Sender, is_deaf, step};
use crate::atomic::{Ordering, heavy, light};
use crate::publish;
use crate::slot::{CLOSED, LEAVING, RECALLED, Recall, SHUT_WR, Way};

/// How far a receiver is with its recall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The sender must wait, and look again.
    Wait,
    /// The sender must send what is unread.
    Asked,
    /// The receiver has sent what was unread.
    Done,
    /// The receiver has taken the recall back.
    TakenBack,
    /// The receiver's word is nonsense.
    Nonsense,
}

/// The outcome of a sender's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The direction is the kernel's, and nothing is owed.
    Plain,
    /// What is unread is owed: [`Sender::paid`] follows when TCP has all of it.
    Owing,
    /// What is unread cannot be sent again: the receiver reads on in the ring, and must be told.
    Refused,
}

impl Receiver<'_> {
    /// Whether this side reads the peer's ring no more, and has said so.
    #[must_use]
    pub fn has_recalled(&self) -> bool {
        self.own.face.state.load(Ordering::Relaxed) & RECALLED != 0
    }

    /// Whether this side has recalled the stream, and does not know yet that TCP carries it.
    #[must_use]
    pub fn awaits(&self) -> bool {
        self.own.receiving.awaits.load(Ordering::Relaxed) != 0
    }

    /// Begins a recall: this side reads the ring no more. [`Self::take_part`] follows.
    pub fn recall(&self) {
        self.own.receiving.awaits.store(1, Ordering::Relaxed);
        light();
        Way::TcpAgain.store(&self.own.receiving.way);
        publish::half(&self.own.recall.stage, Recall::TRYING);
        publish::set_bits(&self.own.face.state, RECALLED);
        step();
    }

    /// Whether this side is to send what is unread: the sender is in no operation, has neither
    /// answered nor left the ring, and `can` says so, which is asked when the sender is known to
    /// wait. Otherwise the sender is asked. [`Self::done`] follows what is sent.
    pub fn take_part(&self, can: impl FnOnce() -> bool) -> bool {
        publish::half(&self.own.recall.stage, Recall::TRYING);
        // Either we see its token taken, or it sees, with its token, that it is recalled.
        heavy();
        let busy = self.has_begun()
            && (self.is_in_operation()
                || self.peer.recall.answered.load(Ordering::Acquire) != 0
                || self.peer.output.back_at.load(Ordering::Acquire) != 0);
        step();
        let takes = can() && !busy;
        step();
        let stage = if takes { Recall::TAKEN } else { Recall::ASKED };
        publish::half(&self.own.recall.stage, stage);
        takes
    }

    /// This side has sent what it could. `unread`: bytes that were unread in the ring before;
    /// `None`: it is broken.
    pub fn done(&self, unread: impl FnOnce() -> Option<u64>) {
        if let Some(switched) = self.switch_offset() {
            self.note_brought(switched, unread());
        }
        step();
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
        publish::half(&self.own.recall.stage, Recall::DONE);
    }

    /// Nothing could be sent: asks the sender after all. In the place of [`Self::done`].
    pub fn ask_on(&self) {
        publish::half(&self.own.recall.stage, Recall::ASKED);
    }

    /// Whether the sender is asked.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.own.recall.stage.load(Ordering::Relaxed) == Recall::ASKED
    }

    /// Whether the stage of the recall says that no answer of the sender's is awaited.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let stage = self.own.recall.stage.load(Ordering::Relaxed);
        matches!(stage, Recall::NONE | Recall::DONE)
    }

    /// Whether the sender has agreed; or had left its ring before, and the ring is read up to there
    /// (`at_end`), so that nothing is lost.
    #[must_use]
    pub fn is_answered(&self, at_end: impl FnOnce() -> bool) -> bool {
        self.has_begun()
            && (self.peer.recall.answered.load(Ordering::Acquire) == Recall::AGREED
                || self.peer.output.back_at.load(Ordering::Acquire) != 0 && at_end())
    }

    /// Whether the sender has refused, so that nobody can send again what is unread. `false`, too, if
    /// nothing is unread: the ring is read to its end (`at_end`).
    #[must_use]
    pub fn is_refused(&self, at_end: impl FnOnce() -> bool) -> bool {
        self.awaits()
            && self.peer.recall.answered.load(Ordering::Acquire) == Recall::REFUSED
            && !at_end()
    }

    /// Whether the sender has said that it has ended the stream, and not that it has seen the
    /// recall: so it never answers.
    #[must_use]
    pub fn has_ended_unasked(&self) -> bool {
        // In this order: the token, free behind the word, says that the side which wrote the word has looked.
        self.peer_state() & (SHUT_WR | CLOSED) != 0
            && !self.is_in_operation()
            && self.is_unanswered()
    }

    /// Whether the sender has not answered yet.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.peer.recall.answered.load(Ordering::Acquire) == 0
    }

    /// Notes that TCP carries the stream from here on. `unread` as for [`Self::done`].
    pub fn learn(&self, unread: impl FnOnce() -> Option<u64>) {
        step();
        let back_at = self.peer.output.back_at.load(Ordering::Acquire);
        if let Some(from) = back_at.checked_sub(1) {
            self.note_brought(from, unread());
        }
        step();
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
    }

    /// Takes the recall back, unless the sender is in an operation or has answered: then the recall
    /// stays. `true`: bytes are read where they were read before.
    pub fn take_back_in_time(&self) -> bool {
        publish::half(&self.own.recall.stage, Recall::TRYING);
        // Either we see its token taken, or it waits, with its token, for the next stage.
        heavy();
        let answers = self.is_in_operation() || !self.is_unanswered();
        if answers {
            publish::half(&self.own.recall.stage, Recall::ASKED);
        } else {
            self.take_back();
        }
        !answers
    }

    /// Takes the recall back: bytes are read where they were read before.
    pub fn take_back(&self) {
        let way = self.way_before();
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
        publish::half(&self.own.recall.stage, Recall::NONE);
        publish::clear_bits(&self.own.face.state, RECALLED);
        way.store(&self.own.receiving.way);
    }

    /// Whether the sender is in an operation. When it is in none, everything that its operations have published can
    /// be seen.
    #[must_use]
    pub fn is_in_operation(&self) -> bool {
        self.peer.sending.token.is_taken()
    }
}

impl Sender<'_> {
    /// Whether the receiver reads this side's ring no more.
    #[inline(always)]
    #[must_use]
    pub fn is_recalled(&self) -> bool {
        self.peer_state() & RECALLED != 0
    }

    /// Whether the receiver has recalled the stream, and this side has not answered.
    #[inline(always)]
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.is_recalled() && !self.has_answered()
    }

    /// Whether the receiver is in the middle of its recall: it has not said yet which side sends what is unread, so
    /// this side cannot answer.
    #[inline]
    #[must_use]
    pub fn cannot_answer(&self) -> bool {
        self.is_asked() && self.look() == Look::Wait
    }

    /// Whether this side has answered a recall in this life.
    #[inline(always)]
    #[must_use]
    pub fn has_answered(&self) -> bool {
        self.own.recall.answered.load(Ordering::Relaxed) != 0
    }

    /// Whether this side must answer a recall, or still owes bytes. (After it has ended the stream
    /// it need not answer: the peer reads the rest in the ring.)
    #[inline(always)]
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_asked() && !self.is_shut() || self.is_owing()
    }

    /// Looks once how far the receiver is with its recall.
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

    /// Answers a recall, once the receiver has said which side sends what is unread: this side, if `asked`.
    /// `written`: how many bytes of the direction the kernel has been given; `None`: the kernel does not know, or
    /// the connection has no socket any more. `unread`: whether any bytes are unread in this side's ring.
    pub fn accept(
        &self,
        asked: bool,
        written: impl FnOnce() -> Option<u64>,
        unread: impl FnOnce() -> bool,
    ) -> Answer {
        let way = self.way();
        let left_at = self.left_at();
        if way == Way::Tcp || way == Way::TcpAgain && left_at.is_none() {
            return self.agree();
        }
        // Read first: a thread that has left the kernel by then has written everything that it writes.
        let sends = self.own.sending.in_kernel.load(Ordering::Acquire) > 0;
        let written = written();
        // Bytes that were already sent by TCP behind the ring would come before what is sent again.
        let late = sends || written != left_at;
        let behind = asked && (way == Way::TcpAgain && late || is_deaf(self.peer_state()));
        let (Some(written), false) = (written, behind) else {
            // Nor can anything be sent once all descriptors are closed while a thread sleeps.
            let stays = behind || asked && way == Way::Ring;
            if stays && unread() {
                self.answer(Recall::REFUSED, Way::TcpAgain);
                return Answer::Refused;
            }
            return self.agree();
        };
        let output = &self.own.output;
        let from = if asked {
            written
        } else {
            // The peer has sent itself what was unread, from the offset on at which the ring began.
            output.switch_at.load(Ordering::Relaxed).wrapping_sub(1)
        };
        self.owe(from);
        if asked {
            step();
            publish::set_bits(&self.own.face.state, LEAVING);
            // Published before any of it is sent.
            publish::word(&output.back_at, from + 1);
        }
        step();
        self.answer(Recall::AGREED, Way::Owing);
        step();
        Answer::Owing
    }

    /// Answers that TCP carries the stream from here on, and nothing is owed.
    pub fn agree(&self) -> Answer {
        self.answer(Recall::AGREED, Way::TcpAgain);
        Answer::Plain
    }

    fn answer(&self, answer: u32, way: Way) {
        way.store(&self.own.sending.way);
        publish::half(&self.own.recall.answered, answer);
    }
}
