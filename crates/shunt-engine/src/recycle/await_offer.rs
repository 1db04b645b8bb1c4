//! A thread waits for the next connection of a listener: at one that was accepted there and is kept, each thread at one of
//! its own.
//!
//! Such a thread is in `accept` ([`super::accept`]), or in a call that waits until there is something to accept ([`Waits`]).
//! It takes what it is offered. In a call of the second kind this makes the listener readable, until an `accept` returns
//! the connection.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use shunt_shm::wake::Address;

use super::lock::{self, Locked};
use super::store::{self, Kept};
use crate::socket::{SETS_TIMEOUTS, Socket, Stage};
use crate::stream::{self, Conn};
use crate::{config, hold, sys, thread};

/// A thread waits at a connection that is kept.
pub(super) struct Wait {
    pub(super) kept: &'static Kept,
    conn: Conn<'static>,
}

impl Wait {
    /// Begins a wait at the connection that was closed last. `None`: nothing can be offered at this listener.
    pub(super) fn begin(locked: &Locked, listener: &Socket) -> Option<Self> {
        let free = |kept: &&Kept| kept.is_free() && kept.is_of(listener);
        let may_be = |wait: &Self| stream::turns(wait.conn.pair).may_be_offered();
        let waits = locked.each().filter(free).filter_map(Self::at);
        let wait = waits.filter(may_be).max_by_key(|wait| wait.kept.until())?;
        wait.kept.begin_wait(locked);
        // An offer that stands already is seen by the look that follows.
        let _ = stream::turns(wait.conn.pair).wait();
        Some(wait)
    }

    fn at(kept: &'static Kept) -> Option<Self> {
        let conn = Conn::new(kept.socket()?, kept.fd())?;
        Some(Self { kept, conn })
    }

    /// Whether this thread still waits. Otherwise another thread, or a signal handler's call in this thread, has taken
    /// what was offered.
    pub(super) fn goes_on(&self) -> bool {
        let is_same = |socket: &Socket| std::ptr::eq(socket, self.conn.socket);
        self.kept.is_waited_at_here() && self.kept.socket().is_some_and(is_same)
    }

    /// Whether the thread is to look: it is offered a connection, or waits no more.
    pub(super) fn has_news(&self) -> bool {
        // If it does not wait any more, the connection may have ended, and its memory may be gone.
        let goes_on = || self.goes_on() && !stream::turns(self.conn.pair).is_offered();
        hold::while_held(self.conn.socket, goes_on) != Some(true)
    }

    /// Writes where this thread, which is about to sleep, can be called. The caller [looks](Self::has_news) next.
    pub(super) fn say(&self, tell: impl FnOnce(&Address)) {
        if let Some(_locked) = lock::lock()
            && self.goes_on()
        {
            stream::await_offer(self.conn.pair, tell);
        }
    }

    /// Nanoseconds until the connection has been kept long enough.
    pub(super) fn left(&self) -> u64 {
        self.kept.until().saturating_sub(sys::now())
    }

    /// Ends this thread's wait. `true`: a connection was offered, and is taken.
    pub(super) fn end(&self, locked: &Locked) -> bool {
        self.goes_on() && self.end_any(locked)
    }

    /// Ends the wait, whichever thread waits. `true`: a connection was offered, and is taken.
    fn end_any(&self, locked: &Locked) -> bool {
        stream::await_no_more(self.conn.pair);
        let taken = stream::turns(self.conn.pair).end_wait() && stream::take_again(&self.conn);
        self.kept.end_wait(locked, taken);
        taken
    }
}

/// Ends waits of this thread's that are left over from a call which a signal handler has left for good.
pub(super) fn leave_what_was_left(locked: &Locked) {
    let left = locked.each().filter(|kept| kept.is_waited_at_here());
    for wait in left.filter_map(Wait::at) {
        wait.end_any(locked);
    }
}

/// Takes everything that is offered to threads which wait at this listener's connections: they may all be called at
/// one address, and only one of them hears the call.
fn take_all(locked: &Locked, listener: &Socket) {
    let waited_at = locked
        .each()
        .filter(|kept| kept.is_waited_at() && kept.is_of(listener));
    for wait in waited_at.filter_map(Wait::at) {
        if stream::turns(wait.conn.pair).is_offered() {
            wait.end_any(locked);
        }
    }
}

/// Whether a connection waits for an `accept` of this listener that was offered in memory.
pub(crate) fn is_readable(listener: &Socket) -> bool {
    store::last_taken(listener) != 0
}

/// Whether a listener has no settings that matter here: its `accept` waits without a timeout, and the sockets that it
/// accepts are as new.
pub(super) fn is_plain(listener: &Socket) -> bool {
    let settings = &listener.settings;
    !settings.is_odd.load(Ordering::Relaxed)
        && settings.timeouts.load(Ordering::SeqCst) & SETS_TIMEOUTS == 0
}

/// Whether a thread may wait at a listener for what is offered in memory.
fn may_wait_at(listener: &Socket) -> bool {
    config::recycles()
        && store::is_any_of(listener)
        && listener.stage() == Stage::Listener
        && is_plain(listener)
        && !config::is_confined()
        && thread::owns_descriptors()
}

/// Whether a readiness call that names this socket must be answered here, since the kernel does not know everything.
/// `now`: the call does not wait.
pub(crate) fn concerns(socket: &Socket, now: bool) -> bool {
    store::is_any() && (is_readable(socket) || !now && may_wait_at(socket))
}

/// What a thread waits at in a readiness call, by numbers, a bit each.
pub(crate) struct Waits(Cell<u64>);

impl Waits {
    /// Makes a readiness call: the waits end with it. One that is cancelled [ends](Self::end) them in its clean-up.
    #[inline(always)]
    pub(crate) fn during<R>(call: impl FnOnce(&Self) -> R) -> R {
        let waits = Self::none();
        let result = call(&waits);
        // Not by a destructor: if the thread were cancelled, unwinding through it would end the process.
        waits.end();
        result
    }

    /// No wait yet.
    #[inline(always)]
    pub(crate) const fn none() -> Self {
        Self(Cell::new(0))
    }

    /// Whether there is any.
    #[inline(always)]
    pub(crate) fn are_any(&self) -> bool {
        self.0.get() != 0
    }

    /// Begins to wait for what comes to a listener, unless something [is there](is_readable).
    #[cold]
    pub(crate) fn begin(&self, listener: &Socket) {
        if !may_wait_at(listener) {
            return;
        }
        let Some(locked) = lock::lock() else { return };
        if !self.are_any() {
            locked.sweep();
            leave_what_was_left(&locked);
        }
        take_all(&locked, listener);
        if !is_readable(listener)
            && let Some(wait) = Wait::begin(&locked, listener)
        {
            self.0.set(self.0.get() | 1 << wait.kept.number());
        }
    }

    /// `None`: it has ended, and nothing is kept there any more.
    fn each(&self) -> impl Iterator<Item = Option<Wait>> {
        let mut left = self.0.get();
        std::iter::from_fn(move || {
            let number = left.trailing_zeros();
            left &= left.checked_sub(1)?;
            Some(Wait::at(store::numbered(number)))
        })
    }

    /// Whether the thread is to [end](Self::end) them and look.
    #[inline(always)]
    pub(crate) fn have_news(&self) -> bool {
        self.are_any() && self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        self.each()
            .any(|wait| wait.is_none_or(|wait| wait.has_news()))
    }

    /// Says where the thread is called that is about to sleep. The caller looks [for news](Self::have_news) next.
    pub(crate) fn say(&self, tell: impl Fn(&Address)) {
        self.each().flatten().for_each(|wait| wait.say(&tell));
    }

    /// Nanoseconds until the first of them has lasted long enough; `None`: there is none.
    pub(crate) fn left(&self) -> Option<u64> {
        self.each().flatten().map(|wait| wait.left()).min()
    }

    /// The thread waits no more. What was offered makes its listener readable.
    #[inline(always)]
    pub(crate) fn end(&self) {
        if self.are_any() {
            self.end_all();
        }
    }

    #[cold]
    fn end_all(&self) {
        if let Some(locked) = lock::lock() {
            for wait in self.each().flatten() {
                wait.end(&locked);
            }
            self.0.set(0);
        }
    }
}

/// A thread that waited for what comes to this listener, beside others that are called at the same address, was called.
pub(crate) fn take_for_others(listener: &Socket) {
    if store::is_any()
        && let Some(locked) = lock::lock()
    {
        take_all(&locked, listener);
    }
}
