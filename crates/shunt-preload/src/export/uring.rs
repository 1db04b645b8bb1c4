//! liburing's ways to a ring of io_uring. What it submits passes the library by: the ring says that it will.

use std::ffi::{c_int, c_uint, c_void};

use libc::size_t;
use shunt_engine::{Outcome, life::uring};

use crate::call::{quietly, quietly_with};
use crate::next;

/// These functions say by their result what is wrong.
#[inline(always)]
fn setting_up(next: impl FnOnce() -> c_int) -> c_int {
    if let Outcome::Fail(error) = quietly_with(uring::before_unseen_setup) {
        return -error;
    }
    let result = next();
    if result >= 0 {
        quietly(uring::after_unseen_setup);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract of the next definition.
    setting_up(|| unsafe { next::io_uring_setup(entries, parameters) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init(
    entries: c_uint,
    ring: *mut c_void,
    flags: c_uint,
) -> c_int {
    // SAFETY: as above.
    setting_up(|| unsafe { next::io_uring_queue_init(entries, ring, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    setting_up(|| unsafe { next::io_uring_queue_init_params(entries, ring, parameters) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
    memory: *mut c_void,
    bytes: size_t,
) -> c_int {
    // SAFETY: as above.
    setting_up(|| unsafe {
        next::io_uring_queue_init_mem(entries, ring, parameters, memory, bytes)
    })
}
