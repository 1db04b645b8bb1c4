//! What follows the ring: the peer has left it, and its bytes come over TCP again.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::slot;

use super::eof::failure;
use super::step::{PARTS, Step};
use crate::iov::Cursor;
use crate::socket::RECEIVER;
use crate::stream::Conn;
use crate::stream::errors::note_reset;
use crate::stream::recall::{has_passed_the_end, is_never_answered};
use crate::{Outcome, real, sys};

/// Follows a peer that has left its ring: its bytes come over TCP from here on.
///
/// What it had sent by TCP before may not be acknowledged yet (RFC 1122, 4.2.3.2): answers went by a ring. It is now, as otherwise the
/// peer's kernel would hold back what follows (RFC 896), for 40 ms, or for ever if the peer resets the connection meanwhile.
pub(in crate::stream) fn follow_back(conn: &Conn) {
    conn.receiver().follow_back();
    if let Some(base) = conn.base() {
        sys::acknowledge(base);
    }
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

/// After a recall: whether TCP carries the stream, and everything that was unread is sent or will
/// be. With the receiving token.
pub(in crate::stream) fn is_home(conn: &Conn) -> bool {
    let settled = conn.receiver().is_settled() || has_answered(conn);
    // An error that the kernel has is for the call that asks for it.
    const OVER: i16 = libc::POLLERR | libc::POLLHUP;
    if sys::ready(conn.fd, 0) & OVER != 0 && is_empty(conn) {
        return true;
    }
    let step = after_ring(conn);
    // A peer that has ended need not answer.
    let settled = settled || !conn.receiver().awaits();
    settled && !matches!(step, Step::Asked | Step::Moved)
}

/// Whether the peer has answered our recall, or had left before it and nothing is
/// lost by that.
fn has_answered(conn: &Conn) -> bool {
    conn.receiver().is_answered(|| conn.consumer().has_ended())
}

/// After a recall: notes that TCP carries the stream, if it does by now. `false`: not yet.
fn learn(conn: &Conn) -> bool {
    // In this order: a peer that has ended begins with its ring no more.
    let only_tcp = || has_passed_the_end(conn) && conn.receiver().switch_offset().is_none();
    if !has_answered(conn) && !only_tcp() {
        return false;
    }
    conn.receiver().learn(|| conn.unread_in_ring());
    true
}

/// The error that the program must see before the kernel does the rest: one that was taken from the
/// kernel, which tells it only once. Bytes in the queue come before it.
pub(super) fn pending(conn: &Conn) -> Option<Step> {
    let errno = conn.error().load(Ordering::Relaxed);
    let told = errno != 0 && is_empty(conn);
    told.then(|| failure(conn, errno))
}

/// Whether nothing that has come by TCP is unread.
fn is_empty(conn: &Conn) -> bool {
    sys::ioctl_int(conn.fd, libc::FIONREAD).is_ok_and(|n| n == 0)
}

/// The direction is on TCP again: the kernel does the rest, once the recall is answered.
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

/// The real call, for a direction that is on TCP again. `flags` must keep it from waiting. `None`:
/// the connection is on its way to its rings again.
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

/// Receives what the kernel has now, for a direction that is on TCP again and a call that has a part already, or
/// whose descriptor was closed. With the receiving token.
///
/// # Safety
/// The cursor's parts are writable.
#[cold]
pub(super) unsafe fn from_kernel(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    let Some(fd) = conn.base() else {
        return Step::Failed(libc::EBADF);
    };
    let conn = &Conn { fd, ..*conn };
    // The kernel tells an error once, and not to a call that has bytes to return.
    let has_failed = || sys::ready(fd, 0) & libc::POLLERR != 0 && is_empty(conn);
    if cursor.done() > 0 && (at_mark(conn) || has_failed()) {
        return Step::End;
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let count = cursor.copy_rest(&mut rest);
    let mut message = header(if peek { cursor.all() } else { &rest[..count] });
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    match sys::recvmsg(fd, &raw mut message, flags) {
        Ok(0) => Step::End,
        Ok(n) => {
            cursor.skip(n);
            Step::Bytes
        }
        Err(libc::EAGAIN) => Step::Empty,
        Err(errno) => {
            note_reset(conn, errno);
            Step::Failed(errno)
        }
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

/// Whether the next byte on TCP is the urgent one, which ends a receive
/// (`tcp(7)`, `SIOCATMARK`).
pub(crate) fn at_mark(conn: &Conn) -> bool {
    const SIOCATMARK: u64 = 0x8905;
    sys::ioctl_int(conn.fd, SIOCATMARK).is_ok_and(|mark| mark != 0)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    /// `tcpi_segs_out`, acknowledgements among them.
    fn segments_sent(fd: c_int) -> u32 {
        let about = sys::getsockopt::<[u32; 35]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
        about.unwrap()[34]
    }

    #[test]
    fn what_came_by_tcp_before_the_rings_is_acknowledged_when_a_peer_goes_back() {
        let ends = BothEnds::attached();
        let [near, far] = ends.fds;
        let say = |from, to| {
            let mut byte = [0u8];
            assert_eq!(sys::send(from, &[1]), Ok(1));
            assert_eq!(sys::recv(to, byte.as_mut_ptr(), 1, 0), Ok(1));
        };
        let unacknowledged = || sys::ioctl_int(near, libc::TIOCOUTQ);
        // A side that answers what comes acknowledges it with its answers. (On a busy machine the kernel's time for that may be over.)
        loop {
            for _ in 0..3 {
                say(near, far);
                say(far, near);
            }
            say(near, far);
            if unacknowledged() == Ok(1) {
                break;
            }
        }
        let sent = segments_sent(far);
        follow_back(&ends.conns()[1]);
        assert!(segments_sent(far) > sent);
    }
}
