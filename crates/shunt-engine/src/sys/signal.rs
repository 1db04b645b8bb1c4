//! This thread's signal mask, and signals to it.

use libc::c_int;

use super::getpid;

/// Sets this thread's signal mask, one bit for each signal from 1; returns the old one.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    change_mask(libc::SIG_SETMASK, mask)
}

/// Adds signals to this thread's mask; returns the old one.
pub(crate) fn block_signals(signals: u64) -> u64 {
    change_mask(libc::SIG_BLOCK, signals)
}

/// Takes signals out of this thread's mask; returns the old one.
pub(crate) fn unblock_signals(signals: u64) -> u64 {
    change_mask(libc::SIG_UNBLOCK, signals)
}

fn change_mask(how: c_int, signals: u64) -> u64 {
    let mut old = 0u64;
    let _ = call!(rt_sigprocmask, how, &raw const signals, &raw mut old, 8);
    old
}

/// Sets a signal's default disposition; `false` if the kernel will not.
pub(crate) fn set_default(signal: c_int) -> bool {
    // The kernel's own structure: handler, flags, restorer, mask.
    let default = [0u64; 4];
    call!(rt_sigaction, signal, default.as_ptr(), 0, 8).is_ok()
}

/// Sends a signal to this thread, as `info` describes it.
pub(crate) fn send_signal(signal: c_int, info: *const libc::siginfo_t) {
    let thread = call!(gettid).unwrap_or(0);
    let _ = call!(rt_tgsigqueueinfo, getpid(), thread, signal, info);
}

/// Sends this thread a signal.
pub(crate) fn send_plain_signal(signal: c_int) {
    let thread = call!(gettid).unwrap_or(0);
    let _ = call!(tgkill, getpid(), thread, signal);
}
