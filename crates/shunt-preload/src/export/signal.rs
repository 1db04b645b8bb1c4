//! Signal handlers are set. Left to libc:
//! * `syscall(SYS_rt_sigaction)`: who goes past libc brings a restorer and a
//!   signal frame of his own making (Go, sanitizers) and shall find them.
//! * `sigignore`, `sighold`, `sigrelse`, `sigpause`: they set no handler.
//! * `sigvec`: not for new programs since glibc 2.21.

use std::ffi::c_int;

use libc::{sigaction as Action, sighandler_t};
use shunt_engine::signal;

use crate::call::alias;
use crate::next;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigaction(
    number: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    unsafe { signal::sigaction(number, new, old, next::sigaction) }
}

alias! {
    __sigaction = sigaction(number: c_int, new: *const Action, old: *mut Action) -> c_int;
}

/// Functions that differ in the flags that they set.
macro_rules! setters {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(number: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller keeps the function's contract.
            unsafe { signal::signal(number, handler, next::sigaction, |handler| next::$name(number, handler)) }
        }
    )*};
}

setters! { signal bsd_signal ssignal sysv_signal __sysv_signal }

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller keeps the function's contract.
    unsafe {
        signal::sigset(number, handler, next::sigaction, || {
            next::sigset(number, handler)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    // SAFETY: no memory is involved.
    signal::siginterrupt(number, next::sigaction, || unsafe {
        next::siginterrupt(number, interrupts)
    })
}
