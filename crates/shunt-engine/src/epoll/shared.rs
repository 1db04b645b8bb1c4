//! A set that parent and child both wait on since a fork.
//!
//! Its inner set tells of each news once, to whichever process asks first; and a child is called by nobody, since
//! its parent has the doors. So from the first wait of a child on, each process looks at all registrations every
//! [`TURN`]. An edge is told to one of them only, as by the kernel.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::full;

use super::set::{SETS, Set};
use super::state::State;
use super::wanted;
use crate::stream::TURN;
use crate::sys;

/// Before a fork: a child can say that it waits on a set.
pub(crate) fn before_fork() {
    for set in SETS.each().filter(|set| set.is_live() && set.is_shunted()) {
        set.waited_on.before_fork();
    }
}

impl Set {
    /// A wait on the set looks at it, or is about to sleep and is counted at its doors. If a relative waits on the set, too, though
    /// it may never sleep, this process looks from time to time from here on. (A look from outside takes kicks, so it is none.)
    #[inline]
    pub(crate) fn notice_relatives(&self) {
        if !self.waited_on.is_unknown() {
            self.notice();
        }
    }

    #[cold]
    fn notice(&self) {
        let is_raised = self.waited_on.is_raised();
        if !is_raised && !self.is_own() && self.is_shunted() && self.waited_on.raise() {
            // Pairs with the one between a sleeper's word at its doors and its look at the flag.
            full();
            let mut is_asleep = false;
            self.with(|state| is_asleep = is_parent_asleep(state));
            if is_asleep {
                self.wake_any();
            }
        }
        if self.waited_on.is_raised()
            && !self.is_in_turns.load(Ordering::Relaxed)
            && !self.is_in_turns.swap(true, Ordering::Relaxed)
        {
            self.outside.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether a relative may wait on the set, too. Then what the inner set tells one of the processes, it does not tell
    /// the other.
    pub(super) fn may_be_shared(&self) -> bool {
        !self.is_own() || self.waited_on.is_raised()
    }

    /// Whether threads that wait on the set do not sleep in the kernel's set, which may be ready only for the parent.
    pub(crate) fn naps(&self) -> bool {
        self.is_in_turns.load(Ordering::Relaxed) && !self.is_own()
    }
}

/// In a child: whether a thread sleeps at the doors that its parent had at the fork.
fn is_parent_asleep(state: &State) -> bool {
    state.follows.iter().any(|follow| {
        let door = follow.door.map(|number| follow.link.own().door(number));
        door.is_some_and(|door| door.sleepers.load(Ordering::Acquire) != 0)
    })
}

/// Queues, from time to time, all items of which another process may have been told instead. With the set's
/// lock.
pub(super) fn look(set: &Set, state: &mut State) {
    if !set.is_in_turns.load(Ordering::Relaxed) {
        return;
    }
    let now = sys::now();
    if now.wrapping_sub(set.turn_at.load(Ordering::Relaxed)) < TURN {
        return;
    }
    set.turn_at.store(now, Ordering::Relaxed);
    for index in 0..state.items.len() {
        let item = &state.items[index];
        let is_level = item.events & libc::EPOLLET as u32 == 0;
        if is_level && wanted(item.events) != 0 {
            state.enqueue(index as u32, true);
        }
    }
}
