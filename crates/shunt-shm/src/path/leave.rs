//! From the ring to TCP, by the sender's doing: it ends its ring by a frame that names the offset of
//! the TCP stream where the stream goes on; the receiver reads the ring to there.

use super::{Receiver, Sender, step};
use crate::atomic::{Ordering, light};
use crate::publish;
use crate::slot::{LEAVING, Way};

impl Sender<'_> {
    /// Says that this side is about to leave its ring.
    pub fn say_leaving(&self) {
        publish::set_bits(&self.own.face.state, LEAVING);
    }

    /// It stays after all.
    pub fn stay_in_ring(&self) {
        publish::clear_bits(&self.own.face.state, LEAVING);
    }

    /// Leaves the ring. `written`: bytes of the direction that the kernel has; what follows in the
    /// stream is its next ones. `end`: ends the ring with that offset.
    pub fn leave<T>(&self, written: u64, end: impl FnOnce(u64) -> T) -> T {
        step();
        publish::word(&self.own.output.back_at, written + 1);
        step();
        let ended = end(written);
        Way::TcpAgain.store(&self.own.sending.way);
        ended
    }

    /// The offset of the TCP stream where the stream went on, or goes on, behind the ring.
    #[must_use]
    pub fn left_at(&self) -> Option<u64> {
        self.own
            .output
            .back_at
            .load(Ordering::Relaxed)
            .checked_sub(1)
    }
}

impl Receiver<'_> {
    /// Whether the peer has left its ring, or is about to.
    #[must_use]
    pub fn peer_has_left(&self) -> bool {
        self.has_begun() && self.peer.output.back_at.load(Ordering::Acquire) != 0
    }

    /// Goes on by TCP, which has what was unread in the ring of a sender that has ended.
    pub fn leave_to_kernel(&self) {
        let brought_until = &self.own.recall.brought_until;
        brought_until.store(0, Ordering::Relaxed);
        self.follow_back();
    }

    /// Goes on by TCP, where the ring has ended.
    pub fn follow_back(&self) {
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
        light();
        step();
        Way::TcpAgain.store(&self.own.receiving.way);
    }
}
