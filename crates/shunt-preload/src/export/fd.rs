//! Descriptors are copied, changed and closed.
//!
//! Libc's own internal closes and dups (`getaddrinfo`, `posix_spawn`, `daemon`)
//! reach no symbol; the engine notices a descriptor that changed under it.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{stat, stat64};
use shunt_engine::{Outcome, cancel, life};

use crate::call::{alias, cancellable, export, fail, making, outcome, quietly};
use crate::next;

cancellable! {
    // One that is cancelled has closed nothing, and the connection is as it was.
    close(fd: c_int) -> c_int { closing(fd) }
}

#[inline(always)]
fn closing(fd: c_int) -> c_int {
    // SAFETY: no memory is involved.
    let close = || outcome!(life::close(fd), unsafe { next::close(fd) });
    if life::is_close_whole(fd) {
        cancel::put_off(close)
    } else {
        close()
    }
}

export! {
    close_range(first: c_uint, last: c_uint, flags: c_uint) -> c_int = life::close_range;
    // Variadic in C. A caller that omits the argument leaves garbage in its
    // register, which the commands without an argument ignore.
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int = life::fcntl;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int = life::ioctl;
    fstat(fd: c_int, status: *mut stat) -> c_int = |fd, _| life::look_at(fd);
    fstat64(fd: c_int, status: *mut stat64) -> c_int = |fd, _| life::look_at(fd);
    // What programs call that were made for a glibc before 2.33.
    __fxstat(version: c_int, fd: c_int, status: *mut stat) -> c_int = |_, fd, _| life::look_at(fd);
    __fxstat64(version: c_int, fd: c_int, status: *mut stat64) -> c_int = |_, fd, _| life::look_at(fd);
}

/// Libc's makes the same call, past ours.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    const SIOCATMARK: c_ulong = 0x8905;
    let mut mark: c_int = 0;
    // SAFETY: the request stores an `int`.
    match unsafe { ioctl(fd, SIOCATMARK, (&raw mut mark).cast()) } {
        0 => mark,
        failed => failed,
    }
}

alias! {
    __close = close(fd: c_int) -> c_int;
    __dup2 = dup2(old: c_int, new: c_int) -> c_int;
    __fcntl = fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fcntl64 = fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
}

/// Libc's returns nothing.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let low = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: no memory is involved.
    let _: c_int = outcome!(life::close_range(low, c_uint::MAX, 0), unsafe {
        next::closefrom(first)
    });
}

#[inline(always)]
pub(super) fn copying(old: c_int, kernel: impl Fn() -> c_int) -> c_int {
    let new = making(|| outcome!(life::look_at(old), kernel()));
    if new >= 0 {
        quietly(|| life::after_dup(old, new));
    }
    new
}

/// `dup2` and `dup3`: whatever `new` was is closed.
#[inline(always)]
pub(super) fn replacing(old: c_int, new: c_int, flags: c_int, kernel: impl Fn() -> c_int) -> c_int {
    if old == new || flags & !libc::O_CLOEXEC != 0 {
        // The kernel copies nothing, but knows which mistake it names first.
        let same = kernel();
        return if same < 0 {
            same
        } else {
            outcome!(life::look_at(same), same)
        };
    }
    if let Outcome::Fail(error) = life::look_at(old) {
        return fail(error) as c_int;
    }
    quietly(|| life::before_replace(old, new, flags));
    copying(old, kernel)
}

/// `pidfd_getfd`: a copy from another process, or from this one.
#[inline(always)]
pub(super) fn fetching(kernel: impl Fn() -> c_int) -> c_int {
    let fd = making(kernel);
    if fd >= 0 {
        quietly(|| life::after_getfd(fd));
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
    // SAFETY: no memory is involved.
    fetching(|| unsafe { next::pidfd_getfd(process, fd, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    // SAFETY: no memory is involved.
    copying(old, || unsafe { next::dup(old) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: no memory is involved.
    replacing(old, new, 0, || unsafe { next::dup2(old, new) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    replacing(old, new, flags, || unsafe { next::dup3(old, new, flags) })
}
