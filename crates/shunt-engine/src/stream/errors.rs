//! Errors that the program has still to see, and ends by reset.
//!
//! A peer that was killed has said no end ([`has_died`]). If it left bytes of ours unread, calls say `ECONNRESET`, as on TCP; if
//! not, they find what it had sent, and then the end of the stream, of which [`super::recv`]'s `eof.rs` asks the kernel.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};

use super::conn::Conn;
use super::far_death::has_died_afar;
use crate::socket::{BETWEEN_HOSTS, IN_VAIN, LEFT};
use crate::sys::{self, Errno};

/// The highest that the kernel has (`MAX_ERRNO`).
const MOST_ERRNO: Errno = 4095;

/// The peer wrote nonsense: end the connection like a reset.
#[cold]
pub(crate) fn abort(conn: &Conn) {
    conn.socket.set_reason(Reason::Protocol);
    end(conn);
}

/// The program finds both directions ended.
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

/// Whether the peer is gone without having said so (killed, or it exited with
/// the connection open), as far as the kernel was asked. After our own
/// `shutdown` of receiving the kernel no longer tells.
#[inline(always)]
pub(crate) fn has_died(conn: &Conn) -> bool {
    conn.socket.hints.kernel_state.load(Ordering::Relaxed) & !(LEFT | IN_VAIN | BETWEEN_HOSTS) != 0
        && conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == 0
        && conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD == 0
        && !may_live_afar(conn)
}

/// Whether the peer is on another host, and is not known to have died: there it says nothing of its end.
#[cold]
#[inline(never)]
fn may_live_afar(conn: &Conn) -> bool {
    conn.is_mirrored() && conn.pair.peer_state() & slot::DIED == 0
}

/// Resets the connection if the peer died with bytes of ours unread, as TCP would have done (RFC 1122, 4.2.2.13),
/// whatever lay in the base socket's queue. A peer that put the connection aside without having seen these bytes counts
/// as dead, too: they were sent while it closed.
#[cold]
pub(crate) fn reset_if_died(conn: &Conn) {
    if conn.is_mirrored() {
        return reset_if_died_afar(conn);
    }
    let is_dead = || has_died(conn) && conn.pair.peer_state() & slot::LINGERS == 0;
    let lost = (is_dead() || conn.is_put_aside_by_peer())
        && conn.way_out() == Way::Ring
        && conn.in_flight() != 0;
    if lost {
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
    // A record that says where it goes on may lie there.
    let is_all = || sys::ioctl_int(conn.fd, libc::FIONREAD) == Ok(0);
    let is_unread = conn.way_out() == Way::Ring && conn.in_flight() != 0;
    let is_lost = conn.way_in() == Way::Ring && has_come() < sent && is_all();
    if is_unread || is_lost {
        reset_once(conn);
    }
}

/// shuntd has told that the peer's only process has died, and its kernel has not, as what it had sent comes first. `true`: the program is
/// told of a reset, as that left bytes of ours unread; but if it had begun to ask for them by TCP, it may have given the connection away.
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

/// The kernel has told by these events that the peer has ended. `true`: the program is told of a reset, as the peer
/// died with bytes of ours unread.
#[cold]
pub(super) fn tells_of_reset(conn: &Conn, ended: i16) -> bool {
    let state = &conn.socket.hints.kernel_state;
    state.fetch_or(ended as u32, Ordering::Relaxed);
    reset_if_died(conn);
    has_died(conn) && conn.error().load(Ordering::Relaxed) != 0
}

/// The peer died in the middle of its recall: nobody sends again what it had still to read there.
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

/// The peer is dead, and TCP would have reset the connection.
fn reset_once(conn: &Conn) {
    let told = &conn.pair.own.options.reset_told;
    if told.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    let shut = conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_WR != 0;
    if conn.error().load(Ordering::Relaxed) != 0
        || sys::ready(conn.fd, 0) & libc::POLLHUP != 0 && !shut
    {
        return;
    }
    // A byte that nobody is left to receive brings the base socket to the same
    // end; what the kernel calls it (EPIPE, after the FIN) is not what we would.
    let _ = sys::send(conn.fd, &[0]);
    let _ = sys::getsockopt::<i32>(conn.fd, libc::SOL_SOCKET, libc::SO_ERROR);
    conn.error().store(libc::ECONNRESET, Ordering::Relaxed);
}

/// What was sent again has met a peer that was killed, and whose end the kernel had told: where
/// TCP had carried all of it, the reset would have come first, under its own name.
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
    let state = &conn.socket.hints.kernel_state;
    state.fetch_and(!LEFT, Ordering::Relaxed);
    match conn.error().swap(0, Ordering::Relaxed) {
        0 => None,
        errno @ 1..=MOST_ERRNO => Some(errno),
        // A relative's nonsense.
        _ => Some(libc::ECONNRESET),
    }
}

/// Keeps an error for the program's next call, if it is one that the kernel tells only
/// once: of the connection, not of a call.
pub(crate) fn keep_error(conn: &Conn, errno: Errno) {
    let once = [
        libc::ECONNRESET,
        libc::ETIMEDOUT,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
    ];
    if once.contains(&errno) {
        let pending = conn.error();
        let _ = pending.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Leaves an error for the next call of any kind: this one tells what it has done.
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

/// The kernel has told an error. It says so once of a reset, and `EPIPE` behind a FIN, unless this side has
/// ended, too.
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
