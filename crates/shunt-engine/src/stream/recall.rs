//! A recall of the stream that nobody answers.

use std::sync::atomic::Ordering;

use shunt_shm::slot;

use super::conn::Conn;
use super::errors::break_off;
use crate::config::hesitate;
use crate::sys;

/// The events by which the kernel tells that nothing more comes on a connection.
pub(super) const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

/// Whether the peer has ended the stream, or was killed, without having seen that it is
/// recalled, so that it never answers.
pub(super) fn has_passed_the_end(conn: &Conn) -> bool {
    let path = conn.receiver();
    let heard = || {
        conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD == 0
            && conn
                .base()
                .is_some_and(|fd| sys::ready(fd, libc::POLLRDHUP) & ENDED != 0)
    };
    path.has_ended_unasked() || heard() && path.is_unanswered()
}

/// Whether this side has recalled what lies unread in the ring, and nobody has sent any of it yet.
pub(super) fn is_any_unanswered(conn: &Conn) -> bool {
    let path = conn.receiver();
    path.awaits()
        && path.is_unanswered()
        && path.switch_offset().is_some()
        && conn.consumer().is_ready()
}

/// Whether no answer to a recall will come. Then this has taken the recall back, so that bytes are
/// read where they were read before; or has reset the connection. With the receiving token.
pub(super) fn is_never_answered(conn: &Conn) -> bool {
    has_passed_the_end(conn) && stay_with_ring(conn) || is_refused(conn)
}

/// Whether the peer has refused the recall. Then the program reads the ring as before, unless
/// another program is about to have the connection.
fn is_refused(conn: &Conn) -> bool {
    if !conn.receiver().is_refused(|| conn.consumer().has_ended()) {
        return false;
    }
    if conn.socket.again.insists.load(Ordering::Relaxed) {
        break_off(conn);
    }
    take_back(conn);
    true
}

/// Takes the recall back if bytes are unread in the ring that nobody can send again. `false`: there
/// are none. With the receiving token.
fn stay_with_ring(conn: &Conn) -> bool {
    let path = conn.receiver();
    let stays = path.asks() && path.awaits() && conn.consumer().is_ready();
    hesitate();
    if stays {
        stay_in_ring(conn);
    }
    stays
}

/// Takes a recall back for good: the ring is read to its end. With the receiving token.
pub(super) fn stay_in_ring(conn: &Conn) {
    conn.socket.again.insists.store(false, Ordering::Relaxed);
    conn.receiver().stay_in_ring();
}

/// Takes a recall back: bytes are read where they were read before. With the receiving token.
pub(super) fn take_back(conn: &Conn) {
    conn.socket.again.insists.store(false, Ordering::Relaxed);
    conn.receiver().take_back();
}
