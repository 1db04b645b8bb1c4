//! How long an eager `accept` waits for the daemon's answer.
//!
//! Where the cores are crowded the answer takes time slices, not microseconds, and a server that waited for each
//! would accept a few hundred connections a second. So what it waits beyond the usual is a debt, which passes with
//! time; a process with too much of it does not wait for a while. Its connections are paired all the same, by a later
//! call.

use std::sync::atomic::{AtomicU64, Ordering};

/// The longest that an answer takes where the cores are not crowded (nanoseconds).
const USUAL: u64 = 200_000;
/// With more debt than this (nanoseconds) the process stops waiting. It is not less, since a few
/// answers that took time slices are an accident, and a program with few connections has them
/// shunted when `accept` returns.
const MOST: u64 = 50_000_000;
/// How long nobody waits after that (nanoseconds).
const REST: u64 = 400_000_000;
/// Debt passes by one nanosecond in this many.
const SLOWLY: u64 = 32;

/// The debt, …
pub(super) struct Patience {
    debt: AtomicU64,
    /// … and the time when it was brought up to date. Threads that change it at the same time may lose the wait of
    /// one of them.
    as_of: AtomicU64,
    /// Until when nobody waits.
    until: AtomicU64,
}

impl Patience {
    pub(super) const fn new() -> Self {
        Self {
            debt: AtomicU64::new(0),
            as_of: AtomicU64::new(0),
            until: AtomicU64::new(0),
        }
    }

    /// Whether to wait at this time.
    pub(super) fn has_any(&self, now: u64) -> bool {
        now >= self.until.load(Ordering::Relaxed)
    }

    /// A call has waited from `start` until now, with or without an answer.
    pub(super) fn note(&self, start: u64, now: u64) {
        let excess = now.saturating_sub(start).saturating_sub(USUAL);
        if excess == 0 {
            return;
        }
        let o = Ordering::Relaxed;
        let passed = now.saturating_sub(self.as_of.swap(now, o)) / SLOWLY;
        let debt = self.debt.load(o).saturating_sub(passed) + excess;
        if debt > MOST {
            self.debt.store(0, o);
            self.until.store(now + REST, o);
        } else {
            self.debt.store(debt, o);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// How many of `accepts` wait, where each answer takes `answer` nanoseconds and `pause` nanoseconds lie between
    /// two of them.
    fn waits(accepts: u64, answer: u64, pause: u64) -> u64 {
        let (patience, mut now, mut waited) = (Patience::new(), 100 * REST, 0);
        for _ in 0..accepts {
            if patience.has_any(now) {
                patience.note(now, now + answer);
                now += answer;
                waited += 1;
            }
            now += pause;
        }
        waited
    }

    #[test]
    fn quick_answers_are_always_waited_for() {
        assert_eq!(waits(20_000, MS / 10, MS / 10), 20_000);
    }

    #[test]
    fn slow_answers_are_so_only_where_they_are_few() {
        assert_eq!(waits(100, 3 * MS, REST), 100);
        // A tenth of the time of a server that accepts all the time: two seconds of pauses.
        let waited = waits(20_000, 3 * MS, MS / 10);
        assert!((50..=120).contains(&waited), "{waited}");
        // One that is stopped is waited for twice.
        assert_eq!(waits(1000, 50 * MS, MS / 10), 2);
    }

    #[test]
    fn who_has_waited_too_long_waits_again_after_a_rest() {
        let (patience, now) = (Patience::new(), 100 * REST);
        patience.note(now, now + MOST + 2 * USUAL);
        let then = now + MOST + 2 * USUAL;
        assert!(!patience.has_any(then) && !patience.has_any(then + REST - 1));
        assert!(patience.has_any(then + REST));
    }

    #[test]
    fn debt_passes_with_time() {
        let (patience, now) = (Patience::new(), 100 * REST);
        let long = MOST * 3 / 4;
        patience.note(now, now + long);
        // As much again is too much at once, but not when most of it has passed.
        let later = now + long * SLOWLY;
        patience.note(later, later + long);
        assert!(patience.has_any(later + long));
        patience.note(later + long, later + 2 * long);
        assert!(!patience.has_any(later + 2 * long));
    }
}
