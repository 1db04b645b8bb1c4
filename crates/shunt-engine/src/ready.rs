//! Readiness: `poll`, `select` and `epoll`.
//!
//! # Safety
//! Pointers are the program's own, valid as the man page of the call demands.
#![allow(clippy::missing_safety_doc)]

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::entry::{self, Entry};
use crate::epoll::{Limit, SETS, Set, User};
use crate::thread::{is_alone, signals};
use crate::{Outcome, signal, sys};

mod accepting;
mod array;
mod bring;
mod epoll_ctl;
mod epoll_wait;
mod poll;
mod select;
mod sleeper;

use array::Memory;
use poll::{Array, Whose};

/// A `timespec` in nanoseconds; `None` if it is null. An invalid one is the
/// kernel's to refuse.
///
/// # Safety
/// `time` is null or a `timespec` of the program's.
unsafe fn relative(time: *const timespec) -> Result<Option<u64>, ()> {
    if time.is_null() {
        return Ok(None);
    }
    if (time as usize) < 4096 || !signal::may_read(time, 1) {
        return Err(());
    }
    // SAFETY: the caller's promise.
    let t = unsafe { *time };
    if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
        return Err(());
    }
    Ok(Some(
        (t.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(t.tv_nsec as u64),
    ))
}

fn milliseconds(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// `poll(2)`.
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> Outcome {
    if !entry::is_any() {
        return Outcome::Kernel;
    }
    let seen = signals::now();
    let time = milliseconds(timeout);
    // SAFETY: the caller's promise; no mask.
    unsafe { poll_array(fds, count, time, std::ptr::null(), seen) }
}

/// `poll` of the program's array, for `time` nanoseconds (`None`: for ever).
///
/// # Safety
/// As for `ppoll(2)`.
#[inline(always)]
unsafe fn poll_array(
    fds: *mut pollfd,
    count: nfds_t,
    time: Option<u64>,
    mask: *const sigset_t,
    seen: signals::Seen,
) -> Outcome {
    let whose = |fds: &[pollfd]| poll::whose(fds.iter().map(|one| one.fd), time == Some(0), seen);
    let call = |fds: &mut [pollfd]| match whose(fds) {
        Whose::Kernels => Outcome::Kernel,
        // SAFETY: the caller's promise.
        Whose::Perhaps => unsafe {
            poll::poll_in_kernel(fds, Memory::NONE, Limit::new(time), mask, seen)
        },
        // SAFETY: the caller's promise.
        Whose::Ours => unsafe { poll::poll(fds, Limit::new(time), mask, seen) },
    };
    // SAFETY: the caller's promise.
    match unsafe { poll::array(fds, count) } {
        Array::None => Outcome::Kernel,
        Array::Some(fds) => call(fds),
        Array::Fixed(fds) => poll::in_vain(fds, call),
    }
}

/// `ppoll(2)`. The kernel's own call would write back what is left of the time;
/// glibc's does not, and neither does this.
pub unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Outcome {
    if !entry::is_any() {
        return Outcome::Kernel;
    }
    let seen = signals::now();
    // SAFETY: the caller's promise.
    let Ok(time) = (unsafe { relative(timeout) }) else {
        return Outcome::Kernel;
    };
    if !signal::may_mask(mask) {
        return Outcome::Kernel;
    }
    // SAFETY: as above.
    unsafe { poll_array(fds, count, time, mask, seen) }
}

/// The system call `ppoll`: writes back what is left of the time.
pub unsafe fn ppoll_by_number(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *mut timespec,
    mask: *const sigset_t,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { with_rest(timeout, || ppoll(fds, count, timeout, mask)) }
}

/// The system call `pselect6`: writes back what is left of the time.
pub unsafe fn pselect_by_number(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timespec,
    mask: *const sigset_t,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        with_rest(timeout, || {
            pselect(count, read, write, except, timeout, mask)
        })
    }
}

/// Makes a call, and stores what is left of its time (`poll_select_finish` in the kernel's `fs/select.c`): nothing, if
/// that is gone, also if it could not be stored.
///
/// # Safety
/// `timeout` is null or a time of the program's, or is not there.
unsafe fn with_rest(timeout: *mut timespec, call: impl FnOnce() -> Outcome) -> Outcome {
    // SAFETY: the caller's promise.
    let limit = match unsafe { relative(timeout) } {
        Ok(time @ Some(1..)) => Limit::new(time),
        _ => return call(),
    };
    let outcome = call();
    if !matches!(outcome, Outcome::Kernel)
        && let Some(left) = limit.left()
    {
        // SAFETY: the caller's promise.
        let _ = unsafe { signal::put_time(timeout.cast(), left.tv_sec, left.tv_nsec) };
    }
    outcome
}

/// `select(2)`: writes back what is left of the time, as Linux does.
pub unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> Outcome {
    if !entry::is_any() || !timeout.is_null() && !signal::may_read(timeout, 1) {
        return Outcome::Kernel;
    }
    let time = if timeout.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let t = unsafe { *timeout };
        if t.tv_sec < 0 || t.tv_usec < 0 {
            return Outcome::Kernel;
        }
        Some(
            (t.tv_sec as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add(t.tv_usec as u64 * 1000),
        )
    };
    let limit = Limit::new(time);
    // SAFETY: the caller's promise.
    let outcome = unsafe { select::select(count, [read, write, except], limit, std::ptr::null()) };
    if !matches!(outcome, Outcome::Kernel)
        && let Some(left) = limit.left()
    {
        // Programs may have it where it can only be read.
        // SAFETY: as above; there is a limit if there is a time.
        let _ = unsafe { signal::put_time(timeout.cast(), left.tv_sec, left.tv_nsec / 1000) };
    }
    outcome
}

/// `pselect(2)`.
pub unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Outcome {
    if !entry::is_any() {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let Ok(time) = (unsafe { relative(timeout) }) else {
        return Outcome::Kernel;
    };
    if !signal::may_mask(mask) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    unsafe { select::select(count, [read, write, except], Limit::new(time), mask) }
}

/// After a successful `epoll_create` or `epoll_create1`.
pub fn after_epoll_create(fd: c_int) {
    if crate::thread::owns_memory() {
        Set::enter(fd);
    }
}

/// Instead of `epoll_ctl`.
pub unsafe fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Outcome {
    let Some(user) = User::of(set) else {
        // A set that we do not know (inherited through exec, or there was no memory to know it):
        // what it watches must be the kernel's. Not where there is none: that tells an edge once more.
        let is_open = || sys::fcntl(set, libc::F_GETFD, 0).is_ok();
        if operation != libc::EPOLL_CTL_DEL && is_open() {
            crate::life::to_kernel(fd, shunt_abi::Reason::UnknownSet);
        }
        return Outcome::Kernel;
    };
    if matches!(entry::look(fd), Entry::Other) {
        user.leave();
        return Outcome::Kernel;
    }
    let is_there = (event as usize) >= 4096 && signal::may_read(event, 1);
    // SAFETY: the caller's promise.
    let event = is_there.then(|| unsafe { event.read_unaligned() });
    let outcome = epoll_ctl::change(user.set(), operation, fd, event);
    user.leave();
    outcome
}

/// `epoll_wait` and `epoll_pwait` (a null mask: no change); milliseconds.
pub unsafe fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> Outcome {
    let limit = Limit::new(milliseconds(timeout));
    let Some(user) = User::of(set) else {
        // SAFETY: the caller's promise.
        return unsafe { unknown(set, events, most, limit, mask) };
    };
    // SAFETY: the caller's promise.
    let outcome = unsafe { epoll_wait::wait(user, events, most, limit, mask) };
    user.leave();
    outcome
}

/// A wait on a number that names no set that we know.
///
/// # Safety
/// As for `epoll_pwait2`.
#[cold]
unsafe fn unknown(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    if !SETS.is_any() || is_alone() || !signal::may_mask(mask) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    unsafe { epoll_wait::wait_unknown(set, events, most, limit, mask) }
}

/// `epoll_pwait2`; a null timeout: for ever.
pub unsafe fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Outcome {
    // Where nobody puts something of ours in meanwhile the time is the kernel's to read, which needs no guard.
    if is_alone() && Set::of(set).is_none_or(Set::is_plain) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let Ok(time) = (unsafe { relative(timeout) }) else {
        return Outcome::Kernel;
    };
    let limit = Limit::new(time);
    let Some(user) = User::of(set) else {
        // SAFETY: the caller's promise.
        return unsafe { unknown(set, events, most, limit, mask) };
    };
    // SAFETY: the caller's promise.
    let outcome = unsafe { epoll_wait::wait(user, events, most, limit, mask) };
    user.leave();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64, nanoseconds: i64) -> Result<Option<u64>, ()> {
        let time = timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds,
        };
        // SAFETY: a `timespec` of this test's.
        unsafe { relative(&raw const time) }
    }

    #[test]
    fn a_time_is_told_in_nanoseconds() {
        assert_eq!(time(0, 0), Ok(Some(0)));
        assert_eq!(time(2, 5), Ok(Some(2_000_000_005)));
        assert_eq!(time(i64::MAX, 0), Ok(Some(u64::MAX)));
        // SAFETY: null says that there is none.
        let none = unsafe { relative(std::ptr::null()) };
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn a_time_that_is_none_is_the_kernels_to_refuse() {
        for (seconds, nanoseconds) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(time(seconds, nanoseconds), Err(()));
        }
        // SAFETY: refused before it is read.
        let refused = unsafe { relative(std::ptr::without_provenance(8)) };
        assert_eq!(refused, Err(()));
    }

    #[test]
    fn negative_milliseconds_are_for_ever() {
        assert_eq!((milliseconds(-1), milliseconds(-7)), (None, None));
        assert_eq!(
            (milliseconds(0), milliseconds(3)),
            (Some(0), Some(3_000_000))
        );
    }
}
