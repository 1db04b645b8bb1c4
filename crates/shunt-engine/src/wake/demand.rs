//! How many sockets this process wants to be called at by peers elsewhere, and when shuntd is asked for more.
//!
//! ```text
//!   wanted = 50, given = 8        a connection to another namespace is paired: one more thread may sleep
//!   ── Abroad, 42 ──────────────>                    no other question until the answer is complete
//!   <──────────── 42 sockets ────  given = 50
//!   <── Abroad, none attached ───  the answer is complete; how many it was
//! ```
//!
//! A question may bring less than it asked for: shuntd gives no more, or this process has no descriptor left. Then nobody
//! waits for the rest, and shuntd is asked again after a rest.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use shunt_abi::message::{MOST_SOCKETS, SOCKETS};

use crate::sys;

/// The most sockets that are in stock.
pub(super) const MOST: usize = 256;
/// Channels use no more than one in this many of the descriptors that a process may have.
pub(super) const SHARE: u64 = 8;
/// With this many in stock, or fewer, shuntd is asked for as many more as it gives at first.
const FEW: u32 = SOCKETS / 2;
/// How long shuntd is not asked again after an answer that brought less than was asked for (nanoseconds).
const REST: u64 = 1_000_000_000;
/// How long it is not asked again after it had no room for the question (nanoseconds).
const SHORT_REST: u64 = 1_000_000;

/// How many sockets the present shuntd is to give in all.
static WANTED: AtomicU32 = AtomicU32::new(0);
/// How many it has given.
static GIVEN: AtomicU32 = AtomicU32::new(0);
/// For how many it has been asked, while its answer is not complete; 0: no answer is due.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// Since when those that are missing have been asked for (`sys::now`); 0: they have not.
static ASKED_SINCE: AtomicU64 = AtomicU64::new(0);
/// The last answer brought less than was asked for: nobody waits for the rest.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);
/// When it may be asked again.
static REST_UNTIL: AtomicU64 = AtomicU64::new(0);

/// A connection has come whose other end is elsewhere, and for which a thread of its own may sleep. No more than `most`
/// threads will at a time.
pub(crate) fn expect_sleeper(most: u32) {
    let share = sys::descriptor_limit() / SHARE;
    let most = most.min(share.min(MOST as u64) as u32);
    let more = |wanted| (wanted < most).then_some(wanted + 1);
    let _ = WANTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
}

/// A set needs a socket, and none is in stock. `false`: none will come soon, and nobody is to wait for it.
pub(super) fn wants_some() -> bool {
    look_ahead();
    lacks_sockets()
}

/// Whether sockets are missing that are on their way, or will be. A thread that began to sleep on a connection to another
/// namespace before they have come could not be woken from there. A shuntd that does not answer is waited for [`REST`] at most.
pub(crate) fn lacks_sockets() -> bool {
    is_short() && !IS_REFUSED.load(Ordering::Relaxed) && !is_answer_late()
}

fn is_answer_late() -> bool {
    let since = ASKED_SINCE.load(Ordering::Relaxed);
    since != 0 && sys::now() >= since.saturating_add(REST)
}

/// Whether shuntd is to be asked for some now.
#[inline]
pub(crate) fn wants_sockets() -> bool {
    is_short()
        && ASKED.load(Ordering::Relaxed) == 0
        && match REST_UNTIL.load(Ordering::Relaxed) {
            0 => true,
            until => sys::now() >= until,
        }
}

#[inline]
fn is_short() -> bool {
    WANTED.load(Ordering::Relaxed) > GIVEN.load(Ordering::Relaxed)
}

/// For how many it is asked now. With the control lock.
pub(crate) fn begin_question() -> u32 {
    let missing = WANTED
        .load(Ordering::Relaxed)
        .saturating_sub(GIVEN.load(Ordering::Relaxed));
    let asked = missing.min(MOST_SOCKETS);
    ASKED.store(asked, Ordering::Relaxed);
    if ASKED_SINCE.load(Ordering::Relaxed) == 0 {
        ASKED_SINCE.store(sys::now(), Ordering::Relaxed);
    }
    asked
}

/// There was no room for the question. With the control lock.
pub(crate) fn put_off_question() {
    ASKED.store(0, Ordering::Relaxed);
    rest(SHORT_REST);
}

/// The answer is complete, and brought `given` sockets. With the control lock.
pub(crate) fn note_answer(given: u32) {
    ASKED_SINCE.store(0, Ordering::Relaxed);
    let is_refused = given < ASKED.swap(0, Ordering::Relaxed);
    if is_refused {
        note_no_room();
    } else if !is_short() {
        IS_REFUSED.store(false, Ordering::Relaxed);
    }
}

/// A socket has come.
pub(super) fn note_given() {
    GIVEN.fetch_add(1, Ordering::Relaxed);
}

/// A socket was lost on its way: this process has no descriptor left. No more are wanted until another one is missed.
pub(crate) fn note_lost() {
    WANTED.fetch_min(GIVEN.load(Ordering::Relaxed), Ordering::Relaxed);
    note_no_room();
}

/// A socket has come for which there is no room here, or will not come.
pub(super) fn note_no_room() {
    IS_REFUSED.store(true, Ordering::Relaxed);
    rest(REST);
}

fn rest(nanoseconds: u64) {
    REST_UNTIL.store(sys::now() + nanoseconds, Ordering::Relaxed);
}

/// A channel has taken a socket, or found none; `left` remain in stock.
pub(super) fn note_taken(is_taken: bool, left: u32) {
    let given = GIVEN.load(Ordering::Relaxed);
    if !is_taken {
        // One for each channel that has to do without.
        let most = given.saturating_add(MOST as u32);
        let more = |wanted: u32| Some(wanted.max(given).saturating_add(1).min(most));
        let _ = WANTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    } else if left <= FEW {
        look_ahead();
    }
}

/// Asks for more sockets before they are missed.
fn look_ahead() {
    let given = GIVEN.load(Ordering::Relaxed);
    WANTED.fetch_max(given.saturating_add(SOCKETS), Ordering::Relaxed);
}

/// Another shuntd serves this process, which has given nothing yet. It is asked for as many as are in use or wanted, if
/// peers elsewhere have called this process. With the control lock.
pub(super) fn renew(is_called: bool, in_stock: u32) {
    let o = Ordering::Relaxed;
    let used = GIVEN.load(o).saturating_sub(in_stock);
    let wanted = WANTED.load(o).max(used).clamp(SOCKETS, MOST as u32);
    forget();
    if is_called {
        WANTED.store(wanted, o);
    }
}

/// Nothing is wanted, given or asked for.
pub(super) fn forget() {
    for count in [&WANTED, &GIVEN, &ASKED] {
        count.store(0, Ordering::Relaxed);
    }
    IS_REFUSED.store(false, Ordering::Relaxed);
    for time in [&ASKED_SINCE, &REST_UNTIL] {
        time.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// The question that is asked now, if any is.
    fn question() -> Option<u32> {
        wants_sockets().then(begin_question)
    }

    /// An answer of `given` sockets.
    fn answer(given: u32) {
        (0..given).for_each(|_| note_given());
        note_answer(given);
    }

    #[test]
    fn there_is_one_question_at_a_time_for_as_many_as_are_missing() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        (0..SOCKETS).for_each(|_| note_given());
        (0..SOCKETS).for_each(|_| expect_sleeper(200));
        assert!(!lacks_sockets() && question().is_none());
        (SOCKETS..100).for_each(|_| expect_sleeper(200));
        assert!(lacks_sockets());
        let first = question().unwrap();
        // More are missed while the answer is on its way: also when it has come in part.
        (0..4).for_each(|_| note_taken(false, 0));
        note_given();
        assert!(lacks_sockets() && question().is_none());
        (1..first).for_each(|_| note_given());
        note_answer(first);
        assert_eq!(
            (first, question()),
            (MOST_SOCKETS, Some(104 - SOCKETS - first))
        );
        answer(104 - SOCKETS - first);
        assert!(!lacks_sockets() && question().is_none());
        forget();
    }

    #[test]
    fn no_more_are_wanted_than_threads_can_sleep() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        (0..100).for_each(|_| expect_sleeper(10));
        assert_eq!(question(), Some(10));
        forget();
        (0..10_000).for_each(|_| note_taken(false, 0));
        assert_eq!(WANTED.load(Ordering::Relaxed), MOST as u32);
        forget();
    }

    #[test]
    fn some_more_come_before_the_last_is_taken() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        (0..SOCKETS).for_each(|_| note_given());
        (FEW + 1..SOCKETS).for_each(|left| note_taken(true, left));
        assert_eq!(question(), None);
        note_taken(true, FEW);
        note_taken(true, FEW - 1);
        assert_eq!(question(), Some(SOCKETS));
        forget();
    }

    #[test]
    fn nobody_waits_for_what_is_refused_and_nobody_asks_for_it_soon() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        (0..20).for_each(|_| expect_sleeper(20));
        assert_eq!(question(), Some(20));
        answer(5);
        expect_sleeper(30);
        assert!(!lacks_sockets() && question().is_none());
        // As after the rest.
        REST_UNTIL.store(0, Ordering::Relaxed);
        assert_eq!(question(), Some(16));
        assert!(!lacks_sockets());
        answer(16);
        expect_sleeper(30);
        assert!(lacks_sockets());
        forget();
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_not_waited_for_without_end() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        expect_sleeper(20);
        assert_eq!(question(), Some(1));
        assert!(lacks_sockets());
        ASKED_SINCE.fetch_sub(REST, Ordering::Relaxed);
        assert!(!lacks_sockets() && question().is_none());
        answer(1);
        expect_sleeper(20);
        assert!(lacks_sockets());
        forget();
    }

    #[test]
    fn what_is_lost_on_its_way_is_not_asked_for_again_before_it_is_missed() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        (0..5).for_each(|_| expect_sleeper(20));
        assert_eq!(question(), Some(5));
        note_given();
        note_lost();
        note_answer(5);
        assert!(!lacks_sockets());
        REST_UNTIL.store(0, Ordering::Relaxed);
        assert_eq!(question(), None);
        expect_sleeper(20);
        assert_eq!(question(), Some(1));
        forget();
    }

    #[test]
    fn a_question_that_has_no_room_is_put_off() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        expect_sleeper(1);
        assert_eq!(question(), Some(1));
        put_off_question();
        // It is missing still.
        assert!(lacks_sockets() && question().is_none());
        REST_UNTIL.store(0, Ordering::Relaxed);
        assert_eq!(question(), Some(1));
        forget();
    }

    #[test]
    fn another_daemon_is_asked_for_as_many_as_are_in_use() {
        let _alone = crate::both_ends::one_at_a_time();
        forget();
        (0..40).for_each(|_| note_given());
        renew(true, 10);
        assert_eq!(question(), Some(30));
        renew(false, 0);
        assert_eq!(question(), None);
        forget();
    }
}
