//! Ending a connection: `shutdown`, the last `close`, and a peer that breaks
//! the protocol.

mod last_bytes;

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::atomic::{heavy, light};
use shunt_shm::path;
use shunt_shm::publish;
use shunt_shm::slot::{self};

use self::last_bytes::await_reader;
use super::aside;
use super::downgrade;
use super::leave::{await_receiver, leave_ring};
use super::owed::Withdrawal;
use super::want::any_waits_for_room;
use super::{Conn, leaves_unread, owed, recall};
use crate::Outcome;
use crate::config::{self, hesitate};
use crate::hold;
use crate::reach;
use crate::socket::Socket;
use crate::sys::{self};
use crate::table::{self, Word};
use crate::thread::give;
use crate::wake::{self, Place};

/// `shutdown(2)`. What was sent before arrives before the end of file: the
/// peer reads its ring once more when the kernel tells it of the FIN.
pub(crate) fn shutdown(conn: &Conn, how: c_int) -> Outcome {
    if aside::end_in_memory(conn, how) {
        return Outcome::Done(0);
    }
    aside::tell_kernel_of_end(conn);
    let own = conn.pair.own;
    if will_be_deaf(own.face.state.load(Ordering::Relaxed), how) {
        downgrade::end_recall(conn);
    }
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
        // With the token: a connection that comes back to its rings begins with no bits.
        let taken = conn.take(&own.receiving.token);
        publish::set_bits(&own.face.state, slot::SHUT_RD);
        if taken {
            give(&own.receiving.token);
        }
    }
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        // From here on nobody can send in this side's place if the peer needs the bytes by TCP.
        before_end(conn, u64::MAX);
    }
    let token = &own.sending.token;
    let sending = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) && conn.take(token);
    let was_shut = conn.is_shut();
    if sending {
        say_end(conn, slot::SHUT_WR);
    }
    hesitate();
    // With the token: a call that finds the ring shut asks the kernel, which must know.
    let result = sys::shutdown(conn.fd, how);
    if sending {
        // A connection that has ended by a reset is not shut down any more: an error says so later.
        if result.is_err() && !was_shut {
            publish::clear_bits(&own.face.state, slot::SHUT_WR);
        }
        let asleep = any_waits_for_room(conn);
        give(token);
        if asleep {
            wake::wake_all();
        }
    }
    match result {
        Ok(_) => Outcome::Done(0),
        Err(errno) => Outcome::Fail(errno),
    }
}

/// Whether `shutdown(how)` makes a side in this state one that has shut down both halves.
fn will_be_deaf(state: u32, how: c_int) -> bool {
    let new = match how {
        libc::SHUT_RD => slot::SHUT_RD,
        libc::SHUT_WR => slot::SHUT_WR,
        libc::SHUT_RDWR => slot::SHUT_RD | slot::SHUT_WR,
        _ => 0,
    };
    path::is_deaf(state | new) && !path::is_deaf(state)
}

/// The most bytes that a side which closes sends again over TCP. If more are unread, the peer reads them in the ring, or gets
/// them by a [stand-in](super::stand_in).
const MOST_WITHDRAWN: u64 = 1 << 20;
/// How long a side that ends the stream waits for a peer that is in the middle of a receive, in nanoseconds: long
/// enough for one that waits for a crowded core. A peer that is stopped there is not waited for ([`await_receiver`]).
const ENDING_PATIENCE: u64 = 1_000_000_000;

/// The last step before this side can send nothing more: sends what the peer has recalled. Also
/// withdraws what is unread in the ring, if that is no more than `most` bytes: a peer that is not
/// receiving just now may give the connection to another program, which must find all bytes in the
/// kernel.
fn before_end(conn: &Conn, most: u64) {
    if conn.is_mirrored() {
        if reach::is_here() && !has_ended_afar(conn) {
            leave_ring(conn, Reason::Ended);
            owed::answer_at_last(conn);
        }
        return;
    }
    // Where a forked relative may still use the connection, the direction stays in the ring unless nobody looks at that.
    let stays = || {
        const LOOKS: u32 = slot::WAIT_RX | slot::WATCHED;
        conn.is_shared() && conn.pair.peer.face.wait.load(Ordering::Acquire) & LOOKS != 0
    };
    let few = || (1..=most).contains(&conn.in_flight());
    if conn.is_on_ring() && few() && !stays() {
        await_reader(conn);
    }
    let mut until = None;
    while conn.is_on_ring() && few() && !stays() && conn.take(&conn.pair.own.sending.token) {
        let waits = conn.is_on_ring() && owed::withdraw(conn) == Withdrawal::PeerReceives;
        give(&conn.pair.own.sending.token);
        // The peer may only have looked, and leave the rest to another program: so it is waited for.
        let patient = || sys::now() < *until.get_or_insert_with(|| sys::now() + ENDING_PATIENCE);
        if !waits || !await_receiver(conn, patient) {
            break;
        }
    }
    if owed::is_due(conn) {
        owed::answer_at_last(conn);
    }
}

/// How long a side that ends the stream waits until a peer on another host is known to have all of it, in nanoseconds.
const ARRIVAL: u64 = 50_000;

/// Whether a peer on another host has all that was published before the kernel's FIN.
#[cold]
fn has_ended_afar(conn: &Conn) -> bool {
    let (link, slot) = conn.at_nic();
    let token = &conn.pair.own.receiving.token;
    let until = sys::now() + ARRIVAL;
    let mut arrived = false;
    if conn.take(token) {
        arrived = reach::end(link, slot);
        give(token);
    }
    while conn.is_on_ring() && !arrived && sys::now() < until {
        arrived = reach::has_arrived(link, slot);
    }
    arrived && conn.is_on_ring()
}

/// Says that nothing more is sent. With the sending token: a peer that has recalled the
/// stream and finds this word, the token free and no answer, knows that none will come.
fn say_end(conn: &Conn, bits: u32) {
    hesitate();
    let ended = conn.is_shut();
    publish::set_bits(&conn.pair.own.face.state, bits);
    // Pairs with the peer's, behind its recall: either it sees the end, or we see that.
    light();
    hesitate();
    if !ended && bits & slot::UNREAD == 0 && conn.sender().is_asked() {
        owed::pay_at_last(conn);
    }
}

/// Prepares a `close` of the last descriptor while threads sleep on the connection.
pub(crate) fn before_close_under_sleeper(conn: &Conn) {
    publish::set_bits(&conn.pair.own.face.state, slot::LINGERS);
}

/// Prepares a `close`: calls that have slept on the connection use a copy of the descriptor from
/// here on, which the last of them closes. `false`: there is no such call, or a copy is there
/// already, or cannot be made.
pub(crate) fn hand_over(conn: &Conn) -> bool {
    let handed = &conn.socket.handed;
    if !handed.is_wanted() || config::is_confined() {
        return false;
    }
    let copied = sys::copy_high(conn.fd).ok();
    let Some(copy) = copied.or_else(|| wake::copy_to_spare(conn.fd)) else {
        return false;
    };
    table::enter(copy, Word::OURS);
    let kept = handed.keep(copy);
    if !kept {
        table::enter(copy, Word::NOTHING);
        sys::close(copy);
    }
    kept
}

/// Moves such a copy to another number if the program wants the number that it has.
pub(crate) fn make_way(socket: &'static Socket, wanted: c_int) {
    let handed = &socket.handed;
    if handed.copy() != Some(wanted) {
        return;
    }
    let Ok(other) = sys::copy_high(wanted) else {
        return;
    };
    table::enter(other, Word::OURS);
    let former = if handed.exchange(wanted, other) {
        socket.lose_fd(wanted);
        if let Some(conn) = Conn::attached(socket, other) {
            let_go(&conn);
        }
        wanted
    } else {
        other
    };
    table::enter(former, Word::NOTHING);
    sys::close(former);
}

/// The last descriptor is about to be closed: notes how, so that the peer
/// takes the kernel's FIN or RST for what TCP would have said.
///
/// With a linger time of zero the peer is told so in memory, and the kernel's `close` resets the connection. What the peer has not
/// read is as natively in its queue before that: TCP has brought it (`before_end`), or it is in the ring. The kernel may hold back
/// what was sent by TCP while its peer has not acknowledged what came before the rings, since the peer answered by its ring; and
/// a reset throws that away.
pub(crate) fn before_close(conn: &Conn) {
    let own = conn.pair.own;
    before_end(conn, MOST_WITHDRAWN);
    if !conn.is_on_ring() && !conn.is_shared() && resets(conn) {
        sys::push(conn.fd);
    }
    let recalled = || conn.receiver().has_recalled();
    // What this side has recalled and TCP has not brought by now would be lost silently.
    if recalled() && !conn.socket.again.insists.load(Ordering::Relaxed) && !conn.is_shared() {
        downgrade::end_recall(conn);
    }
    // The connection is the kernel's, or other processes may still use it.
    if downgrade::is_plain(conn) || conn.is_shared() {
        return;
    }
    if recalled() {
        // Another thread is sending the connection back to TCP, and has nothing left to hand on.
        if hold::is_any_beside(conn.socket) && recall::is_any_unanswered(conn) {
            publish::set_bits(&own.face.state, slot::CLOSED);
            reset_with_close(conn);
        }
        return;
    }
    let resets = resets(conn);
    if !conn.take(&own.sending.token) {
        return;
    }
    say_end(conn, slot::CLOSED | if resets { slot::UNREAD } else { 0 });
    give(&own.sending.token);
    if conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == 0 {
        // Either the peer sees these bits, or this side sees what the peer has sent.
        heavy();
    }
    hesitate();
    let lost = leaves_unread(conn);
    if lost && !resets {
        reset_with_close(conn);
    }
}

/// Whether the kernel's `close` resets the connection: its linger time is zero (`socket(7)`).
fn resets(conn: &Conn) -> bool {
    let linger = sys::getsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_LINGER);
    linger.is_ok_and(|linger: libc::linger| linger.l_onoff != 0 && linger.l_linger == 0)
}

/// TCP resets a connection whose data was thrown away (RFC 2525, 2.17).
fn reset_with_close(conn: &Conn) {
    publish::set_bits(&conn.pair.own.face.state, slot::UNREAD);
    let now = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let set = sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_LINGER, &now);
    if set.is_err() {
        sys::reset(conn.fd);
    }
}

/// A number of the connection's is about to name something else: waits until no thread uses it
/// for this connection any more ([`Conn::base`]), and has calls that sleep look for another one:
/// whenever something wakes them, the kernel looks their number up anew (`ppoll`).
pub(crate) fn let_go(conn: &Conn) {
    let own = conn.pair.own;
    let [data, room] = &conn.socket.places;
    for (token, places) in [(&own.sending.token, room), (&own.receiving.token, data)] {
        if conn.take(token) {
            if conn.socket.handed.has_calls() {
                places.each(Place::wake);
            }
            give(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::both_ends::BothEnds;

    /// How the connecting end says that it has closed, and what the kernel does then.
    fn closed(ends: &BothEnds) -> (u32, bool) {
        let conn = &ends.conns()[1];
        before_close(conn);
        let state = conn.pair.own.face.state.load(Ordering::Relaxed);
        (state & (slot::CLOSED | slot::UNREAD), resets(conn))
    }

    #[test]
    fn a_side_that_closes_with_something_unread_resets_the_connection() {
        let ends = BothEnds::attached();
        ends.send(b"unread");
        assert_eq!(closed(&ends), (slot::CLOSED | slot::UNREAD, true));
    }

    #[test]
    fn a_side_that_has_read_everything_ends_the_connection() {
        let ends = BothEnds::attached();
        ends.send(b"read");
        ends.receive::<8>();
        assert_eq!(closed(&ends), (slot::CLOSED, false));
    }

    #[test]
    fn what_the_kernel_holds_back_is_sent_before_a_reset() {
        const SIOCOUTQNSD: u64 = 0x894B;
        let ends = BothEnds::attached();
        let [near, far] = ends.fds;
        let held_back = || sys::ioctl_int(near, SIOCOUTQNSD).unwrap();
        // A side that answers what comes acknowledges it with its answers, and at the latest after some milliseconds.
        while held_back() == 0 {
            for (from, to) in [(near, far), (far, near), (near, far)] {
                assert_eq!(sys::send(from, &[1]), Ok(1));
                while sys::recv(to, [0u8].as_mut_ptr(), 1, libc::MSG_DONTWAIT).is_ok() {}
            }
            assert_eq!(sys::send(near, b"abc"), Ok(3));
        }
        let at_once = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        sys::setsockopt(near, libc::SOL_SOCKET, libc::SO_LINGER, &at_once).unwrap();
        before_close(&ends.conns()[0]);
        assert_eq!(held_back(), 0);
    }

    #[test]
    fn a_shutdown_that_the_kernel_refuses_says_no_end() {
        let ends = BothEnds::attached();
        let conn = &ends.conns()[1];
        sys::reset(ends.fds[0]);
        while sys::ready(conn.fd, libc::POLLHUP) & libc::POLLHUP == 0 {
            std::thread::yield_now();
        }
        let failed = Outcome::Fail(libc::ENOTCONN);
        assert_eq!(shutdown(conn, libc::SHUT_WR), failed);
        let state = conn.pair.own.face.state.load(Ordering::Relaxed);
        assert_eq!(state & slot::SHUT_WR, 0);
    }

    #[test]
    fn a_side_is_deaf_when_it_has_ended_both_halves() {
        assert!(will_be_deaf(0, libc::SHUT_RDWR));
        assert!(will_be_deaf(slot::SHUT_RD, libc::SHUT_WR));
        assert!(will_be_deaf(slot::SHUT_WR, libc::SHUT_RD));
        assert!(!will_be_deaf(0, libc::SHUT_WR) && !will_be_deaf(0, libc::SHUT_RD));
        // Nor does it become so twice.
        assert!(!will_be_deaf(
            slot::SHUT_RD | slot::SHUT_WR,
            libc::SHUT_RDWR
        ));
    }
}
