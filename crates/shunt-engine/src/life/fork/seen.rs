//! Forks that the library sees: while one is under way, its child gets the table of descriptors.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::table;
use crate::thread::Lock;

/// How many threads fork just now; guarded by the lock.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();

/// This thread is about to fork. `false`: the child will not find all of the table.
pub(super) fn begin() -> bool {
    let locked = LOCK.take();
    UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let whole = table::hand_on(true);
    if locked {
        LOCK.give();
    }
    whole
}

/// The fork is over.
pub(super) fn end() {
    let locked = LOCK.take();
    let less = |n: u32| n.checked_sub(1);
    let o = Ordering::Relaxed;
    if UNDER_WAY.fetch_update(o, o, less) == Ok(1) {
        table::hand_on(false);
    }
    if locked {
        LOCK.give();
    }
}

/// In the child no thread forks.
pub(super) fn after_fork_child() {
    LOCK.reset();
    UNDER_WAY.store(0, Ordering::Relaxed);
    table::hand_on(false);
}
