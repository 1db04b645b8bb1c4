//! Signal handlers that have run on this thread since it started: all in the
//! low half, those without `SA_RESTART` in the high half.

use super::words::here;

/// A count of handlers run; compare two to know whether one ran between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Whether any handler has run since.
    #[inline]
    #[must_use]
    pub(crate) fn any_since(self) -> bool {
        self != now()
    }

    /// Whether a handler without `SA_RESTART` has run since.
    #[inline]
    #[must_use]
    pub(crate) fn interrupting_since(self) -> bool {
        self.0 >> 32 != now().0 >> 32
    }

    /// The count, as it is in the thread's words.
    pub(super) fn count(self) -> u64 {
        self.0
    }
}

/// Where they are counted.
#[inline(always)]
pub(super) fn count() -> *mut u64 {
    // SAFETY: this thread's own words.
    unsafe { &raw mut (*here()).seen }
}

/// What has been seen up to now.
#[inline]
#[must_use]
pub(crate) fn now() -> Seen {
    // SAFETY: this thread's own word; a handler may change it between two reads.
    Seen(unsafe { count().read_volatile() })
}

/// A handler is about to run on this thread.
pub(crate) fn count_one(restarting: bool) {
    let step = if restarting { 1 } else { 1 | 1 << 32 };
    let count = count();
    // SAFETY: this thread's own word; a nested handler can at worst hide one
    // of two counts, and either tells.
    unsafe { count.write_volatile(count.read_volatile().wrapping_add(step)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_has_run_is_seen() {
        let before = now();
        assert!(!before.any_since());
        count_one(true);
        assert!(before.any_since() && !before.interrupting_since());
        count_one(false);
        assert!(before.interrupting_since() && !now().any_since());
    }

    #[test]
    fn handlers_of_other_threads_are_not() {
        let before = now();
        std::thread::spawn(|| count_one(false)).join().unwrap();
        assert!(!before.any_since());
    }
}
