//! What keeps a socket with the kernel once it went back there, or brings it to its rings again
//! ([`crate::upgrade`] does).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use shunt_abi::Reason;

use crate::config::{self, LIVES_AFTER, Upgrade};

/// What keeps a socket with the kernel, or brings it back.
#[derive(Default)]
pub(crate) struct Return {
    /// One of the stages below.
    stage: AtomicU8,
    /// Calls since it went back to TCP, or since the last answer.
    calls: AtomicU32,
    /// How often in a row another process had the socket, or it had to leave its rings because no
    /// thread could wait there. Each time the next try comes after twice as many calls.
    tries: AtomicU32,
    /// The number of the last question to shuntd. It is also raised when something, such as a fork, makes an answer to
    /// that question worthless.
    question: AtomicU32,
    /// A `vfork` child has sent the connection back, and could not tell shuntd.
    untold: AtomicBool,
    /// Another program is to have it, so that a recall of its stream is not taken back.
    pub(crate) insists: AtomicBool,
}

/// Calls are counted.
pub(crate) const COUNTS: u8 = 0;
/// shuntd has been asked whether this process alone has the socket.
pub(crate) const ASKED: u8 = 1;
/// This process alone has it.
pub(crate) const ALONE: u8 = 2;
/// The kernel keeps it.
pub(crate) const STAYS: u8 = 3;

/// The most times that the number of calls is doubled.
const MOST_DOUBLINGS: u32 = 8;

impl Return {
    /// For the next socket.
    pub(crate) fn clear(&self) {
        self.stage.store(COUNTS, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        self.tries.store(0, Ordering::Relaxed);
        self.question.fetch_add(1, Ordering::AcqRel);
        self.untold.store(false, Ordering::Relaxed);
        self.insists.store(false, Ordering::Relaxed);
    }

    /// The connection went back to TCP, and shuntd could not be told.
    pub(crate) fn owe_report(&self) {
        self.untold.store(true, Ordering::Relaxed);
    }

    /// The connection goes back to TCP (or is there already): what was known of the processes that
    /// have it is void.
    pub(crate) fn begin(&self, reason: Reason) {
        if matches!(reason, Reason::Blocked | Reason::Held) {
            self.note_try();
        }
        self.calls.store(0, Ordering::Relaxed);
        if passes(reason) {
            self.forget();
        } else {
            self.stay();
        }
    }

    /// The kernel keeps it.
    pub(crate) fn stay(&self) {
        self.stage.store(STAYS, Ordering::Release);
    }

    /// Forgets what was known of the processes that have the socket. An answer of shuntd's that is
    /// still to come is void, too.
    pub(crate) fn forget(&self) {
        self.question.fetch_add(1, Ordering::AcqRel);
        self.calls.store(0, Ordering::Relaxed);
        let forget = |now| (now != STAYS).then_some(COUNTS);
        let _ = self
            .stage
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, forget);
    }

    /// One of the stages.
    pub(crate) fn stage(&self) -> u8 {
        self.stage.load(Ordering::Acquire)
    }

    /// A number for a question; the answer will bring it back.
    pub(crate) fn new_question(&self) -> u32 {
        let former = self.question.fetch_add(1, Ordering::AcqRel);
        former.wrapping_add(1)
    }

    /// shuntd has found out whether this process alone has the socket, as it was asked by the
    /// question of that number.
    pub(crate) fn answered(&self, question: u32, alone: bool) {
        if self.question.load(Ordering::Acquire) != question {
            return; // Others may have got it since.
        }
        if !alone {
            self.note_try();
        }
        self.move_on(ASKED, if alone { ALONE } else { COUNTS });
    }

    /// Whether shuntd could not be told that it went back to TCP.
    pub(crate) fn owes_report(&self) -> bool {
        self.untold.load(Ordering::Relaxed)
    }

    /// shuntd is told now.
    pub(crate) fn note_report(&self) {
        self.untold.store(false, Ordering::Relaxed);
    }

    /// The connection has come back for long: earlier tries do not count any more.
    pub(crate) fn forget_tries(&self) {
        self.tries.store(0, Ordering::Relaxed);
    }

    /// Moves on from a stage, if it is still in it.
    pub(crate) fn move_on(&self, from: u8, to: u8) -> bool {
        self.stage
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether it is time to ask.
    pub(crate) fn is_due(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed).saturating_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        let first = match config::upgrade() {
            Upgrade::Eager => 1,
            _ => LIVES_AFTER,
        };
        let doublings = self.tries.load(Ordering::Relaxed).min(MOST_DOUBLINGS);
        calls >= first << doublings
    }

    /// Coming back has failed: the next try comes after twice as many calls.
    pub(crate) fn note_try(&self) {
        let tries = self.tries.load(Ordering::Relaxed);
        self.tries.store(tries.saturating_add(1), Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }
}

/// Whether the reason for which a connection went back to TCP passes. It does not if the connection
/// was passed on, since nobody knows where copies lie; nor for the other reasons that are not named
/// here, since what needs TCP for one of them needs it for good.
fn passes(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Requested
            | Reason::Inherited
            | Reason::PeerLeft
            | Reason::Blocked
            | Reason::Held
            | Reason::NoResources
            | Reason::Pending
    )
}

/// Whether a connection goes back to TCP only because that is wished: no call needs it, and both
/// ends are told so.
pub(crate) fn is_wish(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Requested | Reason::Policy | Reason::OtherUser | Reason::OtherNamespace
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(again: &Return, calls: u32) -> usize {
        (0..calls).filter(|_| again.is_due()).count()
    }

    #[test]
    fn it_is_due_when_the_socket_has_shown_that_it_lives() {
        let again = Return::default();
        assert_eq!(called(&again, LIVES_AFTER - 1), 0);
        assert!(again.is_due());
    }

    #[test]
    fn each_try_in_vain_doubles_the_calls_up_to_a_bound() {
        let again = Return::default();
        again.note_try();
        assert_eq!(called(&again, 2 * LIVES_AFTER - 1), 0);
        assert!(again.is_due());
        for _ in 0..100 {
            again.note_try();
        }
        assert_eq!(called(&again, LIVES_AFTER << MOST_DOUBLINGS), 1);
        again.forget_tries();
        again.forget();
        assert_eq!(called(&again, LIVES_AFTER), 1);
    }

    #[test]
    fn what_passes_brings_it_back_and_what_does_not_keeps_it() {
        let again = Return::default();
        again.begin(Reason::Requested);
        assert_eq!(again.stage(), COUNTS);
        again.begin(Reason::Passed);
        assert_eq!(again.stage(), STAYS);
        // Nor is that forgotten.
        again.forget();
        assert_eq!(again.stage(), STAYS);
        again.clear();
        assert_eq!(again.stage(), COUNTS);
        again.begin(Reason::Policy);
        assert_eq!(again.stage(), STAYS);
    }

    #[test]
    fn a_connection_that_could_not_wait_takes_more_calls_the_next_time() {
        let again = Return::default();
        again.begin(Reason::Blocked);
        assert_eq!(called(&again, LIVES_AFTER), 0);
        let other = Return::default();
        other.begin(Reason::Requested);
        assert_eq!(called(&other, LIVES_AFTER), 1);
    }

    #[test]
    fn only_the_last_question_is_answered() {
        let again = Return::default();
        assert!(again.move_on(COUNTS, ASKED));
        let first = again.new_question();
        let last = again.new_question();
        again.answered(first, true);
        assert_eq!(again.stage(), ASKED);
        again.answered(last, true);
        assert_eq!(again.stage(), ALONE);
    }

    #[test]
    fn a_socket_that_others_have_is_asked_for_later() {
        let again = Return::default();
        again.move_on(COUNTS, ASKED);
        again.answered(again.new_question(), false);
        assert_eq!(again.stage(), COUNTS);
        assert_eq!(called(&again, LIVES_AFTER), 0);
    }

    #[test]
    fn a_fork_makes_an_answer_void() {
        let again = Return::default();
        again.move_on(COUNTS, ASKED);
        let question = again.new_question();
        again.forget();
        again.answered(question, true);
        assert_eq!(again.stage(), COUNTS);
    }

    #[test]
    fn a_report_is_owed_until_it_is_made() {
        let again = Return::default();
        again.owe_report();
        assert!(again.owes_report());
        again.note_report();
        assert!(!again.owes_report());
    }
}
