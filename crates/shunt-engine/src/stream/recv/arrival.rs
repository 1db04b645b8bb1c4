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

/// How long a connection is not handed to the next program because of these bytes, in nanoseconds; longer while
/// only a processor is lacking.
const HANDS_ON: u64 = 5 * PATIENCE;

/// How long a receive waits for such bytes.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When the wait ends (nanoseconds of the monotonic clock), once it has begun.
    until: Option<u64>,
    /// The last attempt found nothing although something had come: the caller tries once more.
    looks_again: bool,
}

/// How many such bytes TCP has not brought yet.
pub(in crate::stream) fn on_its_way(conn: &Conn) -> u64 {
    if conn.way_in() != Way::TcpAgain || config::is_confined() {
        return 0;
    }
    let path = conn.receiver();
    if path.awaits() {
        // The peer has not said yet that it sends them again. They count if everything that comes before the ring has come.
        let first = path.switch_offset().unwrap_or(u64::MAX);
        let beyond = tcp::received(conn.fd).and_then(|come| come.checked_sub(first));
        return beyond.map_or(0, |sent| ring_bytes(conn).saturating_sub(sent));
    }
    let Some(until) = path.is_bringing() else {
        return 0;
    };
    // In this order: once an operation of the peer's is seen to be over, what it has sent is counted among what has come.
    let sending = &conn.pair.peer.sending;
    if !sending.token.is_taken() && Way::load(&sending.way) == Way::Owing {
        // TCP had no room for the rest, which natively would not be readable either.
        return 0;
    }
    // The peer has said at which offset of TCP they begin.
    tcp::to_come(conn.fd, until).min(RING_BYTES as u64)
}

/// Whether the connection counts as readable because such bytes are still to come.
pub(in crate::stream) fn is_expected(conn: &Conn) -> bool {
    !conn.socket.hints.late.load(Ordering::Relaxed) && on_its_way(conn) > 0
}

/// For a receive that found nothing in TCP: waits a little. Returns `false` if looking again is of no use. The caller holds no
/// token.
pub(super) fn await_some(conn: &Conn, patience: &mut Patience) -> bool {
    if config::is_confined() {
        return false;
    }
    // In this order: what has come before the first look is seen by the second one.
    let expected = is_expected(conn);
    let come = conn.way_in() != Way::TcpAgain || sys::ready(conn.fd, POLLIN) != 0;
    if !expected {
        // The program may get what has come only after bytes that nobody sends.
        let looks = come && !patience.looks_again;
        patience.looks_again = come;
        return looks;
    }
    patience.looks_again = false;
    if is_too_late(conn, &mut patience.until) {
        return false;
    }
    if !come {
        // For a short time only: the kernel does not tell when a recall is taken back.
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

/// Whether a call has waited for long enough. Then, until the next change of way, no other call waits for the same bytes,
/// and they do not count as readable.
fn is_too_late(conn: &Conn, until: &mut Option<u64>) -> bool {
    let until = *until.get_or_insert_with(|| sys::now() + PATIENCE);
    if goes_on(until, || comes_soon_or_is_taken_back(conn)) {
        return false;
    }
    conn.socket.hints.late.store(true, Ordering::Relaxed);
    true
}

/// Whether the bytes only wait until a processor is free for the peer, which is in the middle of sending them, or for the
/// kernel, which has them. If the peer has not begun to send them, this takes the recall back, so that the receiver reads
/// them in the ring; unless another program needs them from TCP.
fn comes_soon_or_is_taken_back(conn: &Conn) -> bool {
    let path = conn.receiver();
    let token = &conn.pair.peer.sending.token;
    if token.is_taken() {
        return conn.is_held_by_running(token);
    }
    if !path.awaits() {
        // They may be waiting for room behind what lies in the queue, and only a receive makes room.
        return sys::ioctl_int(conn.fd, libc::FIONREAD).unwrap_or(0) == 0;
    }
    // A relative may have recalled it, for another program.
    let own = &conn.pair.own.receiving.token;
    if conn.is_shared() || !conn.take(own) {
        return false;
    }
    // With the token: a thread that hands the connection to another program sets this before the recall.
    let insists = conn.socket.again.insists.load(Ordering::Relaxed);
    // Another thread may have heard of an answer meanwhile.
    let waits = path.awaits() && conn.way_in() == Way::TcpAgain;
    let taken_back = waits && !insists && path.take_back_in_time();
    give(own);
    if waits && !insists {
        // Wakes threads here that sleep until TCP brings something, and a peer that has met the recall.
        wake::wake_all();
        conn.tell_of_recall();
    }
    !waits || taken_back || path.is_in_operation() || !path.is_unanswered()
}

#[cfg(all(test, not(miri)))]
mod tests;
