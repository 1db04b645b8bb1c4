//! Waiting for the daemon's answer.
//!
//! Of the threads that wait, one reads for all. It sleeps at the socket; the others sleep until it has read something
//! or leaves. While there is a reader nobody else takes mail, which would leave it asleep.

use std::sync::atomic::{AtomicU32, Ordering};

use super::mail::read_all;
use super::state::{LOCK, READS_UNTIL, SOCKET};
use crate::sys;

/// Changes when something has been read or the reader leaves.
static NEWS: AtomicU32 = AtomicU32::new(0);
/// Threads that sleep until then.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// Reads mail until `done`; `false` if the time is over first.
pub(super) fn until(done: impl Fn() -> bool, deadline: u64) -> bool {
    loop {
        let news = NEWS.load(Ordering::SeqCst);
        if done() || SOCKET.number() < 0 {
            return true;
        }
        let now = sys::now();
        if now >= deadline {
            return false;
        }
        let reader = READS_UNTIL.load(Ordering::SeqCst);
        let o = Ordering::SeqCst;
        if reader > now {
            SLEEPERS.fetch_add(1, o);
            sys::futex_wait(&NEWS, news, deadline.min(reader) - now);
            SLEEPERS.fetch_sub(1, o);
        } else if READS_UNTIL.compare_exchange(reader, deadline, o, o).is_ok() {
            let able = read_until(&done, deadline);
            // Not if this thread's time was over and another one reads by now.
            let _ = READS_UNTIL.compare_exchange(deadline, 0, o, o);
            tell();
            if !able {
                return true;
            }
        }
    }
}

/// Sleeps until the daemon says something, or a millisecond.
pub(crate) fn nap() {
    sys::poll_ms(SOCKET.number(), libc::POLLIN, 1);
}

/// Reads for all threads, until `done`. `false`: this thread cannot read.
fn read_until(done: &impl Fn() -> bool, deadline: u64) -> bool {
    loop {
        // Also before the first sleep: another thread may just have read the answer.
        if !LOCK.take() {
            return false; // In a handler, on top of a control operation.
        }
        read_all();
        LOCK.give();
        tell();
        let (control, now) = (SOCKET.number(), sys::now());
        if done() || control < 0 || now >= deadline {
            return true;
        }
        let milliseconds = (deadline - now).div_ceil(1_000_000) as i64;
        sys::poll_ms(control, libc::POLLIN, milliseconds);
    }
}

/// Wakes those who sleep behind the reader.
fn tell() {
    NEWS.fetch_add(1, Ordering::SeqCst);
    if SLEEPERS.load(Ordering::SeqCst) > 0 {
        sys::futex_wake_all(&NEWS);
    }
}

/// The threads that waited do not exist here.
pub(super) fn after_fork_child() {
    READS_UNTIL.store(0, Ordering::Relaxed);
    SLEEPERS.store(0, Ordering::Relaxed);
}
