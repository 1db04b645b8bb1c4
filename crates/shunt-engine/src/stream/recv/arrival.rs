//! Bytes that could be read in the ring, until the sender, whose direction has left the ring, has sent them again by TCP.
//!
//! The program may have been told that these bytes are there, and the kernel never takes such a word back. So they count
//! as readable on their way, too, and a receive that may not sleep waits a little for them.

use std::sync::atomic::Ordering;

use libc::POLLIN;
use shunt_abi::layout::RING_BYTES;
use shunt_shm::slot::Way;

use super::bytes::ring_bytes;
use crate::stream::Conn;
use crate::stream::owed::{PATIENCE, goes_on};
use crate::thread::{Rest, give};
use crate::{config, sys, tcp, wake};

/// How long a connection is kept back from the next program for these bytes, in nanoseconds; longer while only a
/// processor is lacking.
const HANDS_ON: u64 = 5 * PATIENCE;

/// How long a receive waits for them.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When it ends (nanoseconds of the monotonic clock), once it has begun.
    until: Option<u64>,
    /// The last look found nothing although something had come: the caller looks once more.
    looks_again: bool,
}

/// How many such bytes TCP has not brought yet.
pub(in crate::stream) fn on_its_way(conn: &Conn) -> u64 {
    if conn.way_in() != Way::TcpAgain || config::is_confined() {
        return 0;
    }
    let path = conn.receiver();
    if path.awaits() {
        // Nobody has said yet that they are sent again: behind what comes before the ring, if that has come.
        let first = path.switch_offset().unwrap_or(u64::MAX);
        let beyond = tcp::received(conn.fd).and_then(|come| come.checked_sub(first));
        return beyond.map_or(0, |sent| ring_bytes(conn).saturating_sub(sent));
    }
    let Some(until) = path.is_bringing() else {
        return 0;
    };
    // In this order: what the peer has sent in an operation that is over is among what has come.
    let sending = &conn.pair.peer.sending;
    if !sending.token.is_taken() && Way::load(&sending.way) == Way::Owing {
        // TCP had no room for the rest, as natively for what a receive buffer does not hold.
        return 0;
    }
    // The peer has said from where on.
    tcp::to_come(conn.fd, until).min(RING_BYTES as u64)
}

/// Whether the connection counts as readable because some of them are to come.
pub(in crate::stream) fn is_expected(conn: &Conn) -> bool {
    !conn.socket.hints.late.load(Ordering::Relaxed) && on_its_way(conn) > 0
}

/// For a receive that found nothing in TCP: waits a little. Returns `false` if looking again is of no use. The caller holds no
/// token.
pub(super) fn await_some(conn: &Conn, patience: &mut Patience) -> bool {
    if config::is_confined() {
        return false;
    }
    // In this order: what has come by the first look the second one sees.
    let expected = is_expected(conn);
    let come = conn.way_in() != Way::TcpAgain || sys::ready(conn.fd, POLLIN) != 0;
    if !expected {
        // What is there may be for the program only behind something that nobody sends.
        let looks = come && !patience.looks_again;
        patience.looks_again = come;
        return looks;
    }
    patience.looks_again = false;
    if is_too_late(conn, &mut patience.until) {
        return false;
    }
    if !come {
        // Not longer: of a recall that is taken back the kernel does not tell.
        sys::poll_ms(conn.fd, POLLIN, 1);
    }
    true
}

/// For a call that counts unread bytes (`FIONREAD`): waits until all of them have come. Returns `true` if it has waited and they have.
pub(super) fn await_count(conn: &Conn, patience: &mut Patience) -> bool {
    await_all(conn, &mut patience.until)
}

/// Before another program gets the connection: waits until TCP has brought what was readable, as that program has no ring.
pub(in crate::stream) fn await_to_hand_on(conn: &Conn) {
    await_all(conn, &mut Some(sys::now() + HANDS_ON));
}

fn await_all(conn: &Conn, until: &mut Option<u64>) -> bool {
    const OVER: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let (mut waited, rest) = (false, Rest::new());
    while is_expected(conn) && sys::ready(conn.fd, libc::POLLRDHUP) & OVER == 0 {
        if is_too_late(conn, until) {
            return false;
        }
        waited = true;
        rest.turn();
    }
    waited
}

/// Whether a call has waited for long enough. Then no other one waits for the same bytes, and they do not count as readable,
/// before the next change of way.
fn is_too_late(conn: &Conn, until: &mut Option<u64>) -> bool {
    let until = *until.get_or_insert_with(|| sys::now() + PATIENCE);
    if goes_on(until, || comes_soon_or_is_taken_back(conn)) {
        return false;
    }
    conn.socket.hints.late.store(true, Ordering::Relaxed);
    true
}

/// Whether only a processor is lacking for them to come: to the peer, in the middle of sending them, or to the kernel, which has
/// them from it. Where the peer has not begun to send them, this takes the recall back, unless another program needs them from
/// TCP: then the receiver reads them in the ring.
fn comes_soon_or_is_taken_back(conn: &Conn) -> bool {
    let path = conn.receiver();
    let token = &conn.pair.peer.sending.token;
    if token.is_taken() {
        return conn.is_held_by_running(token);
    }
    if !path.awaits() {
        // Behind what lies here they may be waiting for room, which only a receive makes.
        return sys::ioctl_int(conn.fd, libc::FIONREAD).unwrap_or(0) == 0;
    }
    // A relative may have recalled it, for another program.
    let own = &conn.pair.own.receiving.token;
    if conn.is_shared() || !conn.take(own) {
        return false;
    }
    // With the token: who hands it to another program says so before the recall.
    let insists = conn.socket.again.insists.load(Ordering::Relaxed);
    // Another thread may have heard of an answer meanwhile.
    let waits = path.awaits() && conn.way_in() == Way::TcpAgain;
    let taken_back = waits && !insists && path.take_back_in_time();
    give(own);
    if waits && !insists {
        // Who sleeps here until TCP brings something; and who has met the recall.
        wake::wake_all();
        conn.tell_of_recall();
    }
    !waits || taken_back || path.is_in_operation() || !path.is_unanswered()
}

#[cfg(all(test, not(miri)))]
mod tests;
