//! What calls become in programs built with `_FORTIFY_SOURCE`: the buffer's
//! size comes along and a call that could exceed it ends the program.

use std::ffi::{c_int, c_void};
use std::mem;

use libc::{nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::data::{read, recv, recvfrom};
use super::ready::{poll, ppoll};
use crate::next;

/// Libc's own complaint and abort.
#[inline(always)]
fn check(fits: bool) {
    if !fits {
        // SAFETY: takes nothing and ends the process.
        unsafe { next::__chk_fail() };
    }
}

fn polls_fit(count: nfds_t, size: size_t) -> bool {
    size / mem::size_of::<pollfd>() >= count as usize
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    size: size_t,
) -> ssize_t {
    check(length <= size);
    // SAFETY: the caller keeps the function's contract.
    unsafe { read(fd, buffer, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    check(length <= size);
    // SAFETY: the caller keeps the function's contract.
    unsafe { recv(fd, buffer, length, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    size: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    check(length <= size);
    // SAFETY: the caller keeps the function's contract.
    unsafe { recvfrom(fd, buffer, length, flags, address, address_length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    size: size_t,
) -> c_int {
    check(polls_fit(count, size));
    // SAFETY: the caller keeps the function's contract.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: size_t,
) -> c_int {
    check(polls_fit(count, size));
    // SAFETY: the caller keeps the function's contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}
