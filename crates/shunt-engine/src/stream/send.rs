//! How a send goes: one attempt after another, into the ring or through the kernel
//! ([`kernel`]).
//!
//! Flags that only the kernel can honour, as `MSG_OOB`, make it leave the ring first. Urgent data is received by the
//! kernel's call ([`super::recv`]), as is the mark in the stream.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::copy::is_readable;
use shunt_shm::ring::{STEP, Stopped};
use shunt_shm::slot::{self, Way};

use super::attempt::Next;
use super::errors::{is_over, take_left};
use super::leave::leave_ring;
use super::wait::{Stay, out_of_patience};
use super::want::Want;
use super::{Conn, owed};
use crate::iov::Cursor;
use crate::socket::bump;
use crate::thread::give;
use crate::{Outcome, sys};

mod ask;
mod kernel;
mod next;

pub(crate) use ask::{ask_for_room, asked};
pub(super) use kernel::{enter_kernel, leave_kernel};
use next::{Call, Step};

/// Sends the bytes of `iov` like `sendmsg`.
///
/// # Safety
/// The parts are readable.
#[inline]
pub(crate) unsafe fn send(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    Stay::during(|stay| unsafe { send_in(conn, iov, flags, stay) })
}

/// [`send`] as a part of a call that is under way.
///
/// # Safety
/// The parts are readable.
#[inline]
pub(crate) unsafe fn send_in(conn: &Conn, iov: &[iovec], flags: c_int, stay: &Stay) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        return leave_for_kernel(conn, flags, stay);
    }
    if let Some(errno) = take_left(conn) {
        return Outcome::Fail(errno);
    }
    if conn.way_out() == Way::TcpAgain {
        conn.socket.may_return(conn.fd);
    }
    let mut call = Call::new(iov, flags);
    loop {
        leave_half_closed(conn);
        if !call.attempts.take_token(conn, Want::Room, stay) {
            return call.cursor.done_or(out_of_patience(stay.seen.get()));
        }
        let here = &stay.at(conn);
        // SAFETY: the caller's promise.
        let next = match unsafe { attempt(here, &mut call.cursor, flags) } {
            Some(step) => {
                give(&here.pair.own.sending.token);
                call.after(&step, here)
            }
            // SAFETY: the caller's promise.
            None => unsafe { call.by_kernel((conn, here), stay) },
        };
        match next {
            Next::End(outcome) => return outcome,
            Next::Attempt => continue,
            Next::Wait => {}
        }
        if let Some(outcome) = call.wait((conn, here), stay) {
            return outcome;
        }
    }
}

/// Only the kernel can send this (urgent data, `MSG_ZEROCOPY`, `MSG_FASTOPEN`): leaves the ring, after what the peer
/// has recalled has been sent.
#[cold]
fn leave_for_kernel(conn: &Conn, flags: c_int, stay: &Stay) -> Outcome {
    loop {
        leave_ring(conn, Reason::Urgent);
        if !owed::is_due(conn) {
            return Outcome::Kernel;
        }
        // A send of no bytes waits until that is sent, if it may.
        let flags = flags & libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: no bytes.
        match unsafe { send_in(conn, &[], flags, stay) } {
            Outcome::Done(_) => {}
            other => return other,
        }
    }
}

/// After a peer's FIN its death shows only in the kernel's answer to what is sent to it: goes back to TCP.
#[inline]
fn leave_half_closed(conn: &Conn) {
    const ENDS: u32 = slot::SHUT_WR | slot::CLOSED;
    if conn.is_on_ring() && conn.pair.peer_state() & ENDS == slot::SHUT_WR {
        leave_ring(conn, Reason::HalfClosed);
    }
}

/// Whether bytes go through the ring, perhaps since this call. (After our shutdown, or when the
/// peer has closed, they do not: the kernel knows the right error, and whether SIGPIPE comes with
/// it.) With the sending token.
#[inline(always)]
pub(super) fn goes_by_ring(conn: &Conn, flags: c_int) -> bool {
    let may_switch = || conn.way_out() == Way::Tcp && !must_stay_full(conn, flags);
    let goes = (conn.is_on_ring() || may_switch() && conn.try_switch())
        && !(is_over(conn) || owed::is_recalled(conn));
    if !goes && conn.is_on_ring() {
        check_recall(conn);
    }
    goes
}

/// A sender leaves a recalled ring as it answers the recall. If this side has answered and the ring is still
/// recalled, a relative has written nonsense. The connection ends then: a sender would look for its way again and
/// again.
#[cold]
fn check_recall(conn: &Conn) {
    // This side's own word, with the token: the recall may be taken back at any moment.
    let is_answered = conn.sender().has_answered();
    if is_answered && owed::is_recalled(conn) {
        super::errors::abort(conn);
    }
}

/// How many more bytes may be in flight.
#[inline(always)]
pub(super) fn allowed(conn: &Conn) -> usize {
    if conn.pair.own.options.most.load(Ordering::Relaxed) == 0 {
        return usize::MAX;
    }
    conn.most().saturating_sub(conn.in_flight()) as usize
}

/// Whether the program may know that the kernel has no room: then a ring must not
/// suddenly have some. A sender that blocks knows nothing.
#[cold]
fn must_stay_full(conn: &Conn, flags: c_int) -> bool {
    !conn.may_wait(flags)
        && conn.pair.peer_state() & slot::READY != 0
        && sys::ready(conn.fd, libc::POLLOUT) & libc::POLLOUT == 0
}

/// One attempt of a call, with the sending token. `None`: the kernel must send.
///
/// # Safety
/// The cursor's parts are readable.
#[inline]
unsafe fn attempt(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Option<Step> {
    if !goes_by_ring(conn, flags) {
        return None;
    }
    let step = loop {
        let before = cursor.done();
        let written = if cursor.remaining() > 0 {
            // SAFETY: the caller's promise.
            unsafe { fill(conn, cursor) }
        } else {
            Ok(Filled::All)
        };
        let n = cursor.done() - before;
        if n > 0 {
            bump(&conn.socket.tx.ring_bytes, n as u64);
            if !conn.tell_data() {
                break Some(Step::Unheard);
            }
        }
        break match written {
            Err(Stopped::Fault) => {
                super::errors::abort(conn);
                None
            }
            Err(Stopped::BadBuffer(_)) => Some(Step::BadBuffer),
            Ok(Filled::All) if cursor.remaining() > 0 => Some(full(conn, n)),
            Ok(_) if conn.may_wait(flags) && is_ahead(conn) => Some(Step::Ahead {
                done: cursor.remaining() == 0,
            }),
            Ok(_) if cursor.remaining() == 0 => Some(Step::Done),
            Ok(_) => continue,
        };
    };
    bump(&conn.socket.tx.user_calls, 1);
    step
}

/// The ring takes no more; the last look at it found room for `written` bytes.
fn full(conn: &Conn, written: usize) -> Step {
    if written == 0 && allowed(conn) > 0 && conn.producer().lacks_memory() {
        Step::NoMemory
    } else {
        Step::Full
    }
}

/// How many bytes of a large message are published before the peer is told: a peer that sleeps
/// wakes in time to copy while the rest is written.
const PART: usize = 64 << 10;

/// About as many bytes as the kernel copies at once; it sends none of them if it meets a bad
/// address (`skb_page_frag_refill`).
pub(crate) const AT_ONCE: usize = 32 << 10;

/// A sender that may wait makes way for its peer each time when it has written this many bytes, if
/// the peer is behind: on one core the peer reads them while they are still in the cache.
const AHEAD: u64 = 256 << 10;

/// Whether [`AHEAD`] bytes or more have been written since the last look, and the peer is behind.
/// It does not look each time, since the peer writes the line that says how far it has read.
#[inline]
fn is_ahead(conn: &Conn) -> bool {
    let written = conn.pair.own.output.bytes.load(Ordering::Relaxed);
    let looked_at = &conn.socket.hints.looked_ahead;
    if written.wrapping_sub(looked_at.load(Ordering::Relaxed)) < AHEAD {
        return false;
    }
    looked_at.store(written, Ordering::Relaxed);
    conn.in_flight() > AHEAD / 2
}

/// Whether the bytes that the kernel would copy at once can all be read.
fn can_be_read(cursor: &Cursor) -> bool {
    let mut left = AT_ONCE;
    for (base, length) in cursor.rest() {
        let n = length.min(left);
        if !is_readable(base, n) {
            return false;
        }
        left -= n;
        if left == 0 {
            break;
        }
    }
    true
}

/// How far [`fill`] has come.
enum Filled {
    /// To the end of the message, or as far as there is room.
    All,
    /// There may be room for more.
    Part,
}

/// # Safety
/// The cursor's parts are readable.
#[inline]
unsafe fn fill(conn: &Conn, cursor: &mut Cursor) -> Result<Filled, Stopped> {
    let producer = conn.producer();
    let mut left = PART;
    while let Some((base, length)) = cursor.part() {
        if left == 0 {
            return Ok(Filled::Part);
        }
        let want = length.min(allowed(conn));
        // Published bytes cannot be taken back, so a bad address must be found before.
        let at_once = cursor.single().is_some() && want == length && length <= STEP;
        if cursor.done() == 0 && !at_once && !can_be_read(cursor) {
            return Err(Stopped::BadBuffer(0));
        }
        // SAFETY: the caller's promise.
        let written = unsafe { producer.write(base, want.min(left)) };
        if let Err(Stopped::BadBuffer(n)) = written {
            cursor.advance(n);
        }
        let n = written?;
        cursor.advance(n);
        if n < length.min(left) {
            break;
        }
        left -= n;
    }
    Ok(Filled::All)
}
