//! A thread that waits for room asks the peer to tell when there is some.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot;

use crate::stream::Conn;
use crate::stream::leave::leave_if_ending;
use crate::thread::give;

/// A non-blocking sender has found the ring full: whoever watches the socket is
/// to hear when it is writable again (in the kernel: `SOCK_NOSPACE`). `true`: it
/// is now, or the kernel has taken over; try again.
#[cold]
pub(crate) fn ask_for_room(conn: &Conn) -> bool {
    if leave_if_ending(conn) {
        return true;
    }
    conn.ask_at();
    let wait = &conn.pair.own.face.wait;
    let first = wait.load(Ordering::Relaxed) & slot::WANT_TX == 0;
    if first {
        publish::set_bits(wait, slot::WANT_TX);
    }
    // Pairs with the light barrier before the peer's look at the wait word.
    heavy();
    let room = conn.has_room();
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
