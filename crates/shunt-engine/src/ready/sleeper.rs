//! A thread sleeps in `poll`: it says so at every shunted socket and set that it waits for, and takes that back.

use std::sync::atomic::Ordering;

use libc::{c_int, pollfd};
use shunt_abi::Reason;

use super::array::Memory;
use crate::epoll::{self, SETS, Set};
use crate::hold::{self, Held, Taken};
use crate::reach;
use crate::recycle::Waits;
use crate::socket::{BETWEEN_HOSTS, IN_VAIN, SOCKETS, Socket, Stage};
use crate::stream::{self, Conn, Want};
use crate::wake::{self, Place};

/// The work of one call: the array for the real one, and who was told that a
/// thread sleeps, whatever becomes of the descriptors meanwhile. Both end with an
/// entry of our own.
pub(super) struct Scratch<'a> {
    pub(super) fds: &'a mut [pollfd],
    pub(super) told: &'a mut [pollfd],
    /// When the objects in `told` were held.
    pub(super) held: Taken,
    /// Nobody tells, for certain, of everything that is waited for: nanoseconds until the next look.
    pub(super) turn: Option<u64>,
    /// What is readable when something comes from another host for a connection that is waited for.
    pub(super) nic: Option<c_int>,
    /// What a call that is cancelled leaves to give back.
    pub(super) memory: Memory,
    /// Where it waits for connections to accept.
    pub(super) waits: &'a Waits,
}

/// What was told, in `events` of an entry of [`Scratch::told`]. `fd` is the
/// object's index, `revents` what the program waits for. The object is held.
const NOBODY: i16 = 0;
const CONNECTION: i16 = 1;
const CANDIDATE: i16 = 2;
const SET: i16 = 3;
/// Not for one of the program's descriptors: the thread has a place to be woken at.
pub(super) const PLACE: i16 = 4;
/// Beside `PLACE`: the thread was called there.
pub(super) const HEARD: i16 = 8;

/// Whether a program waits for something to read, or to accept.
pub(super) fn reads(events: i16) -> bool {
    events & (libc::POLLIN | libc::POLLRDNORM) != 0
}

fn writes(events: i16) -> bool {
    events & (libc::POLLOUT | libc::POLLWRNORM) != 0
}

/// Says at every socket and set that is shunted, or may become so, that a thread
/// sleeps on it, and fills the array for the real call. `true`: something has
/// come; do not sleep. `crowded`: there is no room for an entry beside the program's.
pub(super) fn get_in(fds: &[pollfd], scratch: &mut Scratch, crowded: bool) -> bool {
    scratch.held = Taken::now();
    (scratch.turn, scratch.nic) = (None, None);
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
            epoll::look_for_room(set);
            epoll::expose(set);
            if let Some(turn) = set.turn() {
                look_within(&mut scratch.turn, turn);
            }
            (told.fd, told.events) = (set.index() as c_int, SET);
            continue;
        }
        let Some(socket) = hold::get::<Socket>(from.fd) else {
            continue;
        };
        let candidate = must_know_of_upgrade(from.events) && may_be_upgraded(socket);
        told.fd = socket.index() as c_int;
        if candidate && socket.inside.begin_poll(place.is_some()) {
            told.events = CANDIDATE;
        } else if socket.stage() == Stage::Attached
            && let Some(conn) = Conn::new(socket, from.fd)
        {
            told.events = CONNECTION;
            ready |= get_in_connection(&conn, from.events, to, place);
            if conn.is_mirrored() {
                if crowded {
                    look_within(&mut scratch.turn, stream::TURN);
                } else {
                    ready |= watch_nic(scratch);
                }
            }
            // By TCP the kernel tells.
            if writes(from.events) && conn.is_on_ring() {
                look_within(&mut scratch.turn, stream::turn(&conn, place.is_some()));
            }
        } else {
            socket.unhold();
        }
    }
    if let Some(nic) = scratch.nic {
        scratch.fds[fds.len() + 1] = pollfd {
            fd: nic,
            events: libc::POLLIN,
            revents: 0,
        };
    }
    ready | get_in_waits(scratch, place)
}

/// `true`: something has come from another host, for whichever connection.
fn watch_nic(scratch: &mut Scratch) -> bool {
    if scratch.nic.is_some() {
        return false;
    }
    let watch = reach::watch();
    scratch.nic = watch.map(|watch| watch.fd);
    watch.is_some_and(|watch| watch.has_come)
}

/// Registers the thread where it waits for connections to accept. `true`: there may be one by now.
fn get_in_waits(scratch: &mut Scratch, place: Option<Place>) -> bool {
    let Some(left) = scratch.waits.left() else {
        return false;
    };
    let Some(place) = place else {
        // Nobody could wake this thread but the kernel.
        scratch.waits.give_up();
        return false;
    };
    look_within(&mut scratch.turn, left);
    scratch.waits.say(|at| place.tell(at));
    scratch.waits.have_news()
}

/// Whether a thread that waits for these events has to wait in another way once the connection is in shared memory. Of an end
/// that a program waits for by `POLLRDHUP` the kernel tells in any case.
fn must_know_of_upgrade(events: i16) -> bool {
    reads(events) || writes(events) || events & libc::POLLRDHUP == 0
}

fn may_be_upgraded(socket: &Socket) -> bool {
    matches!(
        socket.stage(),
        Stage::Candidate | Stage::Claimed | Stage::Paired
    )
}

fn look_within(turn: &mut Option<u64>, most: u64) {
    *turn = Some(turn.map_or(most, |turn| turn.min(most)));
}

/// Where this thread is called, if it waits for connections.
fn take_place(fds: &[pollfd], scratch: &mut Scratch, crowded: bool) -> Option<Place> {
    let (to, told) = (&mut scratch.fds[fds.len()], &mut scratch.told[fds.len()]);
    to.fd = -1;
    told.events = NOBODY;
    let may_be_called = |one: &pollfd| {
        Socket::of(one.fd).is_some_and(|socket| {
            let waits = reads(one.events) || writes(one.events);
            waits && socket.stage() == Stage::Attached
                || must_know_of_upgrade(one.events) && may_be_upgraded(socket)
        })
    };
    let wanted = !crowded && (scratch.waits.are_any() || fds.iter().any(may_be_called));
    let Some(place) = wanted.then(wake::enter).flatten() else {
        // Only the kernel can wake this thread.
        fds.iter().for_each(|one| {
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

/// Whether only a peer's call can wake a thread that waits for these events.
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
        stream::leave_full(conn);
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
    if conn.socket.hints.kernel_state.load(Ordering::Relaxed) & !(IN_VAIN | BETWEEN_HOSTS) == 0 {
        to.events |= libc::POLLRDHUP;
    }
    ready
}

/// The reverse of [`get_in`], whatever the program's descriptors name by now. Not in a child
/// that a signal handler has forked meanwhile: it is the parent who sleeps.
pub(super) fn get_out(told: &[pollfd], held: Taken) {
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
