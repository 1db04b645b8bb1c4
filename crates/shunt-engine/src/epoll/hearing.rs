//! Each set has a wake channel, by which peers wake the threads that sleep on the set.
//!
//! * The channel lives as long as the set, but is a member of the set only while a shunted connection is: a late call would
//!   make the set look ready to a set around it.
//! * The channel's address lies at the set's door in each link. A call says only that a log has news, so a thread that takes
//!   a call out of the channel reads the logs after that.
//! * A door belongs to one set of one process, among all processes that have the link since a fork; the address says to which. A
//!   dead process's door goes to the next set that needs one.
//! * A connection goes to TCP to be waited for if it is in several sets, in a set that a parent has made, or in a set
//!   that found no door.

use std::sync::atomic::Ordering;

use libc::epoll_event;
use shunt_abi::{Reason, layout};
use shunt_shm::slot;
use shunt_shm::wake::Address;

use super::set::{SETS, Set};
use super::state::{Follow, Item, State};
use crate::link::{Link, Pair};
use crate::socket::{Locked, Socket};
use crate::stream::{self, Conn};
use crate::{config, hold, sys, wake};

/// A thread is about to sleep on the set, which has doors: says at these where it can be
/// called. With the set's lock. `false`: it cannot be.
pub(super) fn tell_doors(set: &Set, state: &State) -> bool {
    let watches = watch(set);
    state.follows.iter().fold(watches, |stands, follow| {
        stands & (watches && tell_door(set, follow))
    })
}

/// Says at one door where the sleeping thread can be called. `false`: it cannot. If the channel was
/// lost, and opened again by another name, another process may have taken the door for that of a
/// dead one.
fn tell_door(set: &Set, follow: &Follow) -> bool {
    let Some(number) = door(set, follow) else {
        return false;
    };
    let at = &follow.link.own().door(number).address;
    let stands = set.channel.is_told(at) || set.channel.take_over(at, follow.name.get());
    if stands {
        follow.name.set(set.channel.called());
    } else {
        follow.link.enter_set(number, None);
    }
    stands
}

/// The door at which the set is registered, if it still is.
pub(super) fn door(set: &Set, follow: &Follow) -> Option<u32> {
    let stands = |&door: &u32| follow.link.set(door) == Some(set.index());
    follow.door.filter(stands)
}

/// Finds a door for a set that has its first member on a link, and counts the set's sleepers there.
/// With the set's lock. `None`: no door is free, or the set cannot be called.
pub(super) fn find_door(set: &Set, link: &Link) -> Option<u32> {
    if !set.is_own() || !watch(set) {
        return None;
    }
    let takes = |number: u32, former| {
        let door = link.own().door(number);
        let taken = set.channel.take_over(&door.address, former);
        if taken {
            let asleep = set.sleepers.load(Ordering::Acquire);
            door.sleepers.store(asleep, Ordering::Release);
            door.epoch.fetch_add(1, Ordering::AcqRel);
            link.enter_set(number, Some(set.index()));
        }
        taken
    };
    let free = doors().find(|&number| takes(number, Address::NOWHERE));
    free.or_else(|| {
        doors().find(|&number| is_left(link, number).is_some_and(|name| takes(number, name)))
    })
}

fn doors() -> impl Iterator<Item = u32> {
    0..layout::GROUPS as u32
}

/// Whether a link has a door for another set.
pub(super) fn is_free(link: &Link) -> bool {
    doors().any(|number| holder(link, number) == Address::NOWHERE)
        || doors().any(|number| is_left(link, number).is_some())
}

fn holder(link: &Link, number: u32) -> u64 {
    link.own().door(number).address.look().0
}

/// The name at a door, if the process that used it has died.
#[cold]
fn is_left(link: &Link, number: u32) -> Option<u64> {
    let name = holder(link, number);
    let may_be_left = link.set(number).is_none() && name != Address::NOWHERE;
    (may_be_left && !wake::is_there(name)).then_some(name)
}

/// Whether another process has a set at a door.
pub(super) fn is_anothers(link: &Link, number: u32) -> bool {
    let name = holder(link, number);
    link.set(number).is_none() && name != Address::NOWHERE && wake::is_there(name)
}

/// Whether another process that has this side of the connection, too, watches it.
pub(super) fn is_watched_by_relative(pair: &Pair) -> bool {
    is_relatives(pair, pair.own.face.wait.load(Ordering::Acquire))
}

/// Whether a wait word names a door where a set of another process stands.
pub(super) fn is_relatives(pair: &Pair, wait: u32) -> bool {
    let group = (wait & slot::WATCH_MASK) >> slot::GROUP_SHIFT;
    wait & slot::WATCHED != 0 && is_anothers(pair.link, group)
}

/// Leaves a door, since the set has no member on its link any more, or ends. With the set's lock, or where it ends.
pub(super) fn leave_door(set: &Set, follow: &Follow) {
    if let Some(number) = door(set, follow) {
        follow.link.enter_set(number, None);
        // The next set at this door writes everything else there.
        let address = &follow.link.own().door(number).address;
        address.leave(follow.name.get());
    }
}

/// Puts the set's channel into the set. `false`: that cannot be done.
pub(super) fn watch(set: &Set) -> bool {
    if set.channel.is_outdated() {
        set.channel.close();
    }
    let socket = match config::is_confined() {
        // The kernel may forbid the question.
        true => set.channel.is_open().then(|| set.channel.fd()),
        false => set.channel.socket(),
    };
    if set.is_watching.load(Ordering::Relaxed) && socket.is_some() {
        return true;
    }
    let mut event = epoll_event {
        events: libc::EPOLLIN as u32,
        u64: set.call_magic(),
    };
    let fd = socket.or_else(|| {
        set.channel.close();
        set.channel.open().then(|| set.channel.fd())
    });
    let watches = fd.is_some_and(|fd| {
        let added = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event);
        matches!(added, Ok(_) | Err(libc::EEXIST))
    });
    set.is_watching.store(watches, Ordering::Relaxed);
    watches
}

/// The last shunted connection has left the set: takes the channel out of it. With its lock.
pub(super) fn unwatch(set: &Set) {
    if set.is_watching.swap(false, Ordering::Relaxed)
        && let Some(fd) = set.channel.socket()
    {
        let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
    }
}

/// Whether all registrations of a socket are served by one door.
pub(super) fn is_at_one_door(socket: &Locked) -> bool {
    let Some(pair) = socket.pair() else {
        return true;
    };
    let (mut only, mut stands) = (None, true);
    let is_one = socket.places().iter().all(|&(set, item)| {
        let Some(set) = SETS.get(set) else {
            return true;
        };
        let takes_part = set.with(|state| {
            let item = state.items.get(item as usize);
            let takes_part = item.is_some_and(|item| item.moved && !item.inactive && !item.outside);
            stands &= !takes_part || state.door(pair.link, set).is_some();
            takes_part
        });
        takes_part != Some(true) || *only.get_or_insert(set.index()) == set.index()
    });
    is_one && stands && (only.is_none() || !is_watched_by_relative(pair))
}

/// The set cannot be called, or not from every door: connections whose peers cannot call it go back
/// to TCP. Without locks and tokens.
#[cold]
pub(super) fn leave_rings(set: &'static Set) {
    let sockets = set.with(|state| {
        let is_heard = |socket: &Socket| {
            let door = socket.pair().map(|pair| state.door(pair.link, set));
            set.is_watching.load(Ordering::Relaxed) && door.is_some_and(|door| door.is_some())
        };
        let is_called = |item: &&Item| item.live && item.moved && !item.outside;
        let items = state.items.iter().filter(is_called);
        let sockets = items.map(|item| item.socket);
        sockets
            .filter(|socket| !is_heard(socket))
            .collect::<Vec<_>>()
    });
    sockets.into_iter().flatten().for_each(leave_ring);
}

/// Moves one connection that is on its rings back to TCP, since its peer cannot call the set.
#[cold]
pub(super) fn leave_ring(socket: &'static Socket) {
    hold::beside_close(socket, || {
        if let Some(conn) = Conn::attached(socket, socket.fd())
            && stream::is_on_rings(&conn)
        {
            stream::downgrade(&conn, Reason::Blocked);
        }
    });
}
