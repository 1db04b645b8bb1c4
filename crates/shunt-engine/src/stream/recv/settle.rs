//! Where TCP ends and the ring begins.

use shunt_shm::atomic::full;
use shunt_shm::slot::Way;

use crate::stream::conn::Conn;
use crate::stream::owed;
use crate::stream::proposal::stay_on_tcp;

/// Moves the incoming direction to the ring if the program has read everything
/// that came before it. With the receiving token. `true`: it is on the ring.
pub(in crate::stream) fn settle(conn: &Conn) -> bool {
    if conn.way_in() == Way::Tcp && owed::is_withdrawn(conn) {
        // What comes before the ring is received in any case.
        owed::follow_if_withdrawn(conn);
    }
    if conn.is_mirrored() && conn.way_in() == Way::Tcp {
        conn.receiver().forget_void();
    }
    let follows = conn.receiver().follow_switch();
    if follows && conn.is_mirrored() {
        // Pairs with that of who takes the peer's next proposal, between the word and a look at the way.
        full();
        if conn.receiver().is_void() {
            stay_on_tcp(conn);
            return false;
        }
    }
    follows
}
