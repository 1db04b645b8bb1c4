//! The last descriptor of a connection is closed under a call that sleeps on it: like the
//! kernel's own, that call goes on, by a descriptor of the library's, which is closed after it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::c_int;

use crate::kept::Kept;
use crate::sys;

/// See the module.
pub(crate) struct Handed {
    fd: Kept,
    /// Who closes, and calls that have taken it over; 0: there is none.
    users: AtomicU32,
    taken: AtomicBool,
}

impl Handed {
    /// Before `fd` is closed. `false`: there is no other number to be had.
    pub(crate) fn offer(&self, fd: c_int) -> bool {
        let Ok(copy) = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) else {
            return false;
        };
        self.fd.keep(copy as c_int);
        self.taken.store(false, Ordering::Relaxed);
        self.users.store(1, Ordering::Release);
        true
    }

    /// Whether a call has taken it over.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire)
    }

    /// A call takes it over, and must [leave](Self::leave) it.
    #[inline]
    pub(crate) fn take(&self) -> Option<c_int> {
        if self.users.load(Ordering::Acquire) == 0 {
            return None;
        }
        let one_more = |users: u32| (users != 0).then_some(users + 1);
        self.users
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more)
            .ok()?;
        self.taken.store(true, Ordering::Release);
        Some(self.fd.number())
    }

    /// The descriptor, for the last of its users to close.
    pub(crate) fn leave(&self) -> Option<c_int> {
        let last = self.users.fetch_sub(1, Ordering::AcqRel) == 1;
        last.then(|| self.fd.take()).flatten()
    }

    /// If it has the number that the program wants, it moves.
    pub(crate) fn make_way(&self, wanted: c_int) {
        self.fd.make_way(wanted);
    }

    /// In a forked child: the call is its parent's.
    pub(crate) fn after_fork_child(&self) {
        if self.users.swap(0, Ordering::Relaxed) != 0
            && let Some(fd) = self.fd.take()
        {
            sys::close(fd);
        }
    }
}
