//! What is ready: reads the logs, asks the sockets, and fills the program's events.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use shunt_shm::wake::Entry as LogEntry;

use super::inner::{hear_inner, take_foreign, take_inner, take_inner_with};
use super::limit::Limit;
use super::room::Room;
use super::room_asked::ROOM;
use super::set::Set;
use super::state::{Follow, State};
use super::{FLAGS, base_events, outside, polled, wanted};
use crate::stream::{self, Conn};
use crate::sys;

/// While shunted sockets keep a set busy, the kernel's side of it is looked at
/// at least this often (ticks, about 10 µs), …
pub(crate) const LOOK_OFTEN: u32 = 26_000;
/// … and more and more rarely, down to this (about 600 µs), while it has nothing.
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

/// Whether the set may have something to report: a look without the lock, which may be wrong for a
/// moment.
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
    let gathered = gather(set, room, look, patience);
    gathered.pass_on(set);
    gathered.found
}

/// [`collect`] for a thread that is counted as asleep on the set; [`Gathered::pass_on`] follows when it is not any more.
pub(crate) fn collect_before_sleep(set: &'static Set, room: &mut Room) -> Gathered {
    gather(set, room, false, 0)
}

/// Gathers what is ready from both sides, with one look; and says whether the kernel has told of everything that it has.
pub(crate) fn collect_all(set: &'static Set, room: &mut Room) -> (usize, bool) {
    let gathered = gather(set, room, true, 0);
    gathered.pass_on(set);
    (gathered.found, gathered.is_all)
}

/// What a look at a set has come to.
#[derive(Default)]
pub(crate) struct Gathered {
    /// How many events the program is told.
    pub(crate) found: usize,
    /// Whether the kernel has told of everything that it has.
    is_all: bool,
    leaves: Leaves,
}

/// What is left for other threads: events for which there was no room, and level-triggered ones, which last.
#[derive(Default, PartialEq, Eq)]
enum Leaves {
    #[default]
    Nothing,
    /// Something that has been told of before.
    Old,
    /// Something that has just come.
    New,
}

impl Leaves {
    fn after(news: bool, any: bool) -> Self {
        match (any, news) {
            (false, _) => Self::Nothing,
            (true, false) => Self::Old,
            (true, true) => Self::New,
        }
    }
}

impl Gathered {
    /// Wakes another thread that sleeps on the set, if there is something for it: the first one may be waiting for it. Of what was told
    /// before, only a wait on this very set hears again (`ep_done_scan` in the kernel): two threads that leave it unread would else wake
    /// each other for ever by a set around this one.
    pub(crate) fn pass_on(&self, set: &Set) {
        let wakes = match self.leaves {
            Leaves::Nothing => false,
            Leaves::Old => set.has_waiters(),
            Leaves::New => true,
        };
        if wakes {
            set.kick();
        }
    }
}

fn gather(set: &'static Set, room: &mut Room, look: bool, patience: u32) -> Gathered {
    set.notice_relatives();
    if look {
        set.expose_nested();
    }
    set.with(|state| {
        let (mut found, mut share, mut is_all) = (0, room.len(), false);
        let mut ours = 0;
        outside::look(set, state, false);
        if look {
            harvest(state);
            // The kernel's side and ours take turns, so that neither starves the other.
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
            // It was the turn of shunted sockets, but none is ready: the kernel's side gets the whole room.
            let most = room.len();
            (found, is_all) = ask_kernel(set, state, room, most);
            found = deliver(state, room, found);
        }
        // With many logs each look takes long, so there are fewer.
        let looks = patience / state.follows.len().max(1) as u32;
        if found == 0 && !room.is_missing() {
            let news = (0..looks).find_map(|_| gather_ours(state, room));
            found = news.unwrap_or(0);
        }
        state.awake += u32::from(found > 0);
        if polled::is_due(state) || !state.busy.is_empty() {
            set.chores.store(true, Ordering::Relaxed);
        }
        let leaves = match found {
            0 => Leaves::Nothing,
            _ => Leaves::after(std::mem::take(&mut state.news), !state.queue.is_empty()),
        };
        Gathered {
            found,
            is_all,
            leaves,
        }
    })
    .unwrap_or_default()
}

/// Reports shunted items that are ready, at the beginning of the room; returns how many. `None`: none can be ready.
#[inline(always)]
fn gather_ours(state: &mut State, room: &mut Room) -> Option<usize> {
    if polled::may_report(state, room) && !is_logged(state) {
        polled::report(state, room)
    } else {
        is_told(state).then(|| gather_queued(state, room, 0))
    }
}

/// Reports shunted items that are ready, behind `found` events. Returns how many events there are now.
fn gather_queued(state: &mut State, room: &mut Room, found: usize) -> usize {
    harvest(state);
    deliver(state, room, found)
}

/// Reports shunted items that are ready beside `told` events of the kernel's. Returns how many there are now. If some were
/// queued before the kernel was asked (`ours_first`), they are put first: the true order is not known, and in the kernel,
/// too, a level that is told again stands in front.
#[inline(never)]
fn gather_both(state: &mut State, room: &mut Room, told: usize, ours_first: bool) -> usize {
    let found = gather_queued(state, room, told);
    if ours_first {
        // SAFETY: the kernel and `deliver` have stored `found` events.
        unsafe { room.stored(found) }.rotate_left(told);
    }
    found
}

/// The events that the program gets after the kernel has stored `n`: the program's own, and those of shunted items.
/// If the kernel has reported a call, this thread takes it out of the channel and reads the logs. Then the shunted
/// items stand where the call stood among the kernel's events, so that the order is that in which things came.
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
    if kept > 0 {
        if n == room.len() {
            set.kernel_has_more.store(true, Ordering::Relaxed);
        }
        set.pause.store(LOOK_OFTEN, Ordering::Relaxed);
    }
    if !set.is_shunted() || kept == room.len() {
        return kept;
    }
    // Reports of the library's own may have taken the room of the program's events.
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

/// Asks the kernel for up to `most` events. Returns how many there are, and whether the kernel has no more. If it has told
/// nothing but reports of the library's own, which are taken out, it is asked again: they must not displace the program's events.
/// If some of the program's are among them it is not, since it would tell these twice.
fn ask_kernel(set: &'static Set, state: &mut State, room: &mut Room, most: usize) -> (usize, bool) {
    /// It is asked this often: a report may come anew while the last one is being heard.
    const REPORTS: u32 = 3;
    let (mut found, mut heard, mut is_all) = (0, false, false);
    if most == 0 {
        return (0, false);
    }
    set.looked_at.store(sys::ticks(), Ordering::Relaxed);
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
        // The report may have used up the registration, or the connection may have gone back to TCP.
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
            // Noted before the look at what is there: an edge too many does less harm than one too few.
            item.end = stream::end_of_stream(&conn);
        }
        // Before the look: what is asked for after it is not told yet.
        let asked_at = conn.asked_at();
        let mask = stream::mask(&conn, wanted(item.events), look) & wanted(item.events);
        if mask == 0 {
            continue;
        }
        let event = epoll_event {
            events: mask,
            u64: item.data,
        };
        if !room.put(found, event) {
            // There was no room: the next wait tells it first.
            (item.look, item.end) = (look, end);
            (item.queued, item.listed) = (true, true);
            state.queue.push_front(index);
            break;
        }
        found += 1;
        if mask & ROOM != 0 {
            item.room_told = asked_at;
        }
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
        // In this order: a call that is taken out says only that a log has news, so the logs come after it.
        hear_inner(set, state, true, None);
        harvest(state);
        // This look may move some members back to TCP, which the inner set must follow.
        state.is_any_ready()
            || base_events::narrow_queued(set, state) && {
                hear_inner(set, state, true, None);
                state.is_any_ready()
            }
    })
    .unwrap_or(false)
}

/// Whether the logs tell of something that is to be reported.
pub(crate) fn has_some(set: &'static Set) -> bool {
    set.with(|state| {
        harvest(state);
        state.is_any_ready()
    })
    .unwrap_or(false)
}

#[cfg(all(test, not(miri)))]
mod tests;
