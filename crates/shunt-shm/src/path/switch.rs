//! From TCP to the ring: the sender says from which offset of its TCP stream on, and the receiver
//! follows when it has read up to there.

use super::{Receiver, Sender, step};
use crate::atomic::Ordering;
use crate::publish;
use crate::slot::{CLOSED, READY, RECALLED, REFUSED, SHUT_WR, Way};

impl Sender<'_> {
    /// Whether the peer honours the rings, and will follow this side to its ring.
    #[must_use]
    pub fn may_switch(&self) -> bool {
        const OBSTACLES: u32 = SHUT_WR | CLOSED | REFUSED | RECALLED;
        self.may_switch_but_for(OBSTACLES)
    }

    /// [`Self::may_switch`] as the last step of this side, also if the peer has closed its end: it has put the connection
    /// aside, and follows when that is used again.
    #[must_use]
    pub fn may_switch_at_end(&self) -> bool {
        self.may_switch_but_for(SHUT_WR | REFUSED | RECALLED)
    }

    fn may_switch_but_for(&self, obstacles: u32) -> bool {
        let peer = self.peer_state();
        self.way() == Way::Tcp && peer & READY != 0 && peer & obstacles == 0 && !self.is_shut()
    }

    /// Moves the direction to the ring, as [`Self::may_switch`] allows. `written`: how many of its
    /// bytes the kernel has been given; no thread gives it more meanwhile.
    pub fn switch(&self, written: u64) {
        step();
        publish::word(&self.own.output.switch_at, written + 1);
        step();
        Way::Ring.store(&self.own.sending.way);
    }

    /// Leaves the direction to the kernel for the rest of this life; nothing of it is in the ring.
    pub fn stay_with_kernel(&self) {
        Way::TcpAgain.store(&self.own.sending.way);
    }
}

impl Receiver<'_> {
    /// The offset of the TCP stream from which the peer uses the ring.
    #[must_use]
    pub fn switch_offset(&self) -> Option<u64> {
        let begun = self.has_begun();
        let switch_at = &self.peer.output.switch_at;
        let switched = begun.then(|| switch_at.load(Ordering::Acquire));
        switched?.checked_sub(1)
    }

    /// How many of the `arrived` bytes that had come by TCP before this look come before the peer's ring
    /// in the stream. What the peer sends by TCP behind its ring, it sends after it has named the offset.
    #[must_use]
    pub fn before_ring(&self, arrived: u64) -> u64 {
        let first = |offset: u64| offset.saturating_sub(self.taken());
        let most = self.switch_offset().map_or(u64::MAX, first);
        arrived.min(most)
    }

    /// Moves the incoming direction to the ring if everything that comes before it has been taken.
    /// `true`: it is on the ring.
    #[must_use]
    pub fn follow_switch(&self) -> bool {
        if self.way() == Way::Tcp && self.switch_offset() == Some(self.taken()) {
            Way::Ring.store(&self.own.receiving.way);
        }
        self.way() == Way::Ring
    }

    /// Where the stream was read before it was recalled: in the ring, unless bytes on TCP that come
    /// before it are still to be read.
    #[must_use]
    pub fn way_before(&self) -> Way {
        let switched = self.switch_offset();
        if switched.is_some_and(|switched| switched <= self.taken()) {
            Way::Ring
        } else {
            Way::Tcp
        }
    }
}
