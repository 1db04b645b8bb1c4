//! From the ring to TCP without the receiver's help: while the receiver is in no operation, the
//! sender withdraws what is unread, and sends it again by TCP.
//!
//! ```text
//! sender, with its token                    receiver
//!   WITHDRAWING ────────────────────────────> reads nothing there
//!   heavy barrier, looks at the peer's token
//!     free: names an offset, WITHDRAWN ─────> goes on by TCP from there on
//!     taken: not WITHDRAWING ───────────────> goes on in the ring
//! ```
//!
//! [`Receiver::is_bringing`] says how far TCP then brings what lay in the ring.

use super::unread::Unread;
use super::{Receiver, Sender, is_deaf, step};
use crate::atomic::{Ordering, heavy};
use crate::publish;
use crate::slot::{LEAVING, Recall, WITHDRAWING, WITHDRAWN, Way};

/// The outcome of an attempt to withdraw what the peer has not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The unread bytes are owed: [`Sender::paid`] follows when TCP has all of them.
    Owing,
    /// Nothing was withdrawn: the peer is in the middle of a receive.
    PeerReceives,
    /// Nothing is withdrawn: the peer reads the bytes in the ring.
    No,
}

/// How far a sender is with a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The sender is in the middle of a withdrawal: the receiver takes nothing from the ring, and
    /// looks again.
    Wait,
    /// The sender has withdrawn: what the receiver has not read comes by TCP, from this offset of
    /// the TCP stream on.
    Withdrawn {
        /// 0 if the peer names none, which breaks the rules.
        from: u64,
    },
    /// The sender does not withdraw.
    No,
}

impl Sender<'_> {
    /// Withdraws what is unread in the ring, on which this direction is. `written`: bytes of it that
    /// the kernel has, asked for when it matters; `None`: the kernel does not know.
    pub fn withdraw(&self, written: impl FnOnce() -> Option<u64>) -> Withdrawal {
        let state = &self.own.face.state;
        publish::set_bits(state, WITHDRAWING);
        // Either we see its token taken, or it sees, with its token, that we withdraw.
        heavy();
        step();
        let receiving = &self.peer.receiving;
        let receives = receiving.token.is_taken();
        let deaf = is_deaf(self.peer_state());
        let reads = matches!(Way::load(&receiving.way), Way::Ring | Way::Tcp);
        let may = reads && !receives && !deaf;
        let Some(written) = may.then(written).flatten() else {
            publish::clear_bits(state, WITHDRAWING);
            return if receives && !deaf {
                Withdrawal::PeerReceives
            } else {
                Withdrawal::No
            };
        };
        self.owe(written);
        step();
        publish::word(&self.own.output.back_at, written + 1);
        step();
        self.withdrawn();
        Withdrawal::Owing
    }

    /// Where payload begins has been published: the last step of a withdrawal.
    pub(super) fn withdrawn(&self) {
        publish::half(&self.own.recall.answered, Recall::AGREED);
        Way::Owing.store(&self.own.sending.way);
        publish::set_bits(&self.own.face.state, LEAVING | WITHDRAWN);
    }

    /// What the peer, which reads no more, has not read is owed, from that offset of the TCP stream
    /// on.
    pub(super) fn owe(&self, from: u64) {
        let recall = &self.own.recall;
        Unread::of(self.peer).note(recall);
        recall.owed_from.store(from, Ordering::Relaxed);
    }

    /// Whether something is still to be sent again.
    #[inline(always)]
    #[must_use]
    pub fn is_owing(&self) -> bool {
        self.way() == Way::Owing
    }

    /// What is owed, and how much of it the kernel has, which has been given `written` bytes.
    /// `None`: that is less than it had before, so that the connection is over.
    #[must_use]
    pub fn owed(&self, written: u64) -> Option<(Unread, u64)> {
        let recall = &self.own.recall;
        let sent = written.checked_sub(recall.owed_from.load(Ordering::Relaxed))?;
        Some((Unread::noted(recall), sent))
    }

    /// TCP has all of it.
    pub fn paid(&self) {
        step();
        Way::TcpAgain.store(&self.own.sending.way);
    }
}

impl Receiver<'_> {
    /// Whether the peer has withdrawn what this side has not read, or is about to.
    #[inline(always)]
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        let state = self.peer.face.state.load(Ordering::Relaxed);
        state & (WITHDRAWING | WITHDRAWN) != 0
    }

    /// Whether the peer is in the middle of that: it goes on in the ring, or withdraws what is unread there.
    #[inline(always)]
    #[must_use]
    pub fn is_being_withdrawn(&self) -> bool {
        let state = self.peer.face.state.load(Ordering::Acquire);
        state & (WITHDRAWING | WITHDRAWN) == WITHDRAWING
    }

    /// Looks once. [`Self::note_brought`] and [`Self::follow_back`] follow where it has.
    #[must_use]
    pub fn look_at_withdrawal(&self) -> Look {
        let state = self.peer_state();
        step();
        if state & WITHDRAWN != 0 {
            let back_at = self.peer.output.back_at.load(Ordering::Acquire);
            Look::Withdrawn {
                from: back_at.saturating_sub(1),
            }
        } else if state & WITHDRAWING != 0 {
            Look::Wait
        } else {
            Look::No
        }
    }

    /// Notes that TCP brings the `unread` bytes that lie unread in the ring (`None`: the ring is
    /// broken), from the offset `from` of the TCP stream on. The sender writes nothing more into
    /// the ring.
    pub fn note_brought(&self, from: u64, unread: Option<u64>) {
        let until = match unread {
            Some(0) | None => 0,
            Some(unread) => from.wrapping_add(unread),
        };
        step();
        let recall = &self.own.recall;
        recall.brought_until.store(until, Ordering::Relaxed);
    }

    /// Up to which offset of the stream TCP brings what lay in the ring; `None`: it brings nothing
    /// of that, or has.
    #[must_use]
    pub fn is_bringing(&self) -> Option<u64> {
        let until = self.own.recall.brought_until.load(Ordering::Relaxed);
        (until > self.taken() && until != Recall::IN_RING).then_some(until)
    }

    /// Whether the ring is read to its end, as nobody can send it again.
    #[must_use]
    pub fn stays_in_ring(&self) -> bool {
        self.own.recall.brought_until.load(Ordering::Relaxed) == Recall::IN_RING
    }

    /// Takes a recall back for good: the ring is read to its end.
    pub fn stay_in_ring(&self) {
        let until = &self.own.recall.brought_until;
        until.store(Recall::IN_RING, Ordering::Relaxed);
        self.take_back();
    }
}
