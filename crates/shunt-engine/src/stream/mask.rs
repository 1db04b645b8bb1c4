//! What a shunted socket is ready for: `tcp_poll` of the kernel, over rings.

use std::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP};
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};

use super::errors::reset_if_died;
use super::recv::{at_mark, is_expected, pump, unread};
use super::stand_in::has_been_replaced;
use super::usual::{READABLE, WRITABLE, is_as_usual};
use super::{Conn, owed, send};
use crate::config::hesitate;
use crate::socket::{IN_VAIN, LEFT};
use crate::sys;

/// The events that `conn` has: those of `wanted`, and those that `poll` and epoll report unasked (both have the same
/// numbers). If room is wanted and there is none, this asks the peer to tell when there is. It asks the kernel if `look`
/// says so, or if only the kernel knows.
pub(crate) fn mask(conn: &Conn, wanted: u32, look: bool) -> u32 {
    mask_asking(conn, wanted, look, true)
}

/// [`mask`] without asking the peer for room, which takes a barrier: for a caller that looks again
/// and again, and asks before it sleeps.
pub(crate) fn mask_at_a_glance(conn: &Conn, wanted: u32, look: bool) -> u32 {
    mask_asking(conn, wanted, look, false)
}

#[inline(always)]
fn mask_asking(conn: &Conn, wanted: u32, look: bool, asks: bool) -> u32 {
    if !look && is_as_usual(conn) {
        return usual_mask(conn, wanted, asks);
    }
    any_mask(conn, wanted, look, asks)
}

/// [`mask`] of a connection that [is as usual](is_as_usual).
#[inline(always)]
pub(crate) fn mask_as_usual(conn: &Conn, wanted: u32) -> u32 {
    usual_mask(conn, wanted, true)
}

#[inline(always)]
fn usual_mask(conn: &Conn, wanted: u32, asks: bool) -> u32 {
    let readable = conn.consumer().at_hand() > 0;
    let asks_for_room = asks_for_room(conn, wanted);
    let writable = asks_for_room && has_room(conn, asks && wanted & WRITABLE != 0);
    if asks_for_room && !writable && asks && ask_for_room(conn, wanted) {
        return mask_behind_answer(conn, wanted, readable);
    }
    let events = |is_so: bool, events| if is_so { events } else { 0 };
    events(readable, READABLE) | events(writable, WRITABLE)
}

/// The peer was asked for room, and the answer is there: there is some, or the peer has turned out to be gone.
#[cold]
fn mask_behind_answer(conn: &Conn, wanted: u32, readable: bool) -> u32 {
    if has_error(conn) {
        return any_mask(conn, wanted, true, false);
    }
    if readable {
        READABLE | WRITABLE
    } else {
        WRITABLE
    }
}

fn has_error(conn: &Conn) -> bool {
    conn.error().load(Ordering::Relaxed) != 0
}

/// Whether the program waits for room, or has waited: the peer may still believe so ([`slot::WANT_TX`]), and is told
/// otherwise once there is room.
#[inline]
fn asks_for_room(conn: &Conn, wanted: u32) -> bool {
    let wait = &conn.pair.own.face.wait;
    wanted & WRITABLE != 0 || wait.load(Ordering::Relaxed) & slot::WANT_TX != 0
}

/// [`mask`] of a connection in any state. It asks the peer for room if `asks`.
fn any_mask(conn: &Conn, wanted: u32, look: bool, asks: bool) -> u32 {
    follow(conn);
    owed::forget_waits_that_are_over(conn);
    let (inward, out) = (conn.way_in(), conn.way_out());
    let kernel = if look || must_ask_kernel(conn, inward, out) {
        ask_kernel(conn)
    } else {
        0
    };
    if kernel & (POLLHUP | POLLERR) != 0 && has_been_replaced(conn, inward) {
        return any_mask(conn, wanted, look, asks);
    }
    hesitate();
    let mut ready = kernel & (ENDED | POLLPRI);
    let readable = is_readable(conn, inward, kernel);
    let error = has_error(conn);
    // An error that a call has left for the next one says nothing of the connection.
    let is_left = conn.socket.hints.kernel_state.load(Ordering::Relaxed) & LEFT != 0;
    if readable || error && !is_left {
        ready |= READABLE as i16;
    }
    if error {
        ready |= POLLERR;
    }
    if asks_for_room(conn, wanted) && is_writable(conn, out, kernel, wanted, asks) {
        ready |= WRITABLE as i16;
    }
    // The question for room may have shown that the peer is gone.
    if asks && !error && has_error(conn) {
        return any_mask(conn, wanted, true, false);
    }
    ready as u16 as u32
}

/// The events by which the kernel tells of an end, of one direction or of both.
const ENDED: i16 = POLLRDHUP | POLLHUP | POLLERR;

/// Follows a change that the peer has made to the way of the bytes.
fn follow(conn: &Conn) {
    if conn.way_in() != Way::Ring
        || conn.consumer().has_ended()
        || owed::is_withdrawn(conn)
        || conn.is_mirrored()
    {
        pump(conn);
    }
    if owed::is_due(conn) {
        owed::answer(conn);
    }
}

/// Whether the kernel may know what the rings do not say.
fn must_ask_kernel(conn: &Conn, inward: Way, out: Way) -> bool {
    let peer = conn.pair.peer_state();
    let own = conn.pair.own.face.state.load(Ordering::Relaxed);
    let closing = peer & (slot::SHUT_WR | slot::CLOSED) != 0;
    // After a shutdown of receiving the kernel knows what has ended; and a peer that leaves its
    // ring may do so for urgent data, which overtakes what is in the ring.
    let unsure = own & slot::SHUT_RD != 0 || peer & slot::LEAVING != 0;
    let known = conn.socket.hints.kernel_state.load(Ordering::Relaxed) & !IN_VAIN != 0;
    let shut = own & slot::SHUT_WR != 0;
    closing || unsure || known || shut || inward != Way::Ring || out != Way::Ring
}

/// Asks the kernel what is ready, and notes what it says of an end.
fn ask_kernel(conn: &Conn) -> i16 {
    let hints = &conn.socket.hints;
    let before = hints.kernel_state.load(Ordering::Relaxed);
    let kernel = look_at_base(conn);
    hints.note_ends(before, (kernel & ENDED) as u32);
    correct_base_events(conn, kernel)
}

fn is_readable(conn: &Conn, inward: Way, kernel: i16) -> bool {
    match inward {
        Way::Ring => {
            // Payload: the ring may have ended since the look before, which is nothing to read.
            // Behind the look at the kernel: a peer that leaves says so before it sends.
            let leaves = || conn.pair.peer_state() & slot::LEAVING != 0 || conn.is_mirrored();
            let stray = kernel & POLLIN != 0 && !leaves();
            let there = conn.consumer().at_hand() > 0 && !owed::is_held_up(conn);
            there || stray || kernel & ENDED != 0
        }
        Way::Tcp if unread(conn) > 0 => true,
        // The count ends at urgent data.
        Way::Tcp if kernel & POLLIN != 0 && at_mark(conn) => true,
        Way::Tcp => kernel & ENDED != 0,
        Way::TcpAgain | Way::Owing => kernel & POLLIN != 0 || is_expected(conn),
    }
}

fn is_writable(conn: &Conn, out: Way, kernel: i16, wanted: u32, asks: bool) -> bool {
    match out {
        _ if owed::cannot_send(conn) => {
            asks && ask_for_room(conn, wanted) || kernel & (POLLHUP | POLLERR) != 0
        }
        Way::Ring => {
            conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_WR != 0
                || kernel & (POLLHUP | POLLERR) != 0
                || has_room(conn, asks && wanted & WRITABLE != 0)
                || asks && ask_for_room(conn, wanted)
        }
        Way::Tcp | Way::TcpAgain => kernel & POLLOUT != 0,
        Way::Owing => false,
    }
}

/// The events of the base socket. If the peer has died with bytes of ours unread, this resets the connection first, as
/// TCP would have done.
fn correct_base_events(conn: &Conn, kernel: i16) -> i16 {
    if kernel & POLLRDHUP != 0 {
        reset_if_died(conn);
        return look_at_base(conn);
    }
    kernel
}

/// The events of the base socket, also those that an end would have caused of which the kernel was not told.
fn look_at_base(conn: &Conn) -> i16 {
    let kernel = sys::ready(conn.fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP);
    conn.with_ends_in_memory(kernel)
}

/// The connection has no room: asks the peer to tell when there is some, and looks once more.
/// `true`: there is.
fn ask_for_room(conn: &Conn, wanted: u32) -> bool {
    wanted & WRITABLE != 0
        && send::ask_for_room(conn)
        && (conn.way_out() == Way::Ring || sys::ready(conn.fd, POLLOUT) & POLLOUT != 0)
}

/// Whether there is room. If the peer need not tell anybody any more, this takes the request back that it do so. `tells`: the look is
/// for a registration in an epoll set, which is told of the room now.
#[inline]
fn has_room(conn: &Conn, tells: bool) -> bool {
    let room = conn.has_room();
    let wait = &conn.pair.own.face.wait;
    if room && wait.load(Ordering::Relaxed) & slot::WANT_TX != 0 && is_known_to_all(conn, tells) {
        publish::clear_bits(wait, slot::WANT_TX);
    }
    room
}

/// Whether all registrations of the connection know of its room: the one that is told now is the only one, or the peer has read so
/// far that it tells them. (It may be just about to look whether it is asked to. Whom that leaves untold is looked at from time to
/// time: `epoll/room_asked.rs`.)
#[cold]
fn is_known_to_all(conn: &Conn, tells: bool) -> bool {
    conn.socket.items.count() <= usize::from(tells) || conn.is_mirrored() || conn.is_told_of_room()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use libc::iovec;

    use super::*;
    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::stream;

    fn send(conn: &Conn, bytes: &[u8]) -> Outcome {
        let parts = [iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        // SAFETY: the bytes are there.
        unsafe { stream::send(conn, &parts, libc::MSG_DONTWAIT) }
    }

    #[test]
    fn who_waits_for_room_and_finds_out_first_that_the_peer_was_killed_is_told_all_of_a_reset() {
        const ALL: i16 = POLLIN | POLLOUT | POLLERR | POLLRDHUP;
        for waited in [false, true] {
            let ends = BothEnds::attached();
            ends.send(b"x");
            assert_eq!(ends.receive::<1>(), b"x");
            let [conn, peer] = &ends.conns();
            assert_eq!(send(peer, b"x"), Outcome::Done(1));
            assert_eq!(mask(conn, READABLE | WRITABLE, false), READABLE | WRITABLE);
            while matches!(send(conn, &[0; 1 << 16]), Outcome::Done(_)) {}
            assert_eq!(mask(conn, WRITABLE, false), READABLE);
            if waited {
                let state = &conn.socket.hints.kernel_state;
                state.fetch_or(IN_VAIN, Ordering::Relaxed);
            }
            assert!(is_as_usual(conn) != waited && !must_ask_kernel(conn, Way::Ring, Way::Ring));
            // So the kernel ends the connections of a process that is killed.
            sys::shutdown(peer.fd, libc::SHUT_RDWR).unwrap();
            assert_ne!(sys::poll_ms(conn.fd, POLLRDHUP, 10_000), 0);
            let told = mask(conn, WRITABLE, false) as i16;
            assert_eq!(told & ALL, ALL, "{waited}: {told:x}");
            // Mostly at once; the kernel may put off its answer.
            assert_ne!(sys::poll_ms(conn.fd, POLLHUP, 10_000), 0);
            assert_ne!(mask(conn, WRITABLE, false) as i16 & POLLHUP, 0);
        }
    }
}
