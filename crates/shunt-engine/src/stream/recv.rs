//! How a receive goes: one attempt after another, from where the bytes are now.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::slot::{self, Way};

use super::errors::{abort, keep_error};
use super::wait::{Stay, Waited, is_patient, out_of_patience, timeout, wait};
use super::want::Want;
use super::{Conn, downgrade, owed, short};
use crate::iov::Cursor;
use crate::socket::RECEIVER;
use crate::sys::{self};
use crate::thread::{give, signals};
use crate::{Outcome, real};

mod back;
mod brought;
mod bytes;
mod end;
mod ring;
mod settle;
mod step;
mod tcp;
mod unread;

use back::{after_ring, by_kernel, from_kernel, rest_from_tcp};
use ring::from_ring;
use step::Step;
use tcp::from_tcp;

pub(crate) use back::at_mark;
pub(super) use back::{follow_back, is_home};
pub(super) use bytes::recount;
pub(crate) use bytes::ring_bytes;
pub(super) use settle::settle;
pub(crate) use unread::{is_any_in_ring, leaves_unread, pump, unread};

/// Receives into `iov` like `recvmsg`. `flags` as for `recv`.
///
/// # Safety
/// The parts are writable.
#[inline]
pub(crate) unsafe fn receive(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    Stay::during(|stay| unsafe { receive_in(conn, iov, flags, stay) })
}

/// The same as a part of a call.
///
/// # Safety
/// The parts are writable.
#[inline]
pub(crate) unsafe fn receive_in(conn: &Conn, iov: &[iovec], flags: c_int, stay: &Stay) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Outcome::Kernel;
    }
    let options = &conn.pair.own.options;
    let token = &conn.pair.own.receiving.token;
    let peek = flags & libc::MSG_PEEK != 0;
    let mut cursor = Cursor::new(iov);
    let total = cursor.remaining();
    let least = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        total.min(1)
    };
    if total == 0 {
        // The kernel waits for something to receive, then takes none of it.
        return nothing(conn, flags);
    }
    if conn.way_out() == Way::TcpAgain {
        conn.socket.may_return(conn.fd);
    }
    let seen = signals::now();
    let (mut deadline, mut has_slept) = (None, false);
    loop {
        let patient = || {
            let waits =
                flags & libc::MSG_DONTWAIT == 0 && options.nonblock.load(Ordering::Relaxed) == 0;
            is_patient(conn, Want::Data, waits, &mut deadline, seen)
        };
        if !conn.take_while(token, patient) {
            return cursor.done_or(out_of_patience(seen));
        }
        let (program, conn) = (conn, &stay.at(conn));
        let there = if peek { unread(conn) } else { 0 };
        // SAFETY: the caller's promise.
        let step = unsafe {
            match attempt(conn, &mut cursor, flags) {
                // The kernel's own call would look the program's number up.
                Step::Kernel if stay.goes_on(conn) => from_kernel(conn, &mut cursor, flags),
                step => step,
            }
        };
        give(token);
        let done = cursor.done();
        // Before it sleeps, perhaps in the kernel's own call.
        if matches!(step, Step::Empty | Step::Kernel) && owed::is_due(conn) {
            let pending = || conn.error().load(Ordering::Relaxed);
            let before = pending();
            owed::answer(conn);
            if done == 0 && pending() != before {
                continue; // The kernel has told of it, and tells no more.
            }
        }
        match step {
            Step::Bytes => {
                if !peek {
                    conn.tell_room();
                }
                // A short count tells the program that it has everything: go on
                // where the stream changes its way.
                if !peek && done < total && goes_on(conn) {
                    continue;
                }
                if done >= least || done == total || (peek && there >= least as u64) {
                    return Outcome::Done(done as isize);
                }
                if peek {
                    let now = flags & libc::MSG_DONTWAIT != 0
                        || options.nonblock.load(Ordering::Relaxed) != 0;
                    if now || !stay.enter(program) || !wait_for_more(conn, there, seen) {
                        return Outcome::Done(done as isize);
                    }
                    // It sees the same bytes again: it cannot add up.
                    cursor = Cursor::new(iov);
                    continue;
                }
            }
            Step::Empty | Step::Brings | Step::Asked | Step::Moved => {
                // Who has taken the last byte may have been killed before it told.
                if options.forked.load(Ordering::Relaxed) == slot::SHARED {
                    conn.tell_room();
                }
                // The stream goes on elsewhere, where nothing has come yet.
                if done > 0 && done >= least {
                    return Outcome::Done(done as isize);
                }
            }
            // It is payload, of one who has a copy of the peer's socket; TCP carries on from here.
            Step::Stray if done == 0 || done < least => {
                downgrade(conn, Reason::Held);
                if conn.way_in() == Way::Ring {
                    // It does not go back: its peer does what no copy does.
                    abort(conn);
                    return Outcome::Fail(libc::ECONNRESET);
                }
                continue;
            }
            Step::Stray | Step::End => return Outcome::Done(done as isize),
            Step::Failed(errno) if done > 0 => {
                // The next call says so.
                keep_error(conn, errno);
                return Outcome::Done(done as isize);
            }
            Step::Failed(errno) => {
                let noted = conn.error();
                let _ = noted.compare_exchange(errno, 0, Ordering::Relaxed, Ordering::Relaxed);
                return Outcome::Fail(errno);
            }
            Step::BadBuffer => return cursor.done_or(libc::EFAULT),
            // Closed while it slept: the number may name anything by now.
            Step::Kernel if done == 0 && conn.base().is_none() => {
                return Outcome::Fail(libc::EBADF);
            }
            Step::Kernel if done == 0 => return Outcome::Kernel,
            Step::Kernel => {
                let now = flags & libc::MSG_DONTWAIT != 0
                    || options.nonblock.load(Ordering::Relaxed) != 0;
                let least = if now { 0 } else { least };
                let life = conn.pair.life();
                conn.socket.go_in_attached(RECEIVER);
                if conn.is_plain_in(life) {
                    // SAFETY: the caller's promise.
                    unsafe { rest_from_tcp(conn, &mut cursor, least, flags) };
                }
                conn.socket.go_out(RECEIVER);
                return Outcome::Done(cursor.done() as isize);
            }
        }
        // A call that sleeps goes on so, whatever other threads set.
        let now = || options.nonblock.load(Ordering::Relaxed) != 0;
        if !has_slept && (flags & libc::MSG_DONTWAIT != 0 || now()) {
            return cursor.done_or(libc::EAGAIN);
        }
        // The kernel's own call, which has taken something, is in it already.
        if done > 0 && !stay.enter(program) {
            return cursor.done_or(libc::EBADF);
        }
        match wait(program, Want::Data, &mut deadline, stay, seen) {
            // Any handler ends a call that has moved something.
            Ok(Waited::Anew) if cursor.done() > 0 => return Outcome::Done(cursor.done() as isize),
            Ok(waited) => has_slept = waited == Waited::Enough,
            Err(errno) => return cursor.done_or(errno),
        }
        // What has come is mostly one message.
        if let Some((target, length)) = cursor.single()
            // SAFETY: the caller's promise.
            && let Some(outcome) = unsafe { short::receive(*program, target, length, flags) }
        {
            return outcome;
        }
    }
}

/// What the kernel has for it now, after [`receive`] has said so; `flags` as for `recv`.
///
/// # Safety
/// The parts are writable.
#[cold]
pub(super) unsafe fn by_kernel_now(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    let cursor = Cursor::new(iov);
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the caller's promise.
    let received = unsafe { by_kernel(conn, &cursor, flags) };
    received.unwrap_or(Outcome::Fail(libc::EAGAIN))
}

/// With the receiving token.
///
/// # Safety
/// The cursor's parts are writable.
#[inline]
unsafe fn attempt(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            let step = match conn.way_in() {
                Way::Ring => from_ring(conn, cursor, flags),
                Way::Tcp => from_tcp(conn, cursor, flags),
                Way::TcpAgain | Way::Owing => after_ring(conn),
            };
            let step = match step {
                Step::Brings => brought::from_tcp(conn, cursor, flags),
                Step::Asked => brought::meanwhile(conn, cursor, flags),
                Step::Kernel => back::pending(conn).unwrap_or(step),
                step => step,
            };
            if !matches!(step, Step::Moved) {
                return step;
            }
        }
    }
}

/// Whether there is more, behind a change of way.
#[inline]
fn goes_on(conn: &Conn) -> bool {
    match conn.way_in() {
        Way::Ring => conn.consumer().is_ready(),
        Way::Tcp => conn.receiver().switch_offset().is_some() && conn.consumer().is_ready(),
        Way::TcpAgain | Way::Owing => true,
    }
}

/// Waits for more than the `there` bytes that a peek has seen; `false` if none
/// will come. Nobody calls while those lie unread, so this looks from time
/// to time.
#[cold]
fn wait_for_more(conn: &Conn, there: u64, seen: signals::Seen) -> bool {
    let mut pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let until = timeout(conn, Want::Data).map(|ns| sys::now() + ns);
    while unread(conn) <= there {
        const OVER: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let is_over = |base| sys::ready(base, libc::POLLRDHUP) & OVER != 0;
        let over = conn.base().is_none_or(is_over);
        if over
            || conn.keeps_peer_waiting()
            || until.is_some_and(|until| sys::now() >= until)
            // Also one that would restart a call which has nothing yet.
            || seen.any_since()
        {
            return unread(conn) > there;
        }
        // SAFETY: no descriptors.
        let _ = real::quietly(|| unsafe {
            real::ppoll()(std::ptr::null_mut(), 0, &raw const pause, std::ptr::null()) as isize
        });
        pause.tv_nsec = (pause.tv_nsec * 2).min(16_000_000);
    }
    true
}

/// `recv` of no bytes.
#[cold]
fn nothing(conn: &Conn, flags: c_int) -> Outcome {
    let mut byte = 0u8;
    let part = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let nonblock = conn.pair.own.options.nonblock.load(Ordering::Relaxed) != 0;
    let waits = flags & libc::MSG_DONTWAIT == 0 && !nonblock;
    // SAFETY: a byte of our own.
    let look = |flags| unsafe { receive(conn, &[part], flags | libc::MSG_PEEK) };
    match look(flags | libc::MSG_DONTWAIT) {
        Outcome::Done(_) => Outcome::Done(0),
        // Whatever ends the wait, also time or any signal, the kernel has done what it was asked.
        Outcome::Fail(libc::EAGAIN) if waits => Stay::during(|stay| {
            let (seen, mut deadline) = (signals::now(), None);
            loop {
                let waited = wait(conn, Want::Data, &mut deadline, stay, seen);
                if waited.is_err() || seen.any_since() {
                    return Outcome::Done(0);
                }
                match look(flags | libc::MSG_DONTWAIT) {
                    Outcome::Fail(libc::EAGAIN) => {}
                    Outcome::Kernel => return Outcome::Kernel,
                    // The next call tells of an error.
                    Outcome::Fail(errno) => {
                        keep_error(conn, errno);
                        return Outcome::Done(0);
                    }
                    Outcome::Done(_) => return Outcome::Done(0),
                }
            }
        }),
        other => other,
    }
}
