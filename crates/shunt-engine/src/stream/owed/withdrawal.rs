//! What the peer has not read in our ring is withdrawn, without its doing: it finds it
//! on TCP. Both sides of it.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot::{self, Recall, Way};

use super::{
    GROWTH_MS, PATIENCE, has_died_with, is_behind_unread, is_recalled, note_unread, send_owed,
};
use crate::config::hesitate;
use crate::stream::recv::{follow_back, note_brought, ring_bytes, stays_in_ring, switch_offset};
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
    withdraw_behind(conn, None)
}

/// The same where doorbells lie behind what the peer has still to read by TCP: what it
/// has there, by a descriptor of its that is lent, is repeated behind them.
pub(in crate::stream) fn withdraw_behind(conn: &Conn, lent: Option<c_int>) -> Withdrawal {
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
    let repeats = match lent {
        Some(lent) if !receives && is_behind_unread(conn) => Repeat::of(conn, lent),
        _ => None,
    };
    let begins = if receives || repeats.is_none() && !is_told_apart(conn) {
        None
    } else {
        conn.base()
            .and_then(|fd| tcp::written(fd, conn.socket.role()))
    };
    let Some(begins) = begins else {
        publish::clear_bits(state, slot::WITHDRAWING);
        return if receives {
            Withdrawal::PeerReceives
        } else {
            Withdrawal::No
        };
    };
    let again = repeats.as_ref().map_or(0, |repeat| repeat.bytes as u64);
    note_unread(conn, begins + again);
    own.recall.repeated.store(again, Ordering::Relaxed);
    hesitate();
    publish::word(&own.output.back_at, begins + 1);
    if let Some(repeat) = repeats {
        if !repeat.send(conn) {
            close::break_off(conn);
        }
        publish::set_bits(state, slot::REPEATED);
    }
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
fn has_room(conn: &Conn, bytes: u64) -> bool {
    let Some(base) = conn.base() else {
        return false;
    };
    // Its buffers' headers need some, too.
    sys::send_room(base).is_some_and(|room| bytes + bytes / 8 <= room)
}

/// Whether the peer, which receives nothing just now, can tell doorbells from what
/// would be sent again: not behind payload that it has still to read by TCP.
fn is_told_apart(conn: &Conn) -> bool {
    let (receiving, output) = (&conn.pair.peer.receiving, &conn.pair.own.output);
    match Way::load(&receiving.way) {
        Way::Ring => true,
        Way::Tcp => {
            let taken = receiving.kernel_bytes.load(Ordering::Acquire);
            output.bells.load(Ordering::Relaxed) == 0
                || output.switch_at.load(Ordering::Relaxed) == taken.wrapping_add(1)
        }
        _ => false,
    }
}

/// A copy of what the peer has still to read by TCP.
struct Repeat {
    memory: *mut u8,
    size: usize,
    bytes: usize,
}

impl Drop for Repeat {
    fn drop(&mut self) {
        sys::unmap(self.memory, self.size);
    }
}

impl Repeat {
    /// More than this is not repeated.
    const MOST: u64 = 4 << 20;

    /// With a descriptor of the peer's. `None`: not all of it has arrived there, or
    /// TCP has no room for it.
    fn of(conn: &Conn, lent: c_int) -> Option<Self> {
        let output = &conn.pair.own.output;
        let taken = &conn.pair.peer.receiving.kernel_bytes;
        let switched = output.switch_at.load(Ordering::Relaxed).checked_sub(1)?;
        let bytes = switched.checked_sub(taken.load(Ordering::Acquire))?;
        let all = bytes.checked_add(output.bells.load(Ordering::Relaxed))?;
        if all > Self::MOST || !has_room(conn, bytes + conn.in_flight()) {
            return None;
        }
        let size = all as usize + 1;
        let memory = sys::map(size);
        if memory.is_null() {
            return None;
        }
        let copy = Self {
            memory,
            size,
            bytes: bytes as usize,
        };
        let look = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let there = sys::recv(lent, memory, size, look);
        (there == Ok(all as usize)).then_some(copy)
    }

    /// Sends it. `false`: TCP has not taken all of it.
    fn send(&self, conn: &Conn) -> bool {
        let mut sent = 0;
        while let (Some(base), true) = (conn.base(), sent < self.bytes) {
            let rest = self.memory.wrapping_add(sent);
            match sys::send_more(base, rest, self.bytes - sent) {
                Ok(n) => sent += n,
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) if sys::poll_ms(base, libc::POLLOUT, GROWTH_MS) != 0 => {}
                Err(_) => return false,
            }
        }
        sent == self.bytes
    }
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
            let peer = &conn.pair.peer.output;
            let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
            // Before the ring began there are no doorbells.
            let before = taken < peer.switch_at.load(Ordering::Acquire).saturating_sub(1);
            let back_at = peer.back_at.load(Ordering::Acquire);
            let resume = if before && state & slot::REPEATED == 0 {
                taken
            } else {
                back_at.saturating_sub(1)
            };
            if was_readable {
                await_arrival(conn, resume.saturating_sub(taken));
            }
            follow_back(conn, resume);
            note_brought(
                conn,
                back_at
                    .saturating_sub(1)
                    .wrapping_add(behind(conn, taken, state)),
            );
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

/// How many bytes it has repeated in front of what was unread in the ring.
fn behind(conn: &Conn, taken: u64, state: u32) -> u64 {
    match switch_offset(conn) {
        Some(switched) if state & slot::REPEATED != 0 => switched.saturating_sub(taken),
        _ => 0,
    }
}

/// How long what is on its way may take, in nanoseconds: mostly it has come already.
const ON_ITS_WAY: u64 = 50_000_000;

/// The program may have been told how much there is to read: it finds it, here by TCP
/// behind so many doorbells, as soon as the peer has sent it again and the kernel has
/// carried it over. A peer that was stopped meanwhile is not waited for longer.
fn await_arrival(conn: &Conn, bells: u64) {
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
        let least = bells.saturating_add(if sends { promised } else { 1 });
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
