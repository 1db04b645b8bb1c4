//! Registrations for which there is no inner set, as the process has no descriptor left for one (the
//! kernel's `EPOLL_CTL_ADD` needs none), or the sets are nested so deep that the kernel takes no other.
//!
//! Their base sockets are in the program's set itself, under data of ours, so that what comes by
//! TCP is heard of. Nobody can call such a set when something comes in a ring: a wait looks there,
//! and sleeps for [`TURN`](crate::stream::TURN) at most before it looks again.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use shunt_shm::slot::Way;

use super::polled;
use super::set::Set;
use super::shared;
use super::state::{Item, State};
use super::wanted;
use crate::link::Link;
use crate::stream::{self, Conn};
use crate::sys::{self, Errno};
use crate::tcp;

impl Set {
    /// Whether some connections of the set are looked at from time to time, since nobody can call
    /// it for them.
    pub(crate) fn looks_in_turns(&self) -> bool {
        self.outside.load(Ordering::Acquire) != 0
    }

    fn change_outside(&self, operation: c_int, fd: c_int) -> Result<(), Errno> {
        let events =
            libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET;
        let mut event = epoll_event {
            events: events as u32,
            u64: self.magic(),
        };
        sys::epoll_ctl(self.fd(), operation, fd, &raw mut event).map(drop)
    }
}

/// Takes a new registration in. With both locks.
pub(super) fn enter(
    set: &'static Set,
    state: &mut State,
    index: u32,
    link: &'static Link,
) -> Result<(), Errno> {
    // Counted first: a thread in a plain wait that gets its report must not take that for an event
    // of the program's.
    set.outside.fetch_add(1, Ordering::SeqCst);
    // The kernel reports the new entry at once, which wakes threads asleep on the set.
    if let Err(errno) = set.change_outside(libc::EPOLL_CTL_ADD, state.items[index as usize].fd) {
        set.outside.fetch_sub(1, Ordering::AcqRel);
        return Err(errno);
    }
    state.follow(link, set);
    let item = &mut state.items[index as usize];
    (item.moved, item.outside) = (true, true);
    item.told_at = tcp::mark(item.fd);
    set.moved.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// The inner sets, of this set and of those inside, make sets nested too deep: what they hold is
/// outside from here on. `false`: there are none.
pub(super) fn make_flat(set: &'static Set) -> bool {
    let mut any = false;
    set.each_inside(|nested| any |= make_flat(nested));
    polled::leave(set);
    any | set.with(|state| take_all_out(set, state)).unwrap_or(false)
}

/// With the set's lock.
pub(super) fn take_all_out(set: &'static Set, state: &mut State) -> bool {
    if !set.is_divided.load(Ordering::Relaxed) || set.is_flat.swap(true, Ordering::Relaxed) {
        return false;
    }
    let inner = set.inner_fd();
    // Where the inner set was lost, inactive registrations have no other place.
    let is_in = |item: &&mut Item| {
        item.live && item.moved && !item.outside && (inner < 0 || !item.inactive)
    };
    for item in state.items.iter_mut().filter(is_in) {
        // In this order: the entry wakes threads asleep on the set, which look from time to time
        // from then on.
        (item.outside, item.polled) = (true, false);
        set.outside.fetch_add(1, Ordering::AcqRel);
        item.told_at = tcp::mark(item.fd);
        // If its number names another socket by now, it is only looked at.
        if item.is_named() {
            let _ = sys::epoll_ctl(inner, libc::EPOLL_CTL_DEL, item.fd, std::ptr::null_mut());
            let _ = set.change_outside(libc::EPOLL_CTL_ADD, item.fd);
        }
    }
    state.polled.clear();
    let is_out = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, inner, std::ptr::null_mut()).is_ok();
    // What wakes a thread of this process, and shows the set as ready, is no set itself.
    let mut kick = epoll_event {
        events: libc::EPOLLIN as u32,
        u64: set.magic(),
    };
    if let Some(number) = set.kick_fd() {
        let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, number, &raw mut kick);
    }
    is_out
}

/// A registration is not outside any more. With both locks.
pub(super) fn forget(set: &Set, state: &mut State, index: u32) {
    if std::mem::take(&mut state.items[index as usize].outside) {
        set.outside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Queues the outside registrations that may have something to report. `told`: the kernel has
/// reported one of them. With the set's lock.
pub(super) fn look(set: &Set, state: &mut State, told: bool) {
    if !set.looks_in_turns() {
        return;
    }
    shared::look(set, state);
    if told {
        set.exposed.store(false, Ordering::Relaxed);
    }
    for index in 0..state.items.len() {
        let item = &mut state.items[index];
        if !item.live || !item.outside {
            continue;
        }
        let edge = item.events & libc::EPOLLET as u32 != 0;
        let conn = Conn::new(item.socket, item.socket.fd());
        let may_be = conn.is_some_and(|conn| {
            stream::has_begun(&conn)
                && stream::may_be(&conn, wanted(item.events), edge.then_some(item.end))
        });
        let is_told = (told || !item.is_named()) && has_kernel_news(item, conn, edge);
        if is_told || may_be {
            state.fresh = true;
            state.enqueue(index as u32, is_told);
        }
    }
}

/// Whether the kernel has something to report of a base socket, and for an edge something new.
fn has_kernel_news(item: &mut Item, conn: Option<Conn>, edge: bool) -> bool {
    // The connection may have been copied, and closed by the number that was added.
    let Some(fd) = item.fd_now() else {
        return false;
    };
    let news = libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI;
    let writes = item.events & libc::EPOLLOUT as u32 != 0;
    let mark = tcp::mark(fd);
    let is_old = edge && mark == item.told_at;
    item.told_at = mark;
    !is_old
        && (sys::ready(fd, news) != 0
            // A base socket whose ring is in use is always writable, which is no news.
            || writes && conn.is_some_and(|conn| conn.way_out() != Way::Ring))
}

/// Has the kernel report the set as ready, to whatever contains it. With the set's lock.
pub(super) fn ring(set: &Set, state: &State) {
    let is_here = |item: &&Item| item.live && item.outside && item.is_named();
    for item in state.items.iter().filter(is_here) {
        let _ = set.change_outside(libc::EPOLL_CTL_MOD, item.fd);
    }
}
