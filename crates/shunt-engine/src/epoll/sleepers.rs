//! How senders learn that a thread sleeps on a set: the thread is counted at the set's door in each link.
//!
//! All threads sleep in the kernel's `epoll_wait` on the program's set, and it wakes one of them for a call, as for any
//! event. That one reads the logs for all, and has senders call again for the others.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::full;
use shunt_shm::wake::Door;

use super::hearing;
use super::polled;
use super::restore::restore;
use super::set::Set;
use super::state::State;
use super::within::Inside;
use crate::reach;
use crate::stream::share_crowd;

/// A thread is about to sleep on the set, or on something that contains it. `true`:
/// shunted sockets may have news; the caller looks at the set once more before it
/// sleeps.
///
/// Where nothing is shunted there is no door, nobody who would look at one, and so
/// nothing for a barrier to pair with: such a sleep costs what it costs natively. A
/// socket that comes later comes with the set's lock: it finds this sleeper counted,
/// puts it at the new door (`follow`), and has it look again (`kick`), if there may
/// have been news before.
pub(crate) fn begin_sleep(set: &'static Set) -> bool {
    if !stand_at_doors(set, 1) {
        return false;
    }
    // Pairs with the one before a waker's look at the door.
    full();
    set.expose_nested();
    true
}

/// Counts `threads` more sleepers at the doors of the set and of the sets inside it. `true`: there are doors.
pub(super) fn stand_at_doors(set: &'static Set, threads: u32) -> bool {
    let (mut stands, mut inside, mut is_mirrored) = (true, None, false);
    let own = set.with(|state| {
        set.sleepers.fetch_add(threads, Ordering::AcqRel);
        if !state.nested.is_empty() {
            inside = Some(Inside::of(state));
        }
        restore(set, state);
        stands = state.follows.is_empty() || hearing::tell_doors(set, state);
        for follow in &state.follows {
            share_crowd(follow.link);
            is_mirrored |= follow.link.is_between_hosts();
        }
        at_doors(set, state, |door| {
            door.sleepers.fetch_add(threads, Ordering::AcqRel);
            door.epoch.fetch_add(1, Ordering::AcqRel);
        });
        !state.follows.is_empty()
    });
    let mut any = false;
    Inside::each(inside, |nested| any |= stand_at_doors(nested, threads));
    if is_mirrored {
        // What has come is in the logs then, and has called those at the doors.
        let _ = reach::watch();
    }
    polled::leave(set);
    if !stands {
        hearing::leave_rings(set);
    }
    // This is a signal handler that has interrupted a change of the set: assume that there are doors.
    any | own.unwrap_or(true)
}

/// A thread that has slept on the set is awake again.
pub(crate) fn end_sleep(set: &'static Set) {
    leave_doors(set, 1);
}

impl Set {
    /// A thread that has [begun to sleep](begin_sleep) is in a wait on this very set. Its look at the set follows.
    pub(crate) fn begin_wait(&self) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
    }

    /// That wait has ended. [`end_sleep`] follows: at no time are more threads counted as waiters than as sleepers.
    pub(crate) fn end_wait(&self) {
        self.waiters.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether another thread sleeps in a wait on this set.
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Acquire) + self.plain_sleepers.load(Ordering::SeqCst) != 0
    }

    /// Whether a thread sleeps in `poll`, or on a set around this one. With the set's lock, so that no sleeper comes or goes meanwhile.
    /// For a moment it may be wrongly `true`.
    pub(super) fn has_outsiders(&self) -> bool {
        self.sleepers.load(Ordering::Acquire) > self.waiters.load(Ordering::Acquire)
    }

    /// A thread is about to sleep on a set that holds nothing shunted, and so is counted at no door. If another thread
    /// changes the set meanwhile, this thread sees the change, or the other one sees this sleeper.
    pub(crate) fn begin_plain_sleep(&self) {
        self.plain_sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread that has slept on the set is awake again.
    pub(crate) fn end_plain_sleep(&self) {
        self.plain_sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The reverse of [`stand_at_doors`], with what is inside by now: a call that changes that counts the threads that
/// sleep meanwhile ([`super::nested`]).
pub(super) fn leave_doors(set: &'static Set, threads: u32) {
    let mut inside = None;
    set.with(|state| {
        set.sleepers.fetch_sub(threads, Ordering::AcqRel);
        if !state.nested.is_empty() {
            inside = Some(Inside::of(state));
        }
        at_doors(set, state, |door| {
            door.sleepers.fetch_sub(threads, Ordering::AcqRel);
            // Those still asleep need a call of their own.
            door.epoch.fetch_add(1, Ordering::AcqRel);
        });
    });
    Inside::each(inside, |nested| leave_doors(nested, threads));
}

/// A thread has taken a call out of the channel, which may have been for another thread that still sleeps. Begins a
/// new epoch, so that senders call again for what they log from now on. The caller reads the logs next. With the set's lock.
pub(super) fn call_again(set: &'static Set, state: &State) {
    if set.sleepers.load(Ordering::Acquire) != 0 {
        at_doors(set, state, |door| {
            door.epoch.fetch_add(1, Ordering::AcqRel);
        });
        // Pairs with the one before a waker's look at the door.
        full();
    }
}

fn at_doors(set: &'static Set, state: &State, visit: impl Fn(&Door)) {
    for follow in &state.follows {
        if let Some(door) = hearing::door(set, follow) {
            visit(follow.link.own().door(door));
        }
    }
}
