//! Whether the stream has ended, and how.

use std::sync::atomic::Ordering;

use shunt_shm::slot;

use super::resumed::{Resumption, look_around};
use super::step::Step;
use crate::socket::{IN_VAIN, bump};
use crate::stream::Conn;
use crate::stream::errors::{abort, reset_if_died, take_error};
use crate::sys::{self, Errno};

/// The kernel is asked about an empty ring at least this often (ticks, about
/// 40 µs), so that a killed peer is noticed by a program that only polls.
const LOOK_EVERY: u64 = 100_000;

/// Asks the kernel about a connection whose ring is empty: rarely, and at once
/// when the peer says that it is closing. `None`: nothing new.
#[inline]
pub(super) fn look(conn: &Conn) -> Option<Step> {
    let socket = conn.socket;
    let ending = conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) != 0
        || conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD != 0
        || socket.hints.kernel_state.load(Ordering::Relaxed) & !IN_VAIN != 0;
    let pending = conn.error().load(Ordering::Relaxed);
    // A caller that has just read from the ring asks whether there is more: the peer was there a moment ago.
    let read = socket.rx.ring_bytes.load(Ordering::Relaxed);
    if !ending && pending == 0 && socket.hints.read_at.swap(read, Ordering::Relaxed) != read {
        return None;
    }
    let now = sys::ticks();
    let stale = now.wrapping_sub(socket.hints.looked_at.load(Ordering::Relaxed)) > LOOK_EVERY;
    if !ending && pending == 0 && !stale {
        return None;
    }
    socket.hints.looked_at.store(now, Ordering::Relaxed);
    if pending != 0 {
        return Some(failure(conn, pending));
    }
    if conn.is_ended_in_memory() {
        // The kernel has no end to tell; and the ring is empty,
        // so everything was received.
        return Some(end(conn));
    }
    ask_kernel(conn)
}

/// Asks the kernel, when that is due.
#[cold]
fn ask_kernel(conn: &Conn) -> Option<Step> {
    bump(&conn.socket.rx.kernel_calls, 1);
    if conn.is_mirrored() {
        return match look_around(conn) {
            Resumption::Nothing => None,
            Resumption::Some => Some(Step::Moved),
            Resumption::End => Some(end(conn)),
            Resumption::Failed(errno) => Some(failure(conn, errno)),
            Resumption::Wrong => {
                abort(conn);
                Some(Step::Failed(libc::ECONNRESET))
            }
        };
    }
    match has_ended(conn) {
        Ok(false) if has_stray(conn) => Some(Step::Stray),
        Ok(false) => None,
        Ok(true) => Some(end(conn)),
        Err(errno) => Some(failure(conn, errno)),
    }
}

/// Whether something has come by TCP that a peer which is on its ring does not send: some other process
/// that has a copy of the peer's socket has.
fn has_stray(conn: &Conn) -> bool {
    let queued = conn
        .base()
        .and_then(|base| sys::ioctl_int(base, libc::FIONREAD).ok());
    queued.is_some_and(|queued| queued > 0)
        // The peer says this before it sends the first byte by TCP.
        && conn.pair.peer.output.back_at.load(Ordering::Acquire) == 0
}

/// Whether nothing more comes by TCP.
pub(super) fn has_ended(conn: &Conn) -> Result<bool, Errno> {
    let base = conn.base().ok_or(libc::EBADF)?;
    let mut byte = 0u8;
    match sys::recv(base, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK) {
        Ok(n) => Ok(n == 0),
        Err(libc::EAGAIN | libc::EINTR) => Ok(conn.is_ended_in_memory()),
        Err(errno) => Err(errno),
    }
}

/// The base socket has ended.
fn end(conn: &Conn) -> Step {
    conn.socket
        .hints
        .kernel_state
        .fetch_or(libc::POLLRDHUP as u32, Ordering::Relaxed);
    reset_if_died(conn);
    last(conn)
}

/// The end of the stream, or the error that comes before it.
pub(super) fn last(conn: &Conn) -> Step {
    take_error(conn).map_or(Step::End, Step::Failed)
}

pub(super) fn failure(conn: &Conn, errno: Errno) -> Step {
    conn.error().store(errno, Ordering::Relaxed);
    last(conn)
}
