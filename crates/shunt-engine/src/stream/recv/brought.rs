//! Bytes that were unread in the ring, and that TCP brings. If their sender ends in the middle of
//! that, the rest is read in the ring, where it still lies.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_shm::ring::Found;
use shunt_shm::slot;

use super::back::pending;
use super::bytes::{recount, truncate};
use super::eof::{failure, has_ended, last};
use super::ring::from_ring;
use super::step::{PARTS, Step};
use crate::config;
use crate::iov::{self, Cursor};
use crate::socket::bump;
use crate::stream::Conn;
use crate::stream::errors::abort;
use crate::stream::recall::{is_never_answered, stay_in_ring};
use crate::stream::waits_for_many;
use crate::sys::Errno;
use crate::{sys, tcp};

/// Receives some of these bytes. With the receiving token.
///
/// # Safety
/// The cursor's parts are writable.
#[cold]
pub(super) unsafe fn from_tcp(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    let path = conn.receiver();
    let (Some(until), Some(base)) = (path.is_bringing(), conn.base()) else {
        return Step::Kernel;
    };
    if config::is_confined() {
        return Step::Kernel;
    }
    let failed = match take_what_is_there(conn, cursor, flags) {
        Some(Taken::Step(step)) => return step,
        Some(Taken::Failed(errno)) => Some(errno),
        Some(Taken::End) | None => None,
    };
    let receiving = &conn.pair.own.receiving;
    // Another program that had the connection meanwhile may have taken some.
    let counted = receiving.kernel_bytes.load(Ordering::Relaxed);
    let was_reset = was_reset(conn) || failed.is_some();
    let (taken, error) = tcp::consumed_since(base, counted, was_reset);
    let error = error.or(failed);
    receiving.kernel_bytes.store(taken, Ordering::Relaxed);
    if let Some(errno) = error {
        conn.error().store(errno, Ordering::Relaxed);
    }
    // What has come stays in the queue whatever becomes of the sender, so the kernel's count holds.
    let come = || taken + sys::ioctl_int(base, libc::FIONREAD).map_or(0, |n| n as u64);
    let come = if error.is_none() && taken < until {
        come()
    } else {
        taken
    };
    let is_all = come >= until;
    // A real call takes bytes that nobody counts.
    let counts = !is_all || cursor.done() == 0 && !waits_for_many(base);
    let known = if counts { come.min(until) } else { 0 };
    conn.socket.hints.brought.store(known, Ordering::Relaxed);
    if is_all && (taken >= until || !counts || flags & libc::MSG_PEEK != 0) {
        return pending(conn).unwrap_or(Step::Kernel);
    }
    // What follows these bytes is payload, too, so it may be received with them; only what is taken
    // is counted.
    let peeks = flags & libc::MSG_PEEK != 0;
    let most = if peeks { u64::MAX } else { until - taken };
    let end = match error.map_or_else(|| take(conn, cursor, flags, most), Taken::Failed) {
        Taken::Step(step) => return step,
        // Another thread may have taken the rest meanwhile, by the kernel and without the token.
        Taken::End if recount(conn) && path.is_bringing().is_none() => return last(conn),
        Taken::End => libc::ECONNRESET,
        Taken::Failed(errno) => {
            conn.error().store(errno, Ordering::Relaxed);
            errno
        }
    };
    // If more is missing than the ring has, bytes that come before the ring were lost with the connection.
    let left = until - path.taken().max(taken);
    if left > conn.unread_in_ring().unwrap_or(0) {
        return failure(conn, end);
    }
    if !go_on_in_ring(conn, left) {
        abort(conn);
        return Step::Failed(libc::ECONNRESET);
    }
    // SAFETY: the caller's promise.
    unsafe { from_ring(conn, cursor, flags) }
}

/// Receives bytes that had come when the kernel was last asked for them, by one call and without asking it anew. `None`: there are none,
/// a relative or another thread has taken them, or there may be an urgent mark behind what this receive has. With the receiving token.
fn take_what_is_there(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Option<Taken> {
    let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
    let brought = conn.socket.hints.brought.load(Ordering::Relaxed);
    if brought <= taken || flags & libc::MSG_PEEK != 0 || cursor.done() > 0 {
        return None;
    }
    let taken = take(conn, cursor, flags, brought - taken);
    (!matches!(taken, Taken::Step(Step::Empty))).then_some(taken)
}

/// Whether the connection has ended by a reset, without a FIN before it: a call of this process was told
/// so, or the peer says so in its slot (then a relative may have been told).
fn was_reset(conn: &Conn) -> bool {
    let says = conn.pair.peer_state() & (slot::UNREAD | slot::SHUT_WR) == slot::UNREAD;
    says || conn.socket.was_reset.load(Ordering::Relaxed)
}

/// Receives what comes by TCP while it is not known that the peer has answered a recall. With the
/// receiving token.
///
/// # Safety
/// The cursor's parts are writable.
#[cold]
pub(super) unsafe fn receive_during_recall(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    // A peer that had left its ring before it was recalled may have sent what follows that.
    let path = conn.receiver();
    let most = if path.peer_has_left() {
        let switched = path.switch_offset();
        switched.map_or(0, |switched| switched.saturating_sub(path.taken()))
    } else {
        u64::MAX
    };
    if most == 0 {
        return match has_ended(conn) {
            Ok(false) => Step::Empty,
            Ok(true) if is_never_answered(conn) => Step::Moved,
            Ok(true) => last(conn),
            Err(errno) => failure(conn, errno),
        };
    }
    match take(conn, cursor, flags, most) {
        Taken::Step(step) => step,
        // The peer may have ended without an answer.
        Taken::End if is_never_answered(conn) => Step::Moved,
        Taken::End => last(conn),
        Taken::Failed(errno) => failure(conn, errno),
    }
}

/// The outcome of [`take`].
enum Taken {
    Step(Step),
    /// The connection has ended.
    End,
    Failed(Errno),
}

/// Receives `most` bytes at most by TCP.
fn take(conn: &Conn, cursor: &mut Cursor, flags: c_int, most: u64) -> Taken {
    let Some(base) = conn.base() else {
        return Taken::Step(Step::Failed(libc::EBADF));
    };
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let count = cursor.copy_rest(&mut rest);
    let count = truncate(
        &mut rest[..count],
        usize::try_from(most).unwrap_or(usize::MAX),
    );
    // SAFETY: all-zero is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = rest.as_mut_ptr();
    message.msg_iovlen = count;
    let now = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    bump(&conn.socket.rx.kernel_calls, 1);
    match sys::recvmsg(base, &raw mut message, now) {
        Ok(0) if iov::total(&rest[..count]) == 0 => Taken::Step(Step::Bytes),
        Ok(0) => Taken::End,
        Ok(n) => {
            if flags & libc::MSG_PEEK == 0 {
                bump(&conn.pair.own.receiving.kernel_bytes, n as u64);
            }
            cursor.skip(n);
            Taken::Step(Step::Bytes)
        }
        Err(libc::EAGAIN | libc::EINTR) => Taken::Step(Step::Empty),
        Err(libc::EFAULT) => Taken::Step(Step::BadBuffer),
        Err(errno) => Taken::Failed(errno),
    }
}

/// The connection has ended while TCP still had to bring `left` bytes of the ring: they are read in
/// the ring. `false`: the ring is broken.
fn go_on_in_ring(conn: &Conn, left: u64) -> bool {
    let consumer = conn.consumer();
    let mut brought = conn
        .unread_in_ring()
        .map_or(0, |unread| unread.saturating_sub(left));
    while brought > 0 {
        // SAFETY: to nowhere.
        match unsafe { consumer.read(std::ptr::null_mut(), brought as usize, false) } {
            Ok(Found::Bytes(n)) => brought -= n as u64,
            _ => return false,
        }
    }
    stay_in_ring(conn);
    true
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::stream::owed::{self, Debt};
    use crate::stream::receive;
    use crate::stream::recv::by_kernel_now;

    /// The accepted end has sent again by TCP what was unread in its ring.
    fn brought(bytes: &[u8]) -> BothEnds {
        let ends = BothEnds::on_rings();
        ends.send(bytes);
        let peer = &ends.conns()[0];
        let token = &peer.pair.own.sending.token;
        assert!(peer.take(token));
        assert!(owed::withdraw(peer) == owed::Withdrawal::Owing);
        assert!(owed::pay(peer) == Debt::Paid);
        crate::thread::give(token);
        ends
    }

    /// What a receive of `most` bytes that does not wait comes to.
    fn receive_now(conn: &Conn, most: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = [0u8; 8];
        let part = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: most,
        }];
        // SAFETY: the part lies in `bytes`.
        let received = unsafe {
            match receive(conn, &part, libc::MSG_DONTWAIT) {
                Outcome::Kernel => by_kernel_now(conn, &part, 0),
                outcome => outcome,
            }
        };
        match received {
            Outcome::Done(n) => Ok(bytes[..n as usize].to_vec()),
            Outcome::Fail(errno) => Err(errno),
            Outcome::Kernel => unreachable!("the kernel's own call has been made"),
        }
    }

    fn take_by_kernel(conn: &Conn, wanted: u8) {
        let mut byte = 0;
        assert_eq!(sys::recv(conn.fd, &raw mut byte, 1, 0), Ok(1));
        assert_eq!(byte, wanted);
    }

    #[test]
    fn what_has_come_is_taken_without_another_question() {
        let ends = brought(b"unread");
        let conn = &ends.conns()[1];
        let known = || conn.socket.hints.brought.load(Ordering::Relaxed);
        let start = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
        assert_eq!(receive_now(conn, 1).as_deref(), Ok(&b"u"[..]));
        assert_eq!(known(), start + 6);
        // A count that was asked for anew would say more.
        conn.socket
            .hints
            .brought
            .store(start + 3, Ordering::Relaxed);
        assert_eq!(receive_now(conn, 2).as_deref(), Ok(&b"nr"[..]));
        assert_eq!(known(), start + 3);
        assert_eq!(receive_now(conn, 8).as_deref(), Ok(&b"ead"[..]));
        assert_eq!(conn.receiver().is_bringing(), None);
        assert_eq!(receive_now(conn, 8), Err(libc::EAGAIN));
    }

    #[test]
    fn what_a_relative_has_taken_is_not_expected_any_more() {
        let ends = brought(b"unread");
        let conn = &ends.conns()[1];
        assert_eq!(receive_now(conn, 1).as_deref(), Ok(&b"u"[..]));
        take_by_kernel(conn, b'n');
        assert_eq!(receive_now(conn, 4).as_deref(), Ok(&b"read"[..]));
        assert!(conn.receiver().is_bringing().is_some());
        assert_eq!(receive_now(conn, 8), Err(libc::EAGAIN));
        assert_eq!(conn.receiver().is_bringing(), None);
    }

    #[test]
    fn urgent_data_behind_what_has_come_ends_a_receive() {
        let ends = brought(b"unread");
        let [near, far] = ends.fds;
        let conn = &ends.conns()[1];
        assert_eq!(receive_now(conn, 2).as_deref(), Ok(&b"un"[..]));
        for (bytes, flags) in [(&b"x"[..], 0), (b"!", libc::MSG_OOB), (b"y", 0)] {
            // SAFETY: the bytes are there.
            let sent = unsafe { libc::send(near, bytes.as_ptr().cast(), bytes.len(), flags) };
            assert_eq!(sent, 1);
        }
        while sys::ready(far, libc::POLLPRI) & libc::POLLPRI == 0 {
            std::thread::yield_now();
        }
        assert_eq!(receive_now(conn, 8).as_deref(), Ok(&b"readx"[..]));
        let mut byte = 0;
        assert_eq!(sys::recv(far, &raw mut byte, 1, libc::MSG_OOB), Ok(1));
        assert_eq!(byte, b'!');
        assert_eq!(receive_now(conn, 8).as_deref(), Ok(&b"y"[..]));
    }

    #[test]
    fn who_wants_several_bytes_at_least_receives_by_the_kernel() {
        let ends = brought(b"unread");
        let conn = &ends.conns()[1];
        let known = || conn.socket.hints.brought.load(Ordering::Relaxed);
        sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &4).unwrap();
        for bytes in [&b"un"[..], b"re", b"ad"] {
            assert_eq!(receive_now(conn, 2).as_deref(), Ok(bytes));
            assert_eq!(known(), 0);
        }
        assert_eq!(receive_now(conn, 8), Err(libc::EAGAIN));
    }

    #[test]
    fn a_reset_behind_what_a_relative_has_taken_is_told_once() {
        let ends = brought(b"ur");
        let [near, far] = ends.fds;
        let conn = &ends.conns()[1];
        assert_eq!(receive_now(conn, 1).as_deref(), Ok(&b"u"[..]));
        take_by_kernel(conn, b'r');
        sys::reset(near);
        while sys::ready(far, libc::POLLHUP) & libc::POLLHUP == 0 {
            std::thread::yield_now();
        }
        assert_eq!(receive_now(conn, 8), Err(libc::ECONNRESET));
        assert_eq!(receive_now(conn, 8).as_deref(), Ok(&b""[..]));
    }
}
