//! Two ends on one core, while another core may be idle.
//!
//! Ends that take turns by yields never sleep. Linux looks for an idle core when a thread wakes; its balancing takes
//! threads that have run in the last half millisecond for hot in their caches, and leaves them where they are, for a tenth of a
//! second and longer (redis and its benchmark, pushed onto one core by a program that ran for 0.7 ms: 0.75 million requests a second, 1.18
//! on two). So from time to time a wait sleeps in place of a yield, and is woken on an idle core, if the scheduler finds one. If
//! not, the ends meet again, and the next try comes later and later.
//!
//! The scheduler looks through no cores that were all busy until a moment ago. So where there is one other core, and else
//! from the second try on, the thread moves there by itself before it sleeps, if nobody else wants to run (`meet.rs`). When
//! a try comes is left to chance: two ends that moved at the same moment would meet again.
//!
//! Times are ticks of the time stamp counter (here about 2.6 per nanosecond).

use std::sync::atomic::{AtomicU64, Ordering};

/// Two ends that have taken turns for this long (about 0.25 ms) try to part.
const FIRST: u64 = 650_000;
/// Each try that fails makes the time to the next one four times as long, up to this (about 64 ms; by chance half of it more): a try takes
/// some 10 µs, and where many ends share the cores none comes to anything.
const LAST: u64 = FIRST << 8;
/// The ends have parted if for this long (about 1 ms) no wait has yielded at once.
const APART: u64 = 2_600_000;
/// After a move, which takes some 0.1 ms and may have been of no use, the next try comes after this time (about 4 ms; by chance
/// half of it more).
const AFTER_MOVE: u64 = FIRST << 4;

/// How this process's ends take turns with theirs. Its words are hints: threads that change them at the same time may lose
/// what one of them has seen.
pub(super) struct Together {
    /// When a wait last yielded at once.
    seen: AtomicU64,
    /// When the next try is due, …
    due: AtomicU64,
    /// … and how long after the last try that is.
    pause: AtomicU64,
}

impl Together {
    pub(super) const fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            due: AtomicU64::new(0),
            pause: AtomicU64::new(FIRST),
        }
    }

    /// A wait is about to yield at once, to a peer on its core, as another thread had the last turn. `true`: it should sleep instead, and
    /// call [`Together::tries`].
    #[inline]
    pub(super) fn is_for_long(&self, now: u64) -> bool {
        let apart = now.wrapping_sub(self.seen.load(Ordering::Relaxed));
        self.seen.store(now, Ordering::Relaxed);
        // (Another thread may have been seen since `now` was asked for.)
        if apart as i64 > APART as i64 {
            self.meet(apart, now);
        }
        let left = self.due.load(Ordering::Relaxed).wrapping_sub(now);
        // A time that is too far away is none: the counter has begun anew.
        !(1..=2 * LAST).contains(&left)
    }

    /// Such a yield has ended. What others had of the core meanwhile says nothing of whether the ends are apart.
    #[inline]
    pub(super) fn note_turn(&self, now: u64) {
        self.seen.store(now, Ordering::Relaxed);
    }

    /// The ends have met on a core, after having been apart for `apart` ticks. Where they meet soon after
    /// they have parted, to part them is of little use.
    #[cold]
    fn meet(&self, apart: u64, now: u64) {
        let pause = self.pause.load(Ordering::Relaxed);
        let pause = if apart > (4 * pause).min(LAST) {
            FIRST
        } else {
            pause
        };
        self.pause.store(pause, Ordering::Relaxed);
        let due = now.wrapping_add(by_chance(now, pause));
        self.due.store(due, Ordering::Relaxed);
    }

    /// A wait sleeps so that the ends may part. `true`: to sleep was not enough a moment ago.
    #[cold]
    pub(super) fn tries(&self, now: u64) -> bool {
        let last = self.pause.load(Ordering::Relaxed);
        let pause = (4 * last).min(LAST);
        self.pause.store(pause, Ordering::Relaxed);
        let due = now.wrapping_add(by_chance(now, pause));
        self.due.store(due, Ordering::Relaxed);
        last > FIRST
    }

    /// A thread has moved away from its peer.
    #[cold]
    pub(super) fn has_parted(&self, now: u64) {
        self.pause.store(AFTER_MOVE, Ordering::Relaxed);
        let due = now.wrapping_add(by_chance(now, AFTER_MOVE));
        self.due.store(due, Ordering::Relaxed);
    }
}

/// A pause, or up to half of it more, by the last digits of the time.
fn by_chance(now: u64, pause: u64) -> u64 {
    // The golden ratio, as 64 binary digits: what differs in the last ones differs in the first ones of the product.
    let chance = now.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    pause + ((chance * (pause / 2)) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 2_600_000;

    /// Yields every 2 µs for `lasts` ms. Returns when a wait would have slept instead, in ms from the beginning.
    fn take_turns(together: &Together, from: u64, lasts: u64) -> Vec<u64> {
        let mut tries = Vec::new();
        let mut now = from;
        while now < from + lasts * MS {
            now += MS / 500;
            if together.is_for_long(now) {
                together.tries(now);
                tries.push((now - from) / MS);
            }
        }
        tries
    }

    #[test]
    fn ends_that_stay_on_one_core_try_less_and_less_often() {
        let together = Together::new();
        let tries = take_turns(&together, MS, 400);
        for (pause, pair) in [1, 4, 16, 64, 64, 64].into_iter().zip(tries.windows(2)) {
            let passed = pair[1] - pair[0];
            assert!(
                (pause..=pause + pause / 2 + 1).contains(&passed),
                "{tries:?}"
            );
        }
        assert!((7..=9).contains(&tries.len()), "{tries:?}");
    }

    #[test]
    fn ends_that_have_parted_for_long_begin_anew() {
        let together = Together::new();
        take_turns(&together, MS, 100);
        let tries = take_turns(&together, 400 * MS, 20);
        assert_eq!(
            (tries[0], tries.len()),
            (0, take_turns(&Together::new(), 400 * MS, 20).len())
        );
    }

    #[test]
    fn ends_that_meet_again_at_once_try_no_more_often() {
        let together = Together::new();
        take_turns(&together, MS, 200);
        for n in 1..100 {
            let tries = take_turns(&together, (1 + 210 * n) * MS, 200);
            assert!((2..=4).contains(&tries.len()), "{tries:?}");
        }
    }

    #[test]
    fn the_first_try_is_told_from_the_next_ones_and_comes_anew_after_a_long_time_apart() {
        let (together, now) = (Together::new(), 100 * MS);
        assert!(!together.is_for_long(now));
        assert_eq!(
            [now + FIRST, now + 9 * FIRST].map(|now| together.tries(now)),
            [false, true]
        );
        let moved = now + 10 * FIRST;
        together.has_parted(moved);
        let tries = take_turns(&together, moved, 7);
        assert!(matches!(tries[..], [3..=6]), "{tries:?}");
        assert!(together.tries(moved + 7 * MS));
        let later = moved + 200 * MS;
        assert!(!together.is_for_long(later));
        assert!(together.is_for_long(later + 2 * FIRST) && !together.tries(later + 2 * FIRST));
    }

    #[test]
    fn two_ends_that_try_at_the_same_time_do_not_do_so_again() {
        let mut due: Vec<_> = (0..1000)
            .map(|digit| by_chance(1 << 40 | digit, LAST))
            .collect();
        assert!(due.iter().all(|due| (LAST..=LAST + LAST / 2).contains(due)));
        due.sort_unstable();
        let apart = due.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(apart.max() < Some(LAST / 100), "they fill the time");
        assert!(due[999] - due[0] > LAST / 2 - LAST / 100);
    }

    #[test]
    fn two_ends_that_have_moved_at_the_same_time_and_meet_again_do_not_move_together() {
        let now = 100 * MS;
        let due_at = |now| {
            let end = Together::new();
            end.is_for_long(now);
            end.has_parted(now);
            end.is_for_long(now + 10 * MS);
            assert_eq!(end.pause.load(Ordering::Relaxed), AFTER_MOVE);
            end.due.load(Ordering::Relaxed)
        };
        // One end comes half a microsecond later than the other one.
        let apart = |n| due_at(now + n * MS).abs_diff(due_at(now + n * MS + 1_300));
        assert!((0..100).filter(|&n| apart(n) > FIRST / 4).count() > 80);
    }

    #[test]
    fn a_turn_now_and_then_is_no_reason() {
        let together = Together::new();
        for n in 1..1000 {
            assert!(!together.is_for_long(n * 2 * MS));
        }
    }

    #[test]
    fn a_turn_that_a_stranger_has_had_does_not_put_the_ends_apart() {
        let (together, mut now, mut turns) = (Together::new(), 100 * MS, 0);
        while !together.is_for_long(now) {
            now += 3 * MS / 2;
            together.note_turn(now);
            (now, turns) = (now + MS / 500, turns + 1);
        }
        assert_eq!(turns, 1);
    }

    #[test]
    fn who_has_not_slept_is_asked_again() {
        let together = Together::new();
        assert!(!together.is_for_long(100 * MS));
        assert!(together.is_for_long(100 * MS + 2 * FIRST));
        assert!(together.is_for_long(100 * MS + 2 * FIRST + 1));
        together.tries(100 * MS + 2 * FIRST + 2);
        assert!(!together.is_for_long(100 * MS + 2 * FIRST + 3));
    }
}
