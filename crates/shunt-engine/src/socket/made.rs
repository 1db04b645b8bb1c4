//! Flags of a socket's only descriptor and of its open file, as long as the library has seen everything that could change them.
//! From `socket` or `accept` on it notes each `fcntl` and `ioctl` that changes them. The flags are unknown once the descriptor
//! was copied or sent in a message; once a child may have inherited it (in a `vfork` and the like, only what was made before that
//! began); and after an attempt to connect that failed, since the socket is not like a new one then. A raw system call that the
//! library does not see is not noted; rings, too, do not learn of an `O_NONBLOCK` that was set so.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;

/// See the module; zero: nothing is known.
#[derive(Debug, Default)]
pub(crate) struct Made(AtomicU64);

const KNOWN: u64 = 1;
const NONBLOCK: u64 = 2;
const CLOEXEC: u64 = 4;
const EPOCH_SHIFT: u32 = 32;

/// Counts the times when a child may have inherited what this process has.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// A child is about to be made, which may inherit whatever this process has.
pub(crate) fn before_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

fn epoch() -> u64 {
    u64::from(EPOCH.load(Ordering::Relaxed)) << EPOCH_SHIFT
}

/// The flags, where they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags {
    /// `O_NONBLOCK`.
    pub(crate) nonblock: bool,
    /// `FD_CLOEXEC`.
    pub(crate) cloexec: bool,
}

impl Made {
    /// The flags are not known any more.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The socket has been made with these flags of `socket` or `accept4`.
    pub(crate) fn note(&self, kind: c_int) {
        let flag = |is_on: c_int, flag| if is_on != 0 { flag } else { 0 };
        let nonblock = flag(kind & libc::SOCK_NONBLOCK, NONBLOCK);
        let cloexec = flag(kind & libc::SOCK_CLOEXEC, CLOEXEC);
        self.0
            .store(epoch() | KNOWN | nonblock | cloexec, Ordering::Relaxed);
    }

    /// `O_NONBLOCK` has been set, or cleared.
    pub(crate) fn note_nonblock(&self, on: bool) {
        self.change(NONBLOCK, on);
    }

    /// `FD_CLOEXEC` has been set, or cleared.
    pub(crate) fn note_cloexec(&self, on: bool) {
        self.change(CLOEXEC, on);
    }

    fn change(&self, flag: u64, on: bool) {
        if on {
            self.0.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    /// The flags. `None`: only the kernel knows them.
    pub(crate) fn flags(&self) -> Option<Flags> {
        let word = self.0.load(Ordering::Relaxed);
        let is_known = word & KNOWN != 0 && word >> EPOCH_SHIFT == epoch() >> EPOCH_SHIFT;
        is_known.then_some(Flags {
            nonblock: word & NONBLOCK != 0,
            cloexec: word & CLOEXEC != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::both_ends::one_at_a_time;

    #[test]
    fn flags_are_known_until_a_copy_or_a_child_may_change_them() {
        let _alone = one_at_a_time();
        let made = Made::default();
        assert_eq!(made.flags(), None);
        made.note_nonblock(true);
        assert_eq!(made.flags(), None, "what it was made with is not known");
        made.note(libc::SOCK_CLOEXEC);
        made.note_nonblock(true);
        let both = Flags {
            nonblock: true,
            cloexec: true,
        };
        assert_eq!(made.flags(), Some(both));
        made.note_cloexec(false);
        assert!(made.flags().is_some_and(|flags| !flags.cloexec));
        before_child();
        assert_eq!(made.flags(), None);
        made.note(0);
        made.forget();
        assert_eq!(made.flags(), None);
    }
}
