//! Downgrades that `shunt downgrade`, a changed policy or a restless test has asked for: done when a call
//! is about to wait.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;

use super::leave::is_too_much_for_tcp;
use super::{Conn, give_up, owed};
use crate::socket::{Socket, Stage};
use crate::{config, control, table, thread};

/// Does what was asked for. Without a token.
#[inline]
pub(crate) fn see_to_wishes() {
    let all = config::is_restless();
    if all || control::take_wishes() {
        go_back(all);
    }
}

#[cold]
fn go_back(all: bool) {
    if !thread::owns_memory() {
        return;
    }
    table::each(|fd, word| {
        let Some(socket) = word.get::<Socket>() else {
            return;
        };
        if let Some(conn) = Conn::attached(socket, fd)
            && conn.is_mirrored()
            && owed::is_due(&conn)
        {
            owed::answer(&conn);
        }
        let wished = Reason::from_number(socket.dealings.wished.load(Ordering::Relaxed));
        if !(wished.is_some() || all && socket.stage() == Stage::Attached) {
            return;
        }
        // Nothing needs TCP at once: the peer may first read some of what is unread.
        if Conn::attached(socket, fd).is_some_and(|conn| is_too_much_for_tcp(&conn)) {
            if wished.is_some() {
                control::wish_again();
            }
            return;
        }
        socket.dealings.wished.store(0, Ordering::Relaxed);
        give_up(socket, fd, wished.unwrap_or(Reason::Requested), |_| ());
    });
}
