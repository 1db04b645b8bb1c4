//! Arenas: sealed memory files with one writer.
//!
//! The writer makes the file, maps it, then seals it: from then on nobody can
//! resize it or map it writable again (`memfd_create(2)`, `F_SEAL_FUTURE_WRITE`),
//! so its descriptor can be handed to a peer that is not trusted, and a peer
//! that maps it need not fear `SIGBUS`: nobody can truncate it, and a process that unmaps it
//! unmaps its own view alone.
//!
//! A forked child has none of it (`MADV_DONTFORK`) but the parts that [`Arena::hand_on`] names: those
//! of connections that it shares. A part that a process has given away once, by [`Arena::unmap_part`]
//! or since its parent kept it, it cannot map again: the seal forbids that too.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
const MADV_DONTFORK: usize = 10;
const MADV_DOFORK: usize = 11;
const MADV_DONTDUMP: usize = 16;
const MADV_POPULATE_WRITE: usize = 23;

/// A mapped arena. Never unmapped by itself: connections hold addresses in it;
/// [`Arena::unmap`] is called when the last is gone.
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    base: *mut u8,
    slots: u32,
}

/// A part of an arena that a process may have mapped or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything before the rings: control lines of all slots, doors and logs.
    Control,
    /// The rings of these slots.
    Rings(Range<u32>),
}

// SAFETY: an arena is plain shared memory; everything in it that threads touch
// is atomic or guarded by a token.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes, maps and seals an arena with `wanted` slots, or fewer where the process's limits are
    /// narrow. Returns it with its descriptor (close-on-exec), which the caller passes on and
    /// closes.
    ///
    /// # Errors
    /// `EFBIG` or `ENOMEM` where not one slot fits the limits; else what `memfd_create`,
    /// `ftruncate`, `mmap` or `fcntl` said.
    pub fn create(wanted: u32) -> Result<(Self, i32), Errno> {
        let slots = wanted.min(slots_within_limits()?);
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a valid C string; the call touches nothing else.
        let fd = unsafe { syscall!(Sysno::memfd_create, c"shunt-arena".as_ptr(), flags) }? as i32;
        let made = (|| {
            // SAFETY: integers only; the file was made above and is not mapped yet.
            unsafe { syscall!(Sysno::ftruncate, fd, layout::arena_bytes(slots)) }?;
            let arena = Self::map(Some(fd), slots, true)?;
            let seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE | SEAL_SEAL;
            // SAFETY: integers only; seals forbid what nobody does.
            if let Err(errno) = unsafe { syscall!(Sysno::fcntl, fd, F_ADD_SEALS, seals) } {
                // SAFETY: nobody else has it yet.
                unsafe { arena.unmap() };
                return Err(errno);
            }
            Ok(arena)
        })();
        match made {
            Ok(arena) => {
                arena
                    .u64_at(layout::MAGIC_AT)
                    .store(layout::MAGIC, Ordering::Release);
                Ok((arena, fd))
            }
            Err(errno) => {
                // SAFETY: closes the descriptor made above.
                let _ = unsafe { syscall!(Sysno::close, fd) };
                Err(errno)
            }
        }
    }

    /// Maps a peer's arena read-only, or its first `most` slots, after checking that it
    /// cannot shrink.
    ///
    /// # Errors
    /// `EPERM` if it is not sealed or has no arena's size; else what the kernel said.
    pub fn open(fd: i32, most: u32) -> Result<Self, Errno> {
        // SAFETY: integers only; a file without seals answers EINVAL.
        let seals = unsafe { syscall!(Sysno::fcntl, fd, F_GET_SEALS) }?;
        let needed = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE;
        // SAFETY: lseek moves the offset of a memory file that nobody reads by offset.
        let size = unsafe { syscall!(Sysno::lseek, fd, 0, libc::SEEK_END) }?;
        let slots = layout::slots_of(size as u64).ok_or(Errno::EPERM)?;
        if seals & needed != needed {
            return Err(Errno::EPERM);
        }
        Self::map(Some(fd), slots.min(most), false)
    }

    /// Maps memory of this process alone, laid out as the arena of a peer on another host, for what this process hears of
    /// that one.
    ///
    /// # Errors
    /// `ENOMEM` where the process's limits are too narrow; else what `mmap` said.
    pub fn view(slots: u32) -> Result<Self, Errno> {
        Self::map(None, slots, true)
    }

    /// Maps an arena's memory, from a file or without one.
    fn map(fd: Option<i32>, slots: u32, writable: bool) -> Result<Self, Errno> {
        let bytes = layout::arena_bytes(slots);
        let all = MAPPED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mapped = if all as u64 > limit(libc::RLIMIT_AS) / SHARE {
            Err(Errno::ENOMEM)
        } else {
            Self::map_bytes(fd, bytes, writable)
        };
        match mapped {
            Ok(base) => Ok(Self { base, slots }),
            Err(errno) => {
                MAPPED.fetch_sub(bytes, Ordering::Relaxed);
                Err(errno)
            }
        }
    }

    fn map_bytes(fd: Option<i32>, bytes: usize, writable: bool) -> Result<*mut u8, Errno> {
        let prot = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let kind = match fd {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        let (flags, fd) = (kind | libc::MAP_NORESERVE, fd.unwrap_or(-1));
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { syscall!(Sysno::mmap, 0, bytes, prot, flags, fd, 0) }?;
        // SAFETY: the range was just mapped; the advice only keeps it out of core files.
        let _ = unsafe { syscall!(Sysno::madvise, base, bytes, MADV_DONTDUMP) };
        // SAFETY: the same; this one keeps it out of forked children.
        if let Err(errno) = unsafe { syscall!(Sysno::madvise, base, bytes, MADV_DONTFORK) } {
            // SAFETY: mapped above, and nobody has its address.
            let _ = unsafe { syscall!(Sysno::munmap, base, bytes) };
            return Err(errno);
        }
        Ok(base as *mut u8)
    }

    /// The arena made here whose mapping begins at `base`.
    ///
    /// # Safety
    /// `base` is the [`Self::address`] of an arena from [`Self::create`], still mapped, and
    /// `slots` what that has.
    #[must_use]
    pub unsafe fn from_own_address(base: *mut u8, slots: u32) -> Self {
        Self { base, slots }
    }

    /// How many slots this mapping covers, from the first one on; the peer's arena may have more.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether the addresses that this process may have are limited (`RLIMIT_AS`).
    #[must_use]
    pub fn are_addresses_scarce() -> bool {
        limit(libc::RLIMIT_AS) != libc::RLIM64_INFINITY
    }

    /// Takes the mapping away.
    ///
    /// # Safety
    /// Nobody uses an address in it any more.
    pub unsafe fn unmap(self) {
        let bytes = layout::arena_bytes(self.slots);
        // SAFETY: the caller's promise.
        let _ = unsafe { syscall!(Sysno::munmap, self.base, bytes) };
        self.forget();
    }

    /// Notes that nothing of the arena is mapped here any more.
    pub fn forget(self) {
        MAPPED.fetch_sub(layout::arena_bytes(self.slots), Ordering::Relaxed);
    }

    /// Takes the mapping of a part away: for good, since nobody can map it again for writing.
    ///
    /// # Safety
    /// Nobody uses an address in this part any more.
    pub unsafe fn unmap_part(&self, part: &Part) {
        let (base, bytes) = self.place(part);
        // SAFETY: the caller's promise.
        let _ = unsafe { syscall!(Sysno::munmap, base, bytes) };
    }

    /// Puts empty memory of this process alone in the place of a part. `false`: there is none, and the
    /// part stays.
    #[must_use]
    pub fn blank(&self, part: &Part) -> bool {
        let (base, bytes) = self.place(part);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range is this arena's. Zero is a value of everything in it, all of which is atomic.
        unsafe { syscall!(Sysno::mmap, base, bytes, prot, flags, usize::MAX, 0) }.is_ok()
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        let from = self.base as usize;
        (from..from + layout::arena_bytes(self.slots)).contains(&address)
    }

    /// Decides whether children that are forked from now on get a part. `false`: the kernel refuses
    /// to treat the part differently from the rest (it would be one mapping too many).
    #[must_use]
    pub fn hand_on(&self, part: &Part, inherited: bool) -> bool {
        let (base, bytes) = self.place(part);
        let advice = if inherited {
            MADV_DOFORK
        } else {
            MADV_DONTFORK
        };
        // SAFETY: the advice concerns mappings in forked children only.
        unsafe { syscall!(Sysno::madvise, base, bytes, advice) }.is_ok()
    }

    fn place(&self, part: &Part) -> (*mut u8, usize) {
        let (from, to) = match part {
            Part::Control => (0, layout::RINGS_AT),
            Part::Rings(slots) => {
                assert!(slots.start <= slots.end && slots.end <= self.slots);
                (layout::ring_at(slots.start), layout::ring_at(slots.end))
            }
        };
        // SAFETY: inside the mapping, or one past its end.
        (unsafe { self.base.add(from) }, to - from)
    }

    /// The address of its mapping, which also names it within the process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base as usize
    }

    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `offset` is a layout constant inside the mapping, aligned to 8.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// Until when the writer finds the cores crowded (time stamp counter); 0: it never has. In a
    /// peer's arena this is only a hint, and may be anything.
    #[must_use]
    pub fn crowded_until(&self) -> &AtomicU64 {
        self.u64_at(layout::CROWDED_AT)
    }

    /// The PID namespace of the writer's processes; 0: not known. In a peer's arena it may say anything.
    #[must_use]
    pub fn pid_namespace(&self) -> &AtomicU64 {
        self.u64_at(layout::PID_NAMESPACE_AT)
    }

    /// The control lines of a slot.
    ///
    /// # Panics
    /// If the slot does not exist: callers check numbers from outside first.
    #[must_use]
    pub fn slot(&self, slot: u32) -> &'static Slot {
        assert!(slot < self.slots);
        // SAFETY: in the mapping, aligned, all atomics, valid for every bit pattern;
        // mappings outlive the sockets that use them.
        unsafe { &*self.base.add(layout::slot_at(slot)).cast() }
    }

    /// First byte of a slot's ring.
    #[must_use]
    pub fn ring(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.slots);
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

/// Bytes of all arenas that are mapped here.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Arenas that a process with one link has: its own, the peer's, and one in stock.
const ARENAS: u64 = 3;
/// All arenas together may take one in this many of the addresses that this process is allowed.
const SHARE: u64 = layout::ADDRESSES / ARENAS;

/// How many slots an arena may have by this process's limits (`getrlimit(2)`): of file sizes
/// (past it the kernel would not only refuse, but send SIGXFSZ), and of addresses, most of
/// which the program has for itself.
fn slots_within_limits() -> Result<u32, Errno> {
    let fit = |bytes: u64, errno: Errno| {
        let rings = bytes.checked_sub(layout::RINGS_AT as u64).ok_or(errno)?;
        let slots = rings / layout::RING_BYTES as u64;
        let most = u64::from(layout::MOST_SLOTS);
        (slots > 0).then_some(slots.min(most) as u32).ok_or(errno)
    };
    let by_size = fit(limit(libc::RLIMIT_FSIZE), Errno::EFBIG)?;
    let addresses = limit(libc::RLIMIT_AS);
    let by_addresses = fit(addresses / layout::ADDRESSES, Errno::ENOMEM)?;
    // The peer's arena, which comes with the link, needs as many.
    let left = (addresses / SHARE).saturating_sub(MAPPED.load(Ordering::Relaxed) as u64);
    let by_rest = fit(left / 2, Errno::ENOMEM)?;
    Ok(by_size.min(by_addresses).min(by_rest))
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit64 {
        rlim_cur: libc::RLIM64_INFINITY,
        rlim_max: libc::RLIM64_INFINITY,
    };
    // SAFETY: of this process; the kernel writes one `rlimit64`, for which there is room.
    let _ = unsafe { syscall!(Sysno::prlimit64, 0, resource, 0, &raw mut limit) };
    limit.rlim_cur
}

#[cfg(all(test, not(model), not(miri)))]
mod tests;
