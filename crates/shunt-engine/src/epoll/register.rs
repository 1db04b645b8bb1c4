//! Registrations of sockets in a set: what `epoll_ctl` does.
//!
//! `EPOLLEXCLUSIVE` is the kernel's as long as the registration is in the program's set: that of a listener always is, and that
//! of a connection on TCP. Once the registration is in the inner set the flag has no effect but its `EINVAL`s: if a connection
//! is in several sets, the threads of each are woken (`epoll_ctl(2)`: "one or more of the epoll file descriptors").

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::base_events;
use super::carry::move_in;
use super::inner::hear_inner;
use super::outside;
use super::polled;
use super::set::{SETS, Set};
use super::state::{Item, State};
use super::watch::{is_said, say_watched, watch};
use super::{ALWAYS, hearing};
use crate::socket::{Locked, Socket, Stage};
use crate::stream::{self, Conn};
use crate::{Outcome, config, sys};

/// Makes, changes or takes out the registration of a socket in a tracked set, as `epoll_ctl(2)` does.
pub(crate) fn register(
    set: &'static Set,
    operation: c_int,
    socket: &'static Socket,
    fd: c_int,
    mut event: epoll_event,
) -> Outcome {
    event.events |= ALWAYS;
    let Some(mut locked) = socket.lock() else {
        return Outcome::Kernel;
    };
    let mut is_settled = false;
    let result = set.with(|state| {
        let result = match operation {
            libc::EPOLL_CTL_ADD => add(set, state, &mut locked, fd, event),
            libc::EPOLL_CTL_MOD => modify(set, state, socket, fd, event),
            libc::EPOLL_CTL_DEL => delete(set, state, &mut locked, fd),
            _ => Err(libc::EINVAL),
        };
        is_settled = result.is_ok() && settle(set, state, &locked, fd, operation);
        result
    });
    let mut leaves = false;
    if is_settled {
        if operation != libc::EPOLL_CTL_DEL {
            set.kick();
        }
    } else if socket.stage() == Stage::Attached {
        if operation == libc::EPOLL_CTL_ADD {
            retire(&mut locked, Some(set));
        }
        let changed = watch(&locked);
        leaves = !hearing::is_at_one_door(&locked);
        if operation != libc::EPOLL_CTL_DEL && matches!(result, Some(Ok(()))) {
            look_at_once(set, &locked, fd, changed);
        }
    }
    drop(locked);
    if leaves {
        hearing::leave_ring(socket);
        polled::leave(set);
    }
    match result {
        Some(Ok(())) => Outcome::Done(0),
        Some(Err(errno)) => Outcome::Fail(errno),
        None => Outcome::Kernel,
    }
}

/// Does the rest at once if the peer need not be told of the change: the connection is registered in this set alone, on its rings, and
/// called at the set's own door already. With both locks. `false`: there is more to do.
fn settle(
    set: &'static Set,
    state: &mut State,
    socket: &Locked,
    fd: c_int,
    operation: c_int,
) -> bool {
    let (Some(conn), &[(place, index)]) = (Conn::attached(socket.socket, fd), &socket.places()[..])
    else {
        return false;
    };
    let item = state.items.get(index as usize);
    let is_usual = |item: &Item| item.moved && !item.polled && !item.outside && item.fd == fd;
    let Some(item) = item.filter(|item| is_usual(item) && place == set.index()) else {
        return false;
    };
    let is_called = || {
        let door = state.door(conn.pair.link, set);
        door.is_some_and(|door| is_said(conn.pair, door))
    };
    if stream::leaves_ring(&conn) || !item.inactive && !is_called() {
        return false;
    }
    conn.pair.own.face.forget_core();
    if operation != libc::EPOLL_CTL_DEL {
        state.enqueue(index, false);
    }
    true
}

/// Looks at the socket after the barrier in `watch`, to see what came before it. (An inner set that
/// had the socket already has told what the kernel knows.)
fn look_at_once(set: &'static Set, socket: &Locked, fd: c_int, changed: bool) {
    let by_tcp = Conn::new(socket.socket, fd).is_some_and(|conn| stream::leaves_ring(&conn));
    set.with(|state| {
        if by_tcp {
            hear_at_first(set, state);
        }
        if let Some(item) = state.find(socket.socket, fd) {
            state.enqueue(item, changed);
        }
    });
    set.kick();
}

/// Drops the report by which the inner set announces a new member: the look that follows finds the same. (Where a relative may
/// take the report instead of this process, something may be told twice here.)
fn hear_at_first(set: &'static Set, state: &mut State) {
    if !set.may_be_shared() {
        hear_inner(set, state, true, None);
    }
}

fn add(
    set: &'static Set,
    state: &mut State,
    socket: &mut Locked,
    fd: c_int,
    mut event: epoll_event,
) -> Result<(), i32> {
    if let Some(index) = state.find(socket.socket, fd) {
        let item = &mut state.items[index as usize];
        if item.moved {
            // In the order of the kernel's looks.
            let errno = if may_be_added(event.events) {
                libc::EEXIST
            } else {
                libc::EINVAL
            };
            return Err(errno);
        }
        // A relative since a fork may have taken it out: the kernel knows.
        sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)?;
        (item.events, item.data, item.armed) = (event.events, event.u64, true);
        return Ok(());
    }
    if let Some(index) = state.find_inactive(socket.socket, fd) {
        // The inner set of a flat set is not in it any more, so nobody hears what it reports.
        let stays = !set.is_flat.load(Ordering::Relaxed);
        if stays && event.events & libc::EPOLLEXCLUSIVE as u32 == 0 {
            let item = &mut state.items[index as usize];
            (item.inactive, item.idle_news) = (false, 0);
            (item.events, item.data) = (event.events, event.u64);
            if base_events::follow(set, state, index).is_ok() {
                return Ok(());
            }
        }
        remove(set, state, socket, index);
    }
    // A registration that moves at once never enters the program's set: whatever its events, the kernel would report
    // EPOLLHUP and EPOLLERR there to threads that sleep.
    let shunted = Conn::attached(socket.socket, fd).filter(|conn| !stream::is_plain(conn));
    let moves = shunted.is_some() && event.events & libc::EPOLLEXCLUSIVE as u32 == 0;
    if !moves {
        sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)?;
    }
    let item = state.insert(socket.socket, fd, event);
    if config::recycles() && socket.socket.stage() == Stage::Listener {
        state.listeners.push(item);
        count_listeners(set, state);
    }
    set.tracked.fetch_add(1, Ordering::SeqCst);
    socket.change_places(|places| places.push((set.index(), item)));
    // It may fail only for reasons for which the kernel's own call would.
    if let Some(conn) = shunted {
        if move_in(set, state, item, conn.pair.link) {
            hear_at_first(set, state);
            return Ok(());
        }
        if !moves {
            let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
        }
        if let Err(errno) = outside::enter(set, state, item, conn.pair.link) {
            unlist(set, state, socket, item);
            return Err(errno);
        }
    }
    Ok(())
}

/// Whether the kernel takes these events for a new registration of a socket: few go with `EPOLLEXCLUSIVE`
/// (`epoll_ctl(2)`).
fn may_be_added(events: u32) -> bool {
    const BESIDE_EXCLUSIVE: c_int = libc::EPOLLIN
        | libc::EPOLLOUT
        | libc::EPOLLERR
        | libc::EPOLLHUP
        | libc::EPOLLWAKEUP
        | libc::EPOLLET
        | libc::EPOLLEXCLUSIVE;
    events & libc::EPOLLEXCLUSIVE as u32 == 0 || events & !(BESIDE_EXCLUSIVE as u32) == 0
}

fn modify(
    set: &'static Set,
    state: &mut State,
    socket: &'static Socket,
    fd: c_int,
    mut event: epoll_event,
) -> Result<(), i32> {
    let Some(index) = state.find(socket, fd) else {
        return sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_MOD, fd, &raw mut event).map(drop);
    };
    let item = &mut state.items[index as usize];
    if !item.moved {
        sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_MOD, fd, &raw mut event)?;
    } else if (item.events | event.events) & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return Err(libc::EINVAL);
    }
    let former = std::mem::replace(&mut item.events, event.events);
    if let Err(errno) = base_events::follow(set, state, index) {
        state.items[index as usize].events = former;
        return Err(errno);
    }
    let item = &mut state.items[index as usize];
    (item.data, item.armed) = (event.u64, true);
    Ok(())
}

fn delete(set: &'static Set, state: &mut State, socket: &mut Locked, fd: c_int) -> Result<(), i32> {
    let Some(index) = state.find(socket.socket, fd) else {
        return sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()).map(drop);
    };
    let item = &state.items[index as usize];
    if item.outside {
        remove(set, state, socket, index);
        return Ok(());
    }
    if item.moved {
        // Programs that take interest in turns (Redis) come back at once.
        state.items[index as usize].inactive = true;
        state.may_narrow_later(index);
        return Ok(());
    }
    sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut())?;
    unlist(set, state, socket, index);
    Ok(())
}

/// Takes a registration out of the inner set.
fn remove(set: &'static Set, state: &mut State, socket: &mut Locked, index: u32) {
    let item = &state.items[index as usize];
    let (fd, is_outside) = (item.fd, item.outside);
    let at = if is_outside { set.fd() } else { set.inner_fd() };
    // The number may be another registration's by now.
    if item.is_named() {
        let _ = sys::epoll_ctl(at, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
    }
    outside::forget(set, state, index);
    set.moved.fetch_sub(1, Ordering::AcqRel);
    if let Some(pair) = socket.pair() {
        state.unfollow(pair.link, set);
    }
    unlist(set, state, socket, index);
}

/// Takes a socket's inactive registrations out of every set but `keep`.
fn retire(socket: &mut Locked, keep: Option<&'static Set>) {
    if socket.places().len() <= usize::from(keep.is_some()) {
        return;
    }
    for (set, index) in socket.places().clone() {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        if keep.is_some_and(|k| std::ptr::eq(k, set)) {
            continue;
        }
        set.with(|state| {
            let item = state.items.get(index as usize);
            if item.is_some_and(|item| item.inactive) {
                remove(set, state, socket, index);
            }
        });
    }
}

/// Does what is due for the sockets of a set before its next wait.
#[cold]
pub(crate) fn see_to_chores(set: &'static Set) {
    set.chores.store(false, Ordering::Relaxed);
    retire_busy(set);
    polled::review(set);
}

/// Takes out inactive registrations of sockets that are used elsewhere: they would only wake the
/// set for nothing.
fn retire_busy(set: &'static Set) {
    let busy = set
        .with(|state| std::mem::take(&mut state.busy))
        .unwrap_or_default();
    for socket in busy {
        if let Some(mut socket) = socket.lock() {
            retire(&mut socket, None);
            watch(&socket);
        }
    }
}

/// Brings the count of listeners up to date, for looks without the lock.
pub(super) fn count_listeners(set: &Set, state: &State) {
    let count = state.listeners.len() as u32;
    set.listeners.store(count, Ordering::Release);
}

/// The last descriptor of a connection is about to be closed, but its base socket stays: takes it out of all sets, as the
/// kernel does where that ends. `false`: a registration cannot be taken out.
pub(crate) fn leave_sets(socket: &'static Socket, fd: c_int) -> bool {
    if socket.items.is_empty() {
        return true;
    }
    let Some(mut socket) = socket.lock() else {
        return false;
    };
    for (set, index) in socket.places().clone() {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        set.with(|state| {
            // A registration by a number that was closed before cannot be taken out.
            let Some(item) = state.items.get(index as usize).filter(|item| item.fd == fd) else {
                return;
            };
            if item.moved {
                remove(set, state, &mut socket, index);
            } else {
                let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
                unlist(set, state, &mut socket, index);
            }
        });
    }
    // Without a barrier, as the only caller puts the connection aside: it looks itself at what the peer has done meanwhile, and no
    // set is to be told of that any more.
    say_watched(&socket);
    socket.socket.items.is_empty()
}

fn unlist(set: &'static Set, state: &mut State, socket: &mut Locked, item: u32) {
    state.remove(item);
    count_listeners(set, state);
    set.tracked.fetch_sub(1, Ordering::AcqRel);
    socket.change_places(|places| places.retain(|&place| place != (set.index(), item)));
}
