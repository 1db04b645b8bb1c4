//! Sends that go by the kernel, not by the ring, and what must be done before and after them.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use libc::{c_int, iovec, msghdr};
use shunt_shm::slot::{self, Way};

use crate::config::hesitate;
use crate::iov::Cursor;
use crate::socket::SENDER;
use crate::stream::Conn;
use crate::stream::aside::{end_by_kernel, tell_kernel_of_end};
use crate::stream::attempt::MSG_BEHIND;
use crate::stream::errors::{keep_error, note_reset, reset_if_died, take_error};
use crate::stream::proposal::propose;
use crate::stream::wait::timeout;
use crate::stream::want::{Want, is_interrupted};

use crate::thread::signals::{self, Seen};
use crate::thread::sleep::Sleep;
use crate::{Outcome, sys};

/// An error of the connection that was taken from the kernel, and that this call must report before
/// the kernel sends. With the sending token.
pub(super) fn error_before_kernel(conn: &Conn) -> Option<sys::Errno> {
    tell_kernel_of_end(conn);
    let closed = conn.pair.peer_state() & slot::CLOSED != 0;
    if !closed && conn.way_out() == Way::Tcp && conn.error().load(Ordering::Relaxed) == 0 {
        return None;
    }
    end_by_kernel(conn);
    reset_if_died(conn);
    // The kernel says `EPIPE` again, with SIGPIPE.
    take_error(conn).filter(|&errno| errno != libc::EPIPE)
}

/// A real call that sends is about to be made. With the sending token, so that the
/// direction cannot switch meanwhile.
pub(in crate::stream) fn enter_kernel(conn: &Conn) {
    conn.pair
        .own
        .sending
        .in_kernel
        .fetch_add(1, Ordering::AcqRel);
    conn.socket.go_in_attached(SENDER);
}

/// The real call that [`enter_kernel`] has announced has been made.
pub(in crate::stream) fn leave_kernel(conn: &Conn) {
    conn.pair
        .own
        .sending
        .in_kernel
        .fetch_sub(1, Ordering::AcqRel);
    conn.socket.go_out(SENDER);
}

/// The kernel sends the rest, and blocks as it would natively. The caller has entered `inside` as a
/// sender. `seen`: the handlers that had run when its call began, or began anew.
///
/// # Safety
/// The cursor's parts are readable.
pub(super) unsafe fn through_kernel(
    conn: &Conn,
    cursor: &mut Cursor,
    flags: c_int,
    seen: &Cell<Seen>,
) -> Outcome {
    let outcome = loop {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 64];
        let count = cursor.copy_rest(&mut rest);
        // SAFETY: all-zero is a valid header.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = count;
        // A call that has sent something does not raise SIGPIPE: the next call reports the end. And any handler ends it.
        let behind = if cursor.done() > 0 {
            libc::MSG_NOSIGNAL | MSG_BEHIND
        } else {
            0
        };
        hesitate();
        // SAFETY: the caller's promise.
        let sent = unsafe { send_message(conn, &message, flags | behind, seen) };
        conn.socket.tx.kernel_calls.fetch_add(1, Ordering::Relaxed);
        match sent {
            Err(errno) => {
                if cursor.done() > 0 {
                    keep_error(conn, errno);
                }
                note_reset(conn, errno);
                break cursor.done_or(errno);
            }
            Ok(n) => cursor.skip(n),
        }
        if sent != Ok(crate::iov::total(&rest[..count])) || cursor.remaining() == 0 {
            break Outcome::Done(cursor.done() as isize);
        }
    };
    hesitate();
    leave_kernel(conn);
    if conn.is_mirrored() {
        propose(conn);
    }
    outcome
}

/// `sendmsg(2)` for a call. A handler that has run after those in `seen` ends it where it would sleep, like
/// one that runs during the sleep.
///
/// # Safety
/// What the message names is readable.
unsafe fn send_message(
    conn: &Conn,
    message: &msghdr,
    flags: c_int,
    seen: &Cell<Seen>,
) -> Result<usize, sys::Errno> {
    let waits = conn.may_wait(flags);
    let mut looked = if waits { seen.get() } else { signals::now() };
    let cancelled = || leave_kernel(conn);
    loop {
        // SAFETY: the caller's promise.
        match unsafe { Sleep::send(conn.fd, message, flags, looked, &cancelled) } {
            Err(libc::EINTR) if looked.any_since() => {}
            sent => return sent,
        }
        let is_behind = flags & MSG_BEHIND != 0;
        if waits && (is_behind || is_interrupted(timeout(conn, Want::Room), seen.get())) {
            break;
        }
        looked = signals::now();
        // The kernel sends what it has room for before it looks at a signal: then the call does not begin anew.
        if !is_behind && sys::ready(conn.fd, libc::POLLOUT) & libc::POLLOUT == 0 {
            seen.set(seen.get().begun_anew());
        }
    }
    match sys::sendmsg(conn.fd, message, flags | libc::MSG_DONTWAIT) {
        Err(libc::EAGAIN) => Err(libc::EINTR),
        sent => sent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn a_handler_that_has_run_since_the_call_began_ends_a_send_that_would_sleep() {
        const TIME: libc::timeval = libc::timeval {
            tv_sec: 2,
            tv_usec: 0,
        };
        let ends = BothEnds::attached();
        let [conn, _] = &ends.conns();
        sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &TIME).unwrap();
        let bytes = [0; 1 << 16];
        let parts = [iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        // Bytes go as long as there is room.
        let until_it_fails = |seen, flags| {
            loop {
                enter_kernel(conn);
                // SAFETY: the bytes are there.
                match unsafe {
                    through_kernel(conn, &mut Cursor::new(&parts), flags, &Cell::new(seen))
                } {
                    Outcome::Fail(errno) => return errno,
                    sent => assert!(matches!(sent, Outcome::Done(1..))),
                }
            }
        };
        let began = signals::now();
        signals::count_one(false);
        assert_eq!(until_it_fails(began, 0), libc::EINTR);
        assert_eq!(until_it_fails(began, libc::MSG_DONTWAIT), libc::EAGAIN);
        assert_eq!(until_it_fails(signals::now(), 0), libc::EAGAIN);
    }
}
