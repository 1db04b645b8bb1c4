//! The sender's way back to TCP: it resends, over TCP, what its peer has not read in the ring ([`withdraw`]). The peer need
//! not act; its next receive finds that out ([`follow_withdrawal`]).

use shunt_shm::path::withdrawal::Look;
pub(in crate::stream) use shunt_shm::path::withdrawal::Withdrawal;
use shunt_shm::slot::Way;

use super::look::{GROWTH_MS, PATIENCE, has_died_with, is_recalled};
use super::room::Stretched;
use super::send_owed;
use crate::stream::recv::{follow_back, ring_bytes};
use crate::stream::{Conn, errors};
use crate::{sys, tcp, thread};

/// Sends again over TCP what the peer has not read, if it is not receiving just now
/// and TCP takes it all: then the kernel has everything that was ever sent. With the
/// sending token, on the ring.
pub(in crate::stream) fn withdraw(conn: &Conn) -> Withdrawal {
    // After our end of file nothing can follow it there.
    let too_late = is_recalled(conn) || conn.is_shut() || is_over(conn);
    let base = conn.base().filter(|_| !too_late);
    let room = base.map(|base| Stretched::for_bytes(base, conn.in_flight()));
    let Some(Ok(_stretched)) = room else {
        return Withdrawal::No;
    };
    let written = || {
        conn.base()
            .and_then(|fd| tcp::written(fd, conn.socket.role()))
    };
    let withdrawal = conn.sender().withdraw(written);
    if withdrawal == Withdrawal::Owing {
        send_owed(conn, GROWTH_MS);
    }
    withdrawal
}

/// Whether the kernel has ended the connection, or our half of it.
fn is_over(conn: &Conn) -> bool {
    conn.base()
        .is_none_or(|fd| sys::ready(fd, 0) & (libc::POLLERR | libc::POLLHUP) != 0)
}

/// Follows a peer that has withdrawn what this side has not read. With the receiving
/// token.
#[cold]
pub(in crate::stream) fn follow_withdrawal(conn: &Conn) {
    if conn.receiver().stays_in_ring() {
        return;
    }
    let until = sys::now() + PATIENCE;
    let was_readable = conn.consumer().is_ready();
    loop {
        let gone = has_died_with(conn, &conn.pair.peer.sending.token);
        match conn.receiver().look_at_withdrawal() {
            Look::Withdrawn { from } => {
                if was_readable {
                    await_arrival(conn);
                }
                follow_back(conn);
                conn.receiver().note_brought(from, conn.unread_in_ring());
                return;
            }
            Look::Wait if gone => return,
            Look::Wait => {}
            Look::No => return,
        }
        if sys::now() >= until {
            errors::abort(conn);
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
