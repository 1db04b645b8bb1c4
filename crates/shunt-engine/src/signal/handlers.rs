//! The program's handlers, as far as our trampolines stand in for them.

use std::sync::atomic::AtomicUsize;

pub(super) use libc::sigaction as Action;
use libc::{SA_RESETHAND, SA_RESTART, SA_SIGINFO, c_int};

use crate::{sys, thread};

/// The next `sigaction`.
pub type Next = unsafe fn(c_int, *const Action, *mut Action) -> c_int;

/// Signals are numbered from 1.
pub(super) const COUNT: usize = 65;
/// In a table entry, above every user-space address: `SA_RESTART` is set.
pub(super) const RESTARTS: usize = 1 << 63;
/// The program's handler is for one signal only.
pub(super) const ONCE: usize = 1 << 62;
/// It wants to know about the signal (`SA_SIGINFO`).
pub(super) const INFO: usize = 1 << 61;
/// The part of an entry that is the program's handler.
pub(super) const ADDRESS: usize = (1 << 61) - 1;
/// For each signal, the program's handler last set. One word, so that our
/// trampoline reads it whole whatever it interrupts. Never cleared: a thread may
/// be on its way to the trampoline, and in a `vfork` child the table is another
/// process's. Relaxed: the system call that sets the disposition orders.
pub(super) static HANDLERS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

pub(super) fn slot(signal: c_int) -> Option<&'static AtomicUsize> {
    HANDLERS[1..].get(usize::try_from(signal).ok()?.checked_sub(1)?)
}

/// The part of an entry that follows from the action's flags.
pub(super) fn bits(flags: c_int) -> usize {
    let bit = |flag, bit| if flags & flag != 0 { bit } else { 0 };
    bit(SA_RESTART, RESTARTS) | bit(SA_RESETHAND, ONCE) | bit(SA_SIGINFO, INFO)
}

/// Whether the table is this process's. Before the library's start it is.
pub(super) fn owns_table() -> bool {
    thread::pid() == 0 || thread::owns_memory()
}

/// Runs `change`, of an entry together with the kernel's disposition, alone. All signals are blocked meanwhile, so no handler can
/// want the lock that its own thread holds.
pub(super) fn alone<R>(change: impl FnOnce() -> R) -> R {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_numbered_from_one() {
        assert!(slot(0).is_none() && slot(-1).is_none() && slot(65).is_none());
        assert!(slot(1).is_some() && slot(64).is_some());
        assert!(!std::ptr::eq(slot(1).unwrap(), slot(2).unwrap()));
    }

    #[test]
    fn an_entry_keeps_the_flags_that_matter_beside_any_address() {
        assert_eq!(bits(SA_RESTART | SA_SIGINFO), RESTARTS | INFO);
        assert_eq!(bits(SA_RESETHAND), ONCE);
        assert_eq!(bits(libc::SA_NODEFER), 0);
        assert_eq!((RESTARTS | ONCE | INFO) & ADDRESS, 0);
    }
}
