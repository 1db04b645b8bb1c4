//! Which sets a socket is in, and how it leaves them.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::outside;
use super::register::count_listeners;
use super::set::{SETS, Set};
use super::state::State;
use super::watch::say_watched;
use crate::socket::Socket;
use crate::sys;

/// Takes the kernel's registrations of a socket out of the program's sets before its last
/// descriptor is closed: the daemon may hold a copy, which would keep them alive. (Where a relative has
/// the connection, nothing is done: its descriptor keeps them alive natively, too.)
pub(crate) fn unregister_before_close(socket: &'static Socket, fd: c_int) {
    if socket.items.is_empty() || socket.share.is_shared() {
        return;
    }
    let Some(socket) = socket.lock() else {
        return;
    };
    for &(set, item) in socket.places() {
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
}

/// Whether the program has registered a socket with a set, while the kernel knows only the
/// library's own registration.
pub(crate) fn has(socket: &'static Socket) -> bool {
    if socket.items.is_empty() {
        return false;
    }
    let Some(socket) = socket.lock() else {
        return true;
    };
    let is_ours = |set: &'static Set, index: u32| {
        let moved = |s: &mut State| s.items.get(index as usize).map(|i| i.moved && !i.inactive);
        set.with(moved).flatten() == Some(true)
    };
    let places = socket.places().iter();
    let mut sets = places.filter_map(|&(set, index)| Some((SETS.get(set)?, index)));
    sets.any(|(set, index)| is_ours(set, index))
}

/// A socket ends: its registrations are gone, as the kernel's are.
pub(crate) fn forget(socket: &'static Socket) {
    if socket.items.is_empty() {
        return;
    }
    let Some(mut socket) = socket.lock() else {
        return;
    };
    let link = socket.pair().map(|p| p.link);
    let items = socket.change_places(std::mem::take);
    // A relative may still use the connection, and watch it.
    say_watched(&socket);
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
            count_listeners(set, s);
            set.tracked.fetch_sub(1, Ordering::AcqRel);
        });
    }
}
