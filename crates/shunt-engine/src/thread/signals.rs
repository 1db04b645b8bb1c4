//! Signal handlers that have run on this thread since it started: all in the
//! low half, those without `SA_RESTART` in the high half.

use super::words::here;

/// A count of handlers run; compare two to know whether one ran between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u64);

/// In a [`Seen`]: any handler ends the call. Never in the thread's count, whose high half begins anew after 2^31 handlers.
const BY_ANY: u64 = 1 << 63;

impl Seen {
    /// Whether any handler has run since.
    #[inline]
    #[must_use]
    pub(crate) fn any_since(self) -> bool {
        (self.0 ^ now().0) & !BY_ANY != 0
    }

    /// Whether a handler has run since that ends the call: one without `SA_RESTART`.
    #[inline]
    #[must_use]
    pub(crate) fn interrupting_since(self) -> bool {
        if self.ends_by_any() {
            self.any_since()
        } else {
            self.0 >> 32 != now().0 >> 32
        }
    }

    /// The same for a call that has moved something: the kernel does not restart it, so any handler ends it.
    #[inline]
    #[must_use]
    pub(crate) fn with_part(self) -> Self {
        Self(self.0 | BY_ANY)
    }

    /// After a wait of a call that has moved nothing: the handlers with `SA_RESTART` until now have made it begin anew, and do
    /// not end it later.
    #[inline]
    #[must_use]
    pub(crate) fn begun_anew(self) -> Self {
        const RESTARTING: u64 = u32::MAX as u64;
        Self(self.0 & !RESTARTING | now().0 & RESTARTING)
    }

    /// From when on a handler ends a sleep that is about to begin. One that has run before has made the call begin anew,
    /// unless any ends it.
    #[inline]
    #[must_use]
    pub(crate) fn before_sleep(self) -> Self {
        if self.ends_by_any() { self } else { now() }
    }

    fn ends_by_any(self) -> bool {
        self.0 & BY_ANY != 0
    }

    /// The count, as it is in the thread's words.
    pub(super) fn count(self) -> u64 {
        self.0 & !BY_ANY
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
    unsafe { count.write_volatile(count.read_volatile().wrapping_add(step) & !BY_ANY) };
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
    fn any_handler_ends_a_call_that_has_moved_something() {
        let before = now().with_part();
        assert!(!before.interrupting_since());
        count_one(true);
        assert!(before.interrupting_since() && before.before_sleep().any_since());
        assert!(!now().before_sleep().any_since());
    }

    #[test]
    fn a_handler_after_which_a_call_begins_anew_does_not_end_it_later() {
        let before = now();
        count_one(true);
        let anew = before.begun_anew();
        assert!(!anew.with_part().interrupting_since());
        count_one(true);
        assert!(anew.with_part().interrupting_since() && !anew.interrupting_since());
        count_one(false);
        assert!(anew.begun_anew().interrupting_since());
    }

    #[test]
    fn handlers_of_other_threads_are_not() {
        let before = now();
        std::thread::spawn(|| count_one(false)).join().unwrap();
        assert!(!before.any_since());
    }
}
