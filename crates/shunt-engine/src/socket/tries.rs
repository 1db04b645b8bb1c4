//! How often something is tried that costs, and may come to nothing: less and less often while it does, and soon each time once it
//! pays.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many occasions pass at most before the next try, ...
const MOST: u32 = 1 << 15;
/// ... and at least after one that came to nothing.
const LEAST: u32 = 8;

/// After this many occasions it is believed that what a try has left behind is of no use to any.
const STALE: u32 = 128;

/// A try that waits for another process costs as much as so many gains, ...
const COST: u32 = 4;
/// ... and after as many as are half of this without any gain it is believed not to pay.
const CREDIT: u32 = 64;

/// See the module. Zero: each occasion is used.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    /// How many occasions pass before the next try.
    pause: AtomicU32,
    /// How many have passed since the last one, ...
    passed: AtomicU32,
    /// ... and ever.
    ever: AtomicU32,
    /// What tries have cost, less what has come of them, if a try [costs](Self::spend) more than one gain.
    spent: AtomicU32,
}

impl Tries {
    /// All zeros.
    pub(crate) const fn new() -> Self {
        Self {
            pause: AtomicU32::new(0),
            passed: AtomicU32::new(0),
            ever: AtomicU32::new(0),
            spent: AtomicU32::new(0),
        }
    }

    /// Lets `pause` occasions pass before the next try.
    pub(crate) fn wait(&self, pause: u32) {
        self.pause.store(pause, Ordering::Relaxed);
        self.passed.store(0, Ordering::Relaxed);
    }

    /// An occasion has passed. (Two threads that count the same one do no harm.)
    pub(crate) fn note_passed(&self) {
        let passed = self.passed.load(Ordering::Relaxed).saturating_add(1);
        self.passed.store(passed, Ordering::Relaxed);
        self.ever.fetch_add(1, Ordering::Relaxed);
    }

    /// The date of what a try leaves behind, for [`Self::is_stale`].
    pub(crate) fn date(&self) -> u32 {
        self.ever.load(Ordering::Relaxed)
    }

    /// Whether what a try has left then is in vain, as so many occasions have passed since.
    pub(crate) fn is_stale(&self, date: u32) -> bool {
        self.date().wrapping_sub(date) > STALE
    }

    /// Whether a try is due.
    pub(crate) fn is_due(&self) -> bool {
        self.passed.load(Ordering::Relaxed) >= self.pause.load(Ordering::Relaxed)
    }

    /// There is a try: the count begins anew, since many may be under way at once.
    pub(crate) fn begin(&self) {
        self.passed.store(0, Ordering::Relaxed);
    }

    /// A try has paid.
    pub(crate) fn note_paid(&self) {
        let spent = self.spent.load(Ordering::Relaxed);
        self.spent.store(spent.saturating_sub(1), Ordering::Relaxed);
        if self.pays() {
            self.wait(self.pause.load(Ordering::Relaxed) / 2);
        }
    }

    /// A try costs as much as several gains. So many of them must come of it in the long run.
    pub(crate) fn spend(&self) {
        let spent = self.spent.load(Ordering::Relaxed) + COST;
        self.spent.store(spent.min(CREDIT), Ordering::Relaxed);
        if !self.pays() {
            self.note_vain();
        }
    }

    /// Whether what has come of the tries is worth their cost, as far as is known.
    pub(crate) fn pays(&self) -> bool {
        self.spent.load(Ordering::Relaxed) < CREDIT / 2
    }

    /// A try came to nothing.
    pub(crate) fn note_vain(&self) {
        let pause = self.pause.load(Ordering::Relaxed);
        self.wait((pause * 2).clamp(LEAST, MOST));
    }

    /// What a try has left came to nothing, perhaps only because there was no occasion any more: then that says nothing.
    pub(crate) fn note_unused(&self) {
        if self.passed.load(Ordering::Relaxed) > 0 {
            self.note_vain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many occasions pass before the next try.
    fn pause(tries: &Tries) -> u32 {
        let mut pause = 0;
        while !tries.is_due() {
            tries.note_passed();
            pause += 1;
        }
        pause
    }

    #[test]
    fn what_comes_to_nothing_is_tried_seldom_and_what_pays_each_time() {
        let tries = Tries::new();
        tries.wait(32);
        assert_eq!(pause(&tries), 32);
        tries.begin();
        assert!(!tries.is_due());
        tries.note_vain();
        assert_eq!(pause(&tries), 64);
        for _ in 0..20 {
            tries.note_vain();
        }
        assert_eq!(pause(&tries), MOST);
        for _ in 0..16 {
            tries.note_paid();
        }
        assert!(tries.is_due());
        tries.note_vain();
        assert_eq!(pause(&tries), LEAST);
    }

    #[test]
    fn a_try_that_costs_much_must_bring_much() {
        let dear = |gains: u32| {
            let tries = Tries::new();
            for _ in 0..100 {
                tries.spend();
                (0..gains).for_each(|_| tries.note_paid());
            }
            tries.pays()
        };
        assert!(!dear(0) && !dear(2) && dear(COST));
    }

    #[test]
    fn what_many_occasions_have_passed_by_is_stale() {
        let tries = Tries::new();
        let date = tries.date();
        (0..STALE).for_each(|_| tries.note_passed());
        assert!(!tries.is_stale(date));
        tries.note_passed();
        assert!(tries.is_stale(date) && !tries.is_stale(tries.date()));
    }

    #[test]
    fn what_is_left_when_nothing_more_comes_was_not_in_vain() {
        let tries = Tries::new();
        (0..50).for_each(|_| tries.note_unused());
        assert!(tries.is_due());
        tries.note_passed();
        (0..50).for_each(|_| tries.note_unused());
        assert_eq!(pause(&tries), LEAST);
    }
}
