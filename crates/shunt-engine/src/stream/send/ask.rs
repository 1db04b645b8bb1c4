//! A thread that waits for room asks the peer to tell when there is some.

use std::sync::atomic::{AtomicU32, Ordering};

use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot;

use crate::stream::leave::{leave_full, leave_if_ending};
use crate::stream::{Conn, owed};
use crate::thread::give;

/// How often a peer has been asked, over all connections.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// A number that changes each time a call of this process finds a ring full and does not sleep on
/// that connection: a non-blocking send, or a look of a readiness call.
#[inline]
pub(crate) fn asked() -> u32 {
    // Pairs with the count in `ask_for_room`: whoever sees the new number sees the connection's
    // wait word, too.
    ASKED.load(Ordering::Acquire)
}

/// A non-blocking sender has found the ring full: asks the peer to tell those who watch the socket
/// when it is writable again (in the kernel: `SOCK_NOSPACE`). `true`: it is writable by now, or the
/// kernel has taken over; try again.
#[cold]
pub(crate) fn ask_for_room(conn: &Conn) -> bool {
    if conn.is_mirrored() && owed::has_room_again(conn) {
        return true;
    }
    if leave_if_ending(conn) || leave_full(conn) {
        return true;
    }
    conn.ask_at();
    let wait = &conn.pair.own.face.wait;
    let first = wait.load(Ordering::Relaxed) & slot::WANT_TX == 0;
    if first {
        publish::set_bits(wait, slot::WANT_TX);
    }
    // Pairs with the load in `asked`: a look that has read this count finds the connection waiting.
    ASKED.fetch_add(1, Ordering::Release);
    // Pairs with the light barrier before the peer's look at the wait word.
    heavy();
    let room = conn.has_room() && !owed::cannot_send(conn);
    if first && !room && conn.take(&conn.pair.own.sending.token) {
        let told = conn.tell_full();
        give(&conn.pair.own.sending.token);
        if !told {
            conn.reach();
            return true;
        }
    }
    room
}
