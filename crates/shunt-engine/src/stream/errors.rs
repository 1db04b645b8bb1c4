//! Errors that the program has still to see, and connections that end by a reset.
//!
//! A peer that was killed has not told its end in the slot ([`has_died`]). If it left bytes of ours unread, calls return
//! `ECONNRESET`, as on TCP. If not, they find what it had sent, and then the end of the stream, for which `recv/eof.rs` asks the
//! kernel.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};

use super::conn::{Conn, turns};
use super::far_death::has_died_afar;
use crate::socket::{BETWEEN_HOSTS, IN_VAIN, LEFT};
use crate::sys::{self, Errno};

/// The highest error number that the kernel has (`MAX_ERRNO`).
const MOST_ERRNO: Errno = 4095;

/// The peer wrote nonsense: end the connection like a reset.
#[cold]
pub(crate) fn abort(conn: &Conn) {
    conn.socket.set_reason(Reason::Protocol);
    end(conn);
}

/// Ends both directions: the program finds them so.
fn end(conn: &Conn) {
    publish::set_bits(&conn.pair.own.face.state, slot::SHUT_WR);
    let _ = sys::shutdown(conn.fd, libc::SHUT_RDWR);
}

/// Bytes of the stream are lost: resets the connection, so that both ends see an error.
pub(crate) fn break_off(conn: &Conn) {
    before_reset(conn);
    if let Some(fd) = conn.base() {
        sys::reset(fd);
    }
}

/// The program is about to reset the connection: the kernel tells the peer.
pub(crate) fn before_reset(conn: &Conn) {
    publish::set_bits(&conn.pair.own.face.state, slot::CLOSED | slot::UNREAD);
}

/// Whether the peer has ended without saying so in the slot (it was killed, or exited with the
/// connection open), as of the last look at the kernel. After our own `shutdown` of receiving the
/// kernel no longer tells.
#[inline(always)]
pub(crate) fn has_died(conn: &Conn) -> bool {
    conn.socket.hints.kernel_state.load(Ordering::Relaxed) & !(LEFT | IN_VAIN | BETWEEN_HOSTS) != 0
        && conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == 0
        && conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD == 0
        && !may_live_afar(conn)
}

/// Whether the peer is on another host, and is not known to have died. From there its end is not seen in the slot.
#[cold]
#[inline(never)]
fn may_live_afar(conn: &Conn) -> bool {
    conn.is_mirrored() && conn.pair.peer_state() & slot::DIED == 0
}

/// Resets the connection if the peer died with bytes of ours unread, as TCP would have done (RFC 1122, 4.2.2.13),
/// whatever lay in the base socket's queue. A peer that put the connection aside without having seen these bytes counts
/// as dead, too: they were sent while it closed. And what a dead peer had not accepted TCP resets in any case.
#[cold]
pub(crate) fn reset_if_died(conn: &Conn) {
    if conn.is_mirrored() {
        return reset_if_died_afar(conn);
    }
    let is_dead = || has_died(conn) && conn.pair.peer_state() & slot::LINGERS == 0;
    let lost = || conn.way_out() == Way::Ring && conn.in_flight() != 0;
    let is_unaccepted = || turns(conn.pair).is_unaccepted();
    if is_dead() && (lost() || is_unaccepted()) || conn.is_put_aside_by_peer() && lost() {
        reset_once(conn);
    }
}

/// Resets a connection whose peer on another host has died with bytes of ours unread; also if not all that it had sent has come.
fn reset_if_died_afar(conn: &Conn) {
    if !has_died_afar(conn) {
        return;
    }
    let pair = conn.pair;
    let has_come = || {
        let read = pair.own.progress.bytes.load(Ordering::Relaxed);
        read + conn.unread_in_ring().unwrap_or(0)
    };
    let sent = pair.peer.output.bytes.load(Ordering::Acquire);
    // A record may be waiting on TCP, which says where the stream continues.
    let is_all = || sys::ioctl_int(conn.fd, libc::FIONREAD) == Ok(0);
    let is_unread = conn.way_out() == Way::Ring && conn.in_flight() != 0;
    let is_lost = conn.way_in() == Way::Ring && has_come() < sent && is_all();
    if is_unread || is_lost {
        reset_once(conn);
    }
}

/// shuntd has told that the peer's only process has died. The kernel has not yet: what the peer had sent comes first. `true`: the program
/// is told of a reset, since the peer left bytes of ours unread. (Not if the peer had recalled them: it may have given the connection
/// away.)
#[cold]
pub(super) fn resets_by_word(conn: &Conn) -> bool {
    const SAID: u32 = slot::SHUT_WR | slot::CLOSED | slot::LINGERS;
    let is_unsaid = conn.pair.peer_state() & SAID == 0 && !conn.sender().is_recalled();
    let lost = is_unsaid && conn.way_out() == Way::Ring && conn.in_flight() != 0;
    if lost {
        reset_once(conn);
    }
    lost && conn.error().load(Ordering::Relaxed) != 0
}

/// Notes that the kernel has told of the peer's end, by the events `ended`. `true`: the program is told of a reset,
/// since the peer died with bytes of ours unread.
#[cold]
pub(super) fn tells_of_reset(conn: &Conn, ended: i16) -> bool {
    let state = &conn.socket.hints.kernel_state;
    state.fetch_or(ended as u32, Ordering::Relaxed);
    reset_if_died(conn);
    has_died(conn) && conn.error().load(Ordering::Relaxed) != 0
}

/// Resets the connection if the peer died in the middle of its recall with bytes unread in the ring: nobody can send them again.
pub(super) fn reset_by_death(conn: &Conn) {
    if conn.in_flight() == 0 {
        return;
    }
    if conn.pair.peer_state() & slot::SHUT_WR != 0 {
        // Behind the peer's end of file the kernel calls a reset `EPIPE` (tcp_reset).
        end(conn);
    } else {
        reset_once(conn);
    }
}

/// Resets the connection, unless that was done before: the peer is dead, and TCP would have reset it.
fn reset_once(conn: &Conn) {
    // A wait that looks at several connections has no token, and another thread may have closed this number.
    let Some(base) = conn.base() else { return };
    let told = &conn.pair.own.options.reset_told;
    if told.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    let shut = conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_WR != 0;
    if conn.error().load(Ordering::Relaxed) != 0
        || sys::ready(base, 0) & libc::POLLHUP != 0 && !shut
    {
        return;
    }
    // A byte that nobody receives has the kernel reset the base socket, too. Its own error for that
    // (`EPIPE`, after the FIN) is not the one that the program would see natively.
    let _ = sys::send(base, &[0]);
    let _ = sys::getsockopt::<i32>(base, libc::SOL_SOCKET, libc::SO_ERROR);
    conn.error().store(libc::ECONNRESET, Ordering::Relaxed);
}

/// Bytes that were sent again have met a peer that was killed, after the kernel had told of its
/// end: has the next call say `ECONNRESET`, as it would if TCP had carried all bytes.
pub(crate) fn name_reset(conn: &Conn) {
    const SAID: u32 = slot::SHUT_WR | slot::CLOSED | slot::LINGERS;
    let Some(base) = conn.base() else { return };
    if sys::ready(base, 0) & libc::POLLERR == 0 || conn.pair.peer_state() & SAID != 0 {
        return;
    }
    match sys::getsockopt::<i32>(base, libc::SOL_SOCKET, libc::SO_ERROR) {
        Ok(libc::EPIPE) => keep_error(conn, libc::ECONNRESET),
        Ok(errno) if errno != 0 => keep_error(conn, errno),
        _ => {}
    }
}

/// Takes the error that the program has still to see.
pub(crate) fn take_error(conn: &Conn) -> Option<Errno> {
    const OVER: u32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as u32;
    let state = &conn.socket.hints.kernel_state;
    state.fetch_and(!LEFT, Ordering::Relaxed);
    let kept = conn.error().swap(0, Ordering::Relaxed);
    if matches!(
        kept,
        libc::ECONNRESET | libc::ECONNABORTED | libc::ETIMEDOUT
    ) {
        // A relative may have heard of it, and not this process, whose next calls must know.
        state.fetch_or(OVER, Ordering::Relaxed);
    }
    match kept {
        0 => None,
        errno @ 1..=MOST_ERRNO => Some(errno),
        // Not an error number: a relative has written nonsense.
        _ => Some(libc::ECONNRESET),
    }
}

/// Keeps an error for the program's next call, if it is one that the kernel tells only
/// once: of the connection, not of a call.
pub(crate) fn keep_error(conn: &Conn, errno: Errno) {
    let once = [
        libc::ECONNRESET,
        libc::ECONNABORTED,
        libc::ETIMEDOUT,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
    ];
    if once.contains(&errno) {
        let pending = conn.error();
        let _ = pending.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Leaves an error for the next call of any kind, since this call must report what it has done.
#[cold]
pub(crate) fn leave_error(conn: &Conn, errno: Errno) {
    conn.error().store(errno, Ordering::Relaxed);
    let state = &conn.socket.hints.kernel_state;
    state.fetch_or(LEFT, Ordering::Relaxed);
}

/// What [`leave_error`] has left, if no other call has told it yet.
#[inline]
pub(super) fn take_left(conn: &Conn) -> Option<Errno> {
    let state = conn.socket.hints.kernel_state.load(Ordering::Relaxed);
    (state & LEFT != 0).then(|| take_error(conn)).flatten()
}

/// `SO_ERROR`.
pub(crate) fn socket_error(conn: &Conn) -> Errno {
    if conn.error().load(Ordering::Relaxed) == 0 {
        let errno = sys::getsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        note_reset(conn, errno);
        conn.error().store(errno, Ordering::Relaxed);
    }
    take_error(conn).unwrap_or(0)
}

/// Notes whether an error that the kernel has told was a reset. It tells of a reset once. After a FIN it
/// calls it `EPIPE`, unless this side has ended, too.
pub(crate) fn note_reset(conn: &Conn, errno: Errno) {
    let own = conn.pair.own.face.state.load(Ordering::Relaxed);
    if errno == libc::ECONNRESET && own & slot::SHUT_WR == 0 {
        conn.socket.was_reset.store(true, Ordering::Relaxed);
    }
}

/// Whether this side has shut the direction down, or the peer is gone.
#[inline(always)]
pub(super) fn is_over(conn: &Conn) -> bool {
    conn.is_shut() || conn.pair.peer_state() & slot::CLOSED != 0 || has_died(conn)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn an_error_that_the_kernel_tells_once_is_kept_for_the_next_call() {
        let ends = BothEnds::attached();
        let conn = &ends.conns()[0];
        // `SOCK_DESTROY` (sock_diag) aborts a connection.
        for errno in [libc::ECONNRESET, libc::ECONNABORTED, libc::ETIMEDOUT] {
            keep_error(conn, errno);
            assert_eq!(take_error(conn), Some(errno));
        }
        keep_error(conn, libc::EAGAIN);
        assert_eq!(take_error(conn), None);
    }

    #[test]
    fn a_reset_leaves_alone_what_has_the_number_of_a_closed_descriptor() {
        let ends = BothEnds::attached();
        let (other, mut peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        // Another thread has closed the descriptor, and its number names another socket by now.
        let stale = Conn {
            fd: other.as_raw_fd(),
            ..ends.conns()[0]
        };
        reset_once(&stale);
        let nothing = peer.read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    }
}
