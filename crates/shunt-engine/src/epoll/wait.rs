//! How `epoll_wait` goes: look, spin, sleep in the real call.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event, sigset_t};

use super::carry::bring_forward;
use super::collect::{LOOK_OFTEN, collect, has_news, has_some, is_due};
use super::control::retire_busy;
use super::inner::{take_foreign, take_inner};
use super::limit::Limit;
use super::near;
use super::set::{Set, User};
use super::sleep::{begin_sleep, end_sleep};
use crate::hold::Taken;
use crate::region::count;
use crate::stream::{self, Spin, shares_core};
use crate::thread::signals;
use crate::{Outcome, control, ready, real, sys};

/// A wait looks so often at once, for about as long as a peer that is awake takes to answer.
const LOOKS: u32 = 64;

/// `epoll_pwait2(2)` on a tracked set.
///
/// # Safety
/// `events` has room for `most` events; `mask` is null or a signal set.
pub(crate) unsafe fn wait(
    user: User,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    let set = user.set();
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
        if let Some(outcome) = unsafe { wait_plain(user, room, limit, mask) } {
            return outcome;
        }
    }
    let seen = signals::now();
    stream::see_to_wishes();
    let told = bring_forward(set, room);
    if told > 0 {
        count::ready_call(true);
        return Outcome::Done(told as isize);
    }
    let mut spin = Spin::new();
    let spun = set.is_shunted();
    if spun {
        // Where nothing is to be reported the real call will soon look at the kernel's
        // side, unless the spin lasts.
        let mut now = spin.began();
        let later = now.wrapping_add(u64::from(LOOK_OFTEN));
        let mut looks = match limit.is_now() || !spin.is_hopeful() || shares_core() {
            true => 0,
            false => LOOKS,
        };
        loop {
            if set.chores.load(Ordering::Relaxed) {
                see_to_chores(set);
            }
            let due = is_due(set, now, later) || is_due(set, now, spin.began()) && has_some(set);
            let mut found = collect(set, room, due, std::mem::take(&mut looks));
            if found == 0 && set.chores.load(Ordering::Relaxed) {
                continue;
            }
            if found == 0 && !due && limit.is_up() {
                found = collect(set, room, true, 0);
            }
            if found > 0 {
                spin.paid();
                count::ready_call(due);
                return Outcome::Done(found as isize);
            }
            if limit.is_up() {
                count::ready_call(true);
                return Outcome::Done(0);
            }
            if seen.any_since() {
                return Outcome::Fail(libc::EINTR);
            }
            // A turn at least: news that come to nothing use up the spin, too.
            let mut more = spin.turn();
            now = sys::ticks();
            while more && !has_news(set) && !is_due(set, now, later) {
                more = spin.turn();
                now = sys::ticks();
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
        let slept_on = set.fd();
        let n = if found > 0 {
            get_up();
            return Outcome::Done(found as isize);
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
            unsafe { real_wait(Some(set), slept_on, room, limit, mask, &undo) }
        };
        get_up();
        // Only a wait that has spun says something of spinning.
        if spun && n.is_ok_and(|n| n > 0) {
            spin.woke();
        }
        count::ready_call(true);
        let n = match n {
            Ok(n) => n as usize,
            Err(errno) if was_replaced(set, slept_on, errno) => continue,
            Err(errno) => {
                // News that came with the signal go first, as in the kernel.
                let found = if errno == libc::EINTR && set.is_shunted() {
                    collect(set, room, false, 0)
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
        let found = take_events(set, slept_on, room, n, limit);
        if found > 0 {
            return Outcome::Done(found as isize);
        }
        if limit.is_up() {
            return Outcome::Done(0);
        }
    }
}

/// What the program gets of `n` events of the kernel's, and what is ready of ours: whoever takes a
/// call out of the channel reads the logs after that.
fn take_events(
    set: &'static Set,
    slept_on: c_int,
    room: &mut [epoll_event],
    n: usize,
    limit: Limit,
) -> usize {
    let mut kept = take_inner(set, room, n);
    if set.fd() != slept_on {
        kept = take_foreign(room, kept);
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
    kept + collect(set, &mut room[kept..], look, 0)
}

/// Whether a real call has failed because another thread closed its number just before: the set
/// has another one.
fn was_replaced(set: &Set, slept_on: c_int, errno: i32) -> bool {
    matches!(errno, libc::EBADF | libc::EINVAL) && set.fd() != slept_on
}

#[cold]
fn see_to_chores(set: &'static Set) {
    set.chores.store(false, Ordering::Relaxed);
    retire_busy(set);
    near::review(set);
}

/// `epoll_pwait2(2)` on a number that names no set that we know, in a process with threads:
/// one of these may be about to close it, or has just made it.
///
/// # Safety
/// As for [`wait`].
pub(crate) unsafe fn wait_unknown(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Limit,
    mask: *const sigset_t,
) -> Outcome {
    let refused = most <= 0 || most as usize > i32::MAX as usize / size_of::<epoll_event>();
    if refused || (events as usize) < 4096 {
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
        found = unsafe { real_wait(None, fd, room, limit, mask, &|| ()) };
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
) -> Option<Outcome> {
    let set = user.set();
    let began = Taken::now();
    let awake = || {
        if began.lasts() {
            set.plain_sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let undo = || {
        awake();
        user.leave();
    };
    set.plain_sleepers.fetch_add(1, Ordering::SeqCst);
    let slept_on = set.fd();
    // One of the two sees the other: this look the change, or the changer the sleeper.
    let n = if !set.is_plain() {
        Ok(0)
    } else {
        // SAFETY: the caller's promise.
        unsafe { real_wait(Some(set), slept_on, room, limit, mask, &undo) }
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
    undo: &impl Fn(),
) -> Result<isize, i32> {
    let outer = set.filter(|set| set.nested.load(Ordering::Acquire) != 0);
    let left = limit.left();
    if outer.is_some() || limit.fine && left.is_some() {
        // The latter would be `epoll_pwait2`, which not every libc has.
        let mut one = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one valid pollfd; the caller's promise.
        let n = real::sleeping(undo, || unsafe {
            real::ppoll()(&raw mut one, 1, left, mask) as isize
        })?;
        if n == 0 {
            return Ok(0);
        }
        // What woke a set inside need not be an event of the program's, and none has been taken.
        if let Some(set) = outer {
            set.expose_nested();
        }
        return sys::epoll_now(fd, room.as_mut_ptr(), room.len()).map(|n| n as isize);
    }
    // Milliseconds, rounded up: a wait is never shorter than asked for.
    let ms = left.map_or(-1, |t| {
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
