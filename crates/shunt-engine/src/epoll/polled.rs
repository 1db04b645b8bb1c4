//! Members that are looked at directly, as long as nobody sleeps.
//!
//! ```text
//!                                     watched                 polled
//!  what the peer of a member does     log entry, barrier,     nothing
//!  after a message                    look at the door
//!  where a wait looks                 the log, then the ring  the ring
//! ```
//!
//! A wait that finds a message by the log gets two cache lines from the sender's core,
//! one after the other. In a set of few members that has not slept for a while all are
//! polled: their wait words say nothing, and each look is at every one of them. Before a
//! thread sleeps, here or on something that contains the set, they are watched again.
//!
//! An edge is whatever has come behind the end that the stream had at the last report.

use std::sync::atomic::Ordering;

use libc::epoll_event;
use shunt_shm::atomic::heavy;
use shunt_shm::slot;

use super::room::Room;
use super::room_asked::ROOM;
use super::set::Set;
use super::state::{Item, State};
use super::watch::say_watched;
use super::{FLAGS, wanted};
use crate::socket::Socket;
use crate::stream::{self, Conn};

/// After this many waits in a row without sleep the set chooses which of its members to poll.
const WAITS: u32 = 32;
/// With more members the looks would cost more than the logs.
const MOST: usize = 4;
/// A set that has had more members than this has places for them all, which would take long to look through.
const PLACES: usize = 64;

/// Sockets whose peers are to be told that they are polled, or not any more.
type Moved = [Option<&'static Socket>; 2 * MOST];

/// Whether it is time to [`review`].
pub(super) fn is_due(state: &State) -> bool {
    state.awake >= WAITS
}

/// Chooses the members that are polled. With no lock.
pub(super) fn review(set: &'static Set) {
    choose(set, |state| {
        let few = set.moved.load(Ordering::Relaxed) as usize <= MOST;
        let asleep = set.sleepers.load(Ordering::Relaxed) != 0
            || set.plain_sleepers.load(Ordering::SeqCst) != 0;
        is_due(state) && few && !asleep && state.items.len() <= PLACES
    });
}

/// Stops polling: a thread is about to sleep (and is counted already), or something contains the
/// set. The caller looks at the set after this. With no lock.
pub(super) fn leave(set: &'static Set) {
    choose(set, |_| false);
}

fn choose(set: &'static Set, may: impl FnOnce(&State) -> bool) {
    let mut moved = Moved::default();
    let mark = |state: &mut State| {
        let may = may(state);
        mark_polled(state, may, &mut moved)
    };
    if set.with(mark) != Some(true) {
        return;
    }
    for socket in moved.into_iter().flatten() {
        let Some(socket) = socket.lock() else {
            continue;
        };
        say_watched(&socket);
        if let Some(conn) = Conn::new(socket.socket, socket.fd()) {
            conn.unfence();
        }
    }
    // As in `watch`. It is needed even if no word has changed, since a relative may have changed one just now.
    heavy();
    // Looks at what came before the barrier; what comes after it is logged.
    set.with(let_go);
}

/// Marks which members are polled from now on (none if it `may` not be any), and notes the sockets of those for which that
/// changes; whether there are any.
fn mark_polled(state: &mut State, may: bool, moved: &mut Moved) -> bool {
    let mut places = moved.iter_mut();
    let mut any = false;
    let mut note = |socket| {
        any = true;
        if let Some(place) = places.next() {
            *place = Some(socket);
        }
    };
    state.awake = 0;
    for &index in &state.polled {
        let item = &mut state.items[index as usize];
        let stays = may && item.polled && !item.odd && (item.inactive || may_be_polled(item));
        // Also if another thread is about to do the rest: this thread may not sleep before that is
        // done.
        if !stays {
            item.polled = false;
            note(item.socket);
        }
    }
    let candidates = if may { &mut state.items[..] } else { &mut [] };
    for (index, item) in candidates.iter_mut().enumerate() {
        if !item.polled && !item.odd && may_be_polled(item) {
            item.polled = true;
            item.end = item.socket.pair().map_or(0, |p| p.consumer().position());
            note(item.socket);
            // Another thread may be about to take it out of the list.
            if !state.polled.contains(&(index as u32)) {
                state.polled.push(index as u32);
            }
        }
    }
    any
}

/// Takes members that are not polled any more out of the list, and queues those that have something.
fn let_go(state: &mut State) {
    for i in (0..state.polled.len()).rev() {
        let index = state.polled[i];
        let item = &mut state.items[index as usize];
        if item.polled {
            continue;
        }
        state.polled.swap_remove(i);
        item.odd = false;
        if has_some(item) {
            state.fresh = true;
            state.enqueue(index, false);
        }
    }
}

fn may_be_polled(item: &Item) -> bool {
    if !item.live || !item.moved || item.inactive || item.outside {
        return false;
    }
    let edge = item.events & libc::EPOLLET as u32 != 0;
    Conn::new(item.socket, item.socket.fd()).is_some_and(|conn| {
        stream::is_as_usual(&conn)
            // For an edge it must be known that everything which is there was reported.
            && (item.polled || !edge || conn.consumer().at_hand() == 0)
            // Relatives share the wait word, but not the set.
            && conn.pair.own.options.forked.load(Ordering::Relaxed) == slot::UNFORKED
    })
}

/// Whether a member that is polled may have something to report.
#[inline]
pub(super) fn has_news(state: &State) -> bool {
    state
        .polled
        .iter()
        .any(|&index| news(&state.items[index as usize]) != News::None)
}

/// Queues the polled members that may have something to report.
#[inline]
pub(super) fn harvest(state: &mut State) {
    for i in 0..state.polled.len() {
        let index = state.polled[i];
        let item = &mut state.items[index as usize];
        match news(item) {
            News::None => {}
            News::Some => {
                state.fresh = true;
                state.enqueue(index, false);
            }
            News::Odd => note_odd(item, &mut state.awake),
        }
    }
}

/// Whether [`report`] may take the place of the queue: there is nothing in that, and room for all members.
#[inline(always)]
pub(super) fn may_report(state: &State, room: &Room) -> bool {
    let members = state.polled.len();
    state.queue.is_empty() && members > 0 && members <= room.len()
}

/// Reports those that have something, at once. What stays readable need not wait in the queue: the next wait looks at
/// it again. How many have been reported; `None`: none may have anything.
#[inline(always)]
pub(super) fn report(state: &mut State, room: &mut Room) -> Option<usize> {
    let (mut found, mut any) = (0, false);
    for i in 0..state.polled.len() {
        let index = state.polled[i];
        let item = &mut state.items[index as usize];
        match news(item) {
            News::None => continue,
            News::Some => {
                (any, state.fresh) = (true, true);
                let told = report_one(item, room, found);
                if wanted(item.events) == 0 {
                    state.may_narrow_later(index);
                }
                match told {
                    Told::Nothing => {}
                    Told::Once => found += 1,
                    Told::AndStays => {
                        found += 1;
                        state.queue.push_back(index);
                    }
                    Told::Missing => break,
                }
            }
            News::Odd => {
                any = true;
                note_odd(item, &mut state.awake);
            }
        }
    }
    any.then_some(found)
}

/// The outcome of a report.
enum Told {
    Nothing,
    Once,
    /// It was reported, and is queued for the next wait.
    AndStays,
    /// The event could not be stored; the next wait tells it first.
    Missing,
}

#[inline(always)]
fn report_one(item: &mut Item, room: &mut Room, place: usize) -> Told {
    let Some(conn) = Conn::new(item.socket, item.socket.fd()) else {
        return Told::Nothing;
    };
    let (events, end) = (item.events, item.end);
    let is_edge = events & libc::EPOLLET as u32 != 0;
    if is_edge {
        // Before the look at what is there: better an edge too many than one too few.
        item.end = conn.consumer().end();
    }
    let wanted = wanted(events);
    let asked_at = conn.asked_at();
    let look = std::mem::take(&mut item.look);
    let mask = match look {
        true => stream::mask(&conn, wanted, true),
        false => stream::mask_as_usual(&conn, wanted),
    };
    let mask = mask & wanted;
    if mask == 0 {
        return Told::Nothing;
    }
    let event = epoll_event {
        events: mask,
        u64: item.data,
    };
    if !room.put(place, event) {
        (item.look, item.end) = (look, end);
        return Told::Missing;
    }
    if mask & ROOM != 0 {
        item.room_told = asked_at;
    }
    if events & libc::EPOLLONESHOT as u32 != 0 {
        item.events &= FLAGS;
    } else if !is_edge {
        item.look = look && mask & !(libc::EPOLLIN | libc::EPOLLOUT) as u32 != 0;
        // A member that waits for room is looked at here, since `news` tells of room only after the peer was asked.
        if item.look || wanted & ROOM != 0 {
            (item.queued, item.listed) = (true, true);
            return Told::AndStays;
        }
    }
    Told::Once
}

/// Notes a member that is not as usual: it is looked at when it is watched again.
fn note_odd(item: &mut Item, awake: &mut u32) {
    item.odd = true;
    *awake = WAITS;
}

#[derive(PartialEq, Eq)]
enum News {
    None,
    Some,
    /// The connection is not as usual: there is more to know than this module looks at.
    Odd,
}

#[inline]
fn news(item: &Item) -> News {
    if item.queued || item.inactive || item.odd {
        return News::None;
    }
    let Some(conn) = Conn::new(item.socket, item.socket.fd()) else {
        return News::None;
    };
    if !stream::is_as_usual(&conn) {
        News::Odd
    } else if is_ready(item, &conn) {
        News::Some
    } else {
        News::None
    }
}

#[inline(always)]
fn is_ready(item: &Item, conn: &Conn) -> bool {
    let edge = item.events & libc::EPOLLET as u32 != 0;
    stream::may_be(conn, wanted(item.events), edge.then_some(item.end))
}

/// Whether a log would have told of something. (The kernel tells of ends, except those that were said in memory alone.)
fn has_some(item: &Item) -> bool {
    Conn::new(item.socket, item.socket.fd()).is_some_and(|conn| {
        is_ready(item, &conn) || stream::leaves_ring(&conn) || conn.is_ended_in_memory()
    })
}
