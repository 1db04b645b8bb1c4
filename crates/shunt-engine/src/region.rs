//! The counters region of this process (`shunt_abi::counters`): a sealed memory file that
//! shuntd can still read when the process has gone, or private memory where there can be
//! no such file.

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};

use shunt_abi::PROTOCOL;
use shunt_abi::counters::{self, Header, RECORD_BYTES, RECORDS_AT, Record, SOCKETS};

use crate::kept::Kept;
use crate::{config, sys};

static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static FILE: Kept = Kept::nothing();

/// Something in the region, found by one load.
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
        // SAFETY: `Socket::enter` set it before it published the socket, to a place that
        // is never unmapped; what is there is atomic.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
}

/// Makes the region if there is none yet. `false`: there is no memory.
pub(crate) fn ensure() -> bool {
    if !BASE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let (base, fd) = make(std::ptr::null_mut());
    if base.is_null() {
        return false;
    }
    let first = BASE.compare_exchange(
        std::ptr::null_mut(),
        base,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    if first.is_ok() {
        begin(fd);
        return true;
    }
    // Another thread was faster.
    sys::unmap(base, counters::SIZE);
    if let Some(fd) = fd {
        sys::close(fd);
    }
    true
}

/// A forked child gets a region of its own in the place of its parent's.
pub(crate) fn after_fork_child() {
    let base = BASE.load(Ordering::Relaxed);
    if base.is_null() {
        return;
    }
    if let Some(fd) = FILE.take() {
        sys::close(fd);
    }
    let (_, fd) = make(base);
    begin(fd);
}

/// Maps a new region, there if `at` is not null. Null: it cannot be.
fn make(at: *mut u8) -> (*mut u8, Option<c_int>) {
    // A program that has confined itself may not be allowed to make files.
    let allowed = !config::is_confined() && sys::may_grow_to(counters::SIZE as u64);
    if allowed && let Some(fd) = sys::memory_file(c"shunt-counters", counters::SIZE) {
        let base = sys::map_file(at, fd, counters::SIZE);
        if !base.is_null() && sys::seal(fd) {
            return (base, Some(sys::move_high(fd)));
        }
        sys::close(fd);
    }
    (sys::map_private(at, counters::SIZE), None)
}

fn begin(fd: Option<c_int>) {
    if let Some(header) = header() {
        header.magic.store(counters::MAGIC, Ordering::Relaxed);
        header
            .protocol
            .store(u32::from(PROTOCOL), Ordering::Relaxed);
        header.set_comm(&sys::comm());
    }
    if let Some(fd) = fd {
        FILE.keep(fd);
    }
}

/// The region's file, if there is one.
pub(crate) fn file() -> Option<c_int> {
    FILE.get()
}

/// The program wants this number: ours moves.
pub(crate) fn make_way(fd: c_int) {
    FILE.make_way(fd);
}

/// The process's own counts, if there is a region.
#[inline]
pub(crate) fn header() -> Option<&'static Header> {
    let base = BASE.load(Ordering::Acquire);
    // SAFETY: null, or a region that is never unmapped, and begins with this.
    unsafe { base.cast::<Header>().as_ref() }
}

/// The record of a socket object.
pub(crate) fn record(index: u32) -> Option<&'static Record> {
    let header = header()?;
    if index as usize >= SOCKETS {
        return None;
    }
    header.used.fetch_max(index + 1, Ordering::Relaxed);
    let base = BASE.load(Ordering::Relaxed);
    // SAFETY: there are so many records behind the header, aligned, atomic, valid zeroed.
    Some(unsafe { &*base.add(RECORDS_AT + index as usize * RECORD_BYTES).cast() })
}
