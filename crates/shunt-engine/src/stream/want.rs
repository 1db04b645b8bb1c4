//! What a call waits for, whether it has come, and how the wait ends.

use std::sync::atomic::Ordering;

use shunt_shm::slot::{self, Way};
use shunt_shm::token::Token;

use super::conn::Conn;
use super::owed;
use crate::socket::Socket;
use crate::sys::Errno;
use crate::thread::signals::Seen;
use crate::wake::Places;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Something to read.
    Data,
    /// Room to write.
    Room,
}

impl Want {
    /// One sleeper of this kind in `Receiving::sleepers`.
    pub(super) fn unit(self) -> u32 {
        match self {
            Self::Data => 1,
            Self::Room => 1 << 16,
        }
    }

    /// How many sleepers of this kind a word of `Receiving::sleepers` counts.
    pub(super) fn count(self, sleepers: u32) -> u32 {
        match self {
            Self::Data => sleepers & 0xffff,
            Self::Room => sleepers >> 16,
        }
    }

    /// The places of this process's sleepers of this kind.
    pub(super) fn places(self, socket: &Socket) -> &Places {
        match self {
            Self::Data => &socket.places[0],
            Self::Room => &socket.places[1],
        }
    }

    pub(super) fn bit(self) -> u32 {
        match self {
            Self::Data => slot::WAIT_RX,
            Self::Room => slot::WAIT_TX,
        }
    }
}

pub(super) fn token<'a>(conn: &Conn<'a>, want: Want) -> &'a Token {
    match want {
        Want::Data => &conn.pair.own.receiving.token,
        Want::Room => &conn.pair.own.sending.token,
    }
}

pub(super) fn is_ready(conn: &Conn, want: Want) -> bool {
    match want {
        // On TCP the kernel wakes us; look at the ring once the peer has switched.
        Want::Data if conn.way_in() != Way::Ring => false,
        // The peer calls when its withdrawal is over, unless TCP brings the bytes.
        Want::Data if owed::is_being_withdrawn(conn) => false,
        Want::Data => {
            conn.consumer().is_ready() || owed::is_withdrawn(conn) || conn.is_ended_in_memory()
        }
        Want::Room if owed::cannot_send(conn) => false,
        Want::Room => {
            conn.has_room()
                || conn.way_out() != Way::Ring
                || conn.is_shut()
                || owed::is_recalled(conn)
        }
    }
}

/// A wait's deadline in nanoseconds of the monotonic clock; `Some(None)`: none.
pub(crate) type Deadline = Option<Option<u64>>;

/// The error of a call whose number does not name the connection any more: `EINTR` if a signal ends it, since
/// the kernel sees that before it looks the number up.
pub(super) fn lost(seen: Seen) -> Errno {
    if seen.interrupting_since() {
        libc::EINTR
    } else {
        libc::EBADF
    }
}

/// Whether a thread sleeps until there is room. With the sending token.
pub(super) fn any_waits_for_room(conn: &Conn) -> bool {
    conn.pair.own.receiving.sleepers.load(Ordering::Acquire) >= Want::Room.unit()
}

/// Whether only a peer's call can wake a thread that waits for this: the kernel does not know of it, or will not once
/// the peer has moved to its ring.
pub(crate) fn must_be_called(conn: &Conn, want: Want) -> bool {
    match want {
        Want::Data => {
            matches!(conn.way_in(), Way::Ring | Way::Tcp) && !conn.receiver().stays_in_ring()
        }
        Want::Room => conn.is_on_ring(),
    }
}

/// Whether a peer's call may be needed to wake a thread that waits for the connection.
pub(crate) fn is_on_rings(conn: &Conn) -> bool {
    must_be_called(conn, Want::Data) || must_be_called(conn, Want::Room)
}

/// Whether a signal ends the program's call: one with a timeout is never restarted (signal(7)).
pub(super) fn is_interrupted(until: Option<u64>, seen: Seen) -> bool {
    if until.is_some() {
        seen.any_since()
    } else {
        seen.interrupting_since()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_of_both_kinds_are_counted_in_one_word() {
        let sleepers = 3 * Want::Data.unit() + 2 * Want::Room.unit();
        assert_eq!(
            (Want::Data.count(sleepers), Want::Room.count(sleepers)),
            (3, 2)
        );
        assert_ne!(Want::Data.bit(), Want::Room.bit());
    }

    #[test]
    fn a_call_with_a_timeout_ends_by_any_handler_and_others_as_it_says() {
        use crate::thread::signals;
        let seen = signals::now();
        assert!(!is_interrupted(Some(1), seen) && lost(seen) == libc::EBADF);
        signals::count_one(true);
        assert!(is_interrupted(Some(1), seen) && !is_interrupted(None, seen));
        signals::count_one(false);
        assert!(is_interrupted(None, seen) && lost(seen) == libc::EINTR);
    }
}
