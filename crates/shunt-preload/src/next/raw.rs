//! System calls in the form of the libc functions that have none of the same
//! form on every architecture.

use std::ffi::{c_int, c_long};
use std::ptr;

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use syscalls::{Errno, Sysno, syscall};

/// The kernel's `sigset_t`, smaller than libc's.
pub(crate) const SIGSET_SIZE: usize = 8;

type Answer = Result<usize, Errno>;

/// # Safety
/// As poll(2).
pub(super) unsafe fn poll(fds: *mut pollfd, count: nfds_t, milliseconds: c_int) -> Answer {
    let time = timespec {
        tv_sec: (milliseconds / 1000).into(),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    let timeout = if milliseconds < 0 {
        ptr::null()
    } else {
        &raw const time
    };
    // SAFETY: the caller keeps the function's contract.
    unsafe { syscall!(Sysno::ppoll, fds, count, timeout, 0, SIGSET_SIZE) }
}

/// # Safety
/// As select(2).
pub(super) unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timeval,
) -> Answer {
    // SAFETY: null or a valid time: the function's contract.
    let time = unsafe { timeout.as_ref() }.map(|time| timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec * 1000,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: as above.
    unsafe { syscall!(Sysno::pselect6, count, read, write, except, time, 0) }
}

/// # Safety
/// As pselect(2).
pub(super) unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Answer {
    // The kernel writes the remaining time, libc does not.
    // SAFETY: null or a valid time: the function's contract.
    let time = unsafe { timeout.as_ref() }.copied();
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mask = [mask as usize, SIGSET_SIZE];
    // SAFETY: as above.
    unsafe {
        syscall!(
            Sysno::pselect6,
            count,
            read,
            write,
            except,
            time,
            mask.as_ptr()
        )
    }
}

/// # Safety
/// As ppoll(2).
pub(super) unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Answer {
    // SAFETY: null or a valid time: the function's contract.
    let time = unsafe { timeout.as_ref() }.copied();
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: as above.
    unsafe { syscall!(Sysno::ppoll, fds, count, time, mask, SIGSET_SIZE) }
}

/// # Safety
/// As dup2(2).
pub(super) unsafe fn dup2(old: c_int, new: c_int) -> Answer {
    // SAFETY: descriptors only.
    unsafe {
        if old == new {
            return syscall!(Sysno::fcntl, old, libc::F_GETFD).map(|_| new as usize);
        }
        syscall!(Sysno::dup3, old, new, 0)
    }
}

/// What `pidfd_spawn(3)` says where it is not supported: an error's number, and `errno` stays.
///
/// # Safety
/// Always.
pub(super) unsafe fn no_spawn() -> Answer {
    Ok(libc::ENOSYS as usize)
}

/// Any system call by its number.
///
/// # Safety
/// As the call's; none that returns twice on one stack.
pub(crate) unsafe fn numbered(number: c_long, arguments: [c_long; 6]) -> Answer {
    let Some(number) = usize::try_from(number).ok().and_then(Sysno::new) else {
        return Err(Errno::ENOSYS);
    };
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller keeps the function's contract.
    unsafe { syscall!(number, a, b, c, d, e, f) }
}
