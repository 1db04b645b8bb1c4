//! A connection that is not shunted yet, or never will be: when it is claimed, and what its peer is told.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::slot;

use super::{Socket, Stage};
use crate::config::{self, GIVEN_UP_AFTER, LIVES_AFTER, Upgrade};
use crate::link::Pair;

impl Socket {
    /// After how many data calls it is claimed.
    pub(crate) fn claim_after(&self) -> u32 {
        match (self.claim_after.load(Ordering::Relaxed), config::upgrade()) {
            (0, Upgrade::Eager | Upgrade::Sync) => 1,
            (0, _) => LIVES_AFTER,
            (calls, _) => calls,
        }
    }

    /// Some process still has a copy of a connection that came here.
    pub(crate) fn ask_later(&self) {
        self.set_reason(Reason::Held);
        self.put_off();
        self.move_on(Stage::Claimed, Stage::Candidate);
    }

    /// It is claimed when as many calls have been made once more.
    pub(crate) fn put_off(&self) {
        let calls = self.calls.load(Ordering::Relaxed);
        let after = if calls < GIVEN_UP_AFTER {
            calls.saturating_mul(2).max(2)
        } else {
            u32::MAX
        };
        self.claim_after.store(after, Ordering::Relaxed);
    }

    /// Gives a claimed socket its memory. The caller holds the control lock.
    /// `false`: it has had too many.
    pub(crate) fn set_pair(&self, pair: Pair) -> bool {
        let former = self.pair().copied();
        if !self.pairs.add(pair) {
            return false;
        }
        if let Some(former) = former {
            former.link.enter(former.number, None);
        }
        pair.link.hold();
        pair.link.enter(pair.number, Some(self.index()));
        if matches!(self.reason(), Reason::PeerPlain | Reason::OtherUser) {
            self.write_reason(Reason::Pending); // Its peer has claimed it after all.
        }
        if !self.move_on(Stage::Claimed, Stage::Paired) {
            let bits = refusal(self.reason());
            pair.own.face.state.fetch_or(bits, Ordering::AcqRel);
        }
        true
    }

    /// Never to be upgraded (or, once attached, too late), without a word to the daemon; the stage that it was in.
    pub(crate) fn give_up(&self, reason: Reason) -> Option<Stage> {
        loop {
            let stage = self.stage();
            if matches!(
                stage,
                Stage::Attached | Stage::Free | Stage::Plain | Stage::Listener
            ) {
                return None;
            }
            if !self.set_plain(stage, reason) {
                continue;
            }
            if let Some(pair) = self.pair() {
                publish::set_bits(&pair.own.face.state, refusal(reason));
            }
            return Some(stage);
        }
    }
}

/// What a peer is told of a connection that is refused: whether to wait for the one
/// who has it next.
fn refusal(reason: Reason) -> u32 {
    match reason {
        Reason::Passed | Reason::Inherited | Reason::Stdio => slot::REFUSED | slot::HANDED_ON,
        _ => slot::REFUSED,
    }
}
