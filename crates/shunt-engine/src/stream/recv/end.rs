//! Whether the stream has ended, and how.

use std::sync::atomic::Ordering;

use shunt_shm::slot::{self, Way};

use super::Step;
use crate::epoll;
use crate::socket::bump;
use crate::stream::Conn;
use crate::stream::close::{reset_if_died, take_error};
use crate::stream::swallow::take_bells;
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
        || socket.kernel_state.load(Ordering::Relaxed) != 0;
    let pending = socket.pending_error.load(Ordering::Relaxed);
    // Who has just read from the ring and asks whether there is more: the peer was
    // there a moment ago.
    let read = socket.rx.ring_bytes.load(Ordering::Relaxed);
    if !ending && pending == 0 && socket.read_at.swap(read, Ordering::Relaxed) != read {
        return None;
    }
    let now = sys::ticks();
    let stale = now.wrapping_sub(socket.looked_at.load(Ordering::Relaxed)) > LOOK_EVERY;
    if !ending && pending == 0 && !stale {
        return None;
    }
    socket.looked_at.store(now, Ordering::Relaxed);
    if pending != 0 {
        return Some(failure(conn, pending));
    }
    ask_kernel(conn)
}

/// What [`look`] does where it is time to.
#[cold]
fn ask_kernel(conn: &Conn) -> Option<Step> {
    bump(&conn.socket.rx.kernel_calls, 1);
    let heard = if conn.pair.own.receiving.sleepers.load(Ordering::Acquire) == 0
        && !epoll::may_sleep(conn)
    {
        take_bells(conn)
    } else {
        // Others must still be woken by what is in the queue.
        let ready = sys::ready(conn.fd, libc::POLLRDHUP);
        if ready & (libc::POLLERR | libc::POLLHUP) != 0 {
            take_bells(conn)
        } else {
            Ok(ready & libc::POLLRDHUP != 0)
        }
    };
    match heard {
        Ok(false) => None,
        Ok(true) => Some(end(conn)),
        Err(errno) => Some(failure(conn, errno)),
    }
}

/// The base socket has ended.
fn end(conn: &Conn) -> Step {
    conn.socket
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
    conn.socket.pending_error.store(errno, Ordering::Relaxed);
    last(conn)
}

/// Whether a peer that is gone left nothing of ours unread: TCP would have said
/// FIN, whatever became of doorbells.
pub(crate) fn closed_cleanly(conn: &Conn) -> bool {
    let state = conn.pair.peer_state();
    let deliberate = state & (slot::CLOSED | slot::LINGERS) != 0;
    let all_read = deliberate || conn.way_out() == Way::Ring && conn.in_flight() == 0;
    all_read && state & slot::UNREAD == 0 && !conn.socket.sent_late.load(Ordering::Relaxed)
}
