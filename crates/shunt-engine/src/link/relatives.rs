//! What of a link's memory relatives have: processes that a fork has made of this one, or this one of.
//!
//! ```text
//! before a fork     the rings of connections that are there, with the control lines beside
//!                   them, are handed on; nothing else is, so nothing else can be read or written
//! from then on      the link is *retired*: a new connection goes to a link of new memory, on
//!                   either side; shuntd is told before it hears of the next claim
//! in the child      what has not come is forgotten; what is not needed any more goes before the
//!                   child changes its user or gives up system calls
//! ```
//!
//! A link without a connection is not handed on and not retired.

use std::sync::atomic::{AtomicBool, Ordering};

use shunt_shm::arena::Part;

use super::{ANY_GONE, LINKS, Link, Pair, Slots};
use crate::thread::{self, Lock, is_alone};

/// Guards [`Link::used`], and who has which part.
static LOCK: Lock = Lock::new();
/// The daemon is to be told that some link is retired.
static ANY_TO_RETIRE: AtomicBool = AtomicBool::new(false);

/// Before a fork: the child has what it may use, which `each_used` names, and no link of which it has memory
/// will be used for a new connection. `false`: the kernel refuses that for some link ([`is_handed_on`]).
pub(crate) fn before_fork(each_used: impl Fn(&mut dyn FnMut(Pair))) -> bool {
    if !LOCK.take() {
        return true;
    }
    note_used(each_used);
    let mut done = true;
    for link in LINKS.each().filter(|link| link.is_open()) {
        if link.used.is_empty() {
            link.withhold();
        } else {
            done &= link.hand_on();
        }
    }
    LOCK.give();
    done
}

/// Whether a child that is forked now would have the memory of a connection.
pub(crate) fn is_handed_on(pair: &Pair) -> bool {
    pair.link.handed_on.has(pair.number)
}

/// Notes the slots that are used.
fn note_used(each_used: impl Fn(&mut dyn FnMut(Pair))) {
    for link in LINKS.each() {
        link.used.clear();
    }
    each_used(&mut |pair| pair.link.used.add(pair.number..pair.number + 1));
}

impl Link {
    fn is_open(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// Whether a relative has memory of it, so that no new connection may use it.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether nothing of it is mapped here.
    pub(crate) fn is_empty(&self) -> bool {
        self.mapped.is_empty()
    }

    /// Hands on to a child the rings of the slots in use, and the control lines before them. `false`: the kernel
    /// refuses, and a child gets nothing.
    fn hand_on(&self) -> bool {
        if !self.retired.swap(true, Ordering::AcqRel) {
            // The daemon still hands out slots of a link between hosts: a connection that gets one stays on TCP.
            if !self.is_between_hosts() {
                self.retire_due.store(true, Ordering::Release);
                ANY_TO_RETIRE.store(true, Ordering::Release);
            }
            // No new connection comes from here on.
            self.gone.store(true, Ordering::Release);
            ANY_GONE.store(true, Ordering::Relaxed);
        }
        let mut done = true;
        if self.handed_on.is_empty() {
            done &= self.pass(&Part::Control, true);
        }
        self.used.each_run_without(&self.handed_on, |run| {
            done &= self.pass(&Part::Rings(run), true);
        });
        let had = &self.handed_on;
        had.each_run_without(&self.used, |run| {
            had.remove(run.clone());
            done &= self.pass(&Part::Rings(run), false);
        });
        self.used.each_run_without(had, |run| had.add(run));
        if done {
            return true;
        }
        // The process cannot have one more mapping: hands on everything that is mapped here.
        let mut all = self.pass(&Part::Control, true);
        self.each_mapped(|run| {
            all &= self.pass(&Part::Rings(run.clone()), true);
            had.add(run);
        });
        if !all {
            self.withhold();
        }
        all
    }

    /// Withholds all memory of the link from children.
    fn withhold(&self) {
        if self.handed_on.is_empty() {
            return;
        }
        self.handed_on.clear();
        self.pass(&Part::Control, false);
        self.each_mapped(|run| {
            self.pass(&Part::Rings(run), false);
        });
    }

    /// Calls `visit` with the runs of rings that are mapped here. (Something else may be mapped by now where the
    /// others were.)
    fn each_mapped(&self, visit: impl FnMut(std::ops::Range<u32>)) {
        self.mapped.each_run_without(&Slots::default(), visit);
    }

    /// Both arenas have as many slots as the link, or more.
    fn pass(&self, part: &Part, inherited: bool) -> bool {
        let arenas = [self.own(), self.peer()];
        let passed = arenas.map(|arena| arena.hand_on(part, inherited));
        passed == [true; 2]
    }

    /// Takes away the rings that are mapped here.
    ///
    /// # Safety
    /// Nobody uses them any more.
    pub(super) unsafe fn unmap_rings(&self) {
        // SAFETY: the caller's promise.
        self.each_mapped(|run| unsafe { self.unmap_run(run) });
    }

    /// # Safety
    /// Nobody uses these rings any more.
    unsafe fn unmap_run(&self, run: std::ops::Range<u32>) {
        for arena in [self.own(), self.peer()] {
            // SAFETY: the caller's promise.
            unsafe { arena.unmap_part(&Part::Rings(run.clone())) };
        }
    }
}

/// In a forked child: notes which links' memory has come, and which has not.
pub(crate) fn after_fork_child() {
    LOCK.reset();
    ANY_TO_RETIRE.store(false, Ordering::Relaxed);
    for link in LINKS.each().filter(|link| link.is_open()) {
        // The parent's sets stand at the doors.
        for set in &link.sets {
            set.store(0, Ordering::Relaxed);
        }
        link.mapped.keep(&link.handed_on);
        link.handed_on.keep(&link.mapped);
        for flag in [&link.foreign, &link.retired, &link.gone] {
            flag.store(true, Ordering::Relaxed);
        }
        link.retire_due.store(false, Ordering::Relaxed);
    }
    ANY_GONE.store(true, Ordering::Relaxed);
}

/// In a forked child: whether the memory of a connection has come.
pub(crate) fn has_come(pair: &Pair) -> bool {
    pair.link.mapped.has(pair.number)
}

/// In a forked child, when nobody looks at them any more: links of which nothing has come are forgotten.
pub(crate) fn forget_empty() {
    for link in LINKS.each().filter(|link| link.is_open()) {
        if link.is_empty() {
            link.in_use.store(false, Ordering::Relaxed);
            link.own().forget();
            link.peer().forget();
            LINKS.give(link);
        }
    }
}

/// In a forked child: unmaps what it has of the memory of its parent's links, except what `each_used` names.
pub(crate) fn drop_all_but(each_used: impl Fn(&mut dyn FnMut(Pair))) {
    // Not if other threads may still look at what would go.
    if thread::forks() == 0 || !is_alone() || !LOCK.take() {
        return;
    }
    note_used(each_used);
    let foreign = |link: &&Link| link.is_open() && link.foreign.load(Ordering::Relaxed);
    for link in LINKS.each().filter(foreign) {
        if link.used.is_empty() && link.users.load(Ordering::Acquire) == 0 {
            // SAFETY: no socket has it, and this is the only thread.
            unsafe { link.end() };
            continue;
        }
        link.mapped.each_run_without(&link.used, |run| {
            // SAFETY: no connection uses these rings, and this is the only thread.
            unsafe { link.unmap_run(run) };
        });
        link.mapped.keep(&link.used);
        link.handed_on.keep(&link.used);
    }
    LOCK.give();
}

/// Whether the daemon is to be told that some link is retired.
pub(crate) fn is_any_to_retire() -> bool {
    ANY_TO_RETIRE.load(Ordering::Acquire)
}

/// Tells the daemon of each retired link by `say`, which returns whether it could. `false`: some are left. With
/// the control lock.
pub(crate) fn retire_all(say: impl Fn(u64) -> bool) -> bool {
    if !ANY_TO_RETIRE.swap(false, Ordering::AcqRel) {
        return true;
    }
    let due = |link: &&Link| link.is_open() && link.retire_due.load(Ordering::Acquire);
    for link in LINKS.each().filter(due) {
        if !say(link.id()) {
            ANY_TO_RETIRE.store(true, Ordering::Release);
            return false;
        }
        link.retire_due.store(false, Ordering::Release);
    }
    true
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::{BothEnds, in_child};
    use crate::socket::Socket;
    use crate::sys;

    #[test]
    fn a_child_has_the_rings_of_connections_and_the_link_serves_no_new_one() {
        let ends = BothEnds::attached();
        let pair = ends.conns()[0].pair;
        let reads = |slot| in_child(|| sys::is_readable(pair.link.own().ring(slot)));
        assert!(!is_handed_on(pair) && !pair.link.is_retired() && !reads(0));
        assert!(before_fork(|visit| Socket::each_used(|_| true, visit)));
        assert!(is_handed_on(pair) && pair.link.is_retired());
        assert!(reads(0) && !reads(1));
    }

    #[test]
    fn what_is_used_no_more_is_withheld_from_the_next_child() {
        let ends = BothEnds::attached();
        let pair = ends.conns()[0].pair;
        let reads = || in_child(|| sys::is_readable(pair.link.own().ring(0)));
        assert!(before_fork(|visit| visit(*pair)));
        assert!(is_handed_on(pair) && reads());
        assert!(before_fork(|_| ()));
        assert!(!is_handed_on(pair) && !reads());
        assert!(pair.link.is_retired());
    }
}
