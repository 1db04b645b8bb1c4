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
        // The result does not matter: what comes before the ring is received in any case.
        owed::follow_if_withdrawn(conn);
    }
    if conn.is_mirrored() {
        return settle_from_afar(conn);
    }
    conn.receiver().follow_switch()
}

/// [`settle`] where the peer is on another host.
#[cold]
#[inline(never)]
fn settle_from_afar(conn: &Conn) -> bool {
    let path = conn.receiver();
    if conn.way_in() == Way::Tcp {
        path.forget_void();
    }
    if !path.follow_switch() {
        return false;
    }
    // Pairs with the barrier of the thread that takes the peer's next proposal, between its word
    // and its look at the way.
    full();
    let is_void = path.is_void();
    if is_void {
        stay_on_tcp(conn);
    }
    !is_void
}
