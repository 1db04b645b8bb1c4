//! Threads are cancelled.

use std::ffi::c_int;

use libc::pthread_t;
use shunt_engine::cancel;

use crate::next;

/// From here on calls that are answered without libc look whether they are to end.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    cancel::note();
    // SAFETY: the caller keeps the function's contract.
    unsafe { next::pthread_cancel(thread) }
}
