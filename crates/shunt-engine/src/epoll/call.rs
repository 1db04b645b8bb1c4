//! A set that sleeps often has a wake channel of its own in it, by which peers call it.
//!
//! Its address lies at the doors where the set's threads stand. Whoever cannot call there
//! rings on the connection, as for a set without one; so does everybody where other sets,
//! or forked relatives, may stand behind the same door.
//!
//! A call says nothing but that a log has news. So whoever takes one out of the channel
//! reads the logs after that.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::epoll_event;
use shunt_shm::atomic::full;
use shunt_shm::wake::{Address, Door};

use super::SHARED;
use super::set::Set;
use super::state::State;
use crate::{link, sys, table};

/// A set that has slept so often gets a channel: seven system calls.
const SLEEPS: u32 = 16;

/// So many sets that several share a group, and its doors.
static CROWDED: AtomicBool = AtomicBool::new(false);

/// A set is made.
pub(super) fn begin(set: &Set) {
    set.channel.begin();
    set.slept.store(0, Ordering::Relaxed);
    if set.index() >= SHARED {
        CROWDED.store(true, Ordering::Release);
    }
}

/// A thread is about to sleep on the set, which has doors: says at these where it can be
/// called. With the set's lock.
pub(super) fn tell_doors(set: &Set, state: &State) {
    if set.channel.is_unused() && !CROWDED.load(Ordering::Acquire) {
        let slept = set.slept.load(Ordering::Relaxed) + 1;
        set.slept.store(slept, Ordering::Relaxed);
        if slept >= SLEEPS {
            let open = set.channel.open(|fd| {
                let mut event = epoll_event {
                    events: libc::EPOLLIN as u32,
                    u64: set.call_magic(),
                };
                sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event).map(|_| ())
            });
            if !open {
                set.slept.store(0, Ordering::Relaxed);
            }
        }
    }
    let doors = || {
        let follows = state.follows.iter();
        follows.map(|follow| follow.link.own().door(set.group()))
    };
    doors().for_each(|door| tell_door(set, door));
    if set.channel.is_open() {
        // A set that is made now stands there after this, or is seen.
        full();
        if CROWDED.load(Ordering::Acquire) {
            doors().for_each(|door| tell_door(set, door));
        }
    }
}

/// The same at one door, at a new one also where threads are asleep already.
pub(super) fn tell_door(set: &Set, door: &Door) {
    if CROWDED.load(Ordering::Acquire) {
        door.address.say(Address::MANY, 0);
    } else if set.channel.is_open() {
        set.channel.tell(&door.address);
    } else {
        door.address.say(Address::NOWHERE, 0);
    }
}

/// No set that there is will be called any more: who is asleep looks once.
pub(crate) fn retire_all() {
    for set in table::SETS.each() {
        set.with(|_| {
            set.slept.store(0, Ordering::Relaxed);
            if set.channel.retire() {
                set.kick();
            }
        });
    }
}

/// Nobody can call the set any more; what was in the channel has come too late.
pub(super) fn close(set: &Set) {
    set.slept.store(0, Ordering::Relaxed);
    set.channel.close();
}

/// In a forked child, whose doors are its parent's where links are.
pub(super) fn after_fork_child() {
    if link::any() {
        CROWDED.store(true, Ordering::Release);
    }
    for set in table::SETS.each() {
        set.slept.store(0, Ordering::Relaxed);
        set.channel.retire();
    }
}
