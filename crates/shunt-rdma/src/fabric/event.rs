//! What a sleeper waits on: a timer, since what is on its way comes at a known time.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::transport::Refused;

pub(super) struct Event(OwnedFd);

impl Event {
    pub(super) fn new() -> Result<Self, Refused> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: integers only.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            return Err(Refused {
                what: "a timer",
                errno: errno.unwrap_or(0),
            });
        }
        // SAFETY: made above, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable after this number of nanoseconds.
    pub(super) fn fire_after(&self, nanoseconds: u64) {
        let nanoseconds = nanoseconds.max(1);
        let when = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
                tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: the descriptor is ours, and the value is readable.
        unsafe { libc::timerfd_settime(self.number(), 0, &raw const when, std::ptr::null_mut()) };
    }

    /// Makes it unreadable.
    pub(super) fn take(&self) {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes. There is nothing to read if it has not fired.
        unsafe { libc::read(self.number(), (&raw mut count).cast(), 8) };
    }
}
