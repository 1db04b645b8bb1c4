//! Handlers for one signal only (`SA_RESETHAND`), put off.
//!
//! The kernel forgets such a handler as it delivers the signal. One that is put off comes later, to the
//! handler, so the kernel is told of that one again: as if the signal had not been delivered yet.

use std::sync::atomic::Ordering;

use libc::{SA_RESETHAND, SIG_DFL, c_int};

use super::handlers::{alone, owns_table, slot};
use crate::sys;

/// Gives the kernel back the handler of which `entry` tells, unless the program has set another disposition
/// meanwhile: then the signal does what that says. `handler` is what the kernel knows of it.
#[cold]
pub(super) fn remember(signal: c_int, entry: usize, handler: usize) {
    let put_back = || {
        let is_same = slot(signal).is_some_and(|slot| slot.load(Ordering::Relaxed) == entry);
        // The kernel keeps the flags and the mask.
        if let Some(mut now) = sys::disposition(signal)
            && is_same
            && now.handler as usize == SIG_DFL
            && now.flags & SA_RESETHAND as u32 as u64 != 0
        {
            now.handler = handler as u64;
            sys::set_disposition(signal, &now);
        }
    };
    // A `vfork` child has its parent's lock, and dispositions of its own.
    if owns_table() {
        alone(put_back);
    } else {
        put_back();
    }
}

#[cfg(test)]
mod tests {
    use super::super::handlers::ONCE;
    use super::*;

    /// It is never called.
    const HANDLER: usize = 0x5555_1000;

    fn handler_now(signal: c_int) -> usize {
        sys::disposition(signal).unwrap().handler as usize
    }

    #[test]
    fn a_handler_that_the_kernel_has_forgotten_is_back_with_its_flags() {
        let signal = libc::SIGRTMIN() + 3;
        let entry = 0x5555_0000 | ONCE;
        let mut forgotten = sys::disposition(signal).unwrap();
        forgotten.flags = SA_RESETHAND as u32 as u64;
        slot(signal).unwrap().store(entry, Ordering::Relaxed);
        assert!(sys::set_disposition(signal, &forgotten));
        remember(signal, entry, HANDLER);
        assert_eq!(handler_now(signal), HANDLER);
        assert_eq!(sys::disposition(signal).unwrap().flags, forgotten.flags);
        assert!(sys::set_default(signal));
    }

    #[test]
    fn what_the_program_has_set_meanwhile_stays() {
        let signal = libc::SIGRTMIN() + 4;
        let entry = 0x5555_0000 | ONCE;
        let mut forgotten = sys::disposition(signal).unwrap();
        forgotten.flags = SA_RESETHAND as u32 as u64;
        assert!(sys::set_disposition(signal, &forgotten));
        // Another handler of the program's, which the kernel has forgotten, too.
        slot(signal).unwrap().store(entry + 16, Ordering::Relaxed);
        remember(signal, entry, HANDLER);
        assert_eq!(handler_now(signal), SIG_DFL);
        assert!(sys::set_default(signal));
        // None, with flags of its own.
        slot(signal).unwrap().store(entry, Ordering::Relaxed);
        remember(signal, entry, HANDLER);
        assert_eq!(handler_now(signal), SIG_DFL);
    }
}
