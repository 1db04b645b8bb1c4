//! How much could be received now.

use std::sync::atomic::Ordering;

use shunt_shm::ring::Found;
use shunt_shm::slot::Way;

use super::arrival::on_its_way;
use super::back::{after_ring, follow_back};
use super::bytes::ring_bytes;
use super::resumed::{Resumption, follow, look_around};
use super::settle::settle;
use crate::stream::errors::keep_error;
use crate::stream::{Conn, owed};
use crate::{reach, sys, thread};

/// Follows a change that the peer has made to the way of its bytes (past a `Back` frame, or onto
/// the ring), so that readiness can be told. Takes the token if it is free.
pub(crate) fn pump(conn: &Conn) {
    let receiving = &conn.pair.own.receiving;
    if conn.is_mirrored() {
        reach::progress();
    }
    if !thread::try_take(&receiving.token) {
        return;
    }
    if conn.way_in() == Way::Tcp {
        settle(conn);
    }
    let withdraws =
        conn.way_in() == Way::Ring && owed::is_withdrawn(conn) && !owed::follow_withdrawal(conn);
    if conn.way_in() == Way::Ring && !withdraws && conn.consumer().is_ready() {
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        if let Ok(Found::Back(_)) = unsafe { conn.consumer().read(&raw mut byte, 1, true) } {
            follow_back(conn);
        }
    }
    if conn.is_mirrored() && conn.way_in() == Way::Ring && !conn.consumer().is_ready() {
        note_failure(conn, &look_around(conn));
    }
    if conn.way_in() == Way::TcpAgain {
        after_ring(conn);
    }
    thread::give(&receiving.token);
}

/// Bytes that could be received now (`FIONREAD`).
pub(crate) fn unread(conn: &Conn) -> u64 {
    pump(conn);
    owed::forget_waits_that_are_over(conn);
    let ring = || ring_bytes(conn);
    let queued = || sys::ioctl_int(conn.fd, libc::FIONREAD).unwrap_or(0) as u64;
    match conn.way_in() {
        Way::Ring if conn.is_mirrored() => shown_and_behind(conn, queued),
        Way::Ring => ring(),
        Way::TcpAgain | Way::Owing => come_and_coming(conn, queued),
        Way::Tcp => {
            let queued = queued();
            let before = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
            match conn
                .receiver()
                .switch_offset()
                .map(|offset| offset.saturating_sub(before))
            {
                // What comes before the ring may not have arrived yet.
                Some(first) if first <= queued => first + ring(),
                _ => queued,
            }
        }
    }
}

/// Bytes that the view of a ring on another host shows, and those that TCP brings behind them if
/// the peer has left that ring.
#[cold]
fn shown_and_behind(conn: &Conn, queued: impl Fn() -> u64) -> u64 {
    let token = &conn.pair.own.receiving.token;
    if thread::try_take(token) {
        if conn.way_in() == Way::Ring {
            note_failure(conn, &follow(conn, true));
        }
        thread::give(token);
    }
    let (path, shown) = (conn.receiver(), ring_bytes(conn));
    if path.has_record() {
        // The bytes that are shown come by TCP, too.
        shown + queued().saturating_sub(path.doubled() + shown)
    } else {
        shown
    }
}

/// Keeps an error that the kernel tells only once. Anything else that is wrong, the next receive
/// finds, too.
fn note_failure(conn: &Conn, found: &Resumption) {
    if let Resumption::Failed(errno) = *found {
        keep_error(conn, errno);
    }
}

/// Bytes that have come by TCP, and bytes on their way that could be read in the ring before.
fn come_and_coming(conn: &Conn, queued: impl Fn() -> u64) -> u64 {
    // A hostile peer could make these change for ever.
    const LOOKS: u32 = 16;
    for _ in 0..LOOKS {
        let coming = on_its_way(conn);
        let come = queued();
        // If bytes have come between the two counts, some were counted twice: it looks again.
        if coming == 0 || on_its_way(conn) == coming {
            return come + coming;
        }
    }
    queued()
}

/// Whether something is to be read in the ring, now or after bytes on TCP that come first. If the
/// peer has not entered its ring, what lies there is of an earlier connection; and if TCP brings what
/// was unread in the ring, none of it is to be read there.
pub(crate) fn is_any_in_ring(conn: &Conn) -> bool {
    let begins = match conn.way_in() {
        Way::Ring => true,
        Way::Tcp => conn.receiver().switch_offset().is_some(),
        Way::TcpAgain | Way::Owing => false,
    };
    begins && ring_bytes(conn) > 0
}

/// Whether the peer has sent what nobody has received, arrived or not.
pub(crate) fn leaves_unread(conn: &Conn) -> bool {
    unread(conn) > 0 || is_any_in_ring(conn)
}
