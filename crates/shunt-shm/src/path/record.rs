//! Between hosts: from the ring to TCP by a record in the TCP stream, and from a ring that was never entered.
//!
//! ```text
//! sender                                     receiver, in the ring
//!   notes what the peer is known to have read
//!   record, then its ring from there on ───> finds the record: reads what its view of the ring has, and drops as much of
//!   Owing, then TcpAgain                     what follows as it has read; TcpAgain
//!   has never entered: plain bytes ────────> finds no record, and has read nothing of the ring: Tcp
//! ```
//!
//! The view shows nothing more once the record is found, and what it has shown is what the sender sends again. So it does not matter
//! which copy is taken, nor what has become of the NIC.

use super::unread::Unread;
use super::{Receiver, Sender};
use crate::atomic::Ordering;
use crate::publish;
use crate::slot::{Recall, Way};

impl Sender<'_> {
    /// Leaves the ring by a record that ends at the offset `behind` of the TCP stream. From there on this side owes everything that
    /// the peer is not known to have read: `unread`, which begins after `bytes` bytes of the ring.
    pub fn leave_by_record(&self, unread: &Unread, bytes: u64, behind: u64) {
        let recall = &self.own.recall;
        unread.note(recall);
        recall.owed_bytes.store(bytes, Ordering::Relaxed);
        recall.owed_from.store(behind, Ordering::Relaxed);
        Way::Owing.store(&self.own.sending.way);
        // This also answers a recall.
        publish::half(&self.own.recall.answered, Recall::AGREED);
    }

    /// How much of a record of `length` bytes the kernel has not been given yet, if it has been given `written` bytes of the stream.
    /// `None`: that is less than it had before, so that the connection is over.
    #[must_use]
    pub fn lacks_of_record(&self, length: u64, written: u64) -> Option<u64> {
        let behind = self.own.recall.owed_from.load(Ordering::Relaxed);
        let lacks = behind.saturating_sub(written);
        (lacks <= length).then_some(lacks)
    }
}

impl Receiver<'_> {
    /// The peer has never entered the ring that it proposed: this direction stays on TCP. Another proposal may have come.
    pub fn stay_on_tcp(&self) {
        let followed = self.taken() + 1;
        let switch_at = &self.peer.output.switch_at;
        let _ = switch_at.compare_exchange(followed, 0, Ordering::Relaxed, Ordering::Relaxed);
        Way::Tcp.store(&self.own.receiving.way);
    }

    /// On TCP: drops a proposal for an offset beyond which more bytes had already been taken when it came.
    pub fn forget_void(&self) {
        if let Some(at) = self.switch_offset().filter(|&at| at < self.taken()) {
            let switch_at = &self.peer.output.switch_at;
            let _ = switch_at.compare_exchange(at + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the peer has named another byte than the one at which this side looks for its ring, and so has not entered the
    /// ring there.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.own.progress.bytes.load(Ordering::Relaxed) == 0
            && self.switch_offset() != Some(self.taken())
    }

    /// A record has been taken from TCP: what follows it there begins `from` bytes into the stream of the ring.
    pub fn note_record(&self, from: u64) {
        let recall = &self.own.recall;
        recall.resumed_from.store(from, Ordering::Relaxed);
        recall.resumed_at.store(self.taken() + 1, Ordering::Relaxed);
    }

    /// Whether a record has been taken.
    #[must_use]
    pub fn has_record(&self) -> bool {
        self.own.recall.resumed_at.load(Ordering::Relaxed) != 0
    }

    /// How many bytes TCP still brings behind the record that this side has read in the ring.
    #[must_use]
    pub fn doubled(&self) -> u64 {
        let recall = &self.own.recall;
        let read = self.own.progress.bytes.load(Ordering::Relaxed);
        let all = read.saturating_sub(recall.resumed_from.load(Ordering::Relaxed));
        let behind = recall.resumed_at.load(Ordering::Relaxed).saturating_sub(1);
        all.saturating_sub(self.taken().saturating_sub(behind))
    }
}

#[cfg(all(test, not(model), not(miri)))]
mod tests;
