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

/// What an ended peer has left unread: in the kernel's queue, and in the ring.
struct Left {
    queued: usize,
    /// How many of the bytes in the kernel's queue come before what lies in the ring; the others, of a peer that had left its
    /// ring, come behind that.
    before: usize,
    /// How many bytes at the head of the ring TCP has brought already (they are in the queue, or were received), and so are
    /// skipped.
    skipped: u64,
}

/// If the peer has ended and left something in its ring, the kernel has it from here on. Without a token.
#[cold]
pub(crate) fn stand_in_for_ended_peer(conn: &Conn) {
    let own = conn.pair.own;
    // Both tokens, so that nobody finds the socket unconnected.
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

/// Whether a stand-in has replaced the peer since the incoming direction was in the way `since`: then what the
/// kernel said of the connection before is void. Without a token.
#[cold]
pub(crate) fn has_been_replaced(conn: &Conn, since: Way) -> bool {
    let token = &conn.pair.own.receiving.token;
    if since != Way::TcpAgain && token.is_taken() && conn.take(token) {
        thread::give(token);
    }
    conn.way_in() != since
}

/// Whether the peer sends nothing more, and nothing is on its way to it.
fn has_ended(conn: &Conn) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let own = conn.pair.own.face.state.load(Ordering::Relaxed);
    let peer = conn.pair.peer_state();
    let was_killed =
        || peer & slot::SHUT_WR == 0 && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0;
    // A peer that has not ended must hear of our end: it has, if nothing is queued for it.
    let has_all = || !owed::is_owing(conn) && sys::ioctl_int(conn.fd, libc::TIOCOUTQ) == Ok(0);
    peer & slot::CLOSED != 0 || was_killed() || path::is_deaf(own) && has_all()
}

/// What the ended peer has left; `None`: nothing, or it is not known. With the receiving token.
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

/// Replaces the ended peer by a stand-in, which sends what is left. With both tokens. `None`: nothing is left, or no such
/// connection can be made.
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
        // Other programs that have the socket find it unconnected. This process reads what is in the ring before it reports the
        // error.
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
        // Not all could be sent: the stand-in resets the connection, which is seen after the bytes that have come.
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

/// A copy of the bytes at the head of a socket's queue.
struct Copied {
    at: *mut u8,
    bytes: usize,
}

impl Copied {
    /// Copies them; they stay in the queue. `None`: there is no memory for the copy.
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
