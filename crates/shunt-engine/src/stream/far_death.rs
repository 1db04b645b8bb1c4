//! A process on another host has died. Neither the kernel nor the NIC tells how far it had read; what it had last said of that may be
//! old. The two shuntds tell, from the process's counters.

use std::sync::atomic::Ordering;

use shunt_shm::slot::{self, Way};

use super::conn::Conn;
use crate::thread::Rest;
use crate::{control, reach, sys};

/// How long a call waits for shuntd's word, in nanoseconds. It comes after the process has ended, and takes a round trip and a
/// turn of both shuntds.
const WORD: u64 = 200_000_000;

/// Whether the peer has died, and its place in the rings is known. If the kernel tells of the end of its stream, and the peer has not,
/// this waits a little: for the peer's own word, which the NIC brings, or for shuntd's.
#[cold]
pub(super) fn has_died_afar(conn: &Conn) -> bool {
    control::check_mail();
    let is_told = || conn.pair.peer_state() & slot::DIED != 0;
    let in_vain = conn.pair.link.is_waited_for_in_vain();
    if is_told() || in_vain.load(Ordering::Relaxed) || !is_unexplained(conn) {
        return is_told();
    }
    let (until, rest) = (sys::now() + WORD, Rest::new());
    while is_unexplained(conn) && sys::now() < until {
        rest.turn();
        control::check_mail();
    }
    in_vain.store(is_unexplained(conn), Ordering::Relaxed);
    is_told()
}

/// Whether the kernel tells of the end of a stream that neither the peer nor shuntd has explained, so that a ring may have been
/// left in the middle.
fn is_unexplained(conn: &Conn) -> bool {
    let is_in_ring = conn.way_out() == Way::Ring || conn.way_in() == Way::Ring;
    let (link, slot) = conn.at_nic();
    is_in_ring
        && conn.pair.peer_state() & slot::DIED == 0
        && conn.base().is_some_and(has_ended)
        && reach::is_here()
        && !reach::has_peer_ended(link, slot)
}

/// Whether the peer's stream has ended by a FIN. (After a reset nothing is asked.)
fn has_ended(base: libc::c_int) -> bool {
    const OVER: i16 = libc::POLLHUP | libc::POLLERR;
    let ready = sys::ready(base, libc::POLLRDHUP);
    ready & libc::POLLRDHUP != 0 && ready & OVER == 0
}
