//! The lock of all kept connections, and whether any may be kept.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::c_int;

use crate::sys;
use crate::thread::Lock;

/// How long a connection is kept, in nanoseconds. A rule that the kernel's firewall has got
/// meanwhile takes effect after this time.
pub(super) const LONGEST: u64 = 1_000_000_000;

/// Held while anything that is kept changes, and while something is offered or taken.
static LOCK: Lock = Lock::new();
/// Nothing is kept any more: threads of this process may be different users.
static OFF: AtomicBool = AtomicBool::new(false);
/// Forks under way: a child would have a copy of what is kept.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The lock, until it is dropped.
pub(super) struct Locked(());

/// Takes the lock. `None`: this thread has it, and is in a signal handler.
pub(super) fn lock() -> Option<Locked> {
    LOCK.take().then(|| Locked(()))
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCK.give();
    }
}

impl Locked {
    /// Whether anything may be kept from here on.
    pub(super) fn may_keep(&self) -> bool {
        !OFF.load(Ordering::SeqCst) && FORKS.load(Ordering::SeqCst) == 0
    }
}

/// Nothing is kept from here on. A thread that has the lock may have looked before.
pub(super) fn keep_no_more() {
    OFF.store(true, Ordering::SeqCst);
}

/// Nothing is kept until the fork that follows is over.
pub(super) fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// After a fork, in the parent.
pub(crate) fn after_fork_parent() {
    // A `vfork` child that forks has counted for its parent, too.
    let less = |forks: u32| forks.checked_sub(1);
    let _ = FORKS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// After a fork, in the child, which has no other thread: runs `work` as if with the lock, and
/// frees the lock.
pub(super) fn after_fork_child(work: impl FnOnce(&Locked)) {
    LOCK.reset();
    FORKS.store(0, Ordering::SeqCst);
    let locked = Locked(());
    work(&locked);
    std::mem::forget(locked);
}

/// Copies a descriptor to one of the library's own numbers.
pub(super) fn copy(fd: c_int) -> Result<c_int, sys::Errno> {
    /// Where the last look at the process's limit has shown them to begin, or a little before; 0: there was none.
    static FIRST: AtomicI32 = AtomicI32::new(0);
    let first = FIRST.load(Ordering::Relaxed);
    let copied = (first > 0).then(|| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, first as usize));
    if let Some(Ok(copy)) = copied {
        return Ok(copy as c_int);
    }
    let copy = sys::copy_high(fd)?;
    FIRST.store(copy & !63, Ordering::Relaxed);
    Ok(copy)
}
