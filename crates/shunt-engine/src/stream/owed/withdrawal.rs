//! What the peer has not read in our ring is withdrawn, without its doing: it finds it
//! on TCP. Both sides of it.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot::{self, Recall, Way};

use super::{GROWTH_MS, PATIENCE, has_died_with, is_recalled, note_unread, send_owed};
use crate::config::hesitate;
use crate::stream::recv::{follow_back, note_brought, ring_bytes, stays_in_ring};
use crate::stream::{Conn, close};
use crate::{sys, tcp, thread};

/// What came of a try to withdraw what the peer has not read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::stream) enum Withdrawal {
    /// It goes, or will go, over TCP.
    Done,
    /// Not while the peer is in the middle of a receive.
    PeerReceives,
    /// The peer reads it in the ring.
    No,
}

/// Sends again over TCP what the peer has not read, if it is not receiving just now
/// and TCP takes it all: then the kernel has everything that was ever sent. With the
/// sending token, on the ring.
pub(in crate::stream) fn withdraw(conn: &Conn) -> Withdrawal {
    let own = conn.pair.own;
    let peer = conn.pair.peer;
    let state = &own.face.state;
    // After our end of file nothing can follow it there.
    let too_late = is_recalled(conn) || conn.is_shut() || is_over(conn);
    if too_late || !has_room(conn, conn.in_flight()) {
        return Withdrawal::No;
    }
    publish::set_bits(state, slot::WITHDRAWING);
    // Either we see its token taken, or it sees, with its token, that we withdraw.
    heavy();
    hesitate();
    let receives = peer.receiving.token.is_taken();
    let deaf = close::is_deaf(conn.pair.peer_state());
    let reads = matches!(Way::load(&peer.receiving.way), Way::Ring | Way::Tcp);
    let begins = conn
        .base()
        .filter(|_| reads && !receives && !deaf)
        .and_then(|fd| tcp::written(fd, conn.socket.role()));
    let Some(begins) = begins else {
        publish::clear_bits(state, slot::WITHDRAWING);
        return if receives && !deaf {
            Withdrawal::PeerReceives
        } else {
            Withdrawal::No
        };
    };
    note_unread(conn, begins);
    hesitate();
    publish::word(&own.output.back_at, begins + 1);
    hesitate();
    withdrawn(conn);
    send_owed(conn, GROWTH_MS);
    Withdrawal::Done
}

/// Where payload begins has been published: the last step of a withdrawal.
pub(super) fn withdrawn(conn: &Conn) {
    let own = conn.pair.own;
    publish::half(&own.recall.answered, Recall::AGREED);
    Way::Owing.store(&own.sending.way);
    publish::set_bits(&own.face.state, slot::LEAVING | slot::WITHDRAWN);
}

/// Whether the kernel has ended the connection, or our half of it.
fn is_over(conn: &Conn) -> bool {
    conn.base()
        .is_none_or(|fd| sys::ready(fd, 0) & (libc::POLLERR | libc::POLLHUP) != 0)
}

/// Whether the kernel's socket takes so many bytes at once: in the ring they outlive
/// this side, but what it would still owe does not.
pub(in crate::stream) fn has_room(conn: &Conn, bytes: u64) -> bool {
    let Some(base) = conn.base() else {
        return false;
    };
    // Its buffers' headers need some, too.
    sys::send_room(base).is_some_and(|room| bytes + bytes / 8 <= room)
}

/// Follows a peer that has withdrawn what this side has not read. With the receiving
/// token.
#[cold]
pub(in crate::stream) fn follow_withdrawal(conn: &Conn) {
    if stays_in_ring(conn) {
        return;
    }
    let until = sys::now() + PATIENCE;
    let was_readable = conn.consumer().is_ready();
    loop {
        let gone = has_died_with(conn, &conn.pair.peer.sending.token);
        let state = conn.pair.peer_state();
        hesitate();
        if state & slot::WITHDRAWN != 0 {
            if was_readable {
                await_arrival(conn);
            }
            let back_at = conn.pair.peer.output.back_at.load(Ordering::Acquire);
            follow_back(conn);
            note_brought(conn, back_at.saturating_sub(1));
            return;
        }
        if state & slot::WITHDRAWING == 0 || gone {
            return;
        }
        if sys::now() >= until {
            close::abort(conn);
            return;
        }
        sys::sched_yield();
    }
}

/// How long what is on its way may take, in nanoseconds: mostly it has come already.
const ON_ITS_WAY: u64 = 50_000_000;

/// The program may have been told how much there is to read: it finds it, here by TCP,
/// as soon as the peer has sent it again and the kernel has carried it over. A peer that was
/// stopped meanwhile is not waited for longer.
fn await_arrival(conn: &Conn) {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let Some(base) = conn.base() else {
        return;
    };
    let until = sys::now() + ON_ITS_WAY;
    let promised = ring_bytes(conn).max(1);
    let sending = &conn.pair.peer.sending;
    loop {
        // First: then what it had sent by now is among what is seen after it.
        let sends = sending.token.is_taken() && !thread::is_held_by_dead(&sending.token);
        let owes = !sends && Way::load(&sending.way) == Way::Owing;
        let queued = sys::ioctl_int(base, libc::FIONREAD).map_or(u64::MAX, |n| n as u64);
        // There may be no room for all of it at once.
        let least = if sends { promised } else { 1 };
        let ended = || sys::ready(base, libc::POLLRDHUP) & ENDED != 0;
        if queued >= least || owes || ended() || sys::now() >= until {
            return;
        }
        sys::sched_yield();
    }
}

/// Whether the peer has withdrawn what this side has not read, or is about to.
#[inline(always)]
pub(crate) fn is_withdrawn(conn: &Conn) -> bool {
    let state = conn.pair.peer.face.state.load(Ordering::Relaxed);
    state & (slot::WITHDRAWING | slot::WITHDRAWN) != 0
}
