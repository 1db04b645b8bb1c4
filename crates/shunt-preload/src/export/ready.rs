//! Readiness. `__fdelt_chk` is not here: it only checks a number.

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use shunt_engine::{Outcome, ready};

use crate::call::{alias, export, export_cancellable, making, quietly};
use crate::next;

export_cancellable! {
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = ready::poll;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = ready::ppoll;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int
        = ready::select;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int = ready::pselect;
    epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int = wait_unmasked;
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int
        = ready::epoll_wait;
    epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int = ready::epoll_pwait2;
}

export! {
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = ready::epoll_ctl;
}

alias! {
    __poll = poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    __select = select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
    ) -> c_int;
}

#[inline(always)]
unsafe fn wait_unmasked(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> Outcome {
    // SAFETY: the caller keeps the function's contract.
    unsafe { ready::epoll_wait(set, events, most, timeout, ptr::null()) }
}

/// `epoll_create`, given the call that makes the set.
#[inline(always)]
pub(super) fn creating(kernel: impl Fn() -> c_int) -> c_int {
    let set = making(kernel);
    if set >= 0 {
        quietly(|| ready::after_epoll_create(set));
    }
    set
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: no memory is involved.
    creating(|| unsafe { next::epoll_create(size) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    creating(|| unsafe { next::epoll_create1(flags) })
}
