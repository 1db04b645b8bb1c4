//! What a peer that has ended left in its ring, for a program that cannot read it there.
//!
//! The peer's socket is gone, so nothing can be sent by it any more. The program gets another
//! connection in the place of this one, whose far end is this process's own: that sends what is left and
//! closes, as the peer has done.
//!
//! ```text
//! peer (ended) ──ring──┐
//!                      └─> far end ═══ kernel TCP ═══> near end, in the place of the connection
//! ```
//!
//! Its addresses are those of the connection, its ports are others.

use std::sync::atomic::Ordering;

use libc::{c_int, sockaddr_storage};
use shunt_abi::message::Role;
use shunt_shm::path;
use shunt_shm::path::unread::Unread;
use shunt_shm::slot::{self, Way};

use super::owed::{self, Debt};
use super::{Conn, recv};
use crate::{sys, thread};

/// What is left.
struct Left {
    /// Bytes at the head of the kernel's queue that come before it.
    queued: u64,
    /// Bytes at the head of what lies in the ring that are among those.
    skipped: u64,
}

/// The near end of a connection that brings what the peer, which has ended, left in its ring. `None`:
/// there is no such thing, or no such connection to be had. Nothing is taken of what is left: relatives
/// may have it, too, and another thread that is in a receive may take the same bytes out of the ring. Without a token.
#[cold]
pub(crate) fn for_ended_peer(conn: &Conn) -> Option<c_int> {
    let token = &conn.pair.own.receiving.token;
    if !conn.take(token) {
        return None;
    }
    let near = if has_ended(conn) { make(conn) } else { None };
    thread::give(token);
    near
}

/// Whether nothing comes of the peer any more, nor would it receive anything.
fn has_ended(conn: &Conn) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let own = conn.pair.own.face.state.load(Ordering::Relaxed);
    let peer = conn.pair.peer_state();
    let was_killed =
        || peer & slot::SHUT_WR == 0 && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0;
    path::is_deaf(own) || peer & slot::CLOSED != 0 || was_killed()
}

/// With the receiving token.
fn left(conn: &Conn) -> Option<Left> {
    let path = conn.receiver();
    if !recv::recount(conn) {
        return None;
    }
    let base = conn.base()?;
    let queued = sys::ioctl_int(base, libc::FIONREAD).ok()?.max(0) as u64;
    let unread = conn.unread_in_ring()?;
    if let Some(until) = path.is_bringing() {
        // The kernel may have the rest, and no room for it here yet.
        if Way::load(&conn.pair.peer.sending.way) == Way::TcpAgain {
            return None;
        }
        let missing = until.checked_sub(path.taken() + queued)?;
        return (1..=unread).contains(&missing).then(|| Left {
            queued,
            skipped: unread - missing,
        });
    }
    let before = path.switch_offset()?.saturating_sub(path.taken());
    let reads_ring = matches!(conn.way_in(), Way::Ring | Way::Tcp);
    (reads_ring && unread > 0 && before <= queued).then_some(Left {
        queued: before,
        skipped: 0,
    })
}

fn make(conn: &Conn) -> Option<c_int> {
    let left = left(conn)?;
    let base = conn.base()?;
    let [near, far] = connect(base, conn.socket.role())?;
    let sent = send_queued(base, far, left.queued) && {
        let there = Unread::of(conn.pair.own);
        let ring = conn.consumer().memory;
        owed::resend(&there, ring, left.skipped, far, owed::GROWTH_MS) == Some(Debt::Paid)
    };
    if !sent {
        // What has come is received before that is told.
        let reset = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let _ = sys::setsockopt(far, libc::SOL_SOCKET, libc::SO_LINGER, &reset);
    }
    sys::close(far);
    Some(near)
}

/// Sends what is at the head of a socket's queue, where it stays.
fn send_queued(base: c_int, far: c_int, bytes: u64) -> bool {
    let bytes = bytes as usize;
    if bytes == 0 {
        return true;
    }
    let copy = sys::map(bytes);
    if copy.is_null() {
        return false;
    }
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let done = sys::recv(base, copy, bytes, flags) == Ok(bytes)
        && sys::send_more(far, copy, bytes) == Ok(bytes);
    sys::unmap(copy, bytes);
    done
}

/// A connection between the addresses of `base`'s, of which this process has both ends: first the one
/// that takes its place, of the same role, with the same flags and timeouts.
fn connect(base: c_int, role: Role) -> Option<[c_int; 2]> {
    let [own, peer] = [false, true].map(|peer| sys::name(base, peer).ok());
    let (own, peer) = (without_port(own?), without_port(peer?));
    let ends = match role {
        Role::Acceptor => sys::connected(&own, &peer),
        Role::Connector => {
            sys::connected(&peer, &own).map(|[accepted, connected]| [connected, accepted])
        }
    }?;
    let flags = sys::fcntl(base, libc::F_GETFL, 0).unwrap_or(0);
    let _ = sys::fcntl(ends[0], libc::F_SETFL, flags);
    for timeout in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        if let Ok(time) = sys::getsockopt::<libc::timeval>(base, libc::SOL_SOCKET, timeout) {
            let _ = sys::setsockopt(ends[0], libc::SOL_SOCKET, timeout, &time);
        }
    }
    Some(ends)
}

/// A name whose port the kernel chooses.
fn without_port(mut name: sockaddr_storage) -> sockaddr_storage {
    // SAFETY: both families have the port at the same place, inside the storage.
    unsafe { (&raw mut name).cast::<u16>().add(1).write(0) };
    name
}
