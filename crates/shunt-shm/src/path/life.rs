//! From TCP to the rings again, in both directions: the next life of the slot.
//!
//! A side that says it is ready for a life does nothing more in the life before: it looks at no ring,
//! and all bytes are the kernel's. So when both have said so, each may begin its own slot anew at any
//! time. Until both have, neither ring is honoured by the other side, and TCP carries the stream.

use super::{Receiver, Sender, step};
use crate::atomic::Ordering;
use crate::publish;
use crate::slot::{CLOSED, LINGERS, REFUSED, SHUT_RD, SHUT_WR, Way, next_life};

impl Receiver<'_> {
    /// Whether both directions are the kernel's for the rest of this life.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let sender = self.as_sender();
        sender.way() == Way::TcpAgain
            && self.way() == Way::TcpAgain
            && !self.awaits()
            && !sender.is_due()
    }

    /// This side as the sender of the other direction.
    #[must_use]
    pub fn as_sender(&self) -> Sender<'_> {
        Sender {
            own: self.own,
            peer: self.peer,
            life: self.life,
        }
    }

    /// Whether there could be another life, as far as the words of both sides say.
    #[must_use]
    pub fn may_begin_again(&self) -> bool {
        const ENDS: u32 = SHUT_RD | SHUT_WR | CLOSED | LINGERS | REFUSED;
        let own = self.own.face.state.load(Ordering::Relaxed);
        self.is_plain()
            && self.is_bringing().is_none()
            && own & ENDS == 0
            && self.peer_state() & ENDS == 0
            && next_life(self.life).is_some()
    }

    /// Whether the peer is ready for the next life and has not begun with its ring in this one: it
    /// never will, and what comes from it is the kernel's.
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.way() == Way::Tcp
            && next_life(self.life) == Some(self.peer.face.again.load(Ordering::Acquire))
            && self.has_begun()
            && self.switch_offset().is_none()
    }

    /// Leaves the incoming direction to the kernel, as [`Self::is_skipped`] allows.
    pub fn skip(&self) {
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
        Way::TcpAgain.store(&self.own.receiving.way);
    }

    /// Says that this side is ready for the next life. With both tokens, and as
    /// [`Self::may_begin_again`] allows.
    pub fn say_ready(&self) {
        step();
        if let Some(next) = next_life(self.life) {
            publish::half(&self.own.face.again, next);
        }
        step();
    }

    /// Whether this side has said so.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        next_life(self.life) == Some(self.own.face.again.load(Ordering::Relaxed))
    }

    /// Whether the peer has said so, or has begun the next life.
    #[must_use]
    pub fn is_peer_ready(&self) -> bool {
        let face = &self.peer.face;
        let next = next_life(self.life);
        let says = |at: &crate::atomic::AtomicU32| next == Some(at.load(Ordering::Acquire));
        says(&face.again) || says(&face.generation)
    }
}
