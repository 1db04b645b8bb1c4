//! What is owed, and for how long it is waited for.

use shunt_shm::token::Token;

use crate::stream::conn::Conn;
use crate::{sys, thread};

/// How long the peer may be in the middle of sending to itself in our name, in
/// nanoseconds: a few system calls, unless it was stopped there.
pub(super) const PATIENCE: u64 = 5_000_000_000;

/// How long the kernel's socket is given to make room, in milliseconds.
pub(in crate::stream) const GROWTH_MS: i64 = 10;

/// Whether the peer reads our ring no more.
#[inline(always)]
pub(crate) fn is_recalled(conn: &Conn) -> bool {
    conn.sender().is_recalled()
}

/// Whether a recall is to be answered, or something to be sent again.
#[inline(always)]
pub(crate) fn is_due(conn: &Conn) -> bool {
    conn.sender().is_due()
}

/// Whether something is still to be sent again.
#[inline(always)]
pub(crate) fn is_owing(conn: &Conn) -> bool {
    conn.sender().is_owing()
}

/// Whether the peer's last process died with one of its tokens.
pub(super) fn has_died_with(conn: &Conn, token: &Token) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    thread::is_held_by_dead(token) && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0
}

/// Whether the peer has withdrawn what this side has not read, or is about to.
#[inline(always)]
pub(crate) fn is_withdrawn(conn: &Conn) -> bool {
    conn.receiver().is_withdrawn()
}
