//! The sender's way back to TCP: it resends, over TCP, what its peer has not read in the ring ([`withdraw`]). The peer need
//! not act; its next receive finds that out ([`follow_withdrawal`]).

use std::sync::atomic::Ordering;

use shunt_shm::path::withdrawal::Look;
pub(in crate::stream) use shunt_shm::path::withdrawal::Withdrawal;

use super::kernel_room::Stretched;
use super::look::{GROWTH_MS, await_peer, has_died_withdrawing, is_recalled, mark};
use super::resend::send_owed;
use crate::stream::Conn;
use crate::stream::recv::follow_back;
use crate::stream::tell::News;
use crate::{sys, tcp};

/// Sends again over TCP what the peer has not read, if it is not receiving just now
/// and TCP takes it all: then the kernel has everything that was ever sent. With the
/// sending token, on the ring.
pub(in crate::stream) fn withdraw(conn: &Conn) -> Withdrawal {
    // After our FIN nothing more can be sent over TCP.
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
    } else {
        // The peer may have met this attempt, and sleep until it is over.
        conn.tell_always(News::Data);
    }
    withdrawal
}

/// Whether the kernel has ended the connection, or our half of it.
fn is_over(conn: &Conn) -> bool {
    conn.base()
        .is_none_or(|fd| sys::ready(fd, 0) & (libc::POLLERR | libc::POLLHUP) != 0)
}

/// Follows a peer that withdraws what this side has not read, and waits while the peer is in the middle of that. With the
/// receiving token. `false`: it still is, and nothing may be read in the ring.
#[cold]
pub(in crate::stream) fn follow_withdrawal(conn: &Conn) -> bool {
    let hints = &conn.socket.hints;
    let patient = hints.withdrawal_in_vain() != mark(conn);
    let over = await_peer(conn, &conn.pair.peer.sending.token, patient, || {
        // A peer that has died may have withdrawn it just before.
        follow_if_withdrawn(conn)
            || has_died_withdrawing(conn) && {
                follow_if_withdrawn(conn);
                true
            }
    });
    hints.note_withdrawal(if over { 0 } else { mark(conn) });
    over
}

/// [`follow_withdrawal`] without waiting.
#[cold]
pub(in crate::stream) fn follow_if_withdrawn(conn: &Conn) -> bool {
    if conn.receiver().stays_in_ring() {
        return true;
    }
    match conn.receiver().look_at_withdrawal() {
        Look::Withdrawn { from } => {
            // In this order: the unread bytes count as readable until they have come.
            conn.receiver().note_brought(from, conn.unread_in_ring());
            conn.socket.hints.late.store(false, Ordering::Relaxed);
            follow_back(conn);
            true
        }
        Look::Wait => false,
        Look::No => true,
    }
}
