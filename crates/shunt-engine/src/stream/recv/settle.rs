//! Where TCP ends and the ring begins.

use shunt_shm::slot::Way;

use crate::stream::conn::Conn;
use crate::stream::owed;

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
    conn.receiver().follow_switch()
}
