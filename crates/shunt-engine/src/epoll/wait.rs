//! `epoll_wait`.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event, sigset_t, timespec};
use shunt_shm::atomic::heavy;
use shunt_shm::wake::Entry as LogEntry;

use super::control::{retire_busy, wanted};
use super::{KICK, Known, SHARED, Set, State};
use crate::socket::{self, Stage};
use crate::stream::{self, Conn, Spin};
use crate::thread::signals;
use crate::{Outcome, control, ready, real, stats, sys, table, tcp, upgrade};

/// While shunted sockets keep a set busy, the kernel's side of it is looked at
/// at least this often (ticks, about 10 µs), …
const LOOK_OFTEN: u32 = 26_000;
/// … and less and less, down to this (about 400 µs), while there is nothing.
const LOOK_SELDOM: u32 = 1 << 20;
/// A dormant registration goes after this many events.
const BUSY: u32 = 16;

/// How long a wait may take.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// Nanoseconds of the monotonic clock; `None`: for ever.
    until: Option<u64>,
    now: bool,
    /// Not in whole milliseconds.
    fine: bool,
}

impl Limit {
    /// From a relative time in nanoseconds; `None`: for ever.
    pub(crate) fn new(relative: Option<u64>) -> Self {
        Self {
            until: relative
                .filter(|&ns| ns != 0)
                .map(|ns| sys::now().saturating_add(ns)),
            now: relative == Some(0),
            fine: relative.is_some_and(|ns| ns % 1_000_000 != 0),
        }
    }

    /// Whether the call must not wait at all.
    pub(crate) fn is_now(&self) -> bool {
        self.now
    }

    /// What is left, for the real call; `None`: for ever.
    pub(crate) fn left(&self) -> Option<timespec> {
        if self.now {
            return Some(timespec {
                tv_sec: 0,
                tv_nsec: 0,
            });
        }
        let left = self.until?.saturating_sub(sys::now());
        Some(timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        })
    }

    /// Whether the time is up.
    pub(crate) fn is_up(&self) -> bool {
        self.now || self.until.is_some_and(|until| sys::now() >= until)
    }
}

/// `epoll_pwait2(2)` on a tracked set.
///
/// # Safety
/// `events` has room for `most` events; `mask` is null or a signal set.
pub(crate) unsafe fn wait(
    set: &'static Set,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    // The kernel refuses what it cannot fill (`EP_MAX_EVENTS`).
    let refused = most <= 0 || most as usize > i32::MAX as usize / size_of::<epoll_event>();
    if refused || set.is_plain() && (limit.is_now() || (events as usize) < 4096) {
        return Outcome::Kernel;
    }
    if (events as usize) < 4096 {
        // Only once there is something to report.
        // SAFETY: the caller's promise.
        return match unsafe { ready::poll_set(set.fd(), limit, mask) } {
            Outcome::Done(1..) => Outcome::Fail(libc::EFAULT),
            other => other,
        };
    }
    // SAFETY: the caller's promise.
    let room = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
    if set.is_plain() {
        // SAFETY: the caller's promise.
        if let Some(outcome) = unsafe { wait_plain(set, room, limit, mask) } {
            return outcome;
        }
    }
    let seen = signals::now();
    control::check_mail();
    let told = bring_forward(set, room);
    if told > 0 {
        stats::ready_call(true);
        return Outcome::Done(told as isize);
    }
    retire_busy(set);
    let mut spin = Spin::new();
    if set.is_shunted() {
        loop {
            let due = is_due(set);
            let mut found = collect(set, room, due);
            if found == 0 && limit.is_now() && !due {
                found = collect(set, room, true);
            }
            if found > 0 {
                spin.paid();
                stats::ready_call(due);
                return Outcome::Done(found as isize);
            }
            if limit.is_up() {
                stats::ready_call(true);
                return Outcome::Done(0);
            }
            if seen.any_since() {
                return Outcome::Fail(libc::EINTR);
            }
            let mut more = true;
            while more && !has_news(set) && !is_due(set) {
                more = spin.turn();
            }
            if !more {
                break;
            }
        }
    }
    loop {
        if set.is_shunted() {
            control::look();
        }
        begin_sleep(set);
        let found = collect(set, room, false);
        let n = if found > 0 {
            end_sleep(set);
            return Outcome::Done(found as isize);
        } else if seen.any_since() {
            Err(libc::EINTR)
        } else {
            stats::ready_sleep();
            // SAFETY: the slice is the program's own.
            unsafe { real_wait(set.fd(), room, limit, mask, &|| end_sleep(set)) }
        };
        end_sleep(set);
        if n.is_ok_and(|n| n > 0) {
            spin.woke();
        }
        stats::ready_call(true);
        let n = match n {
            Ok(n) => n as usize,
            Err(errno) => {
                // News that came with the signal go first, as in the kernel.
                let found = if errno == libc::EINTR && set.is_shunted() {
                    collect(set, room, false)
                } else {
                    0
                };
                return if found > 0 {
                    Outcome::Done(found as isize)
                } else {
                    Outcome::Fail(errno)
                };
            }
        };
        let kept = take_inner(set, room, n);
        if kept > 0 {
            set.pause.store(LOOK_OFTEN, Ordering::Relaxed);
        }
        let found = kept
            + if set.is_shunted() && kept < room.len() {
                collect(set, &mut room[kept..], false)
            } else {
                0
            };
        if found > 0 {
            return Outcome::Done(found as isize);
        }
        if limit.is_up() {
            return Outcome::Done(0);
        }
    }
}

/// A wait while the set holds nothing of ours: as real as can be, but another
/// thread may bring something in meanwhile. `None`: it has; wait as for such a set.
unsafe fn wait_plain(
    set: &'static Set,
    room: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
) -> Option<Outcome> {
    let awake = || {
        set.plain_sleepers.fetch_sub(1, Ordering::SeqCst);
    };
    set.plain_sleepers.fetch_add(1, Ordering::SeqCst);
    // One of the two sees the other: this look the change, or the changer the sleeper.
    let n = if !set.is_plain() {
        Ok(0)
    } else {
        // SAFETY: the caller's promise.
        unsafe { real_wait(set.fd(), room, limit, mask, &awake) }
    };
    awake();
    match n {
        Err(errno) => Some(Outcome::Fail(errno)),
        // Another thread may have taken what a poll of the set has found.
        Ok(0) if !limit.is_up() => None,
        Ok(n) if set.is_plain() => Some(Outcome::Done(n)),
        Ok(n) => match take_inner(set, room, n as usize) {
            0 => None,
            kept => Some(Outcome::Done(kept as isize)),
        },
    }
}

/// The real call; `undo` if the thread is cancelled in it.
unsafe fn real_wait(
    fd: c_int,
    room: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
    undo: &impl Fn(),
) -> Result<isize, i32> {
    if let (true, Some(left)) = (limit.fine, limit.left()) {
        // `epoll_pwait2`, which not every libc has.
        let mut one = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd; the caller's promise.
        let n = real::sleeping(undo, || unsafe {
            real::ppoll()(&raw mut one, 1, &raw const left, mask) as isize
        })?;
        return if n == 0 {
            Ok(0)
        } else {
            sys::epoll_now(fd, room.as_mut_ptr(), room.len()).map(|n| n as isize)
        };
    }
    // Milliseconds, rounded up: a wait is never shorter than asked for.
    let ms = limit.left().map_or(-1, |t| {
        (t.tv_sec * 1000 + (t.tv_nsec + 999_999) / 1_000_000).min(i32::MAX as i64)
    });
    // SAFETY: the caller's promise.
    real::sleeping(undo, || unsafe {
        real::epoll_pwait()(
            fd,
            room.as_mut_ptr(),
            room.len() as c_int,
            ms as c_int,
            mask,
        ) as isize
    })
}

/// Attaches the sockets of a set that have been paired meanwhile. Edge-triggered
/// registrations follow once the kernel has no event for them any more: what it
/// has goes to the program. Returns how many events that is.
fn bring_forward(set: &'static Set, room: &mut [epoll_event]) -> usize {
    if !socket::any_paired() {
        return 0;
    }
    let mut paired = [None; 32];
    let mut n = 0;
    set.with(|state| {
        if set.moved.load(Ordering::Relaxed) == set.tracked.load(Ordering::Relaxed) {
            return;
        }
        for item in state
            .items
            .iter_mut()
            .filter(|i| i.live && !i.moved && i.socket.stage() == Stage::Paired)
        {
            let edge = item.events & libc::EPOLLET as u32 != 0;
            // Its number may be another's by now.
            if !table::socket(item.fd).is_some_and(|s| std::ptr::eq(s, item.socket)) {
                continue;
            }
            // One in several sets never can be; trying costs system calls.
            item.put_off += u32::from(edge && item.put_off < u32::MAX);
            if n < paired.len() && (item.put_off < 16 || item.put_off % 64 == 0) {
                item.armed &= !edge;
                paired[n] = Some((item.socket, item.fd, edge));
                n += 1;
            }
        }
    });
    let paired = || paired.into_iter().flatten();
    for (socket, fd, _) in paired().filter(|p| !p.2) {
        upgrade::progress(socket, fd, Known::Nothing);
    }
    if !paired().any(|p| p.2) {
        return 0;
    }
    let mut marks = [None; 32];
    for (mark, (_, fd, _)) in marks.iter_mut().zip(paired()) {
        *mark = tcp::mark(fd);
    }
    set.expose_nested();
    let Ok(n) = sys::epoll_now(set.fd(), room.as_mut_ptr(), room.len()) else {
        return 0;
    };
    if n < room.len() {
        for ((socket, fd, edge), mark) in paired().zip(marks) {
            if let (true, Some(mark)) = (edge, mark) {
                upgrade::progress(socket, fd, Known::Told(set.index(), mark));
            }
        }
    }
    take_inner(set, room, n)
}

/// Whether it is time to look at the kernel's side.
fn is_due(set: &Set) -> bool {
    let pause = u64::from(set.pause.load(Ordering::Relaxed));
    sys::ticks().wrapping_sub(set.looked_at.load(Ordering::Relaxed)) > pause
}

/// Whether a log or the queue has something; a look without the lock, which may
/// be wrong for a moment.
fn has_news(set: &'static Set) -> bool {
    set.with(|state| {
        !state.queue.is_empty()
            || state.follows.iter().any(|f| {
                let peer = f.link.peer();
                let mut heads = f.heads;
                peer.log(set.group()).next(&mut heads[0]) != LogEntry::Empty
                    || peer.log(SHARED).next(&mut heads[1]) != LogEntry::Empty
            })
    })
    .unwrap_or(false)
}

/// Gathers what is ready: from the kernel's side if `look`, then shunted items.
fn collect(set: &'static Set, room: &mut [epoll_event], look: bool) -> usize {
    if look {
        set.expose_nested();
    }
    set.with(|state| {
        let mut found = 0;
        if look {
            set.looked_at.store(sys::ticks(), Ordering::Relaxed);
            harvest(set, state);
            // Neither side may starve the other.
            let ours = state.queue.len();
            let share = match (ours, room.len()) {
                (0, n) => n,
                (_, 1) => usize::from(state.kernel_first),
                (_, n) => n - ours.min(n / 2),
            };
            state.kernel_first = !state.kernel_first;
            if share > 0 {
                let n = sys::epoll_now(set.fd(), room.as_mut_ptr(), share).unwrap_or(0);
                found = take_inner_with(set, state, room, n);
                let pause = set.pause.load(Ordering::Relaxed);
                let pause = if n > 0 {
                    LOOK_OFTEN
                } else {
                    (pause * 2).clamp(LOOK_OFTEN, LOOK_SELDOM)
                };
                set.pause.store(pause, Ordering::Relaxed);
            }
        }
        harvest(set, state);
        found += deliver(state, &mut room[found..]);
        // Level-triggered items stay queued: with others asleep, one of them may
        // have room for what we leave.
        if found == room.len() && !state.queue.is_empty() {
            set.kick();
        }
        found
    })
    .unwrap_or(0)
}

/// Follows the logs of all links.
fn harvest(set: &'static Set, state: &mut State) {
    let groups = [set.group(), SHARED];
    for f in 0..state.follows.len() {
        let link = state.follows[f].link;
        for (i, group) in groups.into_iter().enumerate() {
            let log = link.peer().log(group);
            // Bounded, so that a fast writer cannot keep us here.
            for _ in 0..shunt_abi::layout::LOG_ENTRIES {
                let mut head = state.follows[f].heads[i];
                let entry = log.next(&mut head);
                state.follows[f].heads[i] = head;
                match entry {
                    LogEntry::Empty => break,
                    LogEntry::Slot(slot) => {
                        state.fresh = true;
                        if let Some(socket) = link.socket(slot) {
                            enqueue_socket(state, socket, false);
                        }
                    }
                    LogEntry::Lost => enqueue_link(state, link.index()),
                }
            }
        }
    }
}

fn enqueue_socket(state: &mut State, socket: u32, look: bool) {
    let mut next = state.by_socket.get(socket as usize).copied().unwrap_or(0);
    while let Some(index) = next.checked_sub(1) {
        next = state.items[index as usize].next;
        let item = &mut state.items[index as usize];
        if item.dormant {
            item.idle_news += 1;
            if item.idle_news == BUSY {
                let socket = item.socket;
                state.busy.push(socket);
            }
        }
        state.enqueue(index, look);
    }
}

/// The log was lost: any member of the link may have news.
fn enqueue_link(state: &mut State, link: u32) {
    for index in 0..state.items.len() as u32 {
        let item = &state.items[index as usize];
        if item.live && item.moved && item.socket.pair().is_some_and(|p| p.link.index() == link) {
            state.enqueue(index, false);
        }
    }
}

/// Reports items from the queue whose sockets are ready.
fn deliver(state: &mut State, room: &mut [epoll_event]) -> usize {
    let mut found = 0;
    for _ in 0..state.queue.len() {
        if found == room.len() {
            break;
        }
        let Some(index) = state.queue.pop_front() else {
            break;
        };
        let item = &mut state.items[index as usize];
        item.queued = false;
        let one_shot = item.events & libc::EPOLLONESHOT as u32 != 0;
        if item.dormant || item.events & !super::FLAGS == 0 && one_shot {
            continue;
        }
        let look = std::mem::take(&mut item.look);
        let Some(conn) = Conn::new(item.socket, item.socket.fd()) else {
            continue;
        };
        let mask = ready::mask(&conn, wanted(item.events), look) & wanted(item.events);
        if mask == 0 {
            continue;
        }
        room[found] = epoll_event {
            events: mask,
            u64: item.data,
        };
        found += 1;
        if one_shot {
            item.events &= super::FLAGS;
        } else if item.events & libc::EPOLLET as u32 == 0 {
            // Level-triggered: asked again by the next wait.
            item.look = look && mask & !(libc::EPOLLIN | libc::EPOLLOUT) as u32 != 0;
            item.queued = true;
            state.queue.push_back(index);
        }
    }
    found
}

/// Takes the report of the inner set out of the program's events and hears what
/// it has to say. Returns how many events are the program's.
fn take_inner(set: &'static Set, room: &mut [epoll_event], n: usize) -> usize {
    set.with(|state| take_inner_with(set, state, room, n))
        .unwrap_or(n)
}

fn take_inner_with(
    set: &'static Set,
    state: &mut State,
    room: &mut [epoll_event],
    n: usize,
) -> usize {
    let magic = set.magic();
    let Some(at) = room[..n].iter().position(|e| e.u64 == magic) else {
        return n;
    };
    room.copy_within(at + 1..n, at);
    hear_inner(set, state, false, None);
    n - 1
}

/// Hears the base sockets: swallows doorbells, notes FINs and resets. The kick
/// is taken too, unless it is to be left for others. One item may be left out.
fn hear_inner(set: &'static Set, state: &mut State, leave_kick: bool, except: Option<u32>) {
    let inner = set.inner.load(Ordering::Acquire);
    let mut events = [epoll_event { events: 0, u64: 0 }; 64];
    loop {
        let n = sys::epoll_now(inner, events.as_mut_ptr(), events.len()).unwrap_or(0);
        for event in &events[..n] {
            let (kind, data) = (event.events, event.u64);
            if data == KICK {
                // A thread in a plain wait knows of nothing else.
                if leave_kick || set.plain_sleepers.load(Ordering::SeqCst) != 0 {
                    continue;
                }
                set.exposed.store(false, Ordering::Relaxed);
                let mut count = 0u64;
                let _ = sys::read(set.kick.load(Ordering::Relaxed), (&raw mut count).cast(), 8);
                continue;
            }
            let (index, generation) = (data as u32, (data >> 32) as u32);
            let Some(item) = state.items.get(index as usize) else {
                continue;
            };
            if !item.live || item.generation != generation || except == Some(index) {
                continue;
            }
            let Some(conn) = Conn::new(item.socket, item.socket.fd()) else {
                continue;
            };
            stream::swallow(&conn);
            let news = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLPRI;
            let on_ring = conn.way_in() == shunt_shm::slot::Way::Ring
                && conn.way_out() == shunt_shm::slot::Way::Ring;
            state.enqueue(index, kind & news as u32 != 0 || !on_ring);
        }
        if n < events.len() {
            break;
        }
    }
}

/// Hears what the inner set has to say of all but one item.
pub(super) fn hear_others(set: &'static Set, state: &mut State, item: u32) {
    hear_inner(set, state, true, Some(item));
}

/// A thread is about to sleep on the set, or on something that contains it. The
/// caller looks at the set once more before it does.
pub(crate) fn begin_sleep(set: &'static Set) {
    stand_at_doors(set);
    // Pairs with the light barrier before a waker's look at the door.
    heavy();
    set.expose_nested();
}

fn stand_at_doors(set: &'static Set) {
    set.each_nested(stand_at_doors);
    set.with(|state| {
        set.sleepers.fetch_add(1, Ordering::AcqRel);
        at_doors(set, state, |door| {
            door.sleepers.fetch_add(1, Ordering::AcqRel);
            door.naps.fetch_add(1, Ordering::AcqRel);
        });
    });
}

/// It is awake again.
pub(crate) fn end_sleep(set: &'static Set) {
    set.each_nested(end_sleep);
    set.with(|state| {
        set.sleepers.fetch_sub(1, Ordering::AcqRel);
        at_doors(set, state, |door| {
            door.sleepers.fetch_sub(1, Ordering::AcqRel);
            // Those still asleep need a ring of their own.
            door.naps.fetch_add(1, Ordering::AcqRel);
        });
    });
}

/// Before a real call that watches the set's own descriptor.
pub(crate) fn expose(set: &'static Set) {
    set.expose();
}

fn at_doors(set: &'static Set, state: &State, visit: impl Fn(&shunt_shm::wake::Door)) {
    for follow in &state.follows {
        visit(follow.link.own().door(set.group()));
        visit(follow.link.own().door(SHARED));
    }
}

/// Whether a wait on the set would find something now: for sets inside other
/// sets, and in `poll`. Looks at shunted sockets only.
pub(crate) fn has_ready(set: &'static Set) -> bool {
    if !set.is_shunted() {
        return false;
    }
    set.with(|state| {
        harvest(set, state);
        hear_inner(set, state, true, None);
        // Ask without reporting: an edge stays an edge for the real wait.
        state.queue.iter().any(|&index| {
            let item = &state.items[index as usize];
            let conn = Conn::new(item.socket, item.socket.fd()).filter(|_| !item.dormant);
            let Some(conn) = conn else {
                return false;
            };
            ready::mask(&conn, wanted(item.events), item.look) & wanted(item.events) != 0
        })
    })
    .unwrap_or(false)
}
