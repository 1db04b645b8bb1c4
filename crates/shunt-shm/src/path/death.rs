//! A process that shared the connection since a fork died with a token: what it had begun is
//! finished by the one that takes the token over, so that the peer does not wait for ever.

use super::{Receiver, Sender};
use crate::atomic::Ordering;
use crate::publish;
use crate::slot::{RECALLED, Recall, WITHDRAWING, WITHDRAWN, Way};

/// What the caller must still do for a sender that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Nothing.
    Nothing,
    /// It was leaving its ring for this offset of the TCP stream, and has not written the frame
    /// that says so.
    Leaves(u64),
}

impl Sender<'_> {
    /// Finishes the change of a sender that died with its token, which the caller has now. `has_left`:
    /// the last frame in the ring sends the peer to TCP ([`repair`](crate::ring::Producer::repair)).
    pub fn finish(&self, has_left: bool) -> Unfinished {
        if has_left {
            self.stay_with_kernel();
        } else if self.way() == Way::Tcp && self.own.output.switch_at.load(Ordering::Relaxed) != 0 {
            Way::Ring.store(&self.own.sending.way);
        }
        let state = &self.own.face.state;
        let withdraws = state.load(Ordering::Relaxed) & (WITHDRAWING | WITHDRAWN) == WITHDRAWING;
        match (self.way(), self.left_at()) {
            (Way::Ring, None) if withdraws => {
                publish::clear_bits(state, WITHDRAWING);
            }
            (Way::Ring | Way::Owing, Some(_)) if withdraws => self.withdrawn(),
            (Way::Owing, _) => publish::half(&self.own.recall.answered, Recall::AGREED),
            (Way::Ring, Some(written)) if !self.is_recalled() => {
                return Unfinished::Leaves(written);
            }
            _ => {}
        }
        Unfinished::Nothing
    }
}

impl Receiver<'_> {
    /// Finishes the recall of a receiver that died with its token, which the caller has now. `unread`:
    /// bytes unread in the peer's ring; `None`: it is broken.
    pub fn finish(&self, unread: impl FnOnce() -> Option<u64>) {
        if self.way() != Way::TcpAgain {
            return;
        }
        let recalled = self.own.face.state.load(Ordering::Relaxed) & RECALLED != 0;
        let stage = &self.own.recall.stage;
        match stage.load(Ordering::Relaxed) {
            Recall::TAKEN => self.done(unread),
            Recall::TRYING => publish::half(stage, Recall::ASKED),
            // It has not followed the peer: so it was leaving.
            Recall::NONE if !recalled && self.awaits() => {
                publish::half(stage, Recall::ASKED);
            }
            _ => return,
        }
        publish::set_bits(&self.own.face.state, RECALLED);
    }
}
