//! Arenas: sealed memory files with one writer.
//!
//! The writer makes the file, maps it, then seals it: from then on nobody can
//! resize it or map it writable again (`memfd_create(2)`, `F_SEAL_FUTURE_WRITE`),
//! so its descriptor can be handed to a peer that is not trusted, and a peer
//! that maps it need not fear `SIGBUS`.

use std::sync::atomic::AtomicU64;

use shunt_abi::layout;
use syscalls::{Errno, Sysno, syscall};

use crate::slot::Slot;
use crate::wake::{Door, Log, Tail};

const F_ADD_SEALS: usize = 1033;
const F_GET_SEALS: usize = 1034;
const SEAL_SEAL: usize = 1;
const SEAL_SHRINK: usize = 2;
const SEAL_GROW: usize = 4;
const SEAL_FUTURE_WRITE: usize = 16;
const MADV_DONTDUMP: usize = 16;
const MADV_POPULATE_WRITE: usize = 23;

/// A mapped arena. Never unmapped by itself: connections hold addresses in it;
/// [`Arena::unmap`] is called when the last is gone.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: *mut u8,
}

// SAFETY: an arena is plain shared memory; everything in it that threads touch
// is atomic or guarded by a token.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes, maps and seals an arena. Returns it with its descriptor
    /// (close-on-exec), which the caller passes on and closes.
    ///
    /// # Errors
    /// `EFBIG` where `RLIMIT_FSIZE` is smaller than an arena; else what `memfd_create`,
    /// `ftruncate`, `mmap` or `fcntl` said.
    pub fn create() -> Result<(Self, i32), Errno> {
        // Past that limit the kernel would not only refuse, but send SIGXFSZ.
        if file_size_limit() < layout::ARENA_BYTES as u64 {
            return Err(Errno::EFBIG);
        }
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a valid C string; the call touches nothing else.
        let fd = unsafe { syscall!(Sysno::memfd_create, c"shunt-arena".as_ptr(), flags) }? as i32;
        let made = (|| {
            // SAFETY: integers only; the file was made above and is not mapped yet.
            unsafe { syscall!(Sysno::ftruncate, fd, layout::ARENA_BYTES) }?;
            let arena = Self::map(fd, true)?;
            let seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE | SEAL_SEAL;
            // SAFETY: integers only; seals forbid what nobody does.
            if let Err(errno) = unsafe { syscall!(Sysno::fcntl, fd, F_ADD_SEALS, seals) } {
                arena.unmap();
                return Err(errno);
            }
            Ok(arena)
        })();
        match made {
            Ok(arena) => {
                arena
                    .u64_at(layout::MAGIC_AT)
                    .store(layout::MAGIC, std::sync::atomic::Ordering::Release);
                Ok((arena, fd))
            }
            Err(errno) => {
                // SAFETY: closes the descriptor made above.
                let _ = unsafe { syscall!(Sysno::close, fd) };
                Err(errno)
            }
        }
    }

    /// Maps a peer's arena read-only, after checking that it cannot shrink.
    ///
    /// # Errors
    /// `EPERM` if it is not sealed or has the wrong size; else what the kernel said.
    pub fn open(fd: i32) -> Result<Self, Errno> {
        // SAFETY: integers only; a file without seals answers EINVAL.
        let seals = unsafe { syscall!(Sysno::fcntl, fd, F_GET_SEALS) }?;
        let needed = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
        // SAFETY: lseek moves the offset of a memory file that nobody reads by offset.
        let size = unsafe { syscall!(Sysno::lseek, fd, 0, libc::SEEK_END) }?;
        if seals & needed != needed || size != layout::ARENA_BYTES {
            return Err(Errno::EPERM);
        }
        Self::map(fd, false)
    }

    fn map(fd: i32, writable: bool) -> Result<Self, Errno> {
        let prot = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let base = unsafe {
            syscall!(
                Sysno::mmap,
                0,
                layout::ARENA_BYTES,
                prot,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd,
                0
            )
        }?;
        // SAFETY: the range was just mapped; the advice only keeps it out of core files.
        let _ = unsafe { syscall!(Sysno::madvise, base, layout::ARENA_BYTES, MADV_DONTDUMP) };
        Ok(Self {
            base: base as *mut u8,
        })
    }

    /// The arena made here whose mapping begins at `base`.
    ///
    /// # Safety
    /// `base` is the [`Self::address`] of an arena from [`Self::create`], still mapped.
    #[must_use]
    pub unsafe fn from_own_address(base: *mut u8) -> Self {
        Self { base }
    }

    /// Takes the mapping away.
    pub fn unmap(self) {
        // SAFETY: the caller has no address in it any more.
        let _ = unsafe { syscall!(Sysno::munmap, self.base, layout::ARENA_BYTES) };
    }

    /// Where it is mapped; names it within the process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base as usize
    }

    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `offset` is a layout constant inside the mapping, aligned to 8.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// The control lines of a slot.
    ///
    /// # Panics
    /// If the slot does not exist: callers check numbers from outside first.
    #[must_use]
    pub fn slot(&self, slot: u32) -> &'static Slot {
        assert!((slot as usize) < layout::SLOTS);
        // SAFETY: in the mapping, aligned, all atomics, valid for every bit pattern;
        // mappings outlive the sockets that use them.
        unsafe { &*self.base.add(layout::slot_at(slot)).cast() }
    }

    /// First byte of a slot's ring.
    #[must_use]
    pub fn ring(&self, slot: u32) -> *mut u8 {
        assert!((slot as usize) < layout::SLOTS);
        // SAFETY: the ring of a valid slot lies in the mapping.
        unsafe { self.base.add(layout::ring_at(slot)) }
    }

    /// The door of a group.
    #[must_use]
    pub fn door(&self, group: u32) -> &'static Door {
        let group = group as usize % layout::GROUPS;
        // SAFETY: `group` is below GROUPS, so it is in the mapping; aligned and atomic.
        // Mappings outlive what uses them.
        unsafe {
            &*self
                .base
                .add(layout::DOORS_AT + group * layout::LINE)
                .cast()
        }
    }

    /// The tail line of a group's log.
    #[must_use]
    pub fn tail(&self, group: u32) -> &'static Tail {
        let group = group as usize % layout::GROUPS;
        // SAFETY: `group` is below GROUPS, so it is in the mapping; aligned and atomic.
        // Mappings outlive what uses them.
        unsafe {
            &*self
                .base
                .add(layout::TAILS_AT + group * layout::LINE)
                .cast()
        }
    }

    /// The log of a group.
    #[must_use]
    pub fn log(&self, group: u32) -> Log<'static> {
        let group = group as usize % layout::GROUPS;
        // SAFETY: `group` is below GROUPS, so it is in the mapping; aligned and atomic.
        // Mappings outlive what uses them.
        unsafe {
            let first = self
                .base
                .add(layout::LOGS_AT + group * layout::LOG_ENTRIES * 8)
                .cast();
            Log::new(
                self.tail(group as u32),
                std::slice::from_raw_parts(first, layout::LOG_ENTRIES),
            )
        }
    }

    /// Backs the first `bytes` of a slot's ring with memory, so that a store
    /// cannot fail. `false`: there is none.
    #[must_use]
    pub fn populate(&self, slot: u32, bytes: usize) -> bool {
        // SAFETY: the range is in a writable mapping; the advice only faults pages in.
        let done = unsafe { syscall!(Sysno::madvise, self.ring(slot), bytes, MADV_POPULATE_WRITE) };
        // A kernel before 5.14 does not know the advice: it faults pages in as they come.
        matches!(done, Ok(_) | Err(Errno::EINVAL))
    }
}

/// The largest file that this process may make (`RLIMIT_FSIZE`, `getrlimit(2)`); memory
/// files count.
fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: libc::RLIM64_INFINITY,
    };
    // SAFETY: of this process; the kernel writes one `rlimit64`, for which there is room.
    let _ = unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit) };
    limit.rlim_cur
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// The kernel would end a process that makes too large a file.
    #[test]
    fn a_limit_of_file_sizes_refuses_an_arena() {
        let limit = libc::rlimit {
            rlim_cur: 100 << 20,
            rlim_max: 100 << 20,
        };
        // SAFETY: the child makes system calls only; the limit is its own.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                libc::_exit(i32::from(!matches!(Arena::create(), Err(Errno::EFBIG))));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        assert_eq!(status, 0);
    }
}
