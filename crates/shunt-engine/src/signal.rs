//! Signal handlers, counted.
//!
//! A call that spins before it sleeps must not sleep through a signal that came
//! while it spun: the kernel's call would have returned `EINTR`. So the kernel
//! gets [`trampoline::counting`] in place of each of the program's handlers; it
//! counts ([`note`]) and jumps on to the program's.
//!
//! The program never sees that: flags and mask are its own, and where the
//! kernel answers with our trampoline we answer with the program's handler. The
//! kernel stays the only truth about which disposition a signal has; the table
//! here says only what our trampoline stands for.
//!
//! Not counted, and so woken up to a spin (50 µs) late at worst if the signal
//! comes in it: handlers set with a bare `rt_sigaction` (also by `syscall`), as
//! some language runtimes do, and those set in a `vfork` child, which must not
//! write to its parent's table.
//!
//! # Safety
//! Pointers are the program's own, valid as the man page of the call demands.
#![allow(clippy::missing_safety_doc)]

mod guard;
mod trampoline;

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_ERR, c_int, sigaction as Action, sighandler_t,
};

pub(crate) use guard::{guard_copies, may_read};

use crate::socket::Socket;
use crate::thread::{signals, under_way, undisturbed};
use crate::{stream, sys, thread, wake};

/// The next `sigaction`.
pub type Next = unsafe fn(c_int, *const Action, *mut Action) -> c_int;

/// A handler is about to run on this thread. Those that are not put off in the middle of an
/// operation interrupt no call.
fn note(restarting: bool) {
    signals::count_one(restarting);
    if undisturbed::has_begun() {
        return;
    }
    // SAFETY: all calls are on sockets (`stream::Stay`).
    let (place, socket) = unsafe { under_way::interrupt::<Socket>() };
    if let Some(place) = place {
        wake::Place::numbered(place).interrupted();
    }
    if let Some(socket) = socket {
        stream::interrupted(socket);
    }
}

/// Signals are numbered from 1.
const COUNT: usize = 65;
/// In a table entry, above every user-space address: `SA_RESTART` is set.
const RESTARTS: usize = 1 << 63;
/// The program's handler is for one signal only.
const ONCE: usize = 1 << 62;
/// It wants to know about the signal (`SA_SIGINFO`).
const INFO: usize = 1 << 61;
/// The part of an entry that is the program's handler.
const ADDRESS: usize = (1 << 61) - 1;
/// What `sigset` takes besides handlers.
const SIG_HOLD: sighandler_t = 2;

/// For each signal, the program's handler last set. One word, so that our
/// trampoline reads it whole whatever it interrupts. Never cleared: a thread may
/// be on its way to the trampoline, and in a `vfork` child the table is another
/// process's. Relaxed: the system call that sets the disposition orders.
static HANDLERS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

fn slot(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS[1..].get(usize::try_from(signal).ok()?.checked_sub(1)?)
}

/// Whether a disposition is a function of the program's that we stand in for.
fn is_function(handler: sighandler_t) -> bool {
    // Below the first page: SIG_DFL, SIG_IGN and nonsense. Ours: the program got
    // it past us and puts it back.
    (4096..=ADDRESS).contains(&handler)
        && handler != trampoline::counting()
        && handler != trampoline::guarding()
}

/// Whether the table is this process's. Before the library's start it is.
fn owns_table() -> bool {
    thread::pid() == 0 || thread::owns_memory()
}

/// Runs `change`, of an entry together with the kernel's disposition, alone. All signals are blocked meanwhile, so no handler can
/// want the lock that its own thread holds.
fn alone<R>(change: impl FnOnce() -> R) -> R {
    let mask = sys::set_signal_mask(!0);
    thread::signals_lock().take();
    let result = change();
    thread::signals_lock().give();
    sys::set_signal_mask(mask);
    result
}

/// Frees what other threads held when the process forked.
#[inline]
pub(crate) fn after_fork_child() {
    thread::signals_lock().reset();
}

/// What the program knows a disposition's handler as.
fn handler_of(entry: usize, kernel: sighandler_t) -> sighandler_t {
    if kernel == trampoline::counting() || kernel == trampoline::guarding() {
        entry & ADDRESS
    } else {
        kernel
    }
}

/// The part of an entry that follows from the action's flags.
fn bits(flags: c_int) -> usize {
    let bit = |flag, bit| if flags & flag != 0 { bit } else { 0 };
    bit(SA_RESTART, RESTARTS) | bit(SA_RESETHAND, ONCE) | bit(SA_SIGINFO, INFO)
}

/// Puts the program's disposition where the kernel named ours.
///
/// # Safety
/// `old` is null or was written by the real call.
unsafe fn translate(signal: c_int, entry: usize, old: *mut Action) {
    // SAFETY: null or just written by the real call.
    if let Some(old) = unsafe { old.as_mut() } {
        guard::translate(signal, old);
        old.sa_sigaction = handler_of(entry, old.sa_sigaction);
    }
}

/// `sigaction(2)`.
pub unsafe fn sigaction(signal: c_int, new: *const Action, old: *mut Action, next: Next) -> c_int {
    let Some(slot) = slot(signal) else {
        // SAFETY: the caller's promise.
        return unsafe { next(signal, new, old) };
    };
    let change = || {
        let before = slot.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let result = unsafe { next(signal, new, old) };
        if result == 0 {
            // SAFETY: as above.
            unsafe { translate(signal, before, old) };
        }
        result
    };
    if guard::guards(signal) && !new.is_null() && owns_table() {
        return guard::change(signal, next, change);
    }
    // SAFETY: null or the caller's promise. A copy: `old` may be the same place.
    let new_action = unsafe { new.as_ref() }.copied();
    if let Some(mut action) = new_action
        && is_function(action.sa_sigaction)
        && owns_table()
    {
        let entry = action.sa_sigaction | bits(action.sa_flags);
        action.sa_sigaction = trampoline::counting();
        return alone(|| {
            let before = slot.swap(entry, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            let result = unsafe { next(signal, &raw const action, old) };
            if result == 0 {
                // SAFETY: as above.
                unsafe { translate(signal, before, old) };
            } else {
                slot.store(before, Ordering::Relaxed);
            }
            result
        });
    }
    change()
}

/// `signal(2)`, `bsd_signal(3)`, `sysv_signal(3)`: `call` is the real one, which
/// knows the flags and returns the old handler.
pub unsafe fn signal(
    signal: c_int,
    handler: sighandler_t,
    next: Next,
    call: impl FnOnce(sighandler_t) -> sighandler_t,
) -> sighandler_t {
    let Some(slot) = slot(signal) else {
        return call(handler);
    };
    let before = slot.load(Ordering::Relaxed);
    if guard::guards(signal) && owns_table() {
        return guard::change(signal, next, || handler_of(before, call(handler)));
    }
    if !is_function(handler) || !owns_table() {
        return handler_of(before, call(handler));
    }
    alone(|| {
        let before = slot.swap(handler, Ordering::Relaxed);
        let old = call(trampoline::counting());
        if old == SIG_ERR {
            slot.store(before, Ordering::Relaxed);
        } else {
            learn_flags(signal, slot, next);
        }
        handler_of(before, old)
    })
}

/// Notes the flags of the kernel's disposition.
fn learn_flags(signal: c_int, slot: &AtomicUsize, next: Next) {
    // SAFETY: a C struct of integers and pointers, for which zero is a value.
    let mut now: Action = unsafe { mem::zeroed() };
    // SAFETY: no new action, and room for the old one.
    if unsafe { next(signal, ptr::null(), &raw mut now) } != 0 {
        return;
    }
    let before = slot.load(Ordering::Relaxed);
    let entry = if guard::guards(signal) {
        guard::changed_restart(signal, now.sa_flags);
        before & !RESTARTS | bits(now.sa_flags) & RESTARTS
    } else {
        before & ADDRESS | bits(now.sa_flags)
    };
    slot.store(entry, Ordering::Relaxed);
}

/// `siginterrupt(3)`: `call` is the real one, which leaves the handler alone.
pub fn siginterrupt(signal: c_int, next: Next, call: impl FnOnce() -> c_int) -> c_int {
    let Some(slot) = slot(signal) else {
        return call();
    };
    if !owns_table() {
        return call();
    }
    alone(|| {
        let result = call();
        if result == 0 {
            learn_flags(signal, slot, next);
        }
        result
    })
}

/// `sigset(3)`: `call` is the real one.
///
/// A disposition is set here, not by the real one: that one also changes the
/// thread's mask, which [`alone`] puts back.
pub unsafe fn sigset(
    signal: c_int,
    handler: sighandler_t,
    next: Next,
    call: impl FnOnce() -> sighandler_t,
) -> sighandler_t {
    let Some(slot) = slot(signal) else {
        return call();
    };
    if matches!(handler, SIG_HOLD | SIG_ERR) {
        let before = slot.load(Ordering::Relaxed);
        return handler_of(before, call());
    }
    // SAFETY: a C struct of integers and pointers, for which zero is a value.
    let (mut action, mut old): (Action, Action) = unsafe { mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: both actions are on this stack; the handler is the program's.
    if unsafe { sigaction(signal, &raw const action, &raw mut old, next) } != 0 {
        return SIG_ERR;
    }
    let bit = 1 << (signal - 1);
    if sys::unblock_signals(bit) & bit != 0 {
        SIG_HOLD
    } else {
        old.sa_sigaction
    }
}
