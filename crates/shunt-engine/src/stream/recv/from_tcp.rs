//! What TCP has to give before the ring, and where the ring begins.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_shm::slot::{self, Way};

use super::back::{after_ring, at_mark};
use super::bytes::{arrived, truncate};
use super::eof::{failure, last};
use super::ring::{from_ring, peek_on};
use super::settle::settle;
use super::step::{PARTS, Step};
use crate::config::hesitate;
use crate::iov::{self, Cursor};
use crate::reach;
use crate::socket::bump;
use crate::stream::Conn;
use crate::stream::proposal::propose;
use crate::sys::{self, Errno};

/// Receives in the state in which the direction is on TCP, and the peer may switch to its ring at
/// any moment.
///
/// # Safety
/// The cursor's parts are writable.
pub(super) unsafe fn from_tcp(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    let mut has_some = false;
    loop {
        // SAFETY: the caller's promise.
        let step = match unsafe { take_some(conn, cursor, flags) } {
            Taken::Step(step) => step,
            Taken::AllOfSome => {
                has_some = true;
                continue;
            }
        };
        return match step {
            Step::Failed(errno) if has_some => {
                // The next call reports it, as after any short count.
                conn.error().store(errno, Ordering::Relaxed);
                Step::Bytes
            }
            Step::Empty | Step::Withdrawn | Step::End if has_some => Step::Bytes,
            step => step,
        };
    }
}

/// The outcome of one turn.
enum Taken {
    Step(Step),
    /// As much as was asked for; there are more buffers than one system call takes.
    AllOfSome,
}

/// Receives into as many buffers as one system call takes.
///
/// # Safety
/// The cursor's parts are writable.
unsafe fn take_some(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Taken {
    if settle(conn) {
        // SAFETY: the caller's promise.
        return Taken::Step(unsafe { from_ring(conn, cursor, flags) });
    }
    if conn.way_in() != Way::Tcp {
        return Taken::Step(after_ring(conn));
    }
    // A receive that has a part does not pass urgent data.
    if cursor.done() > 0 && at_mark(conn) {
        return Taken::Step(Step::End);
    }
    let kernel_bytes = &conn.pair.own.receiving.kernel_bytes;
    let before = kernel_bytes.load(Ordering::Relaxed);
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let mut count = cursor.copy_rest(&mut rest);
    let path = conn.receiver();
    if let Some(offset) = path.switch_offset() {
        count = truncate(&mut rest[..count], offset.saturating_sub(before) as usize);
    }
    let rest = &mut rest[..count];
    let wanted = iov::total(rest);
    let peek = flags & libc::MSG_PEEK != 0;
    // A peek sees the same bytes again, so it cannot be made in parts.
    let whole = (peek && count == PARTS).then(|| cursor.all());
    bump(&conn.socket.rx.kernel_calls, 1);
    hesitate();
    let n = match receive(conn, rest, whole, flags) {
        Ok(0) if wanted == 0 => return Taken::Step(Step::Bytes),
        Ok(n @ 1..) => n,
        nothing => {
            // SAFETY: the caller's promise.
            let step = unsafe { without_bytes(conn, cursor, flags, nothing.err()) };
            return Taken::Step(step);
        }
    };
    if !peek {
        kernel_bytes.store(before + n as u64, Ordering::Relaxed);
    }
    hesitate();
    // A look may have seen what follows the ring.
    let payload = path.before_ring(n as u64) as usize;
    let payload = if peek { payload } else { n };
    cursor.skip(payload);
    if payload == 0 {
        return Taken::Step(Step::Moved);
    }
    if peek && path.switch_offset() == Some(before + payload as u64) {
        // SAFETY: the caller's promise.
        unsafe { peek_on(conn, cursor, flags) };
    }
    if !peek && payload == wanted && cursor.remaining() > 0 {
        return Taken::AllOfSome;
    }
    Taken::Step(Step::Bytes)
}

/// Receives into these parts (or into all of the program's: `whole`), and nothing that follows the ring: the peer may
/// switch to its ring and leave it again before this takes anything, unless it has refused the ring.
fn receive(
    conn: &Conn,
    rest: &mut [iovec],
    whole: Option<&[iovec]>,
    flags: c_int,
) -> Result<usize, Errno> {
    let base = conn.base().ok_or(libc::EBADF)?;
    let (path, wanted) = (conn.receiver(), iov::total(rest));
    let stays = conn.pair.peer_state() & slot::REFUSED != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let unsure = !peek && wanted > 0 && !stays && path.switch_offset().is_none();
    let count = if unsure {
        let there = arrived(base, wanted)?;
        if there == 0 {
            return Ok(0);
        }
        hesitate();
        truncate(rest, path.before_ring(there as u64) as usize)
    } else {
        hesitate();
        rest.len()
    };
    // SAFETY: all-zero is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let parts = whole.unwrap_or(&rest[..count]);
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    let now = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    sys::recvmsg(base, &raw mut message, now)
}

/// TCP has no bytes: an end (`None`), or an error. The peer may have moved to the ring before that.
///
/// # Safety
/// The cursor's parts are writable.
unsafe fn without_bytes(
    conn: &Conn,
    cursor: &mut Cursor,
    flags: c_int,
    error: Option<Errno>,
) -> Step {
    match error {
        Some(libc::EBADF) if conn.base().is_none() => Step::Failed(libc::EBADF),
        Some(libc::EAGAIN) if conn.is_mirrored() && hears_of_ring(conn) => {
            // SAFETY: the caller's promise.
            unsafe { from_ring(conn, cursor, flags) }
        }
        Some(libc::EAGAIN) => {
            // A call that had bytes to return may have taken the error from the kernel. It comes
            // after what was in the queue, as natively.
            match conn.error().load(Ordering::Relaxed) {
                0 => Step::Empty,
                errno => failure(conn, errno),
            }
        }
        _ if settle(conn) => {
            if let Some(errno) = error {
                conn.error().store(errno, Ordering::Relaxed);
            }
            // SAFETY: the caller's promise.
            unsafe { from_ring(conn, cursor, flags) }
        }
        Some(errno) => failure(conn, errno),
        None => last(conn),
    }
}

/// Nothing has come by TCP from a peer on another host: whether it continues in its ring. (It may wait for an answer to its proposal.
/// This side's own ring may also be entered now, before the next send.)
#[cold]
fn hears_of_ring(conn: &Conn) -> bool {
    reach::progress();
    propose(conn);
    settle(conn)
}
