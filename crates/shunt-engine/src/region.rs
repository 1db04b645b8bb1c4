//! The counters region of this process (`shunt_abi::counters`): a sealed memory file that
//! shuntd can still read when the process has gone, mapped by steps as far as there are
//! sockets. Without such a file, or a step of it, the process and its sockets count in
//! memory of their own, and nobody else sees it.

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};

use shunt_abi::counters::{self, Header, RECORD_BYTES, RECORDS_AT, Record, STEP_BYTES};

use crate::kept::Kept;
use crate::thread::Lock;
use crate::{config, sys};

pub(crate) mod count;
pub(crate) mod line_file;

/// The process's own counts: null at first, then the first step or [`OWN`].
static HEADER: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
// SAFETY: integers, for which zero is a value.
static OWN: Header = unsafe { std::mem::zeroed() };
/// What is mapped of the file.
static STEPS: [AtomicPtr<u8>; counters::STEPS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; counters::STEPS];
static FILE: Kept = Kept::nothing();
/// Held while something is mapped.
static LOCK: Lock = Lock::new();

/// Something in the region, or in the place of it, found by one load.
pub(crate) struct Shown<T: 'static>(AtomicPtr<T>);

impl<T> Shown<T> {
    pub(crate) fn set(&self, place: &'static T) {
        self.0
            .store(std::ptr::from_ref(place).cast_mut(), Ordering::Relaxed);
    }
}

impl<T> Deref for Shown<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `Socket::show_in` set it before the socket was published, to a place that is
        // not unmapped before it is set anew; what is there is atomic.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
}

/// Begins to count, if this process does not yet. `true`: it has just begun, and nobody has been shown where.
#[must_use]
pub(crate) fn ensure() -> bool {
    if header().is_some() || !LOCK.take() {
        return false;
    }
    // Another thread may have been faster.
    let is_first = header().is_none();
    if is_first {
        let file = make_file();
        begin(file, map(file, 0, std::ptr::null_mut()));
    }
    LOCK.give();
    is_first
}

/// A forked child gets a file of its own, mapped in the places of its parent's. Where that
/// fails nothing is left there: what it counts is none of its parent's. Sockets that were
/// counted there must be shown anew.
pub(crate) fn after_fork_child() {
    LOCK.reset();
    if header().is_none() {
        return;
    }
    if let Some(fd) = FILE.take() {
        sys::close(fd);
    }
    let file = make_file();
    for (number, step) in STEPS.iter().enumerate() {
        let parents = step.load(Ordering::Relaxed);
        if parents.is_null() && number > 0 {
            continue;
        }
        let own = map(file, number, parents);
        if own.is_null() && !parents.is_null() {
            sys::unmap(parents, STEP_BYTES);
        }
        step.store(own, Ordering::Relaxed);
    }
    begin(file, STEPS[0].load(Ordering::Relaxed));
}

/// A new file, which nobody can resize. (`F_SEAL_FUTURE_WRITE` would forbid this process to map later steps. A
/// process that can open the file to write can write to this process's memory as well.)
fn make_file() -> Option<c_int> {
    // A program that has confined itself may not be allowed to make files.
    if config::is_confined() || !sys::may_grow_to(counters::SIZE as u64) {
        return None;
    }
    let fd = sys::memory_file(c"shunt-counters", counters::SIZE)?;
    if sys::seal_size(fd) {
        return Some(sys::move_high(fd));
    }
    sys::close(fd);
    None
}

/// Maps a step of the file, there if `at` is not null. Null: it cannot be.
fn map(file: Option<c_int>, number: usize, at: *mut u8) -> *mut u8 {
    file.map_or(std::ptr::null_mut(), |fd| {
        sys::map_file(at, fd, STEP_BYTES, number * STEP_BYTES)
    })
}

/// Begins to count in a file's first step or, without one, in our own memory.
fn begin(file: Option<c_int>, first: *mut u8) {
    STEPS[0].store(first, Ordering::Release);
    let header: *const Header = if first.is_null() {
        if let Some(fd) = file {
            sys::close(fd);
        }
        &raw const OWN
    } else {
        if let Some(fd) = file {
            FILE.keep(fd);
        }
        first.cast()
    };
    // SAFETY: a file's first step begins with this, aligned; neither is ever unmapped while
    // it is the header.
    unsafe { &*header }.begin(sys::getpid(), &sys::comm());
    HEADER.store(header.cast_mut(), Ordering::Release);
}

/// The region's file, if there is one.
pub(crate) fn file() -> Option<c_int> {
    FILE.get()
}

/// The program wants this number: ours moves.
pub(crate) fn make_way(fd: c_int) {
    FILE.make_way(fd);
}

/// The process's own counts, if it has begun to count.
#[inline]
pub(crate) fn header() -> Option<&'static Header> {
    // SAFETY: null, or what `begin` has put there.
    unsafe { HEADER.load(Ordering::Acquire).as_ref() }
}

/// Where a socket object is counted for others to see.
pub(crate) fn record(index: u32) -> Option<&'static Record> {
    let at = RECORDS_AT + index as usize * RECORD_BYTES;
    let step = step(at / STEP_BYTES)?;
    header()?.used.fetch_max(index + 1, Ordering::Relaxed);
    // SAFETY: whole records are in a step behind the header, aligned, atomic, valid zeroed.
    Some(unsafe { &*step.add(at % STEP_BYTES).cast() })
}

/// A step of the file, mapped if it is not yet.
fn step(number: usize) -> Option<*mut u8> {
    let known = || {
        let step = STEPS.get(number)?.load(Ordering::Acquire);
        (!step.is_null()).then_some(step)
    };
    // A program that has confined itself may not be allowed to map more.
    if known().is_some() || number >= counters::STEPS || config::is_confined() || !LOCK.take() {
        return known();
    }
    if known().is_none() {
        let step = map(FILE.get(), number, std::ptr::null_mut());
        STEPS[number].store(step, Ordering::Release);
    }
    LOCK.give();
    known()
}
