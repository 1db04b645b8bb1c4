//! How senders learn that a thread sleeps on a set: it stands at the doors of its links.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::heavy;
use shunt_shm::slot;
use shunt_shm::wake::Door;

use super::SHARED;
use super::set::Set;
use super::state::State;
use crate::stream::Conn;

/// A thread is about to sleep on the set, or on something that contains it. The
/// caller looks at the set once more before it does.
pub(crate) fn begin_sleep(set: &'static Set) {
    stand_at_doors(set);
    // Pairs with the light barrier before a waker's look at the door.
    heavy();
    set.expose_nested();
}

fn stand_at_doors(set: &'static Set) {
    set.each_nested(stand_at_doors);
    set.with(|state| {
        set.sleepers.fetch_add(1, Ordering::AcqRel);
        at_doors(set, state, |door| {
            door.sleepers.fetch_add(1, Ordering::AcqRel);
            door.naps.fetch_add(1, Ordering::AcqRel);
        });
    });
}

/// It is awake again.
pub(crate) fn end_sleep(set: &'static Set) {
    set.each_nested(end_sleep);
    set.with(|state| {
        set.sleepers.fetch_sub(1, Ordering::AcqRel);
        at_doors(set, state, |door| {
            door.sleepers.fetch_sub(1, Ordering::AcqRel);
            // Those still asleep need a ring of their own.
            door.naps.fetch_add(1, Ordering::AcqRel);
        });
    });
}

fn at_doors(set: &'static Set, state: &State, visit: impl Fn(&Door)) {
    for follow in &state.follows {
        visit(follow.link.own().door(set.group()));
        visit(follow.link.own().door(SHARED));
    }
}

/// Whether a thread may be asleep in a set that this connection is in: then its
/// doorbells are left for it.
pub(crate) fn may_sleep(conn: &Conn) -> bool {
    let wait = conn.pair.own.face.wait.load(Ordering::Relaxed);
    wait & slot::WATCHED != 0
        && conn
            .pair
            .link
            .own()
            .door(wait >> slot::GROUP_SHIFT & 0x3f)
            .sleepers
            .load(Ordering::Acquire)
            != 0
}
