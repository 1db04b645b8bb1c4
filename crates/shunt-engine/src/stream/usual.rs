//! Whether a connection is as usual: both directions are on their rings, and nothing else needs a
//! look.

use std::sync::atomic::Ordering;

use libc::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use shunt_shm::slot::{self, Way};

use super::conn::Conn;

pub(super) const READABLE: u32 = (POLLIN | POLLRDNORM) as u32;

pub(super) const WRITABLE: u32 = (POLLOUT | POLLWRNORM) as u32;

/// Whether a `wanted` event may have occurred on a connection that [is as usual](is_as_usual). With `since`: bytes count
/// only if they lie behind that end of the stream.
#[inline]
pub(crate) fn may_be(conn: &Conn, wanted: u32, since: Option<u64>) -> bool {
    let is_there = || match since {
        Some(end) => conn.consumer().is_past(end),
        None => conn.consumer().at_hand() > 0,
    };
    let asked = conn.pair.own.face.wait.load(Ordering::Relaxed) & slot::WANT_TX != 0;
    wanted & READABLE != 0 && is_there() || asked && conn.has_room()
}

/// The place behind all that has come in the ring, for [`may_be`]. What lies in the ring of a peer that has not begun this life yet
/// is of a former connection's.
pub(crate) fn end_of_stream(conn: &Conn) -> u64 {
    if has_begun(conn) {
        conn.consumer().end()
    } else {
        conn.consumer().position()
    }
}

/// Whether the peer has begun this life of the slot, so that its ring says something.
pub(crate) fn has_begun(conn: &Conn) -> bool {
    conn.pair.peer_state() & slot::READY != 0
}

/// Whether both directions are on their rings, neither side is about to leave its ring or has
/// ended, and no wait for such a step has come to nothing.
#[inline]
pub(crate) fn is_as_usual(conn: &Conn) -> bool {
    const ENDS: u32 = slot::SHUT_WR | slot::SHUT_RD | slot::CLOSED;
    !is_off_ring(conn, ENDS)
        && conn.socket.hints.kernel_state.load(Ordering::Relaxed) == 0
        && conn.error().load(Ordering::Relaxed) == 0
}

/// Whether a direction is not on its ring, or is about to leave it.
pub(crate) fn leaves_ring(conn: &Conn) -> bool {
    is_off_ring(conn, 0)
}

#[inline(always)]
fn is_off_ring(conn: &Conn, or: u32) -> bool {
    const LEAVES: u32 = slot::LEAVING | slot::RECALLED | slot::WITHDRAWING | slot::WITHDRAWN;
    let own = conn.pair.own.face.state.load(Ordering::Relaxed);
    conn.way_in() != Way::Ring
        || conn.way_out() != Way::Ring
        || (conn.pair.peer_state() | own) & (LEAVES | or) != 0
}
