//! `--upgrade=sync`, for tests: `connect` and `accept` return when both ends are attached, so
//! that the very first byte goes through the ring.
//!
//! ```text
//! connector:  claims │ connect │ waits until the acceptor is attached │ attaches
//! acceptor:                     accept │ claims │ attaches │ attaches the other end, if this
//!                                                   process has it, or waits until it is attached
//! ```
//!
//! Every wait is bounded, and nobody waits for what cannot come: a plain peer, or an `accept`
//! that the same thread has still to make. A connect that did not block is completed by the call
//! that asks for its outcome, or by the first one that uses it.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::Role;
use shunt_shm::slot;

use super::attach::{attach_paired, hear};
use super::trial;
use crate::config::{self, Upgrade};
use crate::epoll::Known;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::stream::{self, Conn};
use crate::thread::{self, is_alone};
use crate::{control, sys};

/// The longest that one call waits, in nanoseconds.
const LONGEST: u64 = 150_000_000;

/// The longest that a call waits for an `accept` that this thread will make itself, unless another
/// thread has just begun one.
const SHORT: u64 = 5_000_000;

/// After this many waits in a row that came to nothing a process waits for [`SHORT`] at most, until a wait
/// has met its other end: otherwise a program that first makes many connections and then accepts them would
/// take minutes.
const MANY_VAIN: u32 = 4;
static VAIN: AtomicU32 = AtomicU32::new(0);

/// In [`Socket::watcher`]: another process has the listener since a fork.
const ANYONE: u64 = u64::MAX;

fn is_on() -> bool {
    config::upgrade() == Upgrade::Sync
}

/// Whether the next call on a connection should complete it. Not if another program or process has made it: bytes may have been
/// sent on it, its other end need not be in a call soon, and a call that waits for that before its own sleep would not be
/// interrupted by a signal.
#[inline]
pub(super) fn is_due(socket: &Socket) -> bool {
    (is_on() || socket.tries()) && !is_past(socket)
}

/// Whether it was completed, or never will be.
fn is_past(socket: &Socket) -> bool {
    socket.completed.load(Ordering::Relaxed) || socket.adopted.load(Ordering::Relaxed)
}

/// Notes that this thread accepts or polls at a listener, and so will probably accept.
#[inline]
pub(crate) fn watches(listener: &Socket) {
    if is_on() && listener.stage() == Stage::Listener {
        listener.watcher.store(thread::here(), Ordering::Relaxed);
    }
}

/// From a fork on, another process may accept.
pub(crate) fn before_fork(listener: &Socket) {
    if listener.stage() == Stage::Listener {
        listener.watcher.store(ANYONE, Ordering::Relaxed);
    }
}

/// Called once for each connection that has been made: waits, within bounds, until both of its ends
/// are attached.
pub(crate) fn complete(socket: &'static Socket, fd: c_int) {
    let begun = matches!(socket.stage(), Stage::Claimed | Stage::Paired);
    if !begun || !is_due(socket) || sys::name(fd, true).is_err() {
        return;
    }
    socket.completed.store(true, Ordering::Relaxed);
    let start = sys::now();
    while !is_settled(socket, fd) {
        let passed = sys::now() - start;
        let longest = if is_on() {
            longest()
        } else {
            trial::longest(socket)
        };
        if passed >= patience(socket).min(longest) {
            return give_up(socket, passed);
        }
        control::nap();
    }
    if socket.stage() == Stage::Attached && has_come(socket) {
        VAIN.store(0, Ordering::Relaxed);
    }
}

/// Whether this wait shows that waiting pays. It does not if this process has accepted its own
/// connection: the connector may have waited for that without success.
fn has_come(socket: &Socket) -> bool {
    socket.role() != Role::Acceptor || other_end(socket).is_none()
}

/// The longest that a call waits just now, in nanoseconds.
pub(crate) fn longest() -> u64 {
    if VAIN.load(Ordering::Relaxed) < MANY_VAIN {
        LONGEST
    } else {
        SHORT
    }
}

/// For how long to wait for the other end of a connection, in nanoseconds.
fn patience(socket: &Socket) -> u64 {
    if socket.stage() != Stage::Claimed || socket.role() == Role::Acceptor {
        return LONGEST;
    }
    let Some(listener) = listener(socket.port()) else {
        return LONGEST;
    };
    match listener.watcher.load(Ordering::Relaxed) {
        ANYONE => LONGEST,
        _ if is_alone() => 0,
        watcher if watcher == thread::here() => SHORT,
        _ => LONGEST,
    }
}

/// Does what can be done now. `true`: there is nothing more to wait for.
fn is_settled(socket: &'static Socket, fd: c_int) -> bool {
    control::check_mail();
    match socket.stage() {
        Stage::Claimed => socket.role() == Role::Acceptor && socket.answered(),
        Stage::Paired => attach_paired(socket, fd, Known::Nothing) && is_attached_there(socket),
        Stage::Attached => is_attached_there(socket),
        _ => true,
    }
}

/// Whether the other end is attached too, or will not be; attaches it if this process has it.
fn is_attached_there(socket: &'static Socket) -> bool {
    let Some(pair) = socket.pair() else {
        return true;
    };
    hear(pair);
    if pair.peer_state() & (slot::READY | slot::REFUSED) != 0 {
        // Between hosts the first byte goes through the ring once the peer has agreed to that.
        let conn = Conn::new(socket, socket.fd()).filter(Conn::is_mirrored);
        return conn.is_none_or(|conn| stream::is_agreed(&conn));
    }
    let Some(other) = other_end(socket).filter(|other| other.stage() == Stage::Paired) else {
        return false;
    };
    if attach_paired(other, other.fd(), Known::Nothing) {
        return true;
    }
    // If another thread is busy with it, it may be done in a moment.
    is_alone() || !matches!(other.reason(), Reason::Busy | Reason::Pending)
}

/// The other end of a paired connection, if this process has it.
fn other_end(socket: &Socket) -> Option<&'static Socket> {
    let pair = socket.pair()?;
    let is_other = |other: &&Socket| {
        !std::ptr::eq(*other, socket)
            && matches!(other.stage(), Stage::Paired | Stage::Attached)
            && other
                .pair()
                .is_some_and(|its| (its.link.id(), its.number) == (pair.link.id(), pair.number))
    };
    SOCKETS.each().find(is_other)
}

/// This process's listener there.
fn listener(port: u16) -> Option<&'static Socket> {
    let mut sockets = SOCKETS.each();
    sockets.find(|socket| socket.stage() == Stage::Listener && socket.port() == port)
}

/// Ends a wait that took too long. If no thread is known to accept there, notes this one, which will
/// have to.
fn give_up(socket: &Socket, waited: u64) {
    let o = Ordering::Relaxed;
    if waited >= LONGEST {
        VAIN.fetch_add(1, o);
    }
    if socket.stage() == Stage::Claimed
        && let Some(listener) = listener(socket.port())
    {
        let _ = listener.watcher.compare_exchange(0, thread::here(), o, o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_waited_for_once_and_not_if_it_was_made_elsewhere() {
        let socket = Socket::enter(302_100, Stage::Claimed).unwrap();
        assert!(!is_past(socket));
        socket.adopted.store(true, Ordering::Relaxed);
        assert!(is_past(socket));
        socket.adopted.store(false, Ordering::Relaxed);
        socket.completed.store(true, Ordering::Relaxed);
        assert!(is_past(socket));
    }
}
