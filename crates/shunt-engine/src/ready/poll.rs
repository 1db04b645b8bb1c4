//! `poll`.

use std::sync::atomic::Ordering;

use libc::{c_int, nfds_t, pollfd, sigset_t};
use shunt_abi::Reason;

use super::array::{Memory, with_array};
use crate::entry::{self, Entry};
use crate::epoll::{self, Known, Limit, SETS, Set};
use crate::hold::{Held, Taken};
use crate::region::count;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::stream::{self, Conn, Spin, Want};
use crate::thread::signals::{self, Seen};
use crate::wake::{self, Place};
use crate::{Outcome, control, hold, real, signal, sys, upgrade};

/// The work of one call: the array for the real one, and who was told that a
/// thread sleeps, whatever becomes of the descriptors meanwhile. Both end with an
/// entry of our own.
struct Scratch<'a> {
    fds: &'a mut [pollfd],
    told: &'a mut [pollfd],
    /// When the objects in `told` were held.
    held: Taken,
    /// Nobody tells of everything that is waited for.
    must_look: bool,
    /// What a call that is cancelled leaves to give back.
    memory: Memory,
}

/// What was told, in `events` of an entry of [`Scratch::told`]. `fd` is the
/// object's index, `revents` what the program waits for. The object is held.
const NOBODY: i16 = 0;
const CONNECTION: i16 = 1;
const CANDIDATE: i16 = 2;
const SET: i16 = 3;
/// Not for one of the program's descriptors: the thread has a place to be woken at.
const PLACE: i16 = 4;
/// Beside `PLACE`: the thread was called there.
const HEARD: i16 = 8;

/// The program's array, if it names anything that is shunted, or may become so
/// while the call waits (unless it is not to: `now`).
///
/// # Safety
/// `fds` has `count` entries, and nobody else uses them meanwhile.
pub(super) unsafe fn shunted<'a>(
    fds: *mut pollfd,
    count: nfds_t,
    now: bool,
) -> Option<&'a mut [pollfd]> {
    let bad = (fds as usize) < 4096 || !signal::may_read(fds, count as usize);
    if count == 0 || count > 1 << 20 || bad {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let mut any = false;
    for one in fds.iter() {
        match entry::look(one.fd) {
            Entry::Socket(socket) => {
                any |= match socket.stage() {
                    Stage::Attached => true,
                    Stage::Claimed | Stage::Paired => {
                        upgrade::progress(socket, one.fd, Known::Nothing);
                        true
                    }
                    Stage::Candidate => !now,
                    Stage::Listener => {
                        upgrade::sync::watches(socket);
                        false
                    }
                    _ => false,
                };
            }
            Entry::Set(set) => any |= set.must_be_exposed() || !now && !set.is_plain(),
            Entry::Ours | Entry::Other => {}
        }
    }
    any.then_some(fds)
}

/// Fills in what shunted sockets are ready for; `usize`: how many are. `heard` has
/// what the kernel reported of each, or nothing.
pub(super) fn look_at_shunted(fds: &mut [pollfd], heard: &[pollfd]) -> usize {
    let mut found = 0;
    for (i, one) in fds.iter_mut().enumerate() {
        if let Some(conn) = Conn::of(one.fd) {
            let wanted = one.events as u16 as u32 | (libc::POLLERR | libc::POLLHUP) as u32;
            let look = heard.get(i).is_some_and(|kernel| kernel.revents != 0);
            one.revents = (stream::mask_at_a_glance(&conn, wanted, look) & wanted) as i16;
            found += usize::from(one.revents != 0);
        }
    }
    found
}

/// Asks the kernel about everything else, without waiting.
fn look_at_others(fds: &mut [pollfd], scratch: &mut Scratch) -> Result<usize, i32> {
    let scratch = &mut scratch.fds[..fds.len()];
    let mut any = false;
    for (to, from) in scratch.iter_mut().zip(fds.iter()) {
        let skip = Conn::of(from.fd).is_some();
        *to = pollfd {
            fd: if skip { -1 } else { from.fd },
            events: from.events,
            revents: 0,
        };
        any |= !skip && from.fd >= 0;
        if let Some(set) = Set::of(from.fd) {
            epoll::expose(set);
        }
    }
    if !any {
        return Ok(0);
    }
    let found = sys::poll_now(scratch)?;
    for (to, from) in fds.iter_mut().zip(scratch.iter()) {
        if from.fd >= 0 || to.fd < 0 {
            to.revents = from.revents;
        }
    }
    Ok(found)
}

/// `ppoll(2)` with shunted sockets among the descriptors; `seen`: the signals
/// before the program's call.
///
/// # Safety
/// `mask` is null or a signal set.
pub(super) unsafe fn poll(
    fds: &mut [pollfd],
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    let count = scratch_for(fds.len());
    // SAFETY: the caller's promise.
    let run = |scratch: &mut [pollfd], memory| unsafe {
        poll_with(fds, scratch, memory, limit, mask, seen)
    };
    with_array(count, run).unwrap_or(Outcome::Fail(libc::ENOMEM))
}

/// `ppoll` of an epoll set alone, for input.
///
/// # Safety
/// `mask` is null or a signal set.
pub(super) unsafe fn poll_set(fd: c_int, limit: Limit, mask: *const sigset_t) -> Outcome {
    let mut one = [pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }];
    // SAFETY: the caller's promise.
    unsafe { poll(&mut one, limit, mask, signals::now()) }
}

/// Entries of scratch that [`poll_with`] needs for so many descriptors.
pub(super) fn scratch_for(fds: usize) -> usize {
    2 * (fds + 1)
}

/// [`poll`] in an array from [`with_array`], which `memory` belongs to.
///
/// # Safety
/// `sigmask` is null or a signal set.
pub(super) unsafe fn poll_with(
    fds: &mut [pollfd],
    scratch: &mut [pollfd],
    memory: Memory,
    limit: Limit,
    sigmask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    stream::see_to_wishes();
    let mut spin = Spin::new();
    let mut any = false;
    for one in fds.iter_mut() {
        one.revents = 0;
        let conn = Conn::of(one.fd);
        if let Some(conn) = &conn {
            conn.pair.own.face.forget_core();
        }
        any |= conn.is_some() || Set::of(one.fd).is_some_and(|s| s.is_shunted());
    }
    let (array, told) = scratch.split_at_mut(fds.len() + 1);
    array[fds.len()].fd = -1;
    let scratch = &mut Scratch {
        fds: array,
        told,
        held: Taken::now(),
        must_look: false,
        memory,
    };
    if !any {
        // What the kernel alone knows is not worth spinning for.
        // SAFETY: the caller's promise.
        return unsafe { sleep(fds, scratch, limit, sigmask, seen) };
    }
    let mut others = match look_at_others(fds, scratch) {
        Ok(n) => n,
        Err(errno) => return Outcome::Fail(errno),
    };
    let mut looked = sys::ticks();
    loop {
        let found = look_at_shunted(fds, &[]) + others;
        if found > 0 {
            spin.paid();
            count::ready_call(scratch.fds.iter().any(|s| s.fd >= 0));
            return Outcome::Done(found as isize);
        }
        if limit.is_now() {
            break;
        }
        if seen.any_since() {
            return Outcome::Fail(libc::EINTR);
        }
        if !spin.turn() {
            break;
        }
        if sys::ticks().wrapping_sub(looked) > 26_000 {
            looked = sys::ticks();
            others = look_at_others(fds, scratch).unwrap_or(0);
        }
    }
    // SAFETY: the caller's promise.
    let outcome = unsafe { sleep(fds, scratch, limit, sigmask, seen) };
    if matches!(outcome, Outcome::Done(1..)) {
        spin.woke();
    }
    outcome
}

/// Sleeps in the real call, on base sockets in place of shunted ones.
///
/// # Safety
/// `sigmask` is null or a signal set.
unsafe fn sleep(
    fds: &mut [pollfd],
    scratch: &mut Scratch,
    limit: Limit,
    sigmask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    control::look();
    let mut crowded = false;
    loop {
        let ready = get_in(fds, scratch, crowded);
        let placed = scratch.told[fds.len()].events == PLACE;
        let count = fds.len() + usize::from(placed);
        let n = if ready {
            sys::poll_now(&mut scratch.fds[..count]).map(|n| n as isize)
        } else if seen.any_since() && !limit.is_now() {
            get_out(scratch.told, scratch.held);
            return Outcome::Fail(libc::EINTR);
        } else {
            count::ready_sleep();
            let left = if scratch.must_look {
                Some(limit.left_of(stream::TURN))
            } else {
                limit.left()
            };
            let time = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let undo = || {
                get_out(scratch.told, scratch.held);
                scratch.memory.give_back();
            };
            let array = scratch.fds.as_mut_ptr();
            // SAFETY: our own array; the program's mask.
            real::sleeping(&undo, || unsafe {
                real::ppoll()(array, count as nfds_t, time, sigmask) as isize
            })
        };
        if placed && scratch.fds[fds.len()].revents != 0 {
            scratch.told[fds.len()].events |= HEARD;
        }
        get_out(scratch.told, scratch.held);
        // The kernel polls no more than the process may have descriptors.
        if placed && n == Err(libc::EINVAL) {
            crowded = true;
            continue;
        }
        count::ready_call(true);
        if let (Err(errno), false) = (n, ready) {
            // A signal gives way to news that came with it, as in the kernel.
            let found = look_at_shunted(fds, &[]);
            return if errno == libc::EINTR && found > 0 {
                Outcome::Done(found as isize)
            } else {
                Outcome::Fail(errno)
            };
        }
        let mut found = 0;
        for (to, from) in fds.iter_mut().zip(scratch.fds.iter()) {
            if Conn::of(to.fd).is_none() {
                to.revents = from.revents;
                // What woke a set need not be an event of the program's.
                if let Some(set) = Set::of(to.fd)
                    && to.revents == libc::POLLIN
                {
                    epoll::expose(set);
                    to.revents = sys::ready(to.fd, to.events);
                }
                found += usize::from(to.revents != 0);
            }
        }
        found += look_at_shunted(fds, scratch.fds);
        if found > 0 || limit.is_up() {
            return Outcome::Done(found as isize);
        }
    }
}

fn reads(events: i16) -> bool {
    events & (libc::POLLIN | libc::POLLRDNORM) != 0
}

fn writes(events: i16) -> bool {
    events & (libc::POLLOUT | libc::POLLWRNORM) != 0
}

/// Says at every socket and set that is shunted, or may become so, that a thread
/// sleeps on it, and fills the array for the real call. `true`: something has
/// come; do not sleep. `crowded`: there is no room for an entry beside the program's.
fn get_in(fds: &[pollfd], scratch: &mut Scratch, crowded: bool) -> bool {
    scratch.held = Taken::now();
    scratch.must_look = false;
    let mut ready = false;
    let place = take_place(fds, scratch, crowded);
    for (i, from) in fds.iter().enumerate() {
        let (to, told) = (&mut scratch.fds[i], &mut scratch.told[i]);
        *to = pollfd {
            revents: 0,
            ..*from
        };
        told.events = NOBODY;
        told.revents = from.events;
        if let Some(set) = hold::get::<Set>(from.fd) {
            epoll::begin_sleep(set);
            epoll::expose(set);
            scratch.must_look |= set.must_look();
            (told.fd, told.events) = (set.index() as c_int, SET);
            continue;
        }
        let Some(socket) = hold::get::<Socket>(from.fd) else {
            continue;
        };
        // Who waits for nothing but an end need not be called.
        let candidate = (reads(from.events) || writes(from.events))
            && matches!(
                socket.stage(),
                Stage::Candidate | Stage::Claimed | Stage::Paired
            );
        told.fd = socket.index() as c_int;
        if candidate && socket.inside.begin_poll(place.is_some()) {
            told.events = CANDIDATE;
        } else if socket.stage() == Stage::Attached
            && let Some(conn) = Conn::new(socket, from.fd)
        {
            told.events = CONNECTION;
            ready |= get_in_connection(&conn, from.events, to, place);
            // By TCP the kernel tells.
            scratch.must_look |= writes(from.events)
                && conn.is_on_ring()
                && stream::must_look(&conn, place.is_some());
        } else {
            socket.unhold();
        }
    }
    ready
}

/// Where this thread is called, if it waits for connections.
fn take_place(fds: &[pollfd], scratch: &mut Scratch, crowded: bool) -> Option<Place> {
    let (to, told) = (&mut scratch.fds[fds.len()], &mut scratch.told[fds.len()]);
    to.fd = -1;
    told.events = NOBODY;
    let waits = |one: &&pollfd| reads(one.events) || writes(one.events);
    let may_be_shunted = |one: &pollfd| {
        Socket::of(one.fd).is_some_and(|socket| {
            matches!(
                socket.stage(),
                Stage::Attached | Stage::Candidate | Stage::Claimed | Stage::Paired
            )
        })
    };
    let waited_for = fds.iter().filter(waits);
    let wanted = !crowded && waited_for.clone().any(may_be_shunted);
    let Some(place) = wanted.then(wake::enter).flatten() else {
        // Only the kernel can wake this thread.
        waited_for.for_each(|one| {
            if let Some(conn) = Conn::of(one.fd)
                && must_be_called(&conn, one.events)
            {
                stream::downgrade(&conn, Reason::Blocked);
            }
        });
        return None;
    };
    *to = place.watch();
    (told.fd, told.events) = (place.number(), PLACE);
    Some(place)
}

/// Whether only a peer's call can wake who waits for these events.
fn must_be_called(conn: &Conn, events: i16) -> bool {
    reads(events) && stream::must_be_called(conn, Want::Data)
        || writes(events) && stream::must_be_called(conn, Want::Room)
}

fn get_in_connection(conn: &Conn, events: i16, to: &mut pollfd, place: Option<Place>) -> bool {
    // What a peer leaves unread that has shut down its half resets the connection only by TCP.
    let waits_for_end = events & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) == 0;
    let mut ready = waits_for_end && stream::leave_to_half_closed(conn);
    stream::share_crowd(conn.pair.link);
    // What came by TCP, FIN and RST.
    to.events = events & (libc::POLLPRI | libc::POLLRDHUP | libc::POLLIN | libc::POLLRDNORM);
    if reads(events) {
        ready |= stream::asleep(conn, Want::Data, place);
        to.events |= libc::POLLIN;
    }
    if writes(events) {
        let come = stream::asleep(conn, Want::Room, place);
        // The kernel's idea of writable only where the kernel writes.
        if conn.way_out() == shunt_shm::slot::Way::Ring {
            ready |= come;
        } else {
            to.events |= libc::POLLOUT;
        }
    }
    if stream::recall_is_owing(conn) {
        // There is more to send again when the kernel has room.
        to.events |= libc::POLLOUT;
    }
    // A peer that was killed shows itself by the end of its stream only: what it
    // left unread, the kernel does not know of.
    if conn.socket.kernel_state.load(Ordering::Relaxed) == 0 {
        to.events |= libc::POLLRDHUP;
    }
    ready
}

/// The reverse of [`get_in`], whatever the program's descriptors name by now. Not in a child
/// that a signal handler has forked meanwhile: it is the parent who sleeps.
fn get_out(told: &[pollfd], held: Taken) {
    if !held.lasts() {
        return;
    }
    let place = told.last().filter(|told| told.events & PLACE != 0);
    let place = place.map(|told| Place::numbered(told.fd));
    for told in told {
        match told.events & !HEARD {
            SET => {
                if let Some(set) = SETS.get(told.fd as u32) {
                    epoll::end_sleep(set);
                    set.unhold();
                }
            }
            CONNECTION | CANDIDATE => {
                if let Some(socket) = SOCKETS.get(told.fd as u32) {
                    get_out_of(socket, told, place);
                    socket.unhold();
                }
            }
            PLACE => {
                let place = Place::numbered(told.fd);
                if told.events & HEARD != 0 {
                    place.hear(false);
                }
                place.leave();
            }
            _ => {}
        }
    }
}

fn get_out_of(socket: &'static Socket, told: &pollfd, place: Option<Place>) {
    if told.events == CANDIDATE {
        socket.inside.end_poll(place.is_some());
        return;
    }
    let Some(conn) = Conn::new(socket, socket.fd()) else {
        return;
    };
    if reads(told.revents) {
        stream::awake(&conn, Want::Data, place);
    }
    if writes(told.revents) {
        stream::awake(&conn, Want::Room, place);
    }
}
