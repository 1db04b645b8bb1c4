//! Signal handlers, counted.
//!
//! A call that spins before it sleeps must not sleep through a signal that came
//! while it spun, or was about to sleep: the kernel's call would have returned `EINTR`. So the kernel
//! gets [`trampoline::counting`] in place of each of the program's handlers; it
//! counts ([`note`](mod@note)), sends a thread that is about to sleep past that
//! ([`thread::sleep`](crate::thread::sleep)), and jumps on to the program's.
//!
//! The program never sees that: flags and mask are its own, and where the
//! kernel answers with our trampoline we answer with the program's handler. The
//! kernel stays the only truth about which disposition a signal has; the table
//! here says only what our trampoline stands for.
//!
//! Not counted, so that a signal which comes in the spin (50 µs at most) does not end
//! the call: handlers set with a bare `rt_sigaction` (also by `syscall`), as
//! some language runtimes do, and those set in a `vfork` child, which must not
//! write to its parent's table.
//!
//! # Safety
//! Pointers are the program's own, valid as the man page of the call demands.
#![allow(clippy::missing_safety_doc)]

mod disposition;
mod fault;
mod guard;
mod handlers;
mod note;
mod once;
mod trampoline;

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{SIG_ERR, c_int, sighandler_t};

pub(crate) use guard::{guard_copies, is_guarded, may_mask, may_read, may_write, put, put_time};

pub use handlers::Next;
pub(crate) use handlers::after_fork_child;

use disposition::{handler_of, is_function};
use handlers::{ADDRESS, Action, RESTARTS, alone, bits, owns_table, slot};

use crate::sys;

/// What `sigset` takes besides handlers.
const SIG_HOLD: sighandler_t = 2;

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
