//! The program's signal handlers are put off while this thread is in the middle
//! of an operation: they may use the connection that it is about, or leave by
//! `siglongjmp` and never come back.
//!
//! The handler that the kernel knows ([`crate::signal`]) sends a signal that comes
//! in such a moment to the thread again, with all signals blocked that a fault
//! does not raise; [`end`] unblocks them, and it is delivered as
//! if it had come then. What an instruction of the thread's raises cannot wait ([`may_wait`]).

use std::sync::atomic::{Ordering, compiler_fence};

use libc::c_int;

use super::words::{Own, Words, here};
use crate::sys;

/// Signals that faults raise: blocked, they would kill.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

#[inline(always)]
fn change(words: Own, by: i32) {
    // SAFETY: this thread's own words; handlers leave the depth as they find it.
    unsafe {
        let depth = &raw mut (*words.get()).depth;
        depth.write_volatile(depth.read_volatile() + by);
    }
}

/// From here on handlers wait, until [`end`]. Nests.
#[inline(always)]
pub(super) fn begin() -> Own {
    let words = Own::here();
    change(words, 1);
    compiler_fence(Ordering::SeqCst);
    words
}

/// Handlers may run again. Those that had to wait run at once.
#[inline(always)]
pub(super) fn end(words: Own) {
    compiler_fence(Ordering::SeqCst);
    change(words, -1);
    // SAFETY: this thread's own words.
    if unsafe { (&raw const (*words.get()).put_off).read_volatile() } {
        let_come(words.get());
    }
}

/// Does work so that a signal handler sees either nothing of it or all.
pub(crate) fn all_of<R>(work: impl FnOnce() -> R) -> R {
    let words = begin();
    let result = work();
    end(words);
    result
}

#[cold]
#[inline(never)]
fn let_come(words: *mut Words) {
    // SAFETY: this thread's own words; the signals that change them are blocked.
    unsafe {
        if (*words).depth == 0 {
            (&raw mut (*words).put_off).write_volatile(false);
            sys::set_signal_mask((*words).mask);
        }
    }
}

/// In a signal handler: whether the program's own has to wait.
pub(crate) fn has_begun() -> bool {
    // SAFETY: this thread's own words.
    unsafe { (*here()).depth > 0 }
}

/// Whether a signal can be put off whose `si_code` is this, if that is known: one that a fault raises cannot, for the
/// instruction would raise it again, or has nothing to go on with.
pub(crate) fn may_wait(signal: c_int, code: Option<c_int>) -> bool {
    match code {
        _ if bit(signal) & (FAULTS | bit(libc::SIGSYS)) == 0 => true,
        // Sent signals have codes of 0 and below.
        Some(code) => code <= 0,
        // No instruction of an operation raises these.
        None => matches!(signal, libc::SIGFPE | libc::SIGILL),
    }
}

/// In a signal handler: sends the signal to this thread again, to come later. With `info` if the
/// program's handler has asked for that.
///
/// # Safety
/// The kernel's arguments to the running handler.
pub(crate) unsafe fn put_off(
    signal: c_int,
    info: Option<*const libc::siginfo_t>,
    context: *mut libc::c_void,
) {
    let words = here();
    let blocked = !FAULTS | bit(signal);
    // A handler with `SA_NODEFER` would run at once.
    sys::block_signals(blocked);
    // SAFETY: this thread's own words, and the caller's promise: the kernel's
    // part of the mask is its first word.
    unsafe {
        let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        let (was, waits) = (&raw mut (*words).mask, &raw mut (*words).put_off);
        // Of two signals that come at once, one handler interrupts the other before its first instruction, and
        // finds the mask of that one. What blocks neither is the operation's.
        let before = if waits.read_volatile() { *was } else { !0 };
        *was = before & *mask;
        waits.write_volatile(true);
        *mask |= blocked;
    }
    match info {
        Some(info) => sys::send_signal(signal, info),
        None => sys::send_plain_signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_wait_until_the_outermost_operation_is_over() {
        assert!(!has_begun());
        let inner = all_of(|| {
            all_of(|| assert!(has_begun()));
            has_begun()
        });
        assert!(inner && !has_begun());
    }

    #[test]
    fn of_two_signals_at_once_neither_stays_blocked() {
        use libc::{SIGURG, SIGWINCH, ucontext_t};
        fn context(mask: u64) -> ucontext_t {
            // SAFETY: a C struct of integers and pointers, for which zero is a value.
            let mut context: ucontext_t = unsafe { std::mem::zeroed() };
            // SAFETY: libc's sets begin with the kernel's 64 bits, aligned.
            unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(mask) };
            context
        }
        std::thread::spawn(|| {
            let before = sys::set_signal_mask(0);
            all_of(|| {
                // By default these two do nothing. The second one's handler has interrupted the first one's.
                for (signal, mask) in [(SIGWINCH, bit(SIGURG)), (SIGURG, 0)] {
                    let mut context = context(mask);
                    // SAFETY: such a context as the kernel passes, as far as its mask is concerned.
                    unsafe { put_off(signal, None, (&raw mut context).cast()) };
                }
            });
            assert_eq!(sys::set_signal_mask(before), 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_an_instruction_raises_does_not_wait() {
        use libc::{SI_USER, SIGALRM, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
        for signal in [SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP] {
            assert!(!may_wait(signal, Some(1)) && may_wait(signal, Some(SI_USER)));
        }
        assert!(!may_wait(SIGSEGV, None) && !may_wait(SIGTRAP, None));
        assert!(may_wait(SIGFPE, None) && may_wait(SIGILL, None));
        for code in [None, Some(SI_USER), Some(libc::SI_KERNEL)] {
            assert!(may_wait(SIGALRM, code) && may_wait(64, code));
        }
    }
}
