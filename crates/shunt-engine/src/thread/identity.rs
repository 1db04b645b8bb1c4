//! Which process this is, and how many forks led to it.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::{under_way, words};
use crate::sys;

/// The words that every start, fork and exit looks at. They lie in a page that the loader has
/// written anyway, so that a program without sockets, and each of its forked children, copies no
/// page because of this library.
#[unsafe(link_section = ".data")]
pub(super) static PROCESS: Process = Process {
    pid: AtomicU32::new(0),
    forks: AtomicU32::new(0),
    used: AtomicBool::new(false),
    lent: AtomicBool::new(false),
    joined: AtomicBool::new(false),
    cancels: AtomicBool::new(false),
    mark: AtomicPtr::new(std::ptr::null_mut()),
};

pub(super) struct Process {
    pub(super) pid: AtomicU32,
    /// Forks that led to this process, as far as it or its parents had anything to know.
    pub(super) forks: AtomicU32,
    /// The library has something to do at a fork, an exec or an exit.
    pub(super) used: AtomicBool,
    /// Another process may run on this memory.
    pub(super) lent: AtomicBool,
    /// A thread of which libc knows nothing may run on this memory at the same time.
    pub(super) joined: AtomicBool,
    /// A thread has been asked to end ([`super::cancel`]).
    pub(super) cancels: AtomicBool,
    /// The mark by which [`super::owner`] knows the process; null: there is none yet.
    pub(super) mark: AtomicPtr<AtomicU32>,
}

/// Remembers the process id; at start and after a fork in the child.
#[inline]
pub(crate) fn learn_pid() {
    PROCESS.pid.store(sys::getpid(), Ordering::Relaxed);
    if PROCESS.lent.load(Ordering::Relaxed) {
        // That was lent to children of this process's parent.
        PROCESS.lent.store(false, Ordering::Relaxed);
    }
    // SAFETY: this thread's own words.
    unsafe { (*words::here()).name = 0 };
    under_way::forget();
}

/// The process id as last learned.
#[inline(always)]
pub(crate) fn pid() -> u32 {
    PROCESS.pid.load(Ordering::Relaxed)
}

/// How many forks led to this process.
#[inline(always)]
pub(crate) fn forks() -> u32 {
    PROCESS.forks.load(Ordering::Relaxed)
}

/// This process is a forked child.
pub(crate) fn note_fork() {
    PROCESS.forks.fetch_add(1, Ordering::Relaxed);
}

/// Whether this process has ever had a descriptor of interest, or is to leave
/// statistics. One that has not needs nothing of us when it forks or ends.
#[inline]
pub(crate) fn is_used() -> bool {
    PROCESS.used.load(Ordering::Acquire)
}
