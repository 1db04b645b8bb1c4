//! A thread waits on a set for connections to accept.

use crate::epoll::{self, Limit, Room, Set};
use crate::recycle::{self, Waits};

/// The thread begins to wait for connections to the listeners in the set, unless it does already. A call that does not wait
/// learns what there is.
#[inline(always)]
pub(super) fn wait_at_listeners(set: &'static Set, waits: &Waits, limit: Limit) {
    if recycle::is_any() && !waits.are_any() {
        wait_at_each(set, waits, limit.is_now());
    }
}

#[cold]
fn wait_at_each(set: &'static Set, waits: &Waits, now: bool) {
    set.hide_inner_listeners();
    set.listeners()
        .for_each(|listener| waits.begin(listener, now));
    recycle::shut_shared();
}

/// Reports listeners that have something to accept of which the kernel does not know, behind `found` events. Returns
/// how many events there are now.
#[inline(always)]
pub(super) fn tell_listeners(
    set: &'static Set,
    room: &mut Room,
    found: usize,
    waits: &Waits,
) -> usize {
    if waits.have_news() {
        waits.end();
    }
    if recycle::is_any_taken() {
        epoll::tell_listeners(set, room, found, recycle::last_taken)
    } else {
        found
    }
}

/// Writes where this thread, which is about to wait at listeners, can be called. `true`: it can be called there,
/// perhaps in the place of another thread that sleeps on the set.
pub(super) fn say_waiting(set: &'static Set, waits: &Waits) -> bool {
    let is_called = waits.are_any() && set.hears_calls();
    if is_called {
        waits.say(|at| set.tell(at));
    } else {
        // Nobody could wake this thread but the kernel.
        waits.give_up();
    }
    is_called
}

/// This time rounded up to whole milliseconds, still in nanoseconds: the real call is `epoll_wait`.
pub(super) fn in_milliseconds(nanoseconds: u64) -> u64 {
    nanoseconds.next_multiple_of(1_000_000)
}
