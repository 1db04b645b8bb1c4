//! A connection that is not shunted yet, or never will be: when it is claimed, and what its peer is told.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::slot;

use super::{Socket, Stage};
use crate::config::{self, GIVEN_UP_AFTER, LIVES_AFTER, Upgrade};
use crate::link::Pair;

impl Socket {
    /// After how many data calls the connection is claimed.
    pub(crate) fn claim_after(&self) -> u32 {
        due_after(self.claim_after.load(Ordering::Relaxed), config::upgrade())
    }

    /// The connection came from another program, and another process still has a copy: it is claimed later.
    pub(crate) fn ask_later(&self) {
        self.set_reason(Reason::Held);
        self.put_off();
        self.move_on(Stage::Claimed, Stage::Candidate);
    }

    /// The connection is claimed after as many calls more as it has made by now; after [`GIVEN_UP_AFTER`] calls, never.
    pub(crate) fn put_off(&self) {
        let calls = self.calls.load(Ordering::Relaxed);
        let after = if calls < GIVEN_UP_AFTER {
            calls.saturating_mul(2).max(2)
        } else {
            u32::MAX
        };
        self.claim_after.store(after, Ordering::Relaxed);
    }

    /// Gives a claimed socket its pair of slots. The caller holds the control lock. `false`: it has
    /// had too many pairs.
    pub(crate) fn set_pair(&self, pair: Pair) -> bool {
        let former = self.pair().copied();
        if !self.pairs.add(pair) {
            return false;
        }
        if let Some(former) = former {
            former.link.enter(former.number, None);
        }
        pair.link.hold();
        self.record.link.store(pair.link.id(), Ordering::Relaxed);
        let generation = &self.record.generation;
        generation.store(pair.generation, Ordering::Relaxed);
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

    /// Leaves the socket to the kernel for good, and does not tell the daemon. Returns the stage that it was in;
    /// `None`: it is too late, or there is nothing to give up.
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

/// After how many data calls a connection is claimed: as many as are `noted` for it, or, where that is 0, as many
/// as the mode says.
#[inline(always)]
fn due_after(noted: u32, mode: Upgrade) -> u32 {
    match (noted, mode) {
        (0, Upgrade::Eager | Upgrade::Sync) => 1,
        (0, Upgrade::Adaptive | Upgrade::Off) => LIVES_AFTER,
        (calls, _) => calls,
    }
}

/// The bits by which a peer learns that this side refuses the connection, and whether it should wait for the
/// process that has it next.
fn refusal(reason: Reason) -> u32 {
    match reason {
        Reason::Passed | Reason::Inherited | Reason::Stdio => slot::REFUSED | slot::HANDED_ON,
        _ => slot::REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket under a number that no descriptor has.
    fn socket(fd: i32, stage: Stage) -> &'static Socket {
        Socket::enter(fd, stage).unwrap()
    }

    #[test]
    fn it_is_claimed_when_it_has_shown_that_it_lives() {
        let socket = socket(302_000, Stage::Candidate);
        assert_eq!(socket.claim_after(), LIVES_AFTER);
        socket.claim_after.store(40, Ordering::Relaxed);
        assert_eq!(socket.claim_after(), 40);
    }

    #[test]
    fn the_first_call_claims_it_where_nobody_waits_for_it_to_live() {
        for mode in [Upgrade::Eager, Upgrade::Sync] {
            assert_eq!(due_after(0, mode), 1);
        }
        for mode in [Upgrade::Adaptive, Upgrade::Off] {
            assert_eq!(due_after(0, mode), LIVES_AFTER);
        }
        for mode in [
            Upgrade::Adaptive,
            Upgrade::Eager,
            Upgrade::Off,
            Upgrade::Sync,
        ] {
            assert_eq!(due_after(40, mode), 40);
        }
    }

    #[test]
    fn a_claim_that_is_put_off_takes_as_many_calls_once_more() {
        let socket = socket(302_001, Stage::Candidate);
        socket.put_off();
        assert_eq!(socket.claim_after(), 2);
        socket.calls.store(30, Ordering::Relaxed);
        socket.put_off();
        assert_eq!(socket.claim_after(), 60);
        socket.calls.store(GIVEN_UP_AFTER, Ordering::Relaxed);
        socket.put_off();
        assert_eq!(socket.claim_after(), u32::MAX);
    }

    #[test]
    fn one_of_which_somebody_has_a_copy_is_a_candidate_again() {
        let socket = socket(302_002, Stage::Claimed);
        socket.ask_later();
        assert_eq!(
            (socket.stage(), socket.reason()),
            (Stage::Candidate, Reason::Held)
        );
    }

    #[test]
    fn what_is_given_up_says_from_which_stage() {
        let candidate = socket(302_003, Stage::Candidate);
        assert_eq!(candidate.give_up(Reason::Stdio), Some(Stage::Candidate));
        assert_eq!(
            (candidate.stage(), candidate.reason()),
            (Stage::Plain, Reason::Stdio)
        );
        assert_eq!(candidate.give_up(Reason::Passed), None);
        assert_eq!(candidate.reason(), Reason::Stdio);
        let listener = socket(302_004, Stage::Listener);
        assert_eq!(listener.give_up(Reason::Stdio), None);
        assert_eq!(listener.stage(), Stage::Listener);
    }

    #[test]
    fn a_peer_is_told_whether_somebody_else_has_it_next() {
        assert_eq!(refusal(Reason::Passed), slot::REFUSED | slot::HANDED_ON);
        assert_eq!(refusal(Reason::Stdio), slot::REFUSED | slot::HANDED_ON);
        assert_eq!(refusal(Reason::AsyncIo), slot::REFUSED);
    }

    #[test]
    fn what_the_daemon_has_found_out_is_not_replaced_by_what_is_supposed() {
        let socket = socket(302_005, Stage::Candidate);
        socket.set_reason(Reason::OtherUser);
        socket.set_reason(Reason::Pending);
        assert_eq!(socket.reason(), Reason::OtherUser);
        socket.set_reason(Reason::Stdio);
        assert_eq!(socket.reason(), Reason::Stdio);
        socket.set_reason(Reason::OtherNamespace);
        socket.forget_peer();
        assert_eq!(socket.reason(), Reason::Pending);
    }

    #[test]
    fn a_stage_is_left_by_one_thread_only() {
        let socket = socket(302_006, Stage::Candidate);
        assert!(!socket.move_on(Stage::Fresh, Stage::Plain));
        assert!(socket.move_on(Stage::Candidate, Stage::Claimed));
        assert!(!socket.move_on(Stage::Candidate, Stage::Claimed));
        assert!(!socket.set_plain(Stage::Candidate, Reason::Stdio));
        assert!(socket.set_plain(Stage::Claimed, Reason::Stdio));
    }

    #[test]
    fn nobody_at_the_other_end_is_an_answer_only_to_who_accepts() {
        let acceptor = socket(302_007, Stage::Claimed);
        acceptor.set_role(shunt_abi::message::Role::Acceptor);
        acceptor.note_answer(false);
        assert_eq!(
            (acceptor.answered(), acceptor.reason()),
            (true, Reason::PeerPlain)
        );
        let connector = socket(302_008, Stage::Claimed);
        connector.set_role(shunt_abi::message::Role::Connector);
        connector.note_answer(false);
        assert_eq!(
            (connector.answered(), connector.reason()),
            (true, Reason::Pending)
        );
    }
}
