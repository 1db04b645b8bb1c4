//! What is ready, as the kernel sees it, and sleeping until something is.

use std::sync::atomic::AtomicU32;

use libc::{c_int, pollfd};

use super::Errno;

/// Whether a number that names no descriptor is behind all that do. `select` looks no further than the process's
/// table of descriptors goes, and says `EBADF` of what is in there and names none (`core_sys_select` in the kernel's
/// `fs/select.c`). To ask `/proc/self/fd` would take 15 µs of a new process's time.
pub(crate) fn is_behind_descriptors(number: usize) -> bool {
    let mut read = [0u64; libc::FD_SETSIZE / 64];
    let Some(word) = read.get_mut(number / 64) else {
        return false;
    };
    *word = 1 << (number % 64);
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let read = read.as_mut_ptr();
    call!(pselect6, number + 1, read, 0, 0, &raw const now, 0) == Ok(0)
}

/// What the kernel says is ready now; 0 if it says nothing.
pub(crate) fn ready(fd: c_int, events: i16) -> i16 {
    let mut one = pollfd {
        fd,
        events,
        revents: 0,
    };
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match call!(ppoll, &raw mut one, 1, &raw const none, 0, 0) {
        Err(libc::EINVAL) => ready_by_select(fd, events),
        _ => one.revents,
    }
}

/// [`ready`] where the process may poll nothing (`RLIMIT_NOFILE` is 0). It tells of no end and no
/// error: select(2) shows these as something to read and room to write.
#[cold]
fn ready_by_select(fd: c_int, events: i16) -> i16 {
    const ASKS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut sets = [[0u64; libc::FD_SETSIZE / 64]; 3];
    let Ok(number) = usize::try_from(fd) else {
        return 0;
    };
    let (word, bit) = (number / 64, 1 << (number % 64));
    if number >= libc::FD_SETSIZE {
        return 0;
    }
    for (set, _) in sets.iter_mut().zip(ASKS).filter(|set| events & set.1 != 0) {
        set[word] = bit;
    }
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr());
    let found = call!(
        pselect6,
        number + 1,
        read,
        write,
        except,
        &raw const none,
        0
    );
    let is_in = |set: &[u64]| found.is_ok() && set[word] & bit != 0;
    let ready = sets.iter().zip(ASKS).filter(|set| is_in(set.0));
    ready.fold(0, |ready, (_, asks)| ready | asks)
}

/// Polls without waiting.
pub(crate) fn poll_now(fds: &mut [pollfd]) -> Result<usize, Errno> {
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    call!(ppoll, fds.as_mut_ptr(), fds.len(), &raw const none, 0, 0)
}

/// Polls for up to `milliseconds`.
pub(crate) fn poll_ms(fd: c_int, events: i16, milliseconds: i64) -> i16 {
    let mut one = pollfd {
        fd,
        events,
        revents: 0,
    };
    // The kernel writes what is left there.
    let mut time = libc::timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    let _ = call!(ppoll, &raw mut one, 1, &raw mut time, 0, 0);
    one.revents
}

pub(crate) fn epoll_create() -> Result<c_int, Errno> {
    call!(epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| fd as c_int)
}

pub(crate) fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> Result<usize, Errno> {
    call!(epoll_ctl, set, operation, fd, event)
}

/// Takes kernel events without waiting.
pub(crate) fn epoll_now(
    set: c_int,
    events: *mut libc::epoll_event,
    most: usize,
) -> Result<usize, Errno> {
    call!(epoll_pwait, set, events, most, 0, 0, 8)
}

pub(crate) fn eventfd() -> Result<c_int, Errno> {
    call!(eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(|fd| fd as c_int)
}

/// Sleeps while `word` is `value`, for `nanoseconds` at most.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let _ = call!(futex, word.as_ptr(), operation, value, &raw const time);
}

/// Wakes everybody who sleeps there.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let _ = call!(futex, word.as_ptr(), operation, i32::MAX);
}

/// Sleeps for `nanoseconds`, which are less than a second.
pub(crate) fn nap(nanoseconds: u64) {
    // The kernel writes what is left there.
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds as i64,
    };
    let _ = call!(ppoll, 0, 0, &raw mut time, 0, 0);
}

pub(crate) fn sched_yield() {
    let _ = call!(sched_yield);
}
