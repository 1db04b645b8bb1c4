//! What must be seen to where the kernel sends, and not the ring?

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_shm::slot::{self, Way};

use crate::config::hesitate;
use crate::iov::Cursor;
use crate::socket::SENDER;
use crate::stream::Conn;
use crate::stream::errors::{is_over, keep_error, note_reset, reset_if_died, take_error};
use crate::stream::owed::{self, Debt};
use crate::thread::give;
use crate::{Outcome, real, sys};

/// With the sending token, before the kernel sends: an error of the connection that was taken
/// from it.
pub(super) fn error_before_kernel(conn: &Conn) -> Option<sys::Errno> {
    let closed = conn.pair.peer_state() & slot::CLOSED != 0;
    if !closed && conn.way_out() == Way::Tcp && conn.error().load(Ordering::Relaxed) == 0 {
        return None;
    }
    reset_if_died(conn);
    // The kernel says `EPIPE` again, with SIGPIPE.
    take_error(conn).filter(|&errno| errno != libc::EPIPE)
}

/// Makes a real call that sends, so that the direction cannot switch meanwhile;
/// `None`: it is on the ring.
pub(in crate::stream) fn by_kernel(conn: &Conn, call: impl FnOnce() -> isize) -> Option<Outcome> {
    let token = &conn.pair.own.sending.token;
    if !conn.take(token) {
        return Some(Outcome::Fail(libc::EAGAIN));
    }
    // Behind what the peer has recalled.
    if owed::is_due(conn) && owed::pay(conn) == Debt::Owed {
        give(token);
        return Some(Outcome::Fail(libc::EAGAIN));
    }
    let on_ring = conn.is_on_ring() && !is_over(conn);
    if !on_ring {
        enter_kernel(conn);
    }
    give(token);
    if on_ring {
        return None;
    }
    hesitate();
    let sent = real::quietly(call);
    hesitate();
    leave_kernel(conn);
    Some(sent.map_or_else(Outcome::Fail, Outcome::Done))
}

/// A real call that sends is about to be made. With the sending token, so that the
/// direction cannot switch meanwhile.
pub(super) fn enter_kernel(conn: &Conn) {
    conn.pair
        .own
        .sending
        .in_kernel
        .fetch_add(1, Ordering::AcqRel);
    conn.socket.go_in_attached(SENDER);
}

fn leave_kernel(conn: &Conn) {
    conn.pair
        .own
        .sending
        .in_kernel
        .fetch_sub(1, Ordering::AcqRel);
    conn.socket.go_out(SENDER);
}

/// The rest goes the kernel's way, blocking as the kernel blocks. The caller has
/// entered `inside` as a sender.
///
/// # Safety
/// The cursor's parts are readable.
pub(super) unsafe fn through_kernel(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Outcome {
    let outcome = loop {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 64];
        let count = cursor.copy_rest(&mut rest);
        // SAFETY: all-zero is a valid header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = count;
        // A call that has sent something hears of an end by the next call, without a signal.
        let silent = if cursor.done() > 0 {
            libc::MSG_NOSIGNAL
        } else {
            0
        };
        hesitate();
        // SAFETY: the caller's promise.
        let sent = real::quietly(|| unsafe { real::sendmsg()(conn.fd, &message, flags | silent) });
        conn.socket.tx.kernel_calls.fetch_add(1, Ordering::Relaxed);
        match sent {
            Err(errno) => {
                if cursor.done() > 0 {
                    keep_error(conn, errno);
                }
                note_reset(conn, errno);
                break cursor.done_or(errno);
            }
            Ok(n) => cursor.skip(n as usize),
        }
        if sent != Ok(crate::iov::total(&rest[..count]) as isize) || cursor.remaining() == 0 {
            break Outcome::Done(cursor.done() as isize);
        }
    };
    hesitate();
    leave_kernel(conn);
    outcome
}
