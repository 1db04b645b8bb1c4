//! A stand-in for a peer that has ended: what that left in its ring goes to a program that needs TCP.
//!
//! Nothing can be sent any more by the socket of the peer. So this side disconnects its own socket and connects it anew, to another
//! socket of this process: the stand-in. That one sends what is left, and closes as the peer has done.
//!
//! ```text
//! peer (ended) ──ring──┐
//!                      └─> far end ═══ kernel TCP ═══> the connection's own socket
//! ```
//!
//! It is the same open file as before: whoever has it, also other processes and threads in the middle of
//! a call, finds there what is left, and no byte of it twice. Its addresses are the old ones, its ports are others.

use std::ops::Range;
use std::sync::atomic::Ordering;

use libc::{c_int, sockaddr_storage};
use shunt_shm::path;
use shunt_shm::path::unread::Unread;
use shunt_shm::slot::{self, Way};

use super::owed::{self, Debt, Roomy};
use super::{Conn, recv};
use crate::config::hesitate;
use crate::sys::Listener;
use crate::{sys, thread};

/// What is left: in the kernel's queue, and in the ring.
struct Left {
    queued: usize,
    /// How many of the bytes in the kernel's queue come before what lies in the ring; the others, of a peer that had left its
    /// ring, come behind that.
    before: usize,
    /// How many bytes at the head of the ring are also among those in the queue, and so to be skipped.
    skipped: u64,
}

/// If the peer has ended and left something in its ring, the kernel has it from here on. Without a token.
#[cold]
pub(crate) fn stand_in_for_ended_peer(conn: &Conn) {
    let own = conn.pair.own;
    // Both, so that nobody finds the socket unconnected.
    if !conn.take(&own.sending.token) {
        return;
    }
    let mut replaced = false;
    if conn.take(&own.receiving.token) {
        replaced = has_ended(conn) && replace_peer(conn).is_some();
        thread::give(&own.receiving.token);
    }
    thread::give(&own.sending.token);
    if replaced {
        conn.socket.again.stay();
        conn.socket.look_again();
    }
}

/// Whether the connection has become another one since its bytes came that way, so that what the kernel said of it
/// before says nothing of it now. Without a token.
#[cold]
pub(crate) fn has_been_replaced(conn: &Conn, since: Way) -> bool {
    let token = &conn.pair.own.receiving.token;
    if since != Way::TcpAgain && token.is_taken() && conn.take(token) {
        thread::give(token);
    }
    conn.way_in() != since
}

/// Whether nothing comes of the peer any more, nor is anything on its way to it.
fn has_ended(conn: &Conn) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let own = conn.pair.own.face.state.load(Ordering::Relaxed);
    let peer = conn.pair.peer_state();
    let was_killed =
        || peer & slot::SHUT_WR == 0 && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0;
    // A peer that goes on is told of our end: it has that by now.
    let has_all = || !owed::is_owing(conn) && sys::ioctl_int(conn.fd, libc::TIOCOUTQ) == Ok(0);
    peer & slot::CLOSED != 0 || was_killed() || path::is_deaf(own) && has_all()
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
            queued: queued as usize,
            before: queued as usize,
            skipped: unread - missing,
        });
    }
    let before = path.switch_offset()?.saturating_sub(path.taken());
    let reads_ring = matches!(conn.way_in(), Way::Ring | Way::Tcp);
    (reads_ring && unread > 0 && before <= queued).then_some(Left {
        queued: queued as usize,
        before: before as usize,
        skipped: 0,
    })
}

/// With both tokens. `None`: nothing is left, or there is no such connection to be had.
fn replace_peer(conn: &Conn) -> Option<()> {
    let left = left(conn)?;
    let base = conn.base()?;
    let [own, peer] = [false, true].map(|peer| sys::name(base, peer).ok().map(without_port));
    let own = own?;
    // The kernel does not say who the peer was once it has reset the connection.
    let listener = Listener::at(&peer.unwrap_or(own), &own)?;
    let queued = Copied::from_queue(base, left.queued)?;
    let roomy = Roomy::new(base);
    sys::reset(base);
    hesitate();
    let Some(far) = listener.connect(base, &own) else {
        // Other programs find no connection; here what is in the ring is read before that is told.
        conn.error().store(libc::ECONNRESET, Ordering::Relaxed);
        return None;
    };
    let from_ring = || {
        let there = Unread::of(conn.pair.own);
        let ring = conn.consumer().memory;
        owed::resend(&there, ring, left.skipped, far, owed::GROWTH_MS) == Some(Debt::Paid)
    };
    let sent = queued.send(far, 0..left.before)
        && from_ring()
        && queued.send(far, left.before..left.queued);
    hesitate();
    drop(roomy);
    if !sent {
        // What has come is received before that is told.
        let reset = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let _ = sys::setsockopt(far, libc::SOL_SOCKET, libc::SO_LINGER, &reset);
    }
    if conn.is_shut() {
        let _ = sys::shutdown(base, libc::SHUT_WR);
    }
    sys::close(far);
    conn.sender().stay_with_kernel();
    conn.receiver().leave_to_kernel();
    Some(())
}

/// What was at the head of a socket's queue.
struct Copied {
    at: *mut u8,
    bytes: usize,
}

impl Copied {
    /// It stays there. `None`: no memory for it.
    fn from_queue(base: c_int, bytes: usize) -> Option<Self> {
        let at = if bytes == 0 {
            std::ptr::null_mut()
        } else {
            sys::map(bytes)
        };
        let copied = Self { at, bytes };
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let is_whole =
            bytes == 0 || !at.is_null() && sys::recv(base, at, bytes, flags) == Ok(bytes);
        is_whole.then_some(copied)
    }

    fn send(&self, fd: c_int, part: Range<usize>) -> bool {
        part.is_empty() || {
            let from = self.at.wrapping_add(part.start);
            sys::send_more(fd, from, part.len()) == Ok(part.len())
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if !self.at.is_null() {
            sys::unmap(self.at, self.bytes);
        }
    }
}

/// A name whose port the kernel chooses.
fn without_port(mut name: sockaddr_storage) -> sockaddr_storage {
    // SAFETY: both families have the port at the same place, inside the storage.
    unsafe { (&raw mut name).cast::<u16>().add(1).write(0) };
    name
}
