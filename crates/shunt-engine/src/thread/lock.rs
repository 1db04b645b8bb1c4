//! Locks of this process. Each lies beside what it guards: a socket's (`socket/locked.rs`), a set's (`epoll/set.rs`), and a
//! `LOCK` in the file of each thing that the process has once, as its connection to shuntd (`control/state.rs`).
//!
//! A thread that needs several takes a socket's first, then a set's, then the token of a direction
//! ([`super::token`]). Where a set names the sockets, it takes the list out, gives the set's lock back, and locks each
//! (`epoll/polled.rs`). The `LOCK`s come behind these: a thread that has a socket's lock or a token may take the one of the
//! connection to shuntd, of the NIC, or of the pipe that packets take (`stream/packets.rs`), and takes no further lock while it
//! has that.
//! For that of the file which says how many threads are running (`stream/running.rs`) a thread waits only to close or to move the file. Only the one of recycled connections comes first (`recycle/lock.rs`): a connection is closed, and so a token taken,
//! while it is held.

use shunt_shm::token::Token;

use super::token::{Got, give, here, take, try_take};

/// A lock for rare operations, held for short and never asleep. Taking it in a
/// signal handler that interrupted its holder fails instead of deadlocking.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(Token);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(Token::FREE)
    }

    /// Takes it, waiting for another thread; `false` if this thread has it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        take(&self.0) != Got::Nothing
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        try_take(&self.0)
    }

    pub(crate) fn give(&self) {
        give(&self.0);
    }

    /// Whether a thread has it.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.is_taken()
    }

    /// Whether this thread has it.
    pub(crate) fn is_here(&self) -> bool {
        self.0.holder().is_some_and(|holder| holder.0 == here())
    }

    /// Frees it in a forked child, whose other threads do not exist.
    pub(crate) fn reset(&self) {
        self.0.reset();
    }
}

/// Held while the table of signal handlers changes. Each forked child frees it, so it lies in a page that the child
/// writes anyway ([`super::identity`]).
#[unsafe(link_section = ".data")]
static SIGNALS: Lock = Lock::new();

/// The lock that is held while the table of signal handlers changes.
#[inline]
pub(crate) fn signals_lock() -> &'static Lock {
    &SIGNALS
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn who_has_it_is_refused_a_second_time() {
        let lock = Lock::new();
        assert!(lock.take() && !lock.take() && !lock.try_take());
        lock.give();
        assert!(lock.try_take());
        lock.reset();
        assert!(lock.take());
        lock.give();
    }

    #[test]
    fn another_thread_waits_for_it() {
        static LOCK: Lock = Lock::new();
        static STEP: AtomicU32 = AtomicU32::new(0);
        assert!(LOCK.take());
        let other = std::thread::spawn(|| {
            let free = LOCK.try_take();
            STEP.store(1, Ordering::SeqCst);
            let got = LOCK.take();
            let after = STEP.load(Ordering::SeqCst);
            LOCK.give();
            (free, got, after)
        });
        while STEP.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        STEP.store(2, Ordering::SeqCst);
        LOCK.give();
        assert_eq!(other.join().unwrap(), (false, true, 2));
    }
}
