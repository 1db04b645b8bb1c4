//! What is ready: reads the logs, asks the sockets, and fills the program's events.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use shunt_shm::wake::Entry as LogEntry;

use super::inner::{hear_inner, take_foreign, take_inner, take_inner_with};
use super::limit::Limit;
use super::room::Room;
use super::set::Set;
use super::state::{Follow, State};
use super::{FLAGS, outside, polled, wanted};
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

/// Gathers what is ready: from the kernel's side if `look`, then shunted items. Where
/// there is nothing it looks again, so many times, without the pauses and the care of a
/// real wait: each would cost more than the answer.
pub(crate) fn collect(set: &'static Set, room: &mut Room, look: bool, patience: u32) -> usize {
    gather(set, room, look, patience).0
}

/// The same from both sides; and whether the kernel has told of everything that it has.
pub(crate) fn collect_all(set: &'static Set, room: &mut Room) -> (usize, bool) {
    gather(set, room, true, 0)
}

fn gather(set: &'static Set, room: &mut Room, look: bool, patience: u32) -> (usize, bool) {
    if look {
        set.expose_nested();
    }
    set.with(|state| {
        let (mut found, mut share, mut is_all) = (0, room.len(), false);
        outside::look(set, state, false);
        if look {
            set.looked_at.store(sys::ticks(), Ordering::Relaxed);
            harvest(state);
            // Neither side may starve the other.
            let ours = state.queue.len();
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
            n => gather_queued(state, room, n),
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

/// What the program gets of `n` events of the kernel's, and what is ready of ours: a thread that takes a call out of
/// the channel reads the logs after that.
pub(crate) fn take_events(
    set: &'static Set,
    slept_on: c_int,
    room: &mut Room,
    n: usize,
    limit: Limit,
) -> usize {
    // SAFETY: the kernel has stored so many.
    let told = unsafe { room.stored(n) };
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
    kept + room.behind(kept, |rest| collect(set, rest, look, 0))
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
        // SAFETY: the kernel has stored so many.
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
        // In this order: a call that is heard says nothing but that a log has news.
        hear_inner(set, state, true, None);
        harvest(state);
        is_any_ready(state)
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
mod tests {
    use super::*;

    use super::super::{register, see_to_chores};
    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::hold::Held;
    use crate::table::{self, Word};

    const IN: u32 = libc::EPOLLIN as u32;

    /// A connection, and a set of the program's with the end that receives.
    struct Watched {
        set: &'static Set,
        ends: BothEnds,
    }

    impl Watched {
        fn with(events: c_int) -> Self {
            let ends = BothEnds::attached();
            let fd = sys::epoll_create().unwrap();
            Set::enter(fd);
            let set = Set::of(fd).unwrap();
            let watched = Self { set, ends };
            let added = watched.change(libc::EPOLL_CTL_ADD, events);
            assert_eq!(added, Outcome::Done(0));
            assert!(watched.wait().is_empty());
            watched
        }

        fn change(&self, operation: c_int, events: c_int) -> Outcome {
            let event = epoll_event {
                events: events as u32,
                u64: 7,
            };
            let (socket, fd) = (self.ends.sockets[1], self.ends.fds[1]);
            register(self.set, operation, socket, fd, event)
        }

        /// The same, and the set looks at the end itself.
        fn polled(events: c_int) -> Self {
            let watched = Self::with(events);
            for _ in 0..100 {
                watched.ends.send(b"bytes");
                watched.wait();
                assert_eq!(watched.ends.receive::<8>(), b"bytes");
                assert_eq!(watched.answer(8), Outcome::Done(8));
                assert_eq!(watched.take_answer(), Outcome::Done(8));
                if watched.set.has_chores() {
                    see_to_chores(watched.set);
                }
            }
            assert_eq!(watched.set.with(|state| state.polled.len()), Some(1));
            watched.wait();
            watched
        }

        /// The watched end sends so many bytes.
        fn answer(&self, length: usize) -> Outcome {
            let bytes = vec![7u8; length];
            let parts = [libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: length,
            }];
            // SAFETY: the bytes are there.
            unsafe { stream::send(&self.ends.conns()[1], &parts, libc::MSG_DONTWAIT) }
        }

        /// Its peer receives some.
        fn take_answer(&self) -> Outcome {
            let mut bytes = [0u8; 1 << 16];
            let parts = [libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            }];
            // SAFETY: there is room for so many bytes.
            unsafe { stream::receive(&self.ends.conns()[0], &parts, libc::MSG_DONTWAIT) }
        }

        /// What a wait tells that looks at the rings only, and how much waits in the queue then.
        fn look(&self) -> (Vec<u32>, usize) {
            let mut events = [epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: as below.
            let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
            let found = collect(self.set, &mut room, false, 4);
            let queued = self.set.with(|state| state.queue.len()).unwrap();
            (events[..found].iter().map(|e| e.events).collect(), queued)
        }

        /// What a wait that does not sleep tells.
        fn wait(&self) -> Vec<(u32, u64)> {
            let mut events = [epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: the array is there as long as the room is.
            let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
            let found = collect(self.set, &mut room, true, 0);
            events[..found].iter().map(|e| (e.events, e.u64)).collect()
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let fd = self.set.fd();
            table::enter(fd, Word::NOTHING);
            self.set.unhold();
            sys::close(fd);
        }
    }

    #[test]
    fn a_member_that_another_thread_is_about_to_let_go_is_not_polled_twice() {
        let watched = Watched::polled(libc::EPOLLIN);
        // The first half of what a thread does that sleeps.
        watched.set.with(|state| {
            let index = state.polled[0] as usize;
            (state.items[index].polled, state.awake) = (false, u32::MAX);
        });
        polled::review(watched.set);
        assert_eq!(watched.set.with(|state| state.polled.len()), Some(1));
    }

    #[test]
    fn a_level_is_told_as_long_as_it_lasts() {
        let watched = Watched::with(libc::EPOLLIN);
        watched.ends.send(b"bytes");
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert_eq!(watched.ends.receive::<8>(), b"bytes");
        assert!(watched.wait().is_empty());
    }

    #[test]
    fn an_edge_is_told_once_and_again_when_more_comes() {
        let watched = Watched::with(libc::EPOLLIN | libc::EPOLLET);
        watched.ends.send(b"bytes");
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert!(watched.wait().is_empty());
        watched.ends.send(b"more");
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert!(watched.wait().is_empty());
    }

    #[test]
    fn a_one_shot_registration_tells_nothing_until_it_is_armed_anew() {
        let watched = Watched::with(libc::EPOLLIN | libc::EPOLLONESHOT);
        watched.ends.send(b"bytes");
        assert_eq!(watched.wait(), [(IN, 7)]);
        watched.ends.send(b"more");
        assert!(watched.wait().is_empty());
        let events = libc::EPOLLIN | libc::EPOLLONESHOT;
        assert_eq!(
            watched.change(libc::EPOLL_CTL_MOD, events),
            Outcome::Done(0)
        );
        assert_eq!(watched.wait(), [(IN, 7)]);
    }

    #[test]
    fn a_level_of_a_polled_end_is_told_without_the_queue() {
        let watched = Watched::polled(libc::EPOLLIN);
        assert_eq!(watched.look(), (vec![], 0));
        watched.ends.send(b"bytes");
        assert_eq!(watched.look(), (vec![IN], 0));
        assert_eq!(watched.look(), (vec![IN], 0));
        assert_eq!(watched.ends.receive::<8>(), b"bytes");
        assert_eq!(watched.look(), (vec![], 0));
    }

    #[test]
    fn an_edge_of_a_polled_end_is_told_once() {
        let watched = Watched::polled(libc::EPOLLIN | libc::EPOLLET);
        watched.ends.send(b"bytes");
        assert_eq!(watched.look(), (vec![IN], 0));
        assert_eq!(watched.look(), (vec![], 0));
        watched.ends.send(b"more");
        assert_eq!(watched.look(), (vec![IN], 0));
    }

    #[test]
    fn room_of_a_polled_end_is_told_as_long_as_it_lasts() {
        const OUT: u32 = libc::EPOLLOUT as u32;
        let watched = Watched::polled(libc::EPOLLIN);
        watched.change(libc::EPOLL_CTL_MOD, libc::EPOLLIN | libc::EPOLLOUT);
        assert_eq!(watched.look().0, [OUT]);
        while watched.ends.conns()[1].has_room() {
            assert!(matches!(watched.answer(1 << 14), Outcome::Done(1..)));
        }
        assert_eq!(watched.look(), (vec![], 0));
        while let Outcome::Done(1..) = watched.take_answer() {}
        assert_eq!(watched.look().0, [OUT]);
        assert_eq!(watched.look().0, [OUT]);
    }

    #[test]
    fn what_the_program_takes_out_tells_nothing_and_comes_back_at_once() {
        let watched = Watched::with(libc::EPOLLIN);
        watched.ends.send(b"bytes");
        let changed = |operation| watched.change(operation, libc::EPOLLIN);
        assert_eq!(changed(libc::EPOLL_CTL_DEL), Outcome::Done(0));
        assert!(watched.wait().is_empty());
        assert_eq!(changed(libc::EPOLL_CTL_DEL), Outcome::Fail(libc::ENOENT));
        assert_eq!(changed(libc::EPOLL_CTL_ADD), Outcome::Done(0));
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert_eq!(changed(libc::EPOLL_CTL_ADD), Outcome::Fail(libc::EEXIST));
    }
}
