//! How `epoll_wait` goes: look, spin, sleep in the real call.

use libc::{c_int, epoll_event, sigset_t};

use super::bring::bring_forward;
use super::poll::poll_set;
use crate::epoll::{
    self, LOOK_OFTEN, Limit, Set, User, begin_sleep, collect, end_sleep, has_news, has_some,
    is_due, take_events, take_foreign,
};
use crate::hold::Taken;
use crate::region::count;
use crate::stream::{self, Spin, shares_core};
use crate::thread::signals::{self, Seen};
use crate::thread::sleep::Sleep;
use crate::{Outcome, control, sys};

/// A wait looks so often at once, for about as long as a peer that is awake takes to answer.
const LOOKS: u32 = 64;

/// Whether the kernel refuses to fill so many events (`EP_MAX_EVENTS`).
fn is_refused(most: c_int) -> bool {
    most <= 0 || most as usize > i32::MAX as usize / size_of::<epoll_event>()
}

/// Whether nothing can be written there.
fn is_no_room(events: *mut epoll_event) -> bool {
    (events as usize) < 4096
}

/// `epoll_pwait2(2)` on a tracked set.
///
/// # Safety
/// `events` has room for `most` events; `mask` is null or a signal set.
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
        // Only once there is something to report.
        // SAFETY: the caller's promise.
        return match unsafe { poll_set(set.fd(), limit, mask) } {
            Outcome::Done(1..) => Outcome::Fail(libc::EFAULT),
            other => other,
        };
    }
    // SAFETY: the caller's promise.
    let room = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
    let seen = signals::now();
    if set.is_plain() {
        // SAFETY: the caller's promise.
        if let Some(outcome) = unsafe { wait_plain(user, room, limit, mask, seen) } {
            return outcome;
        }
    }
    stream::see_to_wishes();
    let told = bring_forward(set, room);
    if told > 0 {
        count::ready_call(true);
        return Outcome::Done(told as isize);
    }
    let mut spin = Spin::new();
    let spins = set.is_shunted();
    if spins && let Some(outcome) = look_and_spin(set, room, limit, seen, &mut spin) {
        return outcome;
    }
    // Only a wait that has spun says something of spinning.
    let spun = spins.then_some(&mut spin);
    // SAFETY: the caller's promise.
    unsafe { sleep(user, room, limit, mask, seen, spun) }
}

/// Looks at what there is, and spins until there is something. `None`: it does not pay any more.
#[inline(always)]
fn look_and_spin(
    set: &'static Set,
    room: &mut [epoll_event],
    limit: Limit,
    seen: Seen,
    spin: &mut Spin,
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
        if found == 0 && set.has_chores() {
            continue;
        }
        if found == 0 && !due && limit.is_up() {
            found = collect(set, room, true, 0);
        }
        if found > 0 {
            spin.paid();
            count::ready_call(due);
            return Some(Outcome::Done(found as isize));
        }
        if limit.is_up() {
            count::ready_call(true);
            return Some(Outcome::Done(0));
        }
        if seen.any_since() {
            return Some(Outcome::Fail(libc::EINTR));
        }
        // A turn at least: news that come to nothing use up the spin, too.
        let mut more = spin.turn();
        now = sys::ticks();
        while more && !has_news(set) && !is_due(set, now, later) {
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
    room: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    mut spun: Option<&mut Spin>,
) -> Outcome {
    let set = user.set();
    loop {
        if set.is_shunted() {
            control::look();
        }
        // SAFETY: the caller's promise.
        let (slept_on, slept) = match unsafe { sleep_once(user, room, limit, mask, seen) } {
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
            Err(errno) => return with_news(set, room, errno),
        };
        let found = take_events(set, slept_on, room, n, limit);
        if found > 0 {
            return Outcome::Done(found as isize);
        }
        if limit.is_up() {
            return Outcome::Done(0);
        }
    }
}

/// How one sleep went.
enum Slept {
    /// So much had come before it began.
    Not(usize),
    /// On this number, with what the real call has returned.
    On(c_int, Result<isize, i32>),
}

/// Says at the doors of the set that this thread sleeps, and does.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn sleep_once(
    user: User,
    room: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Slept {
    let set = user.set();
    let began = Taken::now();
    // In a child that a signal handler has forked meanwhile it is the parent who sleeps.
    let get_up = || {
        if began.lasts() {
            end_sleep(set);
        }
    };
    let found = if begin_sleep(set) {
        collect(set, room, false, 0)
    } else {
        0
    };
    set.notice_relatives();
    let slept_on = set.fd();
    let slept = if found > 0 {
        get_up();
        return Slept::Not(found);
    } else if seen.any_since() {
        Err(libc::EINTR)
    } else {
        count::ready_sleep();
        let undo = || {
            get_up();
            user.leave();
        };
        let limit = if set.must_look() {
            limit.at_most(stream::TURN)
        } else {
            limit
        };
        // SAFETY: the slice is the program's own.
        unsafe { real_wait(Some(set), slept_on, room, limit, mask, seen, &undo) }
    };
    get_up();
    Slept::On(slept_on, slept)
}

/// How a wait ends whose real call has failed: news that came with a signal go first, as in the kernel.
fn with_news(set: &'static Set, room: &mut [epoll_event], errno: i32) -> Outcome {
    let found = if errno == libc::EINTR && set.is_shunted() {
        collect(set, room, false, 0)
    } else {
        0
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
    let room = unsafe { std::slice::from_raw_parts_mut(events, most as usize) };
    let seen = signals::now();
    // What is no set is told at once, also where the sleep would be a `poll`.
    let mut found = sys::epoll_now(fd, room.as_mut_ptr(), room.len()).map(|n| n as isize);
    loop {
        match found.map(|n| take_foreign(room, n as usize)) {
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

/// A wait while the set holds nothing of ours: as real as can be, but another
/// thread may bring something in meanwhile. `None`: it has; wait as for such a set.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn wait_plain(
    user: User,
    room: &mut [epoll_event],
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
    let n = if !set.is_plain() {
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
        Ok(n) if set.is_plain() && set.fd() == slept_on => Some(Outcome::Done(n)),
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
    room: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    undo: &impl Fn(),
) -> Result<isize, i32> {
    // A call that does not wait tells what there is, whatever has run.
    let seen = if limit.is_now() { signals::now() } else { seen };
    // SAFETY: the caller's promise.
    let found = match unsafe { sleep_on(set, fd, room, limit, mask, seen, undo) } {
        // A signal gives way to news that came with it, as in the kernel.
        Err(libc::EINTR) => {
            let found = sys::epoll_now(fd, room.as_mut_ptr(), room.len());
            found.ok().filter(|&n| n > 0).ok_or(libc::EINTR)
        }
        found => found,
    };
    found.map(|n| n as isize)
}

/// Sleeps until the kernel's set has something, and takes that.
///
/// # Safety
/// `mask` is null or a signal set.
unsafe fn sleep_on(
    set: Option<&'static Set>,
    fd: c_int,
    room: &mut [epoll_event],
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
    undo: &impl Fn(),
) -> Result<usize, i32> {
    let outer = set.filter(|set| set.has_nested());
    let left = limit.left();
    if set.is_some_and(Set::naps) {
        // SAFETY: the caller's promise.
        unsafe { Sleep::poll(&mut [], left, mask, seen, undo) }?;
        return sys::epoll_now(fd, room.as_mut_ptr(), room.len());
    }
    if outer.is_some() || limit.fine && left.is_some() {
        // The latter would be `epoll_pwait2`, which not every kernel has.
        let mut one = [libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: the caller's promise.
        let n = unsafe { Sleep::poll(&mut one, left, mask, seen, undo) }?;
        if n == 0 {
            return Ok(0);
        }
        // What woke a set inside need not be an event of the program's, and none has been taken.
        if let Some(set) = outer {
            set.expose_nested();
        }
        return sys::epoll_now(fd, room.as_mut_ptr(), room.len());
    }
    // Milliseconds, rounded up: a wait is never shorter than asked for.
    let ms = left.map_or(-1, |t| {
        (t.tv_sec * 1000 + (t.tv_nsec + 999_999) / 1_000_000).min(i32::MAX as i64)
    });
    // SAFETY: the caller's promise.
    unsafe { Sleep::epoll_wait(fd, room, ms as c_int, mask, seen, undo) }
}
