//! Which process the state in memory belongs to, mostly found out without a system call.
//!
//! A child may find itself in its parent's state in two ways. In a copy of it, if it was
//! made by a system call that nobody saw: then its *mark* is gone, a word in a page
//! that the kernel hands to forked children empty (`MADV_WIPEONFORK`). In the state
//! itself, if it was made by `vfork` or the like: then the memory has been *lent*, and
//! from there on only the process number tells.
//!
//! A child with memory of its own that has its parent's table of descriptors (`CLONE_FILES`) is left to believe that it is such
//! a copy: what it closes is closed for its parent, too, so it must take nothing of the library's
//! ([`crate::life::before_sharing_table`]).
//!
//! Of a `vfork` by an instruction of the program's own nobody knows. Its child may move bytes by
//! the state in memory, as a thread may; where descriptors are closed or copied, the kernel is asked.

use std::sync::atomic::{AtomicU32, Ordering};

use super::identity::{PROCESS, is_used, pid};
use super::words;
use crate::{config, sys};

/// Whether this is the process that the state in memory belongs to. A `vfork`
/// child, and a thread after `unshare(CLONE_FILES)`, runs in its parent's memory
/// with descriptors of its own: what it does to them must leave no trace.
pub(crate) fn owns_memory() -> bool {
    (is_marked() || is_ours()) && !words::is_apart()
}

/// [`owns_memory`], confirmed by the kernel. So it is `false` also in the child of a `vfork` that the library has
/// not seen, since the program has made it by an instruction of its own; such a child may close or copy what is
/// its parent's. (A process that has given up system calls may not ask.)
pub(crate) fn owns_descriptors() -> bool {
    owns_memory() && (config::is_confined() || sys::getpid() == pid())
}

#[inline(always)]
fn is_marked() -> bool {
    // SAFETY: null, or a word that stays.
    let mark = unsafe { PROCESS.mark.load(Ordering::Acquire).as_ref() };
    !PROCESS.lent.load(Ordering::Relaxed)
        && mark.is_some_and(|mark| mark.load(Ordering::Relaxed) == pid())
}

#[cold]
fn is_ours() -> bool {
    let ours = sys::getpid() == pid();
    // SAFETY: as above.
    let mark = unsafe { PROCESS.mark.load(Ordering::Acquire).as_ref() };
    if let Some(mark) = mark.filter(|_| ours && !PROCESS.lent.load(Ordering::Relaxed)) {
        // After a fork, in the child.
        mark.store(pid(), Ordering::Relaxed);
    }
    ours
}

/// Another process is about to run on this memory.
pub(crate) fn lend_memory() {
    PROCESS.lent.store(true, Ordering::Relaxed);
}

/// This process has its first descriptor of interest, or is to leave statistics.
pub(crate) fn set_used() {
    if !is_used() {
        make_mark();
        PROCESS.used.store(true, Ordering::Release);
    }
}

/// Makes the mark; without one (Linux before 4.14) the process number tells.
fn make_mark() {
    let fresh: *mut AtomicU32 = sys::map_wiped_on_fork(size_of::<AtomicU32>()).cast();
    if fresh.is_null() {
        return;
    }
    let (none, o) = (std::ptr::null_mut(), Ordering::Acquire);
    let kept = PROCESS
        .mark
        .compare_exchange(none, fresh, Ordering::AcqRel, o);
    if kept.is_err() {
        // Another thread was faster.
        sys::unmap(fresh.cast(), size_of::<AtomicU32>());
    }
}
