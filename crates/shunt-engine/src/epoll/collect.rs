//! What is ready: reads the logs, asks the sockets, and fills the program's events.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use shunt_shm::wake::Entry as LogEntry;

use super::inner::{hear_inner, take_foreign, take_inner, take_inner_with};
use super::limit::Limit;
use super::room::Room;
use super::set::Set;
use super::state::{Follow, State};
use super::{FLAGS, base_events, outside, polled, wanted};
use crate::stream::{self, Conn};
use crate::sys;

/// While shunted sockets keep a set busy, the kernel's side of it is looked at
/// at least this often (ticks, about 10 µs), …
pub(crate) const LOOK_OFTEN: u32 = 26_000;
/// … and less and less, down to this (about 600 µs), while there is nothing.
const LOOK_SELDOM: u32 = 3 << 19;

/// Whether it is time, `now` (ticks), to look at the kernel's side; not before
/// `earliest`, if there was nothing more at the last look.
#[inline]
pub(crate) fn is_due(set: &Set, now: u64, earliest: u64) -> bool {
    let pause = u64::from(set.pause.load(Ordering::Relaxed));
    set.kernel_has_more.load(Ordering::Relaxed)
        || now.wrapping_sub(set.looked_at.load(Ordering::Relaxed)) > pause
            && now.wrapping_sub(earliest) as i64 >= 0
}

/// Whether there may be something; a look without the lock, which may be wrong
/// for a moment.
#[inline]
pub(crate) fn has_news(set: &'static Set) -> bool {
    set.with(|state| is_told(state)).unwrap_or(false)
}

#[inline]
fn is_told(state: &State) -> bool {
    !state.queue.is_empty() || polled::has_news(state) || is_logged(state)
}

/// Whether a log tells of something.
#[inline(always)]
fn is_logged(state: &State) -> bool {
    let has_news = |follow: &Follow| {
        let mut head = follow.head;
        follow.log.next(&mut head) != LogEntry::Empty
    };
    state.follows.iter().any(has_news)
}

/// Gathers what is ready: from the kernel's side if `look`, then shunted items. Where nothing is
/// ready it looks again, up to `patience` times, without the pauses and the care of a real wait:
/// each would cost more than the answer.
pub(crate) fn collect(set: &'static Set, room: &mut Room, look: bool, patience: u32) -> usize {
    gather(set, room, look, patience).0
}

/// Gathers what is ready from both sides, with one look; and says whether the kernel has told of everything that it has.
pub(crate) fn collect_all(set: &'static Set, room: &mut Room) -> (usize, bool) {
    gather(set, room, true, 0)
}

fn gather(set: &'static Set, room: &mut Room, look: bool, patience: u32) -> (usize, bool) {
    if look {
        set.expose_nested();
    }
    set.with(|state| {
        let (mut found, mut share, mut is_all) = (0, room.len(), false);
        let mut ours = 0;
        outside::look(set, state, false);
        if look {
            set.looked_at.store(sys::ticks(), Ordering::Relaxed);
            harvest(state);
            // Neither side may starve the other.
            ours = state.queue.len();
            share = match (ours, room.len()) {
                (0, n) => n,
                (_, 1) => usize::from(state.kernel_first),
                (_, n) => n - ours.min(n / 2),
            };
            state.kernel_first = !state.kernel_first;
            (found, is_all) = ask_kernel(set, state, room, share);
        }
        found = match found {
            0 => gather_ours(state, room).unwrap_or(0),
            n => gather_both(state, room, n, ours > 0),
        };
        if share == 0 && found == 0 {
            // It was our turn, but there was nothing.
            let most = room.len();
            (found, is_all) = ask_kernel(set, state, room, most);
            found = deliver(state, room, found);
        }
        // Of many logs each look takes long.
        let looks = patience / state.follows.len().max(1) as u32;
        if found == 0 && !room.is_missing() {
            let news = (0..looks).find_map(|_| gather_ours(state, room));
            found = news.unwrap_or(0);
        }
        state.awake += u32::from(found > 0);
        if polled::is_due(state) || !state.busy.is_empty() {
            set.chores.store(true, Ordering::Relaxed);
        }
        // Level-triggered items stay queued: with others asleep, one of them may
        // have room for what we leave.
        if found == room.len() && !state.queue.is_empty() {
            set.kick();
        }
        (found, is_all)
    })
    .unwrap_or((0, false))
}

/// Reports what is ready of ours, where nothing has been reported yet; how much. `None`: nothing may be.
#[inline(always)]
fn gather_ours(state: &mut State, room: &mut Room) -> Option<usize> {
    if polled::may_report(state, room) && !is_logged(state) {
        polled::report(state, room)
    } else {
        is_told(state).then(|| gather_queued(state, room, 0))
    }
}

/// Reports what is ready of ours, behind `found` events; how many there are now.
fn gather_queued(state: &mut State, room: &mut Room, found: usize) -> usize {
    harvest(state);
    deliver(state, room, found)
}

/// Reports what is ready of ours beside `told` events of the kernel's; how many there are now. If there was something before
/// the kernel was asked, ours come first: nobody knows better what came first, and a level that is told again stands in
/// front in the kernel, too.
#[inline(never)]
fn gather_both(state: &mut State, room: &mut Room, told: usize, ours_first: bool) -> usize {
    let found = gather_queued(state, room, told);
    if ours_first {
        // SAFETY: the kernel and `deliver` have stored `found` events.
        unsafe { room.stored(found) }.rotate_left(told);
    }
    found
}

/// What the program gets of `n` events of the kernel's, and what is ready of ours: a thread that takes a call out of
/// the channel reads the logs after that. Ours come where the kernel has told of the call: what came before it is
/// reported first, what came after it behind, as it came.
pub(crate) fn take_events(
    set: &'static Set,
    slept_on: c_int,
    room: &mut Room,
    n: usize,
    limit: Limit,
) -> usize {
    // SAFETY: the kernel has stored this number of events.
    let told = unsafe { room.stored(n) };
    let before = told.iter().position(|event| set.is_report(event));
    let mut kept = take_inner(set, told);
    if set.fd() != slept_on {
        kept = take_foreign(&mut told[..kept]);
    }
    if n == room.len() {
        set.kernel_has_more.store(true, Ordering::Relaxed);
    }
    if kept > 0 {
        set.pause.store(LOOK_OFTEN, Ordering::Relaxed);
    }
    if !set.is_shunted() || kept == room.len() {
        return kept;
    }
    // Reports of our own may have been where the program's would have been.
    let look = kept == 0 && n == room.len() && limit.is_up();
    let found = kept + room.behind(kept, |rest| collect(set, rest, look, 0));
    if let Some(before) = before.filter(|&before| before < kept) {
        // SAFETY: the kernel and `collect` have stored `found` events.
        put_last(unsafe { room.stored(found) }, before..kept);
    }
    found
}

#[inline(never)]
fn put_last(told: &mut [epoll_event], part: std::ops::Range<usize>) {
    told[part.start..].rotate_left(part.len());
}

/// Asks for what the kernel has, no more than `most` events; returns how many, and whether that is all. Where it has told of nothing but our own reports, which
/// are taken out, it is asked again: they are no reason to leave out the program's. Not
/// where something is left, which it would tell twice.
fn ask_kernel(set: &'static Set, state: &mut State, room: &mut Room, most: usize) -> (usize, bool) {
    /// A report may come back while it is heard.
    const REPORTS: u32 = 3;
    let (mut found, mut heard, mut is_all) = (0, false, false);
    if most == 0 {
        return (0, false);
    }
    for _ in 0..REPORTS {
        let asked = room.ask(set.fd(), most);
        let n = asked.unwrap_or(0);
        let is_full = n == most;
        set.kernel_has_more.store(is_full, Ordering::Relaxed);
        is_all = asked.is_ok() && !is_full;
        heard |= n > 0;
        // SAFETY: the kernel has stored this number of events.
        found = take_inner_with(set, state, unsafe { room.stored(n) });
        if !is_full || found > 0 {
            break;
        }
    }
    let pause = match set.pause.load(Ordering::Relaxed) {
        _ if heard => LOOK_OFTEN,
        pause => (pause * 2).clamp(LOOK_OFTEN, LOOK_SELDOM),
    };
    set.pause.store(pause, Ordering::Relaxed);
    (found, is_all)
}

/// Follows the logs of all links.
fn harvest(state: &mut State) {
    polled::harvest(state);
    for f in 0..state.follows.len() {
        harvest_one(state, f);
    }
}

/// Follows the log of one link.
#[inline(always)]
fn harvest_one(state: &mut State, f: usize) {
    // Bounded, so that a fast or hostile writer cannot keep us here.
    for _ in 0..shunt_abi::layout::LOG_ENTRIES {
        let follow = &mut state.follows[f];
        let link = follow.link;
        match follow.log.next(&mut follow.head) {
            LogEntry::Empty => return,
            LogEntry::Slot(slot) => {
                state.fresh = true;
                if let Some(socket) = link.socket(slot) {
                    state.enqueue_socket(socket);
                }
            }
            LogEntry::Lost => {
                state.fresh = true;
                state.enqueue_link(link.index());
                return;
            }
        }
    }
}

/// Reports items from the queue whose sockets are ready, behind `found` events; how many there are now.
fn deliver(state: &mut State, room: &mut Room, mut found: usize) -> usize {
    for _ in 0..state.queue.len() {
        if found == room.len() {
            break;
        }
        let Some(index) = state.queue.pop_front() else {
            break;
        };
        // It may have been used up by this, or have gone back to TCP.
        state.may_narrow_later(index);
        let item = &mut state.items[index as usize];
        item.listed = false;
        if !std::mem::take(&mut item.queued) {
            continue; // It has been removed, perhaps for another one.
        }
        let one_shot = item.events & libc::EPOLLONESHOT as u32 != 0;
        if item.inactive || wanted(item.events) == 0 {
            continue;
        }
        let look = std::mem::take(&mut item.look);
        let Some(conn) = Conn::new(item.socket, item.socket.fd()) else {
            continue;
        };
        let end = item.end;
        if (item.polled || item.outside) && item.events & libc::EPOLLET as u32 != 0 {
            // Before the look at what is there: better an edge too many than one too few.
            item.end = conn.consumer().end();
        }
        let mask = stream::mask(&conn, wanted(item.events), look) & wanted(item.events);
        if mask == 0 {
            continue;
        }
        let event = epoll_event {
            events: mask,
            u64: item.data,
        };
        if !room.put(found, event) {
            // The next wait tells it first.
            (item.look, item.end) = (look, end);
            (item.queued, item.listed) = (true, true);
            state.queue.push_front(index);
            break;
        }
        found += 1;
        if one_shot {
            item.events &= FLAGS;
        } else if item.events & libc::EPOLLET as u32 == 0 {
            // Level-triggered: asked again by the next wait.
            item.look = look && mask & !(libc::EPOLLIN | libc::EPOLLOUT) as u32 != 0;
            (item.queued, item.listed) = (true, true);
            state.queue.push_back(index);
        }
    }
    found
}

/// Whether a wait on the set would find something now: for sets inside other
/// sets, and in `poll`. Looks at shunted sockets only.
pub(super) fn has_ready(set: &'static Set) -> bool {
    if !set.is_shunted() && set.listeners.load(Ordering::Relaxed) == 0 {
        return false;
    }
    set.with(|state| {
        base_events::narrow(set, state);
        // In this order: a call that is heard says nothing but that a log has news.
        hear_inner(set, state, true, None);
        harvest(state);
        // That look may bring some of them back to TCP.
        is_any_ready(state)
            || base_events::narrow_queued(set, state) && {
                hear_inner(set, state, true, None);
                is_any_ready(state)
            }
    })
    .unwrap_or(false)
}

/// Whether the logs tell of something that is to be reported.
pub(crate) fn has_some(set: &'static Set) -> bool {
    set.with(|state| {
        harvest(state);
        is_any_ready(state)
    })
    .unwrap_or(false)
}

/// Asks without reporting: an edge stays an edge for the real wait.
fn is_any_ready(state: &State) -> bool {
    state.queue.iter().any(|&index| {
        let item = &state.items[index as usize];
        let is_due = item.queued && !item.inactive;
        let conn = Conn::new(item.socket, item.socket.fd()).filter(|_| is_due);
        let Some(conn) = conn else {
            return false;
        };
        stream::mask(&conn, wanted(item.events), item.look) & wanted(item.events) != 0
    })
}

#[cfg(all(test, not(miri)))]
mod tests;
