//! How `epoll_wait` goes: look, spin, sleep in the real call.

use libc::{c_int, epoll_event, sigset_t};

use super::accepting::{in_milliseconds, say_waiting, tell_listeners, wait_at_listeners};
use super::bring::bring_forward;
use super::poll::poll_set;
use crate::epoll::{
    self, Gathered, LOOK_OFTEN, Limit, Room, Set, User, begin_sleep, collect, collect_before_sleep,
    end_sleep, has_news, has_some, is_due, look_for_room, take_events, take_foreign,
};
use crate::hold::Taken;
use crate::recycle::{self, Waits};
use crate::region::count;
use crate::stream::{self, Spin, shares_core};
use crate::sys::USER_END;
use crate::thread::signals::{self, Seen};
use crate::thread::sleep::Sleep;
use crate::{Outcome, control, signal, sys};

/// How often a wait looks again at once: that takes about as long as the answer of a peer that is awake.
const LOOKS: u32 = 64;

/// Whether the kernel refuses an array of `most` events (`EP_MAX_EVENTS`).
fn is_refused(most: c_int) -> bool {
    most <= 0 || most as usize > i32::MAX as usize / size_of::<epoll_event>()
}

/// Whether the kernel cannot write events to this address, since no program has it.
fn is_no_room(events: *mut epoll_event) -> bool {
    (events as usize).wrapping_sub(4096) >= USER_END - 4096
}

/// Whether no program can have anything at this address, so that the kernel refuses the call at once (`access_ok`). Other
/// addresses that cannot be written it notices only when it has an event to store.
#[cold]
fn is_impossible(events: *mut epoll_event) -> bool {
    events as usize >= USER_END
}

/// `epoll_pwait2(2)` on a tracked set.
///
/// # Safety
/// What is mapped of `most` events at `events` may be written; `mask` is null or a signal set.
pub(super) unsafe fn wait(
    user: User,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    let set = user.set();
    if is_refused(most) || set.is_plain() && (limit.is_now() || is_no_room(events)) {
        return Outcome::Kernel;
    }
    if is_no_room(events) {
        if is_impossible(events) || !signal::may_mask(mask) {
            return Outcome::Kernel;
        }
        // SAFETY: the caller's promise.
        return unsafe { wait_without_room(set, limit, mask) };
    }
    // SAFETY: the caller's promise.
    let mut room = unsafe { Room::new(events, most as usize) };
    // SAFETY: the caller's promise.
    let outcome = unsafe { wait_with(user, &mut room, limit, mask) };
    if room.is_missing() && !matches!(outcome, Outcome::Done(1..)) {
        // This thread has taken a call and can store no event: another one that sleeps here looks instead.
        set.kick();
        // SAFETY: the caller's promise.
        return unsafe { wait_without_room(set, limit, mask) };
    }
    outcome
}

/// A wait whose events cannot be stored. It fails when there is an event, which stays for the next wait.
///
/// # Safety
/// `mask` is null or a signal set.
#[cold]
unsafe fn wait_without_room(set: &Set, limit: Limit, mask: *const sigset_t) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { poll_set(set.fd(), limit, mask) } {
        Outcome::Done(1..) => Outcome::Fail(libc::EFAULT),
        other => other,
    }
}

/// The wait itself. If it turns out that no event can be stored ([`Room::is_missing`]), it returns none, or an error.
///
/// # Safety
/// `mask` is null or a signal set.
#[inline(always)]
unsafe fn wait_with(user: User, room: &mut Room, limit: Limit, mask: *const sigset_t) -> Outcome {
    let set = user.set();
    let seen = signals::now();
    if set.is_plain() {
        // SAFETY: the caller's promise.
        if let Some(outcome) = unsafe { wait_in_kernel(user, room, limit, mask, seen) } {
            return outcome;
        }
    }
    // The kernel looks at the mask before all else. For a plain set it has done so.
    if !signal::may_mask(mask) {
        return Outcome::Kernel;
    }
    stream::see_to_wishes();
    let told = bring_forward(set, room);
    if told > 0 || room.is_missing() {
        count::ready_call(true);
        return Outcome::Done(told as isize);
    }
    if !set.is_shunted() {
        // SAFETY: the caller's promise.
        if let Some(outcome) = unsafe { wait_unshunted(user, room, limit, mask, seen) } {
            return outcome;
        }
    }
    Waits::during(|waits| {
        wait_at_listeners(set, waits, limit);
        let mut spin = Spin::new();
        let spins = set.is_shunted() || waits.are_any() || recycle::is_any_taken();
        if spins && let Some(outcome) = look_and_spin(set, room, limit, seen, &mut spin, waits) {
            return outcome;
        }
        // Only a wait that has spun says something of spinning.
        let spun = spins.then_some(&mut spin);
        // SAFETY: the caller's promise.
        unsafe { sleep(user, room, limit, mask, seen, spun, waits) }
    })
}

/// Looks what is ready, and spins until something is. `None`: spinning does not pay any more.
#[inline(always)]
fn look_and_spin(
    set: &'static Set,
    room: &mut Room,
    limit: Limit,
    seen: Seen,
    spin: &mut Spin,
    waits: &Waits,
) -> Option<Outcome> {
    // Where nothing is to be reported the real call will soon look at the kernel's
    // side, unless the spin lasts.
    let mut now = spin.began();
    let later = now.wrapping_add(u64::from(LOOK_OFTEN));
    let mut looks = match limit.is_now() || !spin.is_hopeful() || shares_core() {
        true => 0,
        false => LOOKS,
    };
    loop {
        if set.has_chores() {
            epoll::see_to_chores(set);
        }
        let due = is_due(set, now, later) || is_due(set, now, spin.began()) && has_some(set);
        let mut found = collect(set, room, due, std::mem::take(&mut looks));
        if found == 0 && !room.is_missing() && set.has_chores() {
            continue;
        }
        if found == 0 && !due && limit.is_up() {
            found = collect(set, room, true, 0);
        }
        found = tell_listeners(set, room, found, waits);
        if found > 0 {
            spin.paid();
            count::ready_call(due);
            return Some(Outcome::Done(found as isize));
        }
        if limit.is_up() || room.is_missing() {
            count::ready_call(true);
            return Some(Outcome::Done(0));
        }
        if seen.any_since() {
            return Some(Outcome::Fail(libc::EINTR));
        }
        // One turn at least: news that come to nothing use up the spin, too.
        let mut more = spin.turn();
        now = sys::ticks();
        let comes = || has_news(set) || waits.have_news();
        while more && !comes() && !is_due(set, now, later) {
            more = spin.turn();
            now = sys::ticks();
        }
        if !more {
            return None;
        }
    }
}

/// Sleeps in the real call until there is something to report.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn sleep(
    user: User,
    room: &mut Room,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    mut spun: Option<&mut Spin>,
    waits: &Waits,
) -> Outcome {
    let set = user.set();
    loop {
        wait_at_listeners(set, waits, limit);
        if set.is_shunted() {
            control::look();
            stream::meet_or_part();
        }
        // SAFETY: the caller's promise.
        let (slept_on, slept) = match unsafe { sleep_once(user, room, limit, mask, seen, waits) } {
            Slept::Not(found) => return Outcome::Done(found as isize),
            Slept::On(fd, slept) => (fd, slept),
        };
        if let (Some(spun), Ok(1..)) = (&mut spun, slept) {
            spun.woke();
        }
        count::ready_call(true);
        let n = match slept {
            Ok(n) => n as usize,
            Err(errno) if was_replaced(set, slept_on, errno) => continue,
            Err(errno) => return with_news(set, room, errno, waits),
        };
        // A thread that was woken reads the logs, in which also a peer that cannot call says that there is room.
        if n == 0 {
            look_for_room(set);
        }
        let found = take_events(set, slept_on, room, n, limit);
        let found = tell_listeners(set, room, found, waits);
        if found > 0 || room.is_missing() || limit.is_up() {
            return Outcome::Done(found as isize);
        }
    }
}

/// How one sleep went.
enum Slept {
    /// The thread has not slept: this many events had come before.
    Not(usize),
    /// The thread has slept on this descriptor, and the real call has returned this.
    On(c_int, Result<isize, i32>),
}

/// Registers this thread at the doors of the set, and sleeps.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn sleep_once(
    user: User,
    room: &mut Room,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    waits: &Waits,
) -> Slept {
    let set = user.set();
    let began = Taken::now();
    let is_called = say_waiting(set, waits);
    // In a child that a signal handler has forked meanwhile nothing is to be undone: the parent sleeps.
    let get_up = || {
        if began.lasts() {
            set.end_wait();
            end_sleep(set);
        }
    };
    let has_doors = begin_sleep(set);
    set.begin_wait();
    let gathered = if has_doors {
        collect_before_sleep(set, room)
    } else {
        Gathered::default()
    };
    let found = tell_listeners(set, room, gathered.found, waits);
    set.notice_relatives();
    let slept_on = set.fd();
    let slept = if found > 0 || room.is_missing() {
        get_up();
        gathered.pass_on(set);
        return Slept::Not(found);
    } else if seen.any_since() {
        Err(libc::EINTR)
    } else {
        count::ready_sleep();
        let undo = || {
            get_up();
            waits.end();
            user.leave();
        };
        let turns = [set.turn(), waits.left().map(in_milliseconds)];
        let turn = turns.into_iter().flatten().min();
        let limit = turn.map_or(limit, |turn| limit.at_most(turn));
        // SAFETY: the caller's promise.
        unsafe { real_wait(Some(set), slept_on, room, limit, mask, seen, &undo) }
    };
    get_up();
    waits.end();
    if is_called {
        set.listeners().for_each(recycle::take_for_others);
    }
    Slept::On(slept_on, slept)
}

/// How a wait ends whose real call has failed: events that came with a signal are told first, as in the kernel.
fn with_news(set: &'static Set, room: &mut Room, errno: i32, waits: &Waits) -> Outcome {
    let found = if errno == libc::EINTR && set.is_shunted() {
        collect(set, room, false, 0)
    } else {
        0
    };
    let found = match errno {
        libc::EINTR => tell_listeners(set, room, found, waits),
        _ => found,
    };
    if found > 0 {
        Outcome::Done(found as isize)
    } else {
        Outcome::Fail(errno)
    }
}

/// Whether a real call has failed because another thread closed its number just before: the set
/// has another one.
fn was_replaced(set: &Set, slept_on: c_int, errno: i32) -> bool {
    matches!(errno, libc::EBADF | libc::EINVAL) && set.fd() != slept_on
}

/// `epoll_pwait2(2)` on a number that names no set that we know, in a process with threads:
/// one of these may be about to close it, or has just made it.
///
/// # Safety
/// As for [`wait`].
pub(super) unsafe fn wait_unknown(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    if is_refused(most) || is_no_room(events) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let room = &mut unsafe { Room::new(events, most as usize) };
    let seen = signals::now();
    // A descriptor that is no set is refused at once, also where the sleep would be a `poll`.
    let mut found = room.ask(fd, most as usize).map(|n| n as isize);
    loop {
        // SAFETY: the kernel has stored `n` events.
        match found.map(|n| take_foreign(unsafe { room.stored(n as usize) })) {
            Err(errno) => return Outcome::Fail(errno),
            Ok(0) if limit.is_up() => return Outcome::Done(0),
            Ok(0) if seen.any_since() => return Outcome::Fail(libc::EINTR),
            Ok(0) => sys::sched_yield(),
            Ok(kept) => return Outcome::Done(kept as isize),
        }
        // SAFETY: the caller's promise.
        found = unsafe { real_wait(None, fd, room, limit, mask, seen, &|| ()) };
    }
}

/// A wait on a set that may hold connections which are not shunted yet. `None`: connections of the set, or listeners,
/// are served here.
///
/// # Safety
/// `mask` is null or a signal set.
#[inline(never)]
unsafe fn wait_unshunted(
    user: User,
    room: &mut Room,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Option<Outcome> {
    if !user.set().is_kernels() || recycle::is_any() || recycle::is_any_taken() {
        return None;
    }
    count::ready_call(true);
    // SAFETY: the caller's promise.
    unsafe { wait_in_kernel(user, room, limit, mask, seen) }
}

/// A wait while nothing in the set is served here: by the real call, except that another thread may
/// bring in a shunted connection meanwhile. `None`: it has; the caller waits as for such a set.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn wait_in_kernel(
    user: User,
    room: &mut Room,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Option<Outcome> {
    let set = user.set();
    let began = Taken::now();
    let awake = || {
        if began.lasts() {
            set.end_plain_sleep();
        }
    };
    let undo = || {
        awake();
        user.leave();
    };
    set.begin_plain_sleep();
    let slept_on = set.fd();
    let n = if !set.is_kernels() {
        Ok(0)
    } else {
        // SAFETY: the caller's promise.
        unsafe { real_wait(Some(set), slept_on, room, limit, mask, seen, &undo) }
    };
    awake();
    match n {
        Err(errno) if was_replaced(set, slept_on, errno) => None,
        Err(errno) => Some(Outcome::Fail(errno)),
        // Another thread may have taken what a poll of the set has found.
        Ok(0) if !limit.is_up() => None,
        Ok(n) if set.is_kernels() && set.fd() == slept_on => Some(Outcome::Done(n)),
        Ok(n) => match take_events(set, slept_on, room, n as usize, limit) {
            0 => None,
            found => Some(Outcome::Done(found as isize)),
        },
    }
}

/// The real call; `undo` if the thread is cancelled in it.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn real_wait(
    set: Option<&'static Set>,
    fd: c_int,
    room: &mut Room,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    undo: &impl Fn(),
) -> Result<isize, i32> {
    // A call that does not wait tells what there is, whatever has run.
    let seen = if limit.is_now() { signals::now() } else { seen };
    // SAFETY: the caller's promise.
    let found = match unsafe { sleep_on(set, fd, room, limit, mask, seen, undo) } {
        // Events that came with a signal are told first, as in the kernel.
        Err(libc::EINTR) => {
            let found = room.ask(now_at(set, fd), room.len());
            found.ok().filter(|&n| n > 0).ok_or(libc::EINTR)
        }
        found => found,
    };
    found.map(|n| n as isize)
}

/// The number of a set on which a thread has slept by the number `fd`. The program may have closed that meanwhile, and given
/// it to another set, whose events are not this wait's.
fn now_at(set: Option<&Set>, fd: c_int) -> c_int {
    set.map_or(fd, Set::fd)
}

/// Sleeps until the kernel's set has something, and takes that.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn sleep_on(
    set: Option<&'static Set>,
    fd: c_int,
    room: &mut Room,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    undo: &impl Fn(),
) -> Result<usize, i32> {
    let most = room.len();
    let outer = set.filter(|set| set.has_nested());
    let left = limit.left();
    if set.is_some_and(Set::naps) {
        // SAFETY: the caller's promise.
        unsafe { Sleep::poll(&mut [], left, mask, seen, undo) }?;
        return room.ask(now_at(set, fd), most);
    }
    if outer.is_some() || limit.fine && left.is_some() {
        // The latter would be `epoll_pwait2`, which not every kernel has.
        // SAFETY: the caller's promise.
        let n = unsafe { Sleep::until_readable(fd, left, mask, seen, undo) }?;
        if n == 0 {
            return Ok(0);
        }
        // What makes a set inside this one look ready need not be an event of the program's. (No event has been taken yet.)
        if let Some(set) = outer {
            set.expose_nested();
        }
        return room.ask(now_at(set, fd), most);
    }
    // Milliseconds, rounded up: a wait is never shorter than asked for.
    let ms = left.map_or(-1, |t| {
        (t.tv_sec * 1000 + (t.tv_nsec + 999_999) / 1_000_000).min(i32::MAX as i64)
    });
    let place = (room.as_mut_ptr(), most);
    // SAFETY: the caller's promise, and that of the room.
    let told = unsafe { Sleep::epoll_wait(fd, place, ms as c_int, mask, seen, undo) };
    room.note(told)
}
