//! Descriptors and the objects behind them, found in two loads.
//!
//! Both tables grow by chunks that are never given back, so an address, once
//! seen, stays valid: a look-up needs no lock, and a reader that loses a race
//! against `close` sees another generation, never freed memory.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::epoll::Set;
use crate::socket::Socket;
use crate::{sys, thread};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

/// What a descriptor is.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Nothing of interest: the kernel's.
    Other,
    /// A TCP socket.
    Socket(&'static Socket),
    /// An epoll set.
    Set(&'static Set),
    /// One of the library's own descriptors.
    Ours,
}

/// An entry is one word: the object's address with its kind in the low bits, which
/// are zero in an address, or [`OURS`] alone.
type Cell = AtomicPtr<()>;

const CHUNK_BYTES: usize = CHUNK * size_of::<Cell>();

const SOCKET: usize = 1;
const SET: usize = 2;
const OURS: usize = 3;
const KIND: usize = 3;
const _: () = assert!(align_of::<Socket>() > KIND && align_of::<Set>() > KIND);

static DESCRIPTORS: [AtomicPtr<Cell>; CHUNKS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];

/// All sockets.
pub(crate) static SOCKETS: Pool<Socket> = Pool::new();
/// All epoll sets.
pub(crate) static SETS: Pool<Set> = Pool::new();

#[inline(always)]
fn cell(fd: c_int) -> Option<&'static Cell> {
    let fd = fd as u32 as usize;
    if fd >= CHUNK * CHUNKS {
        return None;
    }
    let chunk = DESCRIPTORS[fd / CHUNK].load(Ordering::Acquire);
    if chunk.is_null() {
        return None;
    }
    // SAFETY: a chunk has CHUNK cells and is never freed.
    Some(unsafe { &*chunk.add(fd % CHUNK) })
}

/// The object in an entry, if it is of this kind.
///
/// # Safety
/// Entries of this kind name objects of this type.
#[inline(always)]
unsafe fn object<T>(word: *mut (), kind: usize) -> Option<&'static T> {
    if word.addr() & KIND != kind {
        return None;
    }
    // SAFETY: pooled objects are never freed, and the kind says which this is.
    Some(unsafe { &*word.byte_sub(kind).cast::<T>() })
}

#[inline(always)]
fn as_socket(word: *mut ()) -> Option<&'static Socket> {
    // SAFETY: `enter` writes it so.
    unsafe { object(word, SOCKET) }
}

#[inline(always)]
fn as_set(word: *mut ()) -> Option<&'static Set> {
    // SAFETY: `enter` writes it so.
    unsafe { object(word, SET) }
}

fn decode(word: *mut ()) -> Entry {
    match word.addr() & KIND {
        OURS => Entry::Ours,
        _ => as_socket(word)
            .map(Entry::Socket)
            .or_else(|| as_set(word).map(Entry::Set))
            .unwrap_or(Entry::Other),
    }
}

fn encode(entry: Entry) -> *mut () {
    fn tagged<T>(object: &'static T, kind: usize) -> *mut () {
        // SAFETY: inside the object, which is larger.
        unsafe { std::ptr::from_ref(object).byte_add(kind).cast_mut().cast() }
    }
    match entry {
        Entry::Other => std::ptr::null_mut(),
        Entry::Socket(socket) => tagged(socket, SOCKET),
        Entry::Set(set) => tagged(set, SET),
        Entry::Ours => std::ptr::without_provenance_mut(OURS),
    }
}

/// What `fd` is.
#[inline(always)]
pub(crate) fn look(fd: c_int) -> Entry {
    match cell(fd).map(|cell| cell.load(Ordering::Acquire)) {
        Some(word) if !word.is_null() => decode(word),
        _ => Entry::Other,
    }
}

/// The socket that `fd` is, if it is one.
#[inline(always)]
pub(crate) fn socket(fd: c_int) -> Option<&'static Socket> {
    as_socket(cell(fd)?.load(Ordering::Acquire))
}

/// The epoll set that `fd` is, if it is one.
#[inline(always)]
pub(crate) fn set(fd: c_int) -> Option<&'static Set> {
    as_set(cell(fd)?.load(Ordering::Acquire))
}

/// Enters `fd`; returns what it was.
pub(crate) fn enter(fd: c_int, entry: Entry) -> Entry {
    let index = fd as u32 as usize;
    if index >= CHUNK * CHUNKS {
        return Entry::Other;
    }
    let word = encode(entry);
    let home = &DESCRIPTORS[index / CHUNK];
    if home.load(Ordering::Acquire).is_null() {
        if word.is_null() {
            return Entry::Other;
        }
        thread::set_used();
        let fresh = sys::map_wiped_on_fork(CHUNK_BYTES);
        let fresh = if fresh.is_null() {
            sys::map(CHUNK_BYTES)
        } else {
            fresh
        };
        let fresh = fresh.cast();
        // A thread that was faster keeps its chunk; ours is lost, once.
        let _ = home.compare_exchange(
            std::ptr::null_mut(),
            fresh,
            Ordering::SeqCst,
            Ordering::Acquire,
        );
        // A thread that forks just now may not have seen it.
        if IS_HANDED_ON.load(Ordering::SeqCst) {
            sys::wipe_on_fork(fresh.cast(), CHUNK_BYTES, false);
        }
    }
    match cell(fd) {
        Some(cell) => decode(cell.swap(word, Ordering::AcqRel)),
        None => Entry::Other,
    }
}

/// Whether children find the table just now.
static IS_HANDED_ON: AtomicBool = AtomicBool::new(false);

/// Whether children find in their copy of the table what their parent has there: those of a fork do that
/// the library sees. To any other child all descriptors are the kernel's, as it has none of the memory of
/// its parent's connections.
///
/// `false`: the kernel refuses that of a part.
pub(crate) fn hand_on(whole: bool) -> bool {
    let mut done = true;
    IS_HANDED_ON.store(whole, Ordering::SeqCst);
    for home in &DESCRIPTORS {
        let chunk = home.load(Ordering::SeqCst);
        if !chunk.is_null() {
            done &= sys::wipe_on_fork(chunk.cast(), CHUNK_BYTES, !whole);
        }
    }
    done
}

/// Whether any socket or epoll set has ever been entered: before that, no descriptor
/// is of interest.
#[inline]
pub(crate) fn is_any() -> bool {
    SOCKETS.is_any() || SETS.is_any()
}

/// Calls `visit` for every descriptor that is entered.
pub(crate) fn each(mut visit: impl FnMut(c_int, Entry)) {
    for (i, home) in DESCRIPTORS.iter().enumerate() {
        if home.load(Ordering::Acquire).is_null() {
            continue;
        }
        for j in 0..CHUNK {
            let fd = (i * CHUNK + j) as c_int;
            match look(fd) {
                Entry::Other => {}
                entry => visit(fd, entry),
            }
        }
    }
}

/// Something a [`Pool`] holds. All-zero bytes must be a valid free object.
pub(crate) trait Pooled: 'static {
    /// Where its own index and the next free one are kept.
    fn links(&self) -> &Links;
}

/// A pooled object's place.
#[derive(Debug)]
pub(crate) struct Links {
    index: AtomicU32,
    next_free: AtomicU32,
}

impl Links {
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }
}

const PER_CHUNK: usize = 256;

/// So many objects a pool may have.
pub(crate) const MOST: usize = CHUNKS * PER_CHUNK;

/// Objects that are reused and never freed. Allocation is lock-free and calls
/// no allocator, so it is safe wherever the program may open a socket.
pub(crate) struct Pool<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
    /// Low half: index + 1 of the first free object; high half: a tag against ABA.
    free: AtomicU64,
    used: AtomicU32,
}

impl<T: Pooled> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            free: AtomicU64::new(0),
            used: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.used.load(Ordering::Acquire) != 0
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&'static T> {
        let chunk = self
            .chunks
            .get(index as usize / PER_CHUNK)?
            .load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        // SAFETY: a chunk has PER_CHUNK objects, valid from zeroed bytes on, never freed.
        Some(unsafe { &*chunk.add(index as usize % PER_CHUNK) })
    }

    /// An object to use, or `None` when memory is out.
    pub(crate) fn take(&self) -> Option<&'static T> {
        loop {
            let head = self.free.load(Ordering::Acquire);
            let Some(index) = (head as u32).checked_sub(1) else {
                break;
            };
            let object = self.get(index)?;
            let next = object.links().next_free.load(Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            if self
                .free
                .compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Some(object);
            }
        }
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        let home = self.chunks.get(index as usize / PER_CHUNK)?;
        if home.load(Ordering::Acquire).is_null() {
            let fresh = sys::map(PER_CHUNK * size_of::<T>().next_multiple_of(64)).cast();
            let _ = home.compare_exchange(
                std::ptr::null_mut(),
                fresh,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
        }
        let object = self.get(index)?;
        object.links().index.store(index, Ordering::Relaxed);
        Some(object)
    }

    /// Gives an object back; the caller has ended its life.
    pub(crate) fn give(&self, object: &'static T) {
        let links = object.links();
        loop {
            let head = self.free.load(Ordering::Acquire);
            links.next_free.store(head as u32, Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(links.index() + 1);
            if self
                .free
                .compare_exchange(head, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// So many objects have ever been used.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// Every object ever used, free ones included.
    pub(crate) fn each(&self) -> impl Iterator<Item = &'static T> + '_ {
        (0..self.used()).filter_map(|index| self.get(index))
    }
}
