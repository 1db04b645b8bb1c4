//! From the ring to TCP, begun by the sender: it ends its ring by a frame that names the offset of
//! the TCP stream at which the stream continues. The receiver reads the ring up to that frame.

use super::{Receiver, Sender, step};
use crate::atomic::{Ordering, light};
use crate::publish;
use crate::slot::{LEAVING, Way};

impl Sender<'_> {
    /// Says that this side is about to leave its ring.
    pub fn say_leaving(&self) {
        publish::set_bits(&self.own.face.state, LEAVING);
    }

    /// Says that this side stays in its ring after all.
    pub fn stay_in_ring(&self) {
        publish::clear_bits(&self.own.face.state, LEAVING);
    }

    /// Leaves the ring. `written`: how many bytes of the direction the kernel has been given; the
    /// stream continues behind them. `end`: ends the ring with this offset.
    pub fn leave<T>(&self, written: u64, end: impl FnOnce(u64) -> T) -> T {
        step();
        publish::word(&self.own.output.back_at, written + 1);
        step();
        let ended = end(written);
        Way::TcpAgain.store(&self.own.sending.way);
        ended
    }

    /// The offset of the TCP stream at which the stream continues, or continued, behind the ring.
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

    /// Continues by TCP, which has what was unread in the ring of a sender that has ended.
    pub fn leave_to_kernel(&self) {
        let brought_until = &self.own.recall.brought_until;
        brought_until.store(0, Ordering::Relaxed);
        self.follow_back();
    }

    /// Continues by TCP after the end of the ring.
    pub fn follow_back(&self) {
        self.own.receiving.awaits.store(0, Ordering::Relaxed);
        light();
        step();
        Way::TcpAgain.store(&self.own.receiving.way);
    }
}
