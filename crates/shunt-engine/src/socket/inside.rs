//! Which threads are inside real calls on a socket.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::alone::add;

/// Counts threads inside real calls on a socket: receiving and sending, so that
/// no direction changes its way under one of them, and polling, so that the
/// upgrade knows whom to wake.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct Inside(AtomicU64);

/// One thread that receives.
pub(crate) const RECEIVER: u32 = 1;
/// One thread that sends.
pub(crate) const SENDER: u32 = 1 << 16;
/// The way is being changed: stay out.
const SHUT: u64 = 1 << 31;
/// One thread that polls the kernel's socket.
const POLLER: u64 = 1 << 32;
/// Threads that receive or send, and `SHUT`.
const MOVERS: u64 = POLLER - 1;
/// The socket is shunted.
const ATTACHED: u64 = 1 << 63;
/// The last descriptor is closed: the last thread that receives or sends does the rest when it leaves.
const GONE: u64 = 1 << 62;
/// The bits that are no counts.
const FLAGS: u64 = ATTACHED | GONE;

impl Inside {
    /// Counts a thread that goes in. `false`: a change is under way; the thread must leave again.
    #[inline(always)]
    pub(super) fn enter(&self, who: u32) -> bool {
        // Sequentially consistent with `shut`: one of the two sees the other.
        add(&self.0, u64::from(who)) & SHUT == 0
    }

    /// A thread leaves. `true`: the socket has ended meanwhile, and nobody else is inside.
    #[inline(always)]
    pub(super) fn leave(&self, who: u32) -> bool {
        let before = add(&self.0, u64::from(who).wrapping_neg());
        before & GONE != 0 && self.is_deserted()
    }

    /// The socket ends. `true`: nobody is inside. Otherwise the last thread to [leave](Self::leave)
    /// is told.
    pub(super) fn retire(&self) -> bool {
        self.0.fetch_or(GONE, Ordering::SeqCst);
        self.is_deserted()
    }

    /// Whether the socket has ended and no thread inside receives or sends. One thread is told so, once.
    #[cold]
    fn is_deserted(&self) -> bool {
        let change =
            |now: u64| (now & GONE != 0 && now & MOVERS & !SHUT == 0).then_some(now & !GONE);
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
            .is_ok()
    }

    /// Keeps all threads out, if none moves bytes. Returns how many poll.
    pub(crate) fn shut(&self) -> Option<u32> {
        let now = self.0.load(Ordering::SeqCst);
        let free = now & MOVERS == 0;
        (free
            && self
                .0
                .compare_exchange(now, now | SHUT, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok())
        .then_some(((now & !FLAGS) >> POLLER.trailing_zeros()) as u32)
    }

    pub(crate) fn open(&self, attached: bool) {
        if attached {
            self.0.fetch_or(ATTACHED, Ordering::SeqCst);
        }
        self.0.fetch_and(!SHUT, Ordering::SeqCst);
    }

    /// A thread is about to poll the kernel's socket; `placed`: it can be woken at an upgrade,
    /// which waits for it otherwise. `false`: it is shunted.
    pub(crate) fn begin_poll(&self, placed: bool) -> bool {
        let one = poller(placed);
        self.change_pollers(|now| (now & ATTACHED == 0).then(|| now + one))
    }

    /// The poll of such a thread is over.
    pub(crate) fn end_poll(&self, placed: bool) {
        let one = poller(placed);
        self.change_pollers(|now| Some(now - one));
    }

    /// Changes the count of pollers, but not while the socket is being upgraded: an upgrade has
    /// counted them.
    fn change_pollers(&self, mut change: impl FnMut(u64) -> Option<u64>) -> bool {
        loop {
            let now = self.0.load(Ordering::SeqCst);
            if now & SHUT != 0 {
                crate::sys::sched_yield();
                continue;
            }
            let Some(new) = change(now) else {
                return false;
            };
            if self
                .0
                .compare_exchange(now, new, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                return true;
            }
        }
    }

    /// Whether a thread is sending through the kernel.
    pub(crate) fn has_sender(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (SHUT - 1) >= u64::from(SENDER)
    }

    /// Whether no thread is inside.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) & !FLAGS == 0
    }

    /// Makes the word ready for the next socket. A thread that came too late for the last one may
    /// still be about to leave.
    pub(crate) fn clear(&self) {
        self.0.fetch_and(!FLAGS, Ordering::SeqCst);
    }

    /// In a forked child: the other threads are gone.
    pub(crate) fn after_fork_child(&self) {
        self.0.fetch_and(ATTACHED, Ordering::SeqCst);
    }
}

/// One thread that polls.
fn poller(placed: bool) -> u64 {
    if placed { POLLER } else { u64::from(RECEIVER) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_leave_is_told_once() {
        let inside = Inside::default();
        assert!(inside.enter(RECEIVER) && inside.enter(SENDER));
        assert!(!inside.retire());
        assert!(!inside.leave(SENDER));
        assert!(inside.leave(RECEIVER));
        // Who came too late does not end it again, nor miscounts the next socket.
        assert!(inside.enter(RECEIVER));
        inside.clear();
        assert!(inside.shut().is_none());
        assert!(!inside.leave(RECEIVER));
        assert_eq!(inside.shut(), Some(0));
    }

    #[test]
    fn a_socket_that_nobody_is_in_ends_at_once() {
        let inside = Inside::default();
        assert!(inside.retire());
        inside.clear();
        assert!(inside.begin_poll(true) && !inside.is_empty());
        assert_eq!(inside.shut(), Some(1));
        inside.open(false);
        inside.end_poll(true);
        assert!(inside.is_empty() && inside.begin_poll(false));
        assert_eq!(inside.shut(), None);
        inside.end_poll(false);
        assert!(inside.is_empty());
    }
}
