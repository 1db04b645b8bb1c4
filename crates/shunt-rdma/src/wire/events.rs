//! What a sleeper waits on: an epoll set of all sockets, and of a bell for completions that no socket brings.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::descriptor::high;
use super::refused;
use crate::transport::Refused;

pub(super) struct Events {
    set: OwnedFd,
    bell: OwnedFd,
}

impl Events {
    pub(super) fn new() -> Result<Self, Refused> {
        // SAFETY: integers only.
        let set = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: integers only.
        let bell = own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let events = Self { set, bell };
        events.watch(events.bell.as_raw_fd())?;
        Ok(events)
    }

    pub(super) fn number(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// From now on it is readable when that one is, until that one is closed.
    pub(super) fn watch(&self, fd: RawFd) -> Result<(), Refused> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (set, event) = (self.number(), &raw mut event);
        // SAFETY: the set is open as long as `self` is, and the kernel reads the event during the call only.
        let done = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, event) };
        if done == 0 {
            Ok(())
        } else {
            Err(refused("a descriptor in an epoll set"))
        }
    }

    /// Makes it readable.
    pub(super) fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight readable bytes. A bell that has been rung too often is readable all the same.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Takes the bell's rings.
    pub(super) fn take(&self) {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes. There is nothing to read if it was not rung.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

fn own(fd: RawFd) -> Result<OwnedFd, Refused> {
    if fd < 0 {
        return Err(refused("a descriptor"));
    }
    // SAFETY: made by the caller, and nobody else has it.
    high(unsafe { OwnedFd::from_raw_fd(fd) })
}
