//! The submission queues of the program's `io_uring`s, as far as we can look into them.
//!
//! ```text
//!  ring:  head ──> tail        indices into ─────> array ──────> entries of 64 (or 128) bytes
//!         (kernel) (program)   the array, masked   (or itself)   opcode flags … fd …
//! ```
//!
//! Only rings that were set up by `syscall` are known, and only those whose entries the kernel
//! takes in `io_uring_enter`: what a kernel thread takes (`IORING_SETUP_SQPOLL`) nobody can look
//! at before. A ring is mapped for as long as one look lasts: a mapping keeps it alive.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::c_int;

use crate::sys;
use crate::thread::Lock;

/// `struct io_uring_params` (`linux/io_uring.h`), as far as it concerns us.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Parameters {
    entries: u32,
    completions: u32,
    /// `IORING_SETUP_…`.
    pub(crate) flags: u32,
    others: [u32; 7],
    head: u32,
    tail: u32,
    mask: u32,
    others_of_ring: [u32; 3],
    array: u32,
}

/// Entries are twice as long.
const SQE128: u32 = 1 << 10;
/// There is no array: the entries are in order.
const NO_SQARRAY: u32 = 1 << 16;
/// Set-ups of which we can see every entry that is submitted: those that say how the kernel
/// waits, completes and sizes.
const VISIBLE: u32 = 1
    | 1 << 3
    | 1 << 4
    | 1 << 5
    | 1 << 6
    | 1 << 7
    | 1 << 8
    | 1 << 9
    | SQE128
    | 1 << 11
    | 1 << 12
    | 1 << 13
    | NO_SQARRAY;

impl Parameters {
    /// Whether what is submitted to such a ring can be seen before.
    pub(crate) fn is_visible(&self) -> bool {
        self.flags & !VISIBLE == 0
    }
}

/// A known ring.
struct Ring {
    /// 1 + its descriptor; 0: there is none here. (Zeros take no room in the library's data.)
    named: AtomicI32,
    entries: AtomicU32,
    flags: AtomicU32,
    /// Where in the ring's memory head, tail, mask and array are.
    places: [AtomicU32; 4],
}

static RINGS: [Ring; 32] = [const {
    Ring {
        named: AtomicI32::new(0),
        entries: AtomicU32::new(0),
        flags: AtomicU32::new(0),
        places: [const { AtomicU32::new(0) }; 4],
    }
}; 32];
static LOCK: Lock = Lock::new();

/// Notes a new ring. `false`: there is no room to.
pub(crate) fn note(fd: c_int, parameters: &Parameters) -> bool {
    let o = Ordering::Relaxed;
    if !LOCK.take() {
        return false;
    }
    let at = |wanted| RINGS.iter().find(|ring| ring.named.load(o) == wanted);
    // One of that number was closed meanwhile.
    let place = at(fd.wrapping_add(1)).or_else(|| at(0));
    if let Some(ring) = place {
        ring.entries.store(parameters.entries, o);
        ring.flags.store(parameters.flags, o);
        let p = parameters;
        for (to, from) in ring.places.iter().zip([p.head, p.tail, p.mask, p.array]) {
            to.store(from, o);
        }
        ring.named.store(fd.wrapping_add(1), Ordering::Release);
    }
    LOCK.give();
    place.is_some()
}

/// In a forked child: the parent's threads are gone.
pub(crate) fn after_fork_child() {
    LOCK.reset();
}

/// Shows `see` the entries that are to be submitted to a ring, `most` at most. Returns how many
/// there are. `None`: the ring is not known, or cannot be looked at.
pub(crate) fn look(fd: c_int, most: u32, mut see: impl FnMut(Entry)) -> Option<u32> {
    let o = Ordering::Relaxed;
    let ring = RINGS
        .iter()
        .find(|ring| ring.named.load(Ordering::Acquire) == fd.wrapping_add(1))?;
    let (count, flags) = (ring.entries.load(o), ring.flags.load(o));
    let [head, tail, mask, array] = ring.places.each_ref().map(|place| place.load(o) as usize);
    let indexed = flags & NO_SQARRAY == 0;
    let size = if flags & SQE128 == 0 { 64 } else { 128 };
    let words = [head, tail, mask].into_iter().max()? + 4;
    let bytes = words.max(array + if indexed { count as usize * 4 } else { 0 });
    let queue = Mapping::new(fd, bytes, 0)?;
    let entries = Mapping::new(fd, count as usize * size, ENTRIES_AT)?;
    let (head, tail) = (queue.word(head), queue.word(tail));
    let mask = queue.word(mask);
    let waiting = tail.wrapping_sub(head).min(count).min(most);
    for i in 0..waiting {
        let at = head.wrapping_add(i) & mask;
        let index = if indexed {
            queue.word(array + at as usize * 4)
        } else {
            at
        };
        // The kernel drops one that is out of bounds.
        if index < count && at < count {
            // SAFETY: inside the mapping.
            see(Entry(unsafe { entries.at.add(index as usize * size) }));
        }
    }
    Some(waiting)
}

/// Offset of the entries in what a ring's descriptor maps (`IORING_OFF_SQES`).
const ENTRIES_AT: usize = 0x1000_0000;

/// A part of a ring's memory.
struct Mapping {
    at: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(fd: c_int, bytes: usize, offset: usize) -> Option<Self> {
        let at = sys::map_file(ptr::null_mut(), fd, bytes, offset);
        (!at.is_null()).then_some(Self { at, bytes })
    }

    /// The word at this offset, which is 0 where there is none.
    fn word(&self, offset: usize) -> u32 {
        if offset + 4 > self.bytes || !offset.is_multiple_of(4) {
            return 0;
        }
        // SAFETY: inside the mapping, and aligned. Kernel and program write it.
        unsafe { &*self.at.add(offset).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        sys::unmap(self.at, self.bytes);
    }
}

/// An entry that is to be submitted: 64 bytes of the program's and the kernel's.
pub(crate) struct Entry(*mut u8);

impl Entry {
    fn get<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: a field of `struct io_uring_sqe`, inside a mapping that outlives the look.
        unsafe { self.0.add(offset).cast::<T>().read_volatile() }
    }

    pub(crate) fn operation(&self) -> u8 {
        self.get(0)
    }

    pub(crate) fn flags(&self) -> u8 {
        self.get(1)
    }

    pub(crate) fn fd(&self) -> c_int {
        self.get(4)
    }

    pub(crate) fn offset(&self) -> u64 {
        self.get(8)
    }

    pub(crate) fn address(&self) -> u64 {
        self.get(16)
    }

    pub(crate) fn length(&self) -> u32 {
        self.get(24)
    }

    /// Flags of the operation.
    pub(crate) fn own_flags(&self) -> u32 {
        self.get(28)
    }

    /// The other descriptor of a splice.
    pub(crate) fn source(&self) -> c_int {
        self.get(44)
    }

    pub(crate) fn set_offset(&self, offset: u64) {
        // SAFETY: as in `get`; the program has given it away.
        unsafe { self.0.add(8).cast::<u64>().write_volatile(offset) }
    }

    /// It has been done already: it completes with 0 and does nothing.
    pub(crate) fn set_done(&self) {
        const NOP: u8 = 0;
        // SAFETY: as in `get`; the program has given it away.
        unsafe {
            self.0.add(28).cast::<u32>().write_volatile(0);
            self.0.write_volatile(NOP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(entries: u32, flags: u32) -> Parameters {
        Parameters {
            entries,
            completions: 0,
            flags,
            others: [0; 7],
            head: 0,
            tail: 4,
            mask: 8,
            others_of_ring: [0; 3],
            array: 64,
        }
    }

    #[test]
    fn a_ring_whose_entries_a_kernel_thread_takes_cannot_be_seen() {
        const SQPOLL: u32 = 1 << 1;
        assert!(parameters(8, 0).is_visible() && parameters(8, SQE128).is_visible());
        assert!(!parameters(8, SQPOLL).is_visible() && !parameters(8, 1 << 30).is_visible());
    }

    /// A file in the place of a ring of four entries, of which the program has submitted two: the third
    /// and the first of its array.
    fn ring(number_at: usize) -> c_int {
        let fd = sys::memory_file(c"ring", ENTRIES_AT + 4096).unwrap();
        let queue = Mapping::new(fd, 4096, 0).unwrap();
        let entries = Mapping::new(fd, 4096, ENTRIES_AT).unwrap();
        let put = |map: &Mapping, at: usize, value: u32| {
            // SAFETY: inside the mapping, and aligned.
            unsafe { map.at.add(at).cast::<u32>().write(value) };
        };
        for (at, value) in [(0, 5), (4, 7), (8, 3), (64 + 4, 2), (64 + 8, 0)] {
            put(&queue, at, value);
        }
        for index in 0..4 {
            put(&entries, index * 64 + number_at, 100 + index as u32);
        }
        fd
    }

    #[test]
    fn what_is_submitted_is_seen_in_order() {
        let fd = ring(4);
        assert!(look(fd, 9, |_| ()).is_none());
        assert!(note(fd, &parameters(4, 0)));
        let mut seen = Vec::new();
        assert_eq!(look(fd, 9, |entry| seen.push(entry.fd())), Some(2));
        assert_eq!(seen, [102, 100]);
        seen.clear();
        assert_eq!(look(fd, 1, |entry| seen.push(entry.fd())), Some(1));
        assert_eq!(seen, [102]);
        sys::close(fd);
    }

    #[test]
    fn an_entry_that_has_been_done_does_nothing() {
        let mut words = [0u32; 16];
        words[0] = 29 | 5 << 8;
        words[7] = 77;
        let entry = Entry(words.as_mut_ptr().cast());
        assert_eq!(
            (entry.operation(), entry.flags(), entry.own_flags()),
            (29, 5, 77)
        );
        entry.set_offset(1 << 40);
        entry.set_done();
        assert_eq!(
            (entry.operation(), entry.own_flags(), entry.offset()),
            (0, 0, 1 << 40)
        );
    }
}
