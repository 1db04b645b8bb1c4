//! This thread's signal mask, and signals to it.

use std::ptr;

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

/// A signal's disposition, as the kernel's own structure has it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Disposition {
    pub(crate) handler: u64,
    pub(crate) flags: u64,
    pub(crate) restorer: u64,
    pub(crate) mask: u64,
}

/// A signal's disposition, if the kernel tells.
pub(crate) fn disposition(signal: c_int) -> Option<Disposition> {
    let mut now = Disposition::default();
    let told = call!(rt_sigaction, signal, 0, &raw mut now, 8);
    told.is_ok().then_some(now)
}

/// Sets a signal's disposition; `false` if the kernel will not.
pub(crate) fn set_disposition(signal: c_int, new: &Disposition) -> bool {
    call!(rt_sigaction, signal, ptr::from_ref(new), 0, 8).is_ok()
}

/// Sets a signal's default disposition; `false` if the kernel will not.
pub(crate) fn set_default(signal: c_int) -> bool {
    set_disposition(signal, &Disposition::default())
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
