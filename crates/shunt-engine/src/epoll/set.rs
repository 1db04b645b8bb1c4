//! What is known of a set of the program, and how long it lives.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use super::state::State;
use crate::hold::Held;
use crate::kept::Kept;
use crate::pool::{Links, Pool, Pooled};
use crate::share::Flag;
use crate::socket::Socket;
use crate::stream;
use crate::sys;
use crate::table::{self, Object, Word};
use crate::thread::{self, Lock};
use crate::wake::{self, Channel};

/// An epoll set of the program.
pub(crate) struct Set {
    links: Links,
    pub(super) live: AtomicBool,
    pub(super) holds: AtomicU64,
    fd: AtomicI32,
    /// How many forks led to the process that made it.
    forks: AtomicU32,
    pub(super) inner: Kept,
    pub(super) kick: Kept,
    /// Whether it has an inner set, or has had one that was lost.
    pub(super) is_divided: AtomicBool,
    /// A descriptor of the library's, for calls that are still under way after the program has closed its last one.
    pub(super) kept: Kept,
    /// The channel by which peers call the set's sleepers ([`super::hearing`]), …
    pub(super) channel: Channel,
    /// … and whether the program's set has it in it.
    pub(super) is_watching: AtomicBool,
    /// How many items the set has, and how many of them are served here.
    pub(super) tracked: AtomicU32,
    pub(super) moved: AtomicU32,
    /// How many items are listeners.
    pub(super) listeners: AtomicU32,
    /// How many items are outside ([`super::outside`]): there is no inner set for them.
    pub(super) outside: AtomicU32,
    /// The set must do without an inner set, since sets are nested too deep; if it had one, that is taken out.
    pub(super) is_flat: AtomicBool,
    /// Raised when a forked child waits on the set, too ([`super::shared`]).
    pub(super) waited_on: Flag,
    /// Whether threads of this process that wait on the set look from time to time for that reason, …
    pub(super) is_in_turns: AtomicBool,
    /// … and when one last did.
    pub(super) turn_at: AtomicU64,
    /// Sets inside it.
    pub(super) nested: AtomicU32,
    /// Threads asleep in the real call, on the set or on what contains it.
    pub(super) sleepers: AtomicU32,
    /// Those of the sleepers that are in a wait on this very set.
    pub(super) waiters: AtomicU32,
    /// Those of the sleepers that are counted at no door, since the set was plain.
    pub(super) plain_sleepers: AtomicU32,
    /// The set has been made to look ready from outside, by its kick.
    pub(super) exposed: AtomicBool,
    /// When the kernel's side was last looked at (ticks).
    pub(super) looked_at: AtomicU64,
    /// Ticks until the next look.
    pub(super) pause: AtomicU32,
    /// The last look at the kernel's side brought as many events as were asked for: it may have more.
    pub(super) kernel_has_more: AtomicBool,
    /// Something is to be done for its sockets before the next wait.
    pub(super) chores: AtomicBool,
    /// What [`stream::asked`](crate::stream::asked) said when none of its sockets waited for room, and when that was last
    /// looked for ([`super::room_asked`]).
    pub(super) asked: AtomicU32,
    pub(super) looked_for_room_at: AtomicU64,
    pub(super) lock: Lock,
    state: UnsafeCell<Option<Box<State>>>,
}

// SAFETY: `state` is touched only by the holder of `lock`.
unsafe impl Sync for Set {}

/// All epoll sets.
pub(crate) static SETS: Pool<Set> = Pool::new();

impl Pooled for Set {
    fn links(&self) -> &Links {
        &self.links
    }
}

// SAFETY: sockets have another kind; sets are pooled.
unsafe impl Object for Set {
    const KIND: usize = 2;
}

impl Set {
    /// The set that `fd` is, if it is one.
    #[inline(always)]
    pub(crate) fn of(fd: c_int) -> Option<&'static Self> {
        table::get(fd)
    }

    /// After `epoll_create`.
    pub(crate) fn enter(fd: c_int) {
        let Some(set) = SETS.take() else {
            return;
        };
        let o = Ordering::Relaxed;
        set.fd.store(fd, o);
        set.forks.store(thread::forks(), o);
        set.is_divided.store(false, o);
        set.is_watching.store(false, o);
        set.holds.store(1, o);
        set.tracked.store(0, o);
        set.moved.store(0, o);
        set.listeners.store(0, o);
        set.outside.store(0, o);
        set.is_flat.store(false, o);
        set.waited_on.clear();
        set.is_in_turns.store(false, o);
        set.turn_at.store(0, o);
        set.nested.store(0, o);
        set.sleepers.store(0, o);
        set.waiters.store(0, o);
        set.plain_sleepers.store(0, o);
        set.exposed.store(false, o);
        set.looked_at.store(0, o);
        set.pause.store(0, o);
        set.kernel_has_more.store(false, o);
        set.chores.store(false, o);
        set.asked.store(stream::asked(), o);
        set.looked_for_room_at.store(0, o);
        set.lock.reset();
        // SAFETY: a free object is nobody's.
        unsafe { *set.state.get() = None };
        set.live.store(true, Ordering::Release);
        if let Some(stale) = table::enter(fd, Word::of(set)).get::<Socket>() {
            stale.unhold();
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.links.index()
    }

    #[inline]
    pub(crate) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Whether this process has made the set, not a parent of it.
    pub(super) fn is_own(&self) -> bool {
        self.forks.load(Ordering::Relaxed) == thread::forks()
    }

    /// Whether some socket of the set is served here.
    #[inline]
    pub(crate) fn is_shunted(&self) -> bool {
        self.moved.load(Ordering::Acquire) != 0
    }

    /// Whether there is something to do for its sockets ([`super::see_to_chores`]).
    #[inline]
    pub(crate) fn has_chores(&self) -> bool {
        self.chores.load(Ordering::Relaxed)
    }

    /// Whether there is nothing to know about the set: no TCP sockets, no sets, and
    /// no inner set of ours, which stays when the last shunted socket has gone.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.tracked.load(Ordering::SeqCst) == 0 && self.is_kernels()
    }

    /// Whether the kernel knows all that is ready in the set: there may be TCP sockets, but none of them has been served
    /// here since it came.
    #[inline]
    pub(crate) fn is_kernels(&self) -> bool {
        self.nested.load(Ordering::SeqCst) == 0
            && !self.is_divided.load(Ordering::SeqCst)
            && self.outside.load(Ordering::SeqCst) == 0
    }

    /// Whether the kernel does not know by itself if the set is ready, but has to be told
    /// ([`super::expose`]): something of ours is in it, or a set, or has been.
    #[inline]
    pub(crate) fn must_be_exposed(&self) -> bool {
        self.is_divided.load(Ordering::Acquire)
            || self.looks_in_turns()
            || self.nested.load(Ordering::Acquire) != 0
    }

    /// Runs `work` with the set's lock; `None` in a signal handler that
    /// interrupted its holder, and once the set has ended.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        if !self.lock.take() {
            return None;
        }
        // SAFETY: the lock is held.
        let state = unsafe { &mut *self.state.get() };
        let state = match state {
            Some(state) => Some(state),
            None => self.begin_state(state),
        };
        let Some(state) = state else {
            self.lock.give();
            return None;
        };
        let result = Some(work(state));
        self.lock.give();
        result
    }

    /// Runs `work` with the set's lock if the set has a state. Unlike [`Self::with`] it allocates none.
    pub(super) fn with_any(&self, work: impl FnOnce(&mut State)) {
        if self.lock.take() {
            // SAFETY: the lock is held.
            if let Some(state) = unsafe { &mut *self.state.get() } {
                work(state);
            }
            self.lock.give();
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_state<'a>(&self, state: &'a mut Option<Box<State>>) -> Option<&'a mut Box<State>> {
        self.live
            .load(Ordering::Relaxed)
            .then(|| state.insert(Box::default()))
    }

    /// Ends the set for all that come by [`Self::with`], and returns what it had. `Err`: this is a signal handler
    /// that has interrupted work on the set. Nobody ends the set then.
    pub(super) fn retire(&self) -> Result<Option<Box<State>>, ()> {
        if !self.lock.take() {
            self.live.store(false, Ordering::Release);
            return Err(());
        }
        self.live.store(false, Ordering::Release);
        // SAFETY: the lock is held.
        let state = unsafe { (*self.state.get()).take() };
        self.lock.give();
        Ok(state)
    }

    /// Whether the object is in use.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// A descriptor of it is about to be closed; another one takes its place. If there is none
    /// and calls on the set are under way, for which the kernel would keep it, one of ours does;
    /// or none, and then no other set is taken for this one.
    pub(crate) fn forget_fd(&self, fd: c_int) {
        if self.fd() != fd || self.holds.load(Ordering::Relaxed) <= 1 {
            return;
        }
        let mut other = -1;
        table::each(|n, word| {
            if word.is(self) && n != fd {
                other = n;
            }
        });
        if other < 0 {
            other = self.keep(fd);
        }
        self.fd.store(other, Ordering::Relaxed);
    }

    /// Copies a descriptor of the set for the library; -1: there is no number left.
    #[cold]
    fn keep(&self, fd: c_int) -> c_int {
        let copied = sys::copy_high(fd).ok();
        let Some(kept) = copied.or_else(|| wake::copy_to_spare(fd)) else {
            return -1;
        };
        self.kept.keep(kept);
        self.kept.number()
    }

    /// The descriptor that it [keeps](Self::keep) has moved from this number, or was lost.
    pub(super) fn follow_kept(&self, fd: c_int) {
        if self.fd() == fd {
            self.fd.store(self.kept.number(), Ordering::Relaxed);
        }
    }
}
