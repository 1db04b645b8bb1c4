//! Whom a thread calls: always the same peer, or several? And to which core it is to move for that, or so that its peer and it are on two.

use super::words::{self, Partner};

/// This many calls in a row for one connection, and none for another one, make its other end the thread's partner. Time is taken for as
/// many calls together.
const CALLS: u64 = 16;
/// As a wish: any core but the thread's own, …
const ELSEWHERE: u64 = u64::MAX;
/// … and that one if there is no more than one.
const ONLY_OTHER: u64 = u64::MAX - 1;

/// Where a thread is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To this core: 1 + its number.
    To(u32),
    /// To another one than its own.
    Away {
        /// Only if there is no choice among several.
        without_choice: bool,
    },
}

/// What is known at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    /// Whether the thread has called this peer alone lately.
    pub(crate) is_partner: bool,
    /// If that many calls more have been made now: how long they took, and how long as many took before the thread was moved
    /// to its peer (0: it was not) (ticks).
    pub(crate) took: Option<(u64, u64)>,
}

fn here() -> *mut Partner {
    // SAFETY: only computes where the field of this thread's own words is.
    unsafe { &raw mut (*words::here()).partner }
}

/// Notes that this thread is about to call the other end of that connection. `now`: the time, in ticks, asked for if need be.
pub(crate) fn note_call<T>(connection: &T, now: impl FnOnce() -> u64) -> Turns {
    let connection = std::ptr::from_ref(connection).cast();
    // SAFETY: this thread's own words. The caller holds a token, so no handler runs meanwhile.
    let partner = unsafe { &mut *here() };
    if partner.connection != connection {
        *partner = Partner {
            connection,
            calls: 0,
            since: 0,
            before: 0,
            wish: 0,
        };
    }
    partner.calls += 1;
    let mut turns = Turns {
        is_partner: partner.calls >= CALLS,
        took: None,
    };
    if partner.calls.is_multiple_of(CALLS) {
        let now = now();
        if partner.wish != 0 {
            // It has not slept, so it has not moved.
            (partner.wish, partner.before) = (0, 0);
        }
        if partner.calls > CALLS {
            turns.took = Some((now.wrapping_sub(partner.since), partner.before));
        }
        partner.since = now;
        partner.before = 0;
    }
    turns
}

/// This thread is to move to a core before it sleeps next: 1 + its number. `took`: how long the last turns took.
pub(crate) fn wish(core: u32, took: u64) {
    // SAFETY: as in `note_call`.
    let partner = unsafe { &mut *here() };
    (partner.wish, partner.before) = (core.into(), took);
}

/// This thread is to move to another core before it sleeps next.
pub(crate) fn wish_away(without_choice: bool) {
    let wish = match without_choice {
        true => ONLY_OTHER,
        false => ELSEWHERE,
    };
    // SAFETY: this thread's own words; a handler in between leaves a wish of its own, or none.
    unsafe { ((*here()).wish, (*here()).before) = (wish, 0) }
}

/// Where this thread is to move now, and never again for this wish.
#[inline]
pub(crate) fn take_wish() -> Option<Wish> {
    // SAFETY: this thread's own words; a handler that takes the wish in between leaves none.
    match unsafe { std::mem::take(&mut (*here()).wish) } {
        0 => None,
        wish @ (ELSEWHERE | ONLY_OTHER) => Some(Wish::Away {
            without_choice: wish == ONLY_OTHER,
        }),
        core => Some(Wish::To(core as u32)),
    }
}

/// Notes that this thread has moved, or could not. Its turns begin anew: what it waited for its new core is none of them.
pub(crate) fn note_move(has_moved: bool, now: u64) {
    // SAFETY: this thread's own words, of which a handler has no use.
    let partner = unsafe { &mut *here() };
    if has_moved {
        partner.since = now;
    } else {
        partner.before = 0;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_called_again_and_again_is_a_partner_until_another_one_is() {
        let (one, another) = (1, 2);
        for n in 1..CALLS {
            let turns = note_call(&one, || n);
            assert!(!turns.is_partner && turns.took.is_none(), "call {n}");
        }
        let turns = note_call(&one, || 100);
        assert!(turns.is_partner && turns.took.is_none());
        assert!(!note_call(&another, || 0).is_partner);
        assert!(!note_call(&one, || 0).is_partner);
    }

    /// Calls one peer at each moment until the time of its turns is told.
    fn turns(peer: &i32, now: &mut u64) -> (u64, u64) {
        loop {
            *now += 10;
            if let Some(took) = note_call(peer, || *now).took {
                return took;
            }
        }
    }

    #[test]
    fn the_time_of_turns_is_told_and_that_of_those_before_a_move() {
        let (peer, mut now) = (1, 0);
        const EACH: u64 = 10 * CALLS;
        assert_eq!(turns(&peer, &mut now), (EACH, 0));
        wish(7, EACH);
        assert_eq!(take_wish(), Some(Wish::To(7)));
        assert_eq!(take_wish(), None);
        now += 1_000_000;
        note_move(true, now);
        assert_eq!(turns(&peer, &mut now), (EACH, EACH));
        assert_eq!(turns(&peer, &mut now), (EACH, 0));
    }

    #[test]
    fn a_wish_to_be_elsewhere_is_for_one_sleep_and_judges_no_turns() {
        let (peer, mut now) = (1, 0);
        for without_choice in [false, true] {
            wish_away(without_choice);
            assert_eq!(take_wish(), Some(Wish::Away { without_choice }));
            assert_eq!(take_wish(), None);
        }
        turns(&peer, &mut now);
        wish_away(false);
        assert_eq!(turns(&peer, &mut now).1, 0);
        assert_eq!(take_wish(), None);
    }

    #[test]
    fn a_thread_that_has_not_slept_or_could_not_move_is_not_said_to_have_moved() {
        let (peer, mut now) = (1, 0);
        turns(&peer, &mut now);
        wish(7, 100);
        assert_eq!(turns(&peer, &mut now).1, 0);
        assert_eq!(take_wish(), None);
        wish(7, 100);
        take_wish();
        note_move(false, now);
        assert_eq!(turns(&peer, &mut now).1, 0);
    }
}
