//! What follows the ring: the peer has left it, and its bytes come over TCP again.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::slot;

use super::eof::failure;
use super::step::{PARTS, Step};
use crate::iov::{self, Cursor};
use crate::socket::RECEIVER;
use crate::stream::Conn;
use crate::stream::recall::{has_passed_the_end, is_never_answered};
use crate::{Outcome, real, sys};

/// The peer has left the ring: its bytes go on over TCP.
pub(in crate::stream) fn follow_back(conn: &Conn) {
    conn.receiver().follow_back();
    conn.socket.note_downgrade();
    if conn.socket.reason() == Reason::Pending {
        let peer = conn.pair.peer_state();
        conn.socket.set_reason(if peer & slot::RECALLED != 0 {
            Reason::PeerLeft
        } else if peer & slot::WITHDRAWN != 0 {
            Reason::Ended
        } else {
            Reason::Blocked
        });
    }
}

/// Having recalled the stream, with the receiving token: whether what comes by TCP
/// is payload, and all of it is sent or will be.
pub(in crate::stream) fn is_home(conn: &Conn) -> bool {
    let settled = conn.receiver().is_settled() || has_answered(conn);
    // An error that the kernel has is for the call that asks for it.
    const OVER: i16 = libc::POLLERR | libc::POLLHUP;
    if sys::ready(conn.fd, 0) & OVER != 0 && is_empty(conn) {
        return true;
    }
    let step = after_ring(conn);
    // Of one that has ended no answer is needed.
    let settled = settled || !conn.receiver().awaits();
    settled && !matches!(step, Step::Asked | Step::Moved)
}

/// Whether the peer has answered our recall, or had left before it and nothing is
/// lost by that.
fn has_answered(conn: &Conn) -> bool {
    conn.receiver().is_answered(|| conn.consumer().has_ended())
}

/// Having recalled the stream, learns that TCP carries it on. `false`: not yet.
fn learn(conn: &Conn) -> bool {
    // In this order: a peer that has ended begins with its ring no more.
    let only_tcp = || has_passed_the_end(conn) && conn.receiver().switch_offset().is_none();
    if !has_answered(conn) && !only_tcp() {
        return false;
    }
    conn.receiver().learn(|| conn.unread_in_ring());
    true
}

/// The kernel does the rest, unless an error was taken from it on the way, which it tells only
/// once; behind what is in the queue.
pub(super) fn pending(conn: &Conn) -> Option<Step> {
    let errno = conn.error().load(Ordering::Relaxed);
    let told = errno != 0 && is_empty(conn);
    told.then(|| failure(conn, errno))
}

/// Whether nothing that has come by TCP is unread.
fn is_empty(conn: &Conn) -> bool {
    sys::ioctl_int(conn.fd, libc::FIONREAD).is_ok_and(|n| n == 0)
}

/// On TCP again: the kernel does the rest, once that is known.
pub(super) fn after_ring(conn: &Conn) -> Step {
    if conn.receiver().awaits() && !learn(conn) {
        return if is_never_answered(conn) {
            Step::Moved
        } else {
            Step::Asked
        };
    }
    let brings = conn.receiver().is_bringing().is_some();
    if brings { Step::Brings } else { Step::Kernel }
}

/// After the ring, with flags by which the kernel does not wait. `None`: the connection is on its
/// way to its rings again.
///
/// # Safety
/// The cursor's parts are writable.
#[cold]
pub(super) unsafe fn by_kernel(conn: &Conn, cursor: &Cursor, flags: c_int) -> Option<Outcome> {
    let (life, socket) = (conn.pair.life(), conn.socket);
    let mut message = header(cursor.all());
    socket.go_in_attached(RECEIVER);
    let outcome = conn.is_plain_in(life).then(|| {
        // SAFETY: the caller's promise.
        let call = || unsafe { real::recvmsg()(conn.fd, &raw mut message, flags) };
        real::sleeping(&|| socket.go_out(RECEIVER), call).map_or_else(Outcome::Fail, Outcome::Done)
    });
    socket.go_out(RECEIVER);
    outcome
}

/// After the ring, with the receiving token: what the kernel has now, for a call that goes on
/// although its number was closed.
///
/// # Safety
/// The cursor's parts are writable.
#[cold]
pub(super) unsafe fn from_kernel(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    let peek = flags & libc::MSG_PEEK != 0;
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let count = cursor.copy_rest(&mut rest);
    let mut message = header(if peek { cursor.all() } else { &rest[..count] });
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    match sys::recvmsg(conn.fd, &raw mut message, flags) {
        Ok(0) => Step::End,
        Ok(n) => {
            cursor.skip(n);
            Step::Bytes
        }
        Err(libc::EAGAIN) => Step::Empty,
        Err(errno) => Step::Failed(errno),
    }
}

/// A header for these parts.
fn header(parts: &[iovec]) -> libc::msghdr {
    // SAFETY: all-zero is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    message
}

/// After the ring: what TCP has already, and `least` bytes in all. What stops it
/// is told by the next call, as after any short count. Of `flags` only `MSG_TRUNC` counts: the
/// bytes are thrown away.
///
/// # Safety
/// The cursor's parts are writable.
pub(super) unsafe fn rest_from_tcp(conn: &Conn, cursor: &mut Cursor, least: usize, flags: c_int) {
    let discards = flags & libc::MSG_TRUNC;
    // The kernel tells an error once, and not to a call that has bytes to return.
    let has_failed = || sys::ready(conn.fd, 0) & libc::POLLERR != 0 && is_empty(conn);
    while cursor.remaining() > 0 && !at_mark(conn) && !has_failed() {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PARTS];
        let count = cursor.copy_rest(&mut rest);
        let mut message = header(&rest[..count]);
        let wanted = iov::total(&rest[..count]);
        let waits = cursor.done() < least;
        let n = if waits {
            // SAFETY: the caller's promise.
            real::quietly(|| unsafe { real::recvmsg()(conn.fd, &raw mut message, discards) })
                .unwrap_or(0) as usize
        } else {
            sys::recvmsg(conn.fd, &raw mut message, libc::MSG_DONTWAIT | discards).unwrap_or(0)
        };
        cursor.skip(n);
        if n == 0 || n < wanted && cursor.done() >= least {
            break;
        }
    }
}

/// Whether the next byte on TCP is the urgent one, which ends a receive
/// (`tcp(7)`, `SIOCATMARK`).
pub(crate) fn at_mark(conn: &Conn) -> bool {
    const SIOCATMARK: u64 = 0x8905;
    sys::ioctl_int(conn.fd, SIOCATMARK).is_ok_and(|mark| mark != 0)
}
