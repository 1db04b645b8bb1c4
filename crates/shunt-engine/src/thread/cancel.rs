//! Whether a thread of this process has ever been asked to end (`pthread_cancel(3)`).
//!
//! A call that libc makes acts on such a request before anything else, if it is a cancellation point. One that is
//! answered here does so by [`test`]. Most programs cancel no thread: there each call has one more word to look at.

use std::sync::atomic::Ordering;

use super::alone::is_alone;
use super::identity::PROCESS;
use crate::real;

/// Whether a call has looked whether its thread is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// It has not: it returns without having done anything, if it [has to](is_noted).
    Due,
    /// It has.
    Done,
}

/// Before the real `pthread_cancel`. Relaxed: if the program knows that its request has come before a call of the
/// other thread, so does the call.
pub fn note() {
    PROCESS.cancels.store(true, Ordering::Relaxed);
}

/// Whether a call has to [`test`].
#[inline(always)]
#[must_use]
pub fn is_noted() -> bool {
    PROCESS.cancels.load(Ordering::Relaxed)
}

/// Makes a call that is no cancellation point, or that has to come to its end once it has begun: a request waits until then. (A thread
/// that can be cancelled asynchronously may end anywhere, also asleep in such a call.)
#[inline(always)]
pub fn put_off<R>(call: impl FnOnce() -> R) -> R {
    // Nobody else can ask, and this thread has not.
    if is_alone() && !is_noted() || real::ends_anywhere() {
        return call();
    }
    real::uncancelled(call)
}

/// Ends this thread, if that was asked for and it does not refuse now. The caller holds nothing, and no frame below
/// has a destructor to run.
pub fn test() {
    // SAFETY: takes nothing.
    unsafe { real::pthread_testcancel()() }
}
