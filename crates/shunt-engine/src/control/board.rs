//! The board: memory of the daemon's that every client reads.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::c_int;
use shunt_abi::board;

use super::state::PATIENCE_MS;
use crate::sys;

static BOARD: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static MAILBOX: AtomicU32 = AtomicU32::new(board::NO_MAIL);
static SEEN: AtomicU32 = AtomicU32::new(0);

/// Reads this board from now on, and in it the mail word with the number `mailbox`. With the lock.
pub(super) fn adopt(board: *mut u8, mailbox: u32) {
    let fits = (mailbox as usize) < board::MAIL_SLOTS;
    MAILBOX.store(
        if fits { mailbox } else { board::NO_MAIL },
        Ordering::Relaxed,
    );
    SEEN.store(0, Ordering::Relaxed);
    // An old board stays mapped: another thread may be looking at it.
    BOARD.store(board, Ordering::Release);
}

/// Whether the daemon may have sent something that nobody has read.
#[inline]
pub(crate) fn has_mail() -> bool {
    mail().is_none_or(|mail| mail != SEEN.load(Ordering::Relaxed))
        && !BOARD.load(Ordering::Acquire).is_null()
}

/// How many messages the daemon has sent in all; `None`: it does not count them.
#[inline]
pub(super) fn mail() -> Option<u32> {
    let board = BOARD.load(Ordering::Acquire);
    let index = MAILBOX.load(Ordering::Relaxed);
    if board.is_null() || index == board::NO_MAIL {
        return None;
    }
    // SAFETY: `adopt` checked the index; a board is never unmapped.
    let word = unsafe {
        &*board
            .add(board::MAIL_AT + index as usize * 4)
            .cast::<AtomicU32>()
    };
    Some(word.load(Ordering::Acquire))
}

/// How many messages have not been read yet, where the daemon has sent `mail` in all. With the
/// lock.
pub(super) fn unseen(mail: u32) -> u32 {
    mail.wrapping_sub(SEEN.load(Ordering::Relaxed))
}

/// Everything up to this count has been read. With the lock.
pub(super) fn set_seen(mail: u32) {
    SEEN.store(mail, Ordering::Relaxed);
}

/// Whether some process on this host accelerates connections to `port`: one
/// look at the board.
pub(crate) fn accelerates(port: u16) -> bool {
    is_set(board::PORTS_AT, port)
}

/// Whether some connector to this port has claimed a short connection that its acceptor is to
/// claim, too.
pub(crate) fn is_tried(port: u16) -> bool {
    is_set(board::TRIALS_AT, port)
}

/// Waits until acceptors can see the trial on the board, for `longest` nanoseconds at most.
pub(crate) fn await_trial(port: u16, longest: u64) {
    let start = sys::now();
    while !is_tried(port) && sys::now() - start < longest {
        sys::sched_yield();
    }
}

/// A port's bit in one of the board's bitmaps.
fn is_set(bitmap: usize, port: u16) -> bool {
    let board = BOARD.load(Ordering::Acquire);
    if board.is_null() {
        return false;
    }
    // SAFETY: every port has its word in the bitmaps of the board, which is never unmapped.
    let word = unsafe {
        &*board
            .add(bitmap + port as usize / 32 * 4)
            .cast::<AtomicU32>()
    };
    word.load(Ordering::Acquire) & 1 << (port % 32) != 0
}

/// Whether shuntd can find the other end of a connection whatever its addresses, also in another
/// network namespace of this host.
pub(crate) fn crosses() -> bool {
    let board = BOARD.load(Ordering::Acquire);
    if board.is_null() {
        return false;
    }
    // SAFETY: inside the board, aligned, and the board is never unmapped.
    let word = unsafe { &*board.add(board::CROSSES_AT).cast::<AtomicU32>() };
    word.load(Ordering::Relaxed) != 0
}

/// Waits, within bounds, until everyone can see that `port` is accelerated, so
/// that a `connect` right behind an eager `listen` is paired too.
pub(crate) fn await_listed(port: u16) {
    let start = sys::now();
    while !accelerates(port) && sys::now() - start < PATIENCE_MS as u64 * 1_000_000 {
        sys::sched_yield();
    }
}

/// Maps the board that the daemon passed, if it is one.
pub(super) fn map(fd: c_int) -> Option<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs no other
    // memory, and the file is large enough for it.
    let at = unsafe {
        let size = syscalls::syscall!(syscalls::Sysno::lseek, fd, 0, libc::SEEK_END).ok()?;
        if size < board::SIZE {
            return None;
        }
        syscalls::syscall!(
            syscalls::Sysno::mmap,
            0,
            board::SIZE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0
        )
        .ok()? as *mut u8
    };
    // SAFETY: inside the mapping, which is whole pages, and aligned.
    let magic = unsafe { at.add(board::MAGIC_AT).cast::<u64>().read_volatile() };
    (magic == board::MAGIC).then_some(at)
}
