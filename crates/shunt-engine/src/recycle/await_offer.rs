//! A thread waits for the next connection of a listener: at one that was accepted there and is kept, each thread at one of
//! its own.
//!
//! A thread that alone accepts at a listener waits at all of that one's which are [open](super::open).
//!
//! Such a thread is in `accept` ([`super::accept`]), or in a call that waits until there is something to accept ([`Waits`]).
//! It takes what it is offered. In a call of the second kind this makes the listener readable, until an `accept` returns
//! the connection.

use std::cell::Cell;

use shunt_shm::wake::Address;

use super::lock::{self, Locked};
use super::open::{self, is_plain, take_all};
use super::store::{self, Kept};
use crate::socket::{Socket, Stage};
use crate::stream::{self, Conn};
use crate::{config, hold, sys, thread};

/// A thread waits at a connection that is kept.
struct Wait {
    kept: &'static Kept,
    conn: Conn<'static>,
}

impl Wait {
    /// Begins a wait at the connection that was closed last. `None`: nothing can be offered at this listener.
    fn begin(locked: &Locked, listener: &Socket) -> Option<Self> {
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
        let conn = kept.conn()?;
        Some(Self { kept, conn })
    }

    /// Whether this thread still waits. Otherwise another thread, or a signal handler's call in this thread, has taken
    /// what was offered.
    fn goes_on(&self) -> bool {
        let is_same = |socket: &Socket| std::ptr::eq(socket, self.conn.socket);
        self.kept.is_waited_at_here() && self.kept.socket().is_some_and(is_same)
    }

    /// Whether the thread is to look: it is offered a connection, or waits no more.
    fn has_news(&self) -> bool {
        // If it does not wait any more, the connection may have ended, and its memory may be gone.
        let goes_on = || self.goes_on() && !stream::turns(self.conn.pair).is_offered();
        hold::while_held(self.conn.socket, goes_on) != Some(true)
    }

    /// Ends this thread's wait. If a connection was offered, it is taken.
    fn end(&self, locked: &Locked) {
        if self.goes_on() {
            self.kept.leave(locked);
        }
    }
}

/// Ends waits of this thread's that are left over from a call which a signal handler has left for good.
pub(super) fn leave_what_was_left(locked: &Locked) {
    let left = locked.each().filter(|kept| kept.is_waited_at_here());
    left.for_each(|kept| {
        kept.leave(locked);
    });
}

/// Whether a connection waits for an `accept` of this listener that was offered in memory.
pub(crate) fn is_readable(listener: &Socket) -> bool {
    store::last_taken(listener) != 0
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
    store::is_any()
        && (is_readable(socket) || (!now || store::is_any_open()) && may_wait_at(socket))
}

/// What a thread waits at in an `accept` or a readiness call, by numbers, a bit each.
pub(crate) struct Waits {
    /// Where it waits, and no other thread does.
    own: Cell<u64>,
    /// What is open, also while it does not wait.
    open: Cell<u64>,
}

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
        Self {
            own: Cell::new(0),
            open: Cell::new(0),
        }
    }

    /// Whether there is any.
    #[inline(always)]
    pub(crate) fn are_any(&self) -> bool {
        self.own.get() | self.open.get() != 0
    }

    /// Begins to wait for what comes to a listener, unless something [is there](is_readable). `now`: the call does not wait, and is
    /// told only of what is there.
    #[cold]
    pub(crate) fn begin(&self, listener: &Socket, now: bool) {
        if !may_wait_at(listener) {
            return;
        }
        if let Some(locked) = lock::lock() {
            if !self.are_any() {
                locked.sweep();
                leave_what_was_left(&locked);
            }
            self.begin_with(&locked, listener, now);
        }
    }

    /// [`Self::begin`], with the lock.
    pub(super) fn begin_with(&self, locked: &Locked, listener: &Socket, now: bool) {
        let is_alone = open::open_all(locked, listener);
        take_all(locked, listener);
        if now || is_readable(listener) {
            return;
        }
        let open = if is_alone {
            open::of(locked, listener)
        } else {
            0
        };
        if open != 0 {
            self.open.set(self.open.get() | open);
        } else if let Some(wait) = Wait::begin(locked, listener) {
            self.own.set(self.own.get() | 1 << wait.kept.number());
        }
    }

    /// `None`: it has ended, and nothing is kept there any more.
    fn each(&self) -> impl Iterator<Item = Option<Wait>> {
        open::each(self.own.get()).map(Wait::at)
    }

    /// Whether the thread is to [end](Self::end) them and look.
    #[inline(always)]
    pub(crate) fn have_news(&self) -> bool {
        self.are_any() && self.look()
    }

    #[cold]
    fn look(&self) -> bool {
        let own = || {
            self.each()
                .any(|wait| wait.is_none_or(|wait| wait.has_news()))
        };
        let open = || lock::lock().is_some_and(|locked| open::have_news(&locked, self.open.get()));
        self.own.get() != 0 && own() || self.open.get() != 0 && open()
    }

    /// Says where the thread is called that is about to sleep. The caller looks [for news](Self::have_news) next.
    pub(crate) fn say(&self, tell: impl Fn(&Address)) {
        if let Some(_locked) = lock::lock() {
            let own = self.each().flatten().filter(Wait::goes_on);
            own.for_each(|wait| stream::await_offer(wait.conn.pair, &tell));
            let open = open::each(self.open.get()).filter(|kept| kept.is_open());
            for conn in open.filter_map(Kept::conn) {
                stream::await_offer(conn.pair, &tell);
            }
        }
        stream::before_sleep();
    }

    /// Nanoseconds until the first of them has lasted long enough; `None`: there is none.
    pub(crate) fn left(&self) -> Option<u64> {
        let all = open::each(self.own.get() | self.open.get());
        let until = all.map(Kept::until).min()?;
        Some(until.saturating_sub(sys::now()))
    }

    /// The thread waits no more. What was offered makes its listener readable.
    #[inline(always)]
    pub(crate) fn end(&self) {
        if self.are_any() {
            self.end_all(false);
        }
    }

    /// The thread sleeps, but nobody could call it: only the kernel's queue can wake it.
    pub(crate) fn give_up(&self) {
        if self.are_any() {
            self.end_all(true);
        }
    }

    #[cold]
    fn end_all(&self, shuts: bool) {
        if let Some(locked) = lock::lock() {
            for wait in self.each().flatten() {
                wait.end(&locked);
            }
            self.own.set(0);
            let open = self.open.replace(0);
            if shuts {
                open::shut_all(&locked, open);
            } else {
                open::end_waits(&locked, open);
            }
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
