//! The way back to TCP, both ways, of a connection whose other end is on another host. That host's process must say which of its bytes
//! come by TCP, and does so in its next call, whatever that is for.

use shunt_abi::Reason;
use shunt_shm::slot::Way;

use super::Conn;
use super::errors::keep_error;
use super::leave::leave_ring_within;
use super::owed;
use super::recv::{Resumption, follow, settle};
use crate::thread::{Rest, give};
use crate::{reach, sys};

/// Makes the connection a plain kernel socket, if the peer answers within `patience` nanoseconds. The caller holds no token.
#[cold]
pub(super) fn downgrade(conn: &Conn, reason: Reason, patience: u64) -> bool {
    if !reach::is_here() {
        return false;
    }
    leave_ring_within(conn, reason, 0);
    let (link, slot) = conn.at_nic();
    reach::recall(link, slot);
    let until = sys::now() + patience;
    let rest = Rest::new();
    loop {
        if owed::is_due(conn) {
            owed::answer(conn);
        }
        let token = &conn.pair.own.receiving.token;
        if !conn.take(token) {
            return false;
        }
        let is_home = is_home(conn);
        give(token);
        if is_home || sys::now() >= until {
            return is_home;
        }
        rest.turn();
    }
}

/// Whether TCP carries everything that is unread, and nothing else comes before it. With the receiving token.
fn is_home(conn: &Conn) -> bool {
    reach::progress();
    let path = conn.receiver();
    if conn.way_in() == Way::Ring {
        let found = follow(conn, false);
        if let Resumption::Failed(errno) = found {
            keep_error(conn, errno);
        }
        let ends = matches!(found, Resumption::End | Resumption::Failed(_));
        if ends && !conn.consumer().is_ready() {
            path.follow_back();
        }
    }
    if conn.way_in() == Way::Tcp && !settle(conn) && path.switch_offset().is_none() {
        // And the peer cannot enter its ring any more.
        path.skip();
    }
    conn.way_in() == Way::TcpAgain
}
