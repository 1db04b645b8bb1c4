//! Which sets a socket is in, and what its peer is told of that.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::atomic::heavy;
use shunt_shm::slot;

use super::set::SETS;
use super::{call, outside};
use crate::link::Pair;
use crate::socket::Socket;
use crate::sys;

/// Tells the peer, by our wait word, in which group to log what happens to a
/// socket. With the socket's lock.
///
/// A socket whose registrations are all dormant stays as it is. `true`: the
/// peer has been told something new.
pub(super) fn watch(socket: &'static Socket) -> bool {
    let told = say_watched(socket);
    if told {
        // Pairs with the light barrier before a peer's look at the wait word: what
        // it publishes from now on is logged; what came before is seen by the look
        // that the caller makes next.
        heavy();
    }
    told
}

/// The same without the barrier.
pub(super) fn say_watched(socket: &'static Socket) -> bool {
    let Some(pair) = socket.pair() else {
        return false;
    };
    // Who waits for several says no more where that is.
    pair.own.face.forget_core();
    let mut group = None;
    let mut dormant = false;
    for &(set, item) in socket.items.list().iter() {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        set.with(|s| {
            let watched = s
                .items
                .get(item as usize)
                // One that is near is looked at directly.
                .filter(|item| item.moved && !item.near);
            match watched {
                Some(item) if item.dormant => dormant = true,
                // One that is in several is on its way to TCP.
                Some(_) => group = s.door(pair.link, set).or(group),
                None => {}
            }
        });
    }
    if group.is_none() && dormant {
        return false;
    }
    let bits = group.map_or(0, said);
    let change = |old: u32| {
        let said = old & slot::WATCH_MASK;
        (said != bits && !is_relatives(pair, said)).then_some(old & !slot::WATCH_MASK | bits)
    };
    let wait = &pair.own.face.wait;
    wait.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change)
        .is_ok()
}

/// Whether another process that has this side of the connection, too, watches it.
pub(super) fn is_watched_by_relative(pair: &Pair) -> bool {
    is_relatives(pair, pair.own.face.wait.load(Ordering::Acquire))
}

/// Whether a wait word names a door where a set of another process stands.
fn is_relatives(pair: &Pair, wait: u32) -> bool {
    let group = (wait & slot::WATCH_MASK) >> slot::GROUP_SHIFT;
    wait & slot::WATCHED != 0 && call::is_anothers(pair.link, group)
}

/// The bits that name a group.
fn said(group: u32) -> u32 {
    slot::WATCHED | group << slot::GROUP_SHIFT
}

/// The last descriptor of a socket is about to be closed while the daemon may
/// hold a copy of it, which would keep the kernel's registration alive. (So does a relative
/// that goes on with the connection and the set.)
pub(crate) fn part(socket: &'static Socket, fd: c_int) {
    if socket.items.is_empty() || socket.share.is_shared() || !socket.lock.take() {
        return;
    }
    for &(set, item) in socket.items.list().iter() {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        set.with(|s| {
            if let Some(item) = s.items.get(item as usize)
                && item.fd == fd
                && !item.moved
            {
                let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
            }
        });
    }
    socket.lock.give();
}

/// How this process watches a socket by its own sets, for one that is to take its place.
pub(crate) fn registrations(socket: &'static Socket) -> Vec<Registration> {
    let mut all = Vec::new();
    if socket.items.is_empty() || !socket.lock.take() {
        return all;
    }
    for &(set, item) in socket.items.list().iter() {
        let Some(set) = SETS.get(set).filter(|set| set.is_own()) else {
            continue;
        };
        set.with(|s| {
            if let Some(item) = s.items.get(item as usize).filter(|item| !item.dormant) {
                all.push(Registration {
                    set: set.fd(),
                    fd: item.fd,
                    event: libc::epoll_event {
                        events: item.events,
                        u64: item.data,
                    },
                });
            }
        });
    }
    socket.lock.give();
    all
}

/// A registration as the program has made it.
pub(crate) struct Registration {
    set: c_int,
    fd: c_int,
    event: libc::epoll_event,
}

impl Registration {
    /// Makes it anew, with the kernel, of whatever the number names now.
    pub(crate) fn make_again(mut self) {
        let _ = sys::epoll_ctl(self.set, libc::EPOLL_CTL_ADD, self.fd, &raw mut self.event);
    }
}

/// A socket ends: its registrations are gone, as the kernel's are.
pub(crate) fn forget(socket: &'static Socket) {
    if socket.items.is_empty() || !socket.lock.take() {
        return;
    }
    let link = socket.pair().map(|p| p.link);
    let items = std::mem::take(socket.items.list());
    // A relative may go on with the connection, and watch it.
    say_watched(socket);
    for (set, item) in items {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        set.with(|s| {
            if s.items[item as usize].moved {
                set.moved.fetch_sub(1, Ordering::AcqRel);
                outside::forget(set, s, item);
                if let Some(link) = link {
                    s.unfollow(link, set);
                }
            }
            s.remove(item);
            set.tracked.fetch_sub(1, Ordering::AcqRel);
        });
    }
    socket.lock.give();
}
