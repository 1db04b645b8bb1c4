//! Sockets come into being. What surrounds the kernel's call is written once,
//! for the function of that name and for `syscall` alike.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};
use shunt_engine::{Outcome, life};

use crate::call::{alias, cancellable, errno, export, fail, making, quietly, quietly_with};
use crate::next;

#[inline(always)]
pub(super) fn opening(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    kernel: impl Fn() -> c_int,
) -> c_int {
    if let Outcome::Done(fd) = quietly_with(|| life::socket(domain, kind, protocol)) {
        return fd as c_int;
    }
    let fd = making(kernel);
    if fd >= 0 {
        quietly(|| life::after_socket(fd, domain, kind, protocol));
    }
    fd
}

/// # Safety
/// `address` as connect(2) wants it.
#[inline(always)]
pub(super) unsafe fn connecting(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    let again = quietly_with(|| unsafe { life::connect(fd, address, length) });
    if let Outcome::Done(answer) = again {
        return answer as c_int;
    }
    // SAFETY: as above.
    quietly(|| unsafe { life::before_connect(fd, address, length) });
    let answer = kernel();
    // SAFETY: as above.
    quietly(|| unsafe {
        let error = if answer == 0 { 0 } else { errno() };
        life::after_connect(fd, address, length, error);
    });
    answer
}

#[inline(always)]
pub(super) fn listening(fd: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let answer = kernel();
    if answer == 0 {
        quietly(|| life::after_listen(fd));
    }
    answer
}

/// # Safety
/// `address` and `length` as accept4(2) wants them.
#[inline(always)]
pub(super) unsafe fn accepting(
    listener: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
    kernel: impl Fn() -> c_int,
) -> c_int {
    // SAFETY: the caller keeps the function's contract.
    match quietly_with(|| unsafe { life::accept(listener, address, length, flags) }) {
        Outcome::Done(fd) => return fd as c_int,
        Outcome::Fail(error) => return fail(error) as c_int,
        Outcome::Kernel => {}
    }
    let fd = making(kernel);
    if fd >= 0 {
        quietly(|| life::after_accept(listener, fd, flags));
    }
    fd
}

export! {
    shutdown(fd: c_int, how: c_int) -> c_int = life::shutdown;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int
        = life::setsockopt;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int
        = life::getsockopt;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no memory is involved.
    opening(domain, kind, protocol, || unsafe {
        next::socket(domain, kind, protocol)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: no memory is involved.
    listening(fd, || unsafe { next::listen(fd, backlog) })
}

cancellable! {
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        connecting(fd, address, length, || next::connect(fd, address, length))
    }
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        accepting(fd, address, length, 0, || next::accept(fd, address, length))
    }
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        accepting(fd, address, length, flags, || next::accept4(fd, address, length, flags))
    }
}

alias! {
    __socket = socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    __connect = connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
}
