//! A descriptor that the library keeps, and what it names.
//!
//! `close` and `close_range` of libc leave our numbers out (`life/descriptor.rs`). A program that closes every number by
//! system calls of its own closes ours, too, and the number may name a file of the program's then. So each use asks the
//! kernel first what the number names now.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::c_int;

use crate::sys::{self, File};
use crate::table::{self, Word};

/// See the module. Changed by one thread at a time.
#[derive(Debug)]
pub(crate) struct Kept {
    /// 1 + the number; 0, as in memory that is not yet used: nothing is kept.
    after: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Kept {
    /// Nothing yet.
    pub(crate) const fn nothing() -> Self {
        Self {
            after: AtomicI32::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    /// Keeps a descriptor, which the program is not to close from now on. `false`: the kernel does
    /// not say what it names, so it is closed.
    pub(crate) fn keep(&self, fd: c_int) -> bool {
        let Some(file) = sys::file(fd) else {
            sys::close(fd);
            return false;
        };
        self.device.store(file.device, Ordering::Relaxed);
        self.inode.store(file.inode, Ordering::Relaxed);
        table::enter(fd, Word::OURS);
        self.after.store(fd + 1, Ordering::Release);
        true
    }

    /// Its number, whatever that names; -1: nothing is kept.
    #[inline(always)]
    pub(crate) fn number(&self) -> c_int {
        self.after.load(Ordering::Acquire) - 1
    }

    /// Whether there is one, and its number names nothing that the program has made since by a
    /// call that is known.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        let fd = self.number();
        fd >= 0 && table::look(fd) == Word::OURS
    }

    /// The descriptor, if its number names it still. (Epoll sets, eventfds and the like are all one file to the kernel's
    /// answer: of these [`Self::is_kept`] tells more.)
    pub(crate) fn get(&self) -> Option<c_int> {
        let fd = self.number();
        let kept = File {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
        };
        (fd >= 0 && sys::file(fd) == Some(kept)).then_some(fd)
    }

    /// [`Self::get`] for a socket, of which the kernel's answer is like no other file's. Another descriptor of ours that had its
    /// number, and was closed behind our back, may have been given up since: then the number is noted as ours again.
    pub(crate) fn get_socket(&self) -> Option<c_int> {
        let fd = self.get()?;
        if table::look(fd) == Word::NOTHING {
            table::enter(fd, Word::OURS);
        }
        Some(fd)
    }

    /// Keeps it no more. Whoever gets it closes it.
    pub(crate) fn take(&self) -> Option<c_int> {
        let ours = self.get();
        let fd = self.after.swap(0, Ordering::AcqRel) - 1;
        // A socket or a set that the program has at the number by now stays known, and is not ours, whatever file it is.
        let word = table::look(fd);
        if word == Word::OURS {
            table::enter(fd, Word::NOTHING);
        }
        ours.filter(|_| word == Word::OURS || word == Word::NOTHING)
    }

    /// If it has the number that the program wants, it moves: at each moment it has a number.
    pub(crate) fn make_way(&self, wanted: c_int) {
        if self.number() != wanted {
            return;
        }
        // Above it, since the program may go on upwards; or wherever there is a number.
        let copy = |fd, from| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, from).ok();
        let above = |fd: c_int| copy(fd, fd as usize + 1).or_else(|| copy(fd, 0));
        let Some(other) = self.get().and_then(above).map(|other| other as c_int) else {
            self.take();
            return;
        };
        table::enter(other, Word::OURS);
        let (from, to) = (wanted + 1, other + 1);
        let former =
            match self
                .after
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => wanted,
                Err(_) => {
                    sys::close(other);
                    other
                }
            };
        table::enter(former, Word::NOTHING);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::socket::{Socket, Stage};

    #[test]
    fn another_file_at_the_number_is_not_ours_be_its_inode_the_same() {
        // The roots of two file systems.
        let [ours, other] = ["/proc", "/sys"].map(|root| File::open(root).unwrap());
        let inode = |file: &File| file.metadata().unwrap().ino();
        assert_eq!(inode(&ours), inode(&other));
        let (kept, number) = (Kept::nothing(), ours.into_raw_fd());
        assert_eq!(kept.get(), None);
        kept.keep(number);
        assert_eq!(kept.get(), Some(number));
        // SAFETY: both descriptors are this test's.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), number) } == number);
        assert_eq!((kept.number(), kept.get()), (number, None));
        assert_eq!(kept.take(), None);
        assert!(table::look(number) == Word::NOTHING);
        // Nor is it moved in the place of ours.
        kept.keep(number);
        // SAFETY: as above.
        assert!(unsafe { libc::dup2(File::open("/proc").unwrap().as_raw_fd(), number) } == number);
        kept.make_way(number);
        assert_eq!(kept.number(), -1);
        kept.keep(number);
        kept.make_way(number);
        let moved = kept.take().unwrap();
        assert_ne!(moved, number);
        sys::close(moved);
        sys::close(number);
    }

    #[test]
    fn a_socket_of_the_programs_at_the_number_stays_known() {
        let (kept, number) = (Kept::nothing(), File::open("/proc").unwrap().into_raw_fd());
        kept.keep(number);
        let theirs = sys::socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        // SAFETY: both descriptors are this test's.
        assert!(unsafe { libc::dup2(theirs, number) } == number);
        Socket::enter(number, Stage::Fresh).unwrap();
        assert_eq!(kept.take(), None);
        assert!(table::get::<Socket>(number).is_some());
        table::enter(number, Word::NOTHING);
        sys::close(number);
        sys::close(theirs);
    }
}
