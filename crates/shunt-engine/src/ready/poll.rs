//! `poll`.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, nfds_t, pollfd, sigset_t};

use super::array::{Memory, with_array};
use super::sleeper::{HEARD, PLACE, Scratch, get_in, get_out};
use crate::epoll::{self, Limit, Set};
use crate::hold::Taken;
use crate::recycle::Waits;
use crate::region::count;
use crate::stream::{self, Conn, Spin};
use crate::thread::signals::{self, Seen};
use crate::thread::sleep::Sleep;
use crate::{Outcome, control, signal, sys};

mod listeners;
mod whose;

use listeners::wait_at_listeners;
pub(super) use listeners::{is_told_beside_kernel, look_at_listeners};
pub(super) use whose::{Whose, whose};

/// What a program has passed as its array.
pub(super) enum Array<'a> {
    /// There is none, or it is the kernel's to refuse.
    None,
    Some(&'a mut [pollfd]),
    /// It can be read, but not written.
    Fixed(&'a [pollfd]),
}

/// The program's array.
///
/// # Safety
/// `fds` has `count` entries, or they are not there, and nobody else uses them meanwhile.
#[inline(always)]
pub(super) unsafe fn array<'a>(fds: *mut pollfd, count: nfds_t) -> Array<'a> {
    if count == 0 || count > 1 << 20 || (fds as usize) < 4096 {
        return Array::None;
    }
    let count = count as usize;
    // SAFETY: the caller's promise; what is there is what it says.
    unsafe {
        if is_there(fds, count) {
            Array::Some(std::slice::from_raw_parts_mut(fds, count))
        } else {
            fixed(fds, count)
        }
    }
}

/// The program's array, if it cannot be written.
///
/// # Safety
/// As for [`array`].
#[cold]
#[inline(never)]
unsafe fn fixed<'a>(fds: *const pollfd, count: usize) -> Array<'a> {
    if signal::may_read(fds, count) {
        // SAFETY: the caller's promise.
        Array::Fixed(unsafe { std::slice::from_raw_parts(fds, count) })
    } else {
        Array::None
    }
}

/// Whether an array can be written, by an entry on each of its pages. (One that begins on another page than
/// its `revents` is looked at there.)
///
/// # Safety
/// As for [`array`].
#[inline]
unsafe fn is_there(fds: *mut pollfd, count: usize) -> bool {
    const A_PAGE: usize = 4096 / size_of::<pollfd>();
    // SAFETY: what the kernel would write, too, whatever is there.
    let one = |i| unsafe { signal::may_write((&raw mut (*fds.wrapping_add(i)).revents).cast()) };
    one(0) && (count == 1 || (A_PAGE..count).step_by(A_PAGE).all(one) && one(count - 1))
}

/// Makes the call for an array that can only be read: natively, too, that is found at the end.
#[cold]
pub(super) fn in_vain(fds: &[pollfd], call: impl FnOnce(&mut [pollfd]) -> Outcome) -> Outcome {
    let on_copy = |copy: &mut [pollfd], _| {
        copy.copy_from_slice(fds);
        match call(copy) {
            Outcome::Done(_) | Outcome::Fail(libc::EINTR) => Outcome::Fail(libc::EFAULT),
            other => other,
        }
    };
    with_array(fds.len(), on_copy).unwrap_or(Outcome::Fail(libc::ENOMEM))
}

/// Fills in what shunted sockets are ready for, and returns how many are. `heard`: what the kernel
/// has reported of each; it may be empty.
pub(super) fn look_at_shunted(fds: &mut [pollfd], heard: &[pollfd]) -> usize {
    look_at(fds, heard, 0).0
}

/// [`look_at_shunted`] at the time `now` (ticks). Also whether it is time to ask the kernel about these sockets, although a call finds
/// something without it: of a peer that was killed only the kernel tells, and calls that always find something would never hear of it.
#[inline(always)]
fn look_at(fds: &mut [pollfd], heard: &[pollfd], now: u64) -> (usize, bool) {
    /// Ticks, about 600 µs.
    const SELDOM: u64 = 3 << 19;
    /// All threads together ask no more often than this (ticks, about 170 µs): each of many connections is asked for more rarely.
    const PAUSE: u64 = 1 << 19;
    let (mut found, mut is_due) = (0, false);
    for (i, one) in fds.iter_mut().enumerate() {
        if let Some(conn) = Conn::of(one.fd) {
            let wanted = one.events as u16 as u32 | (libc::POLLERR | libc::POLLHUP) as u32;
            let look = heard.get(i).is_some_and(|kernel| kernel.revents != 0);
            one.revents = (stream::mask_at_a_glance(&conn, wanted, look) & wanted) as i16;
            found += usize::from(one.revents != 0);
            let polled_at = conn.socket.hints.polled_at.load(Ordering::Relaxed);
            is_due |= !is_being_read(&conn, one) && now.wrapping_sub(polled_at) > SELDOM;
        }
    }
    let asked_at = ASKED_AT.load(Ordering::Relaxed);
    (found, is_due && now.wrapping_sub(asked_at) > PAUSE)
}

/// Whether the program reads whenever it is told of input, and so learns of the peer's death without a look of this call: it is told of some, has read
/// since it was the last time, and has not asked whether the peer will send no more.
fn is_being_read(conn: &Conn, one: &pollfd) -> bool {
    one.revents & libc::POLLIN != 0
        && one.events & libc::POLLRDHUP == 0
        && (conn.socket.hints).note_told(conn.socket.rx.ring_bytes.load(Ordering::Relaxed))
}

/// When a call has last asked the kernel although it had found something (ticks).
static ASKED_AT: AtomicU64 = AtomicU64::new(0);

/// Looks at everything once more, with what the kernel tells of the base sockets; how many are ready.
#[cold]
fn look_once_more(fds: &mut [pollfd], scratch: &mut Scratch, now: u64) -> usize {
    ASKED_AT.store(now, Ordering::Relaxed);
    let bases = &mut scratch.fds[..fds.len()];
    for (to, from) in bases.iter_mut().zip(fds.iter()) {
        if let Some(conn) = Conn::of(from.fd) {
            conn.socket.hints.polled_at.store(now, Ordering::Relaxed);
        }
        *to = pollfd {
            fd: if Conn::of(from.fd).is_some() {
                from.fd
            } else {
                -1
            },
            events: libc::POLLRDHUP,
            revents: 0,
        };
    }
    if sys::poll_now(bases).is_ok() {
        look_at_shunted(fds, bases);
    }
    fds.iter().filter(|one| one.revents != 0).count()
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

/// The real call, for what is the library's [perhaps](Whose::Perhaps): no other thread is there that could bring a connection
/// to its rings meanwhile, and a signal handler that does ends the call, which looks once more then, and does not wait.
///
/// # Safety
/// `mask` is null or a signal set.
#[inline(never)]
pub(super) unsafe fn poll_in_kernel(
    fds: &mut [pollfd],
    memory: Memory,
    limit: Limit,
    mask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    control::look();
    count::ready_call(true);
    // A call that does not wait tells what there is, whatever has run.
    let seen = if limit.is_now() { signals::now() } else { seen };
    // SAFETY: the caller's promise.
    match unsafe { Sleep::poll(fds, limit.left(), mask, seen, &|| memory.give_back()) } {
        Ok(n) => Outcome::Done(n as isize),
        // It gives way to news that came with it, as in the kernel.
        // SAFETY: the caller's promise.
        Err(libc::EINTR) => match unsafe { poll(fds, Limit::new(Some(0)), mask, signals::now()) } {
            told @ Outcome::Done(1..) => told,
            _ => Outcome::Fail(libc::EINTR),
        },
        Err(errno) => Outcome::Fail(errno),
    }
}

/// Entries of scratch that [`poll_with`] needs for `fds` descriptors.
pub(super) fn scratch_for(fds: usize) -> usize {
    2 * (fds + 1) + 1
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
    // SAFETY: the caller's promise.
    Waits::during(|waits| unsafe { poll_within(fds, scratch, memory, limit, sigmask, seen, waits) })
}

/// # Safety
/// As for [`poll_with`].
#[inline(always)]
unsafe fn poll_within(
    fds: &mut [pollfd],
    scratch: &mut [pollfd],
    memory: Memory,
    limit: Limit,
    sigmask: *const sigset_t,
    seen: Seen,
    waits: &Waits,
) -> Outcome {
    let mut spin = Spin::new();
    wait_at_listeners(fds, waits, limit);
    let any = begin(fds) || waits.are_any();
    let (array, told) = scratch.split_at_mut(fds.len() + 2);
    array[fds.len()].fd = -1;
    let scratch = &mut Scratch {
        fds: array,
        told,
        held: Taken::now(),
        turn: None,
        nic: None,
        memory,
        waits,
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
        let (shunted, is_due) = look_at(fds, &[], looked);
        let mut found = shunted + others + look_at_listeners(fds, scratch.waits);
        if found > 0 && is_due {
            found = look_once_more(fds, scratch, looked);
        }
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
    stream::meet_or_part();
    // SAFETY: the caller's promise.
    let outcome = unsafe { sleep(fds, scratch, limit, sigmask, seen) };
    if matches!(outcome, Outcome::Done(1..)) {
        spin.woke();
    }
    outcome
}

/// Nothing is reported yet; whether a descriptor is shunted, or a set that holds such.
#[inline]
fn begin(fds: &mut [pollfd]) -> bool {
    let mut any = false;
    for one in fds.iter_mut() {
        one.revents = 0;
        let conn = Conn::of(one.fd);
        if let Some(conn) = &conn {
            conn.pair.own.face.forget_core();
        }
        any |= conn.is_some() || Set::of(one.fd).is_some_and(|s| s.is_shunted());
    }
    any
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
    let (mut crowded, mut interrupted) = (false, false);
    loop {
        wait_at_listeners(fds, scratch.waits, limit);
        // What came before this counts, as what a call that does not wait is told.
        let ready = get_in(fds, scratch, crowded) || fds.iter().any(is_told_beside_kernel);
        let placed = scratch.told[fds.len()].events == PLACE;
        let count = match scratch.nic {
            Some(_) => fds.len() + 2,
            None => fds.len() + usize::from(placed),
        };
        interrupted |= seen.any_since() && !limit.is_now();
        let n = if ready || interrupted {
            sys::poll_now(&mut scratch.fds[..count])
        } else {
            // SAFETY: the caller's promise.
            unsafe { sleep_once(scratch, count, limit, sigmask, seen) }
        };
        if placed && scratch.fds[fds.len()].revents != 0 {
            scratch.told[fds.len()].events |= HEARD;
        }
        get_out(scratch.told, scratch.held);
        scratch.waits.end();
        // The kernel polls no more than the process may have descriptors.
        if count > fds.len() && !crowded && n == Err(libc::EINVAL) {
            crowded = true;
            continue;
        }
        count::ready_call(true);
        match n {
            // A signal gives way to news that came with it, as in the kernel.
            Err(libc::EINTR) if !interrupted => {
                interrupted = true;
                continue;
            }
            Err(errno) if !ready => return Outcome::Fail(errno),
            _ => {}
        }
        let found = take_others(fds, scratch.fds) + look_at_shunted(fds, scratch.fds);
        let found = found + look_at_listeners(fds, scratch.waits);
        if found == 0 && interrupted {
            return Outcome::Fail(libc::EINTR);
        }
        if found > 0 || limit.is_up() {
            return Outcome::Done(found as isize);
        }
    }
}

/// The real call, with the first `count` entries.
///
/// # Safety
/// `sigmask` is null or a signal set.
unsafe fn sleep_once(
    scratch: &mut Scratch,
    count: usize,
    limit: Limit,
    sigmask: *const sigset_t,
    seen: Seen,
) -> Result<usize, i32> {
    count::ready_sleep();
    let left = match scratch.turn {
        Some(turn) => Some(limit.left_of(turn)),
        None => limit.left(),
    };
    // A call that does not wait tells what there is, whatever has run.
    let seen = if limit.is_now() { signals::now() } else { seen };
    let Scratch {
        fds,
        told,
        memory,
        waits,
        ..
    } = scratch;
    let (held, memory) = (scratch.held, *memory);
    let undo = || {
        get_out(told, held);
        waits.end();
        memory.give_back();
    };
    // SAFETY: the caller's promise.
    unsafe { Sleep::poll(&mut fds[..count], left, sigmask, seen, &undo) }
}

/// Takes over what the kernel has reported of all but shunted sockets; how many are ready.
fn take_others(fds: &mut [pollfd], reported: &[pollfd]) -> usize {
    let mut found = 0;
    for (to, from) in fds.iter_mut().zip(reported) {
        if Conn::of(to.fd).is_some() {
            continue;
        }
        to.revents = from.revents;
        // What woke a set need not be an event of the program's.
        if let Some(set) = Set::of(to.fd)
            && to.revents & (libc::POLLIN | libc::POLLRDNORM) != 0
        {
            epoll::expose(set);
            to.revents = sys::ready(to.fd, to.events);
        }
        found += usize::from(to.revents != 0);
    }
    found
}

#[cfg(all(test, not(miri)))]
mod tests;
