//! `poll`.

use libc::{c_int, nfds_t, pollfd, sigset_t};

use super::mask;
use crate::epoll::{self, Limit};
use crate::socket::Stage;
use crate::stream::{self, Conn, Spin, Want};
use crate::table::{self, Entry};
use crate::thread::signals::Seen;
use crate::{Outcome, control, real, stats, sys, upgrade};

/// Marks an entry of the real call whose socket or set knows of the sleeper; a
/// bit of `events` that the kernel neither uses nor changes.
const ENTERED: i16 = 0x4000;
/// Descriptors copied to the stack; more need memory.
const SMALL: usize = 64;

/// The program's array, if it names anything that is, or may become, shunted.
pub(super) unsafe fn shunted<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if count == 0 || (fds as usize) < 4096 || count > 1 << 20 {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let mut any = false;
    for one in fds.iter() {
        match table::look(one.fd) {
            Entry::Socket(socket) => {
                any |= match socket.stage() {
                    Stage::Attached => true,
                    Stage::Claimed | Stage::Paired => {
                        upgrade::progress(socket, one.fd, false);
                        // A thread that attaches it while we sleep rings for us.
                        true
                    }
                    _ => false,
                };
            }
            Entry::Set(set) => any |= set.is_shunted(),
            Entry::Ours | Entry::Other => {}
        }
    }
    any.then_some(fds)
}

fn attached(fd: c_int) -> Option<Conn<'static>> {
    let socket = table::socket(fd)?;
    if socket.stage() == Stage::Attached {
        Conn::new(socket, fd)
    } else {
        None
    }
}

/// Fills in what shunted sockets are ready for; `usize`: how many are.
fn look_at_shunted(fds: &mut [pollfd], look: bool) -> usize {
    let mut found = 0;
    for one in fds {
        if let Some(conn) = attached(one.fd) {
            let wanted = one.events as u16 as u32 | (libc::POLLERR | libc::POLLHUP) as u32;
            one.revents = (mask(&conn, wanted, look) & wanted) as i16;
            found += usize::from(one.revents != 0);
        }
    }
    found
}

/// Asks the kernel about everything else, without waiting.
fn look_at_others(fds: &mut [pollfd], scratch: &mut [pollfd]) -> Result<usize, i32> {
    let mut any = false;
    for (to, from) in scratch.iter_mut().zip(fds.iter()) {
        let skip = attached(from.fd).is_some();
        *to = pollfd {
            fd: if skip { -1 } else { from.fd },
            events: from.events,
            revents: 0,
        };
        any |= !skip && from.fd >= 0;
        if let Some(set) = table::set(from.fd) {
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
    let count = fds.len();
    // SAFETY: the caller's promise.
    let run = |scratch: &mut [pollfd]| unsafe { poll_with(fds, scratch, limit, mask, seen) };
    with_array(count, run).unwrap_or(Outcome::Fail(libc::ENOMEM))
}

/// Runs `work` on an array of `count` entries; `None`: no memory.
pub(super) fn with_array(
    count: usize,
    work: impl FnOnce(&mut [pollfd]) -> Outcome,
) -> Option<Outcome> {
    if count <= SMALL {
        let mut small = [pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        }; SMALL];
        return Some(work(&mut small[..count]));
    }
    let bytes = count * size_of::<pollfd>();
    let memory = sys::map(bytes).cast::<pollfd>();
    if memory.is_null() {
        return None;
    }
    // SAFETY: fresh zeroed memory of that size.
    let outcome = work(unsafe { std::slice::from_raw_parts_mut(memory, count) });
    sys::unmap(memory.cast(), bytes);
    Some(outcome)
}

unsafe fn poll_with(
    fds: &mut [pollfd],
    scratch: &mut [pollfd],
    limit: Limit,
    sigmask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    let mut spin = Spin::new();
    for one in fds.iter_mut() {
        one.revents = 0;
    }
    let mut others = match look_at_others(fds, scratch) {
        Ok(n) => n,
        Err(errno) => return Outcome::Fail(errno),
    };
    let mut looked = sys::ticks();
    loop {
        let found = look_at_shunted(fds, false) + others;
        if found > 0 {
            spin.paid();
            stats::ready_call(scratch.iter().any(|s| s.fd >= 0));
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
    // SAFETY: the caller's promise.
    let outcome = unsafe { sleep(fds, scratch, limit, sigmask, seen) };
    if matches!(outcome, Outcome::Done(1..)) {
        spin.woke();
    }
    outcome
}

/// Sleeps in the real call, on base sockets in place of shunted ones.
unsafe fn sleep(
    fds: &mut [pollfd],
    scratch: &mut [pollfd],
    limit: Limit,
    sigmask: *const sigset_t,
    seen: Seen,
) -> Outcome {
    control::look();
    loop {
        let ready = get_in(fds, scratch);
        let n = if ready {
            sys::poll_now(scratch).map(|n| n as isize)
        } else if seen.any_since() && !limit.is_now() {
            get_out(fds, scratch);
            return Outcome::Fail(libc::EINTR);
        } else {
            stats::ready_sleep();
            let left = limit.left();
            let time = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let (array, count) = (scratch.as_mut_ptr(), scratch.len());
            // SAFETY: our own array, which outlives the call.
            let undo = || get_out(fds, unsafe { std::slice::from_raw_parts(array, count) });
            // SAFETY: our own array; the program's mask.
            real::sleeping(&undo, || unsafe {
                real::ppoll()(array, count as nfds_t, time, sigmask) as isize
            })
        };
        get_out(fds, scratch);
        stats::ready_call(true);
        if let (Err(errno), false) = (n, ready) {
            // A signal gives way to news that came with it, as in the kernel.
            let found = look_at_shunted(fds, false);
            return if errno == libc::EINTR && found > 0 {
                Outcome::Done(found as isize)
            } else {
                Outcome::Fail(errno)
            };
        }
        let mut found = 0;
        for (to, from) in fds.iter_mut().zip(scratch.iter()) {
            if attached(to.fd).is_none() {
                to.revents = from.revents;
                found += usize::from(to.revents != 0);
            }
        }
        found += look_at_shunted(fds, true);
        if found > 0 || limit.is_up() {
            return Outcome::Done(found as isize);
        }
    }
}

/// Says at every shunted socket and set that a thread sleeps on it, and fills
/// the array for the real call. `true`: something has come; do not sleep.
fn get_in(fds: &[pollfd], scratch: &mut [pollfd]) -> bool {
    let mut ready = false;
    for (to, from) in scratch.iter_mut().zip(fds) {
        *to = pollfd {
            revents: 0,
            ..*from
        };
        if let Some(conn) = attached(from.fd) {
            conn.socket.hold();
            let reads = from.events & (libc::POLLIN | libc::POLLRDNORM) != 0;
            let writes = from.events & (libc::POLLOUT | libc::POLLWRNORM) != 0;
            // Doorbells, FIN and RST; the kernel's idea of writable only where
            // the kernel writes.
            to.events = from.events & (libc::POLLPRI | libc::POLLRDHUP);
            let mut wakes = from.events & (libc::POLLIN | libc::POLLRDNORM);
            if writes && conn.way_out() != shunt_shm::slot::Way::Ring {
                to.events |= libc::POLLOUT;
            }
            if reads {
                ready |= stream::asleep(&conn, Want::Data);
                wakes |= libc::POLLIN;
            }
            if writes {
                ready |= stream::asleep(&conn, Want::Room);
                if conn.way_out() == shunt_shm::slot::Way::Ring {
                    wakes |= libc::POLLIN;
                }
            }
            to.events |= wakes | ENTERED;
        } else if let Some(set) = table::set(from.fd) {
            epoll::begin_sleep(set);
            epoll::expose(set);
            to.events |= ENTERED;
        }
    }
    ready
}

/// The reverse of [`get_in`].
fn get_out(fds: &[pollfd], scratch: &[pollfd]) {
    for (one, entered) in fds.iter().zip(scratch) {
        // What was attached or opened meanwhile was not entered.
        if entered.events & ENTERED == 0 {
            continue;
        }
        if let Some(conn) = attached(one.fd) {
            if one.events & (libc::POLLIN | libc::POLLRDNORM) != 0 {
                stream::awake(&conn, Want::Data);
            }
            if one.events & (libc::POLLOUT | libc::POLLWRNORM) != 0 {
                stream::awake(&conn, Want::Room);
            }
            conn.socket.unhold();
        } else if let Some(set) = table::set(one.fd) {
            epoll::end_sleep(set);
        }
    }
}
