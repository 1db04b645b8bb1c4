//! A connection is closed: is it kept for the next one? Only if it is as it was made, and there is room; how many
//! says [`super::store`] (64), and for how long [`super::lock`] (a second).

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;

use super::{lock, open};
use crate::hold;
use crate::socket::Socket;
use crate::stream::{self, Conn};
use crate::table::{self, Word};
use crate::{config, epoll, stats, sys, upgrade};

/// The last descriptor of a connection is about to be closed. `true`: it is kept instead of the connection's end, which the
/// peer has been told of in memory; the number names nothing any more, and the caller closes it.
pub(crate) fn put_aside(socket: &'static Socket, fd: c_int) -> bool {
    if !config::recycles() || config::is_confined() || !is_as_made(socket) {
        return false;
    }
    let listener = socket.origin.listener();
    if listener.is_some_and(|listener| !listener.accepts.keeps.is_due()) {
        return false;
    }
    let Some(conn) = Conn::attached(socket, fd) else {
        return false;
    };
    let watched = !socket.items.is_empty();
    if !epoll::leave_sets(socket, fd) {
        return false;
    }
    let Some(locked) = lock::lock() else {
        return false;
    };
    let Some(room) = locked.room() else {
        return false;
    };
    let Ok(copy) = lock::copy(fd) else {
        return false;
    };
    if !stream::put_aside(&conn, watched) {
        sys::close(copy);
        return false;
    }
    stats::add_and_begin(socket);
    upgrade::trial::note_kept(socket);
    if let Some(listener) = listener {
        listener.accepts.keeps.begin();
    }
    socket.put_aside(copy);
    room.keep(&locked, socket, copy);
    table::enter(fd, Word::NOTHING);
    stream::let_go(&conn);
    open::open_if_alone(&locked, room);
    true
}

/// Whether no other process has ever had the socket, and nothing was done to it that the next connection would notice.
fn is_as_made(socket: &Socket) -> bool {
    let o = Ordering::Relaxed;
    socket.origin.is_known()
        && socket.cookie() != 0
        && !socket.settings.is_odd.load(o)
        && socket.settings.timeouts.load(o) & crate::socket::SETS_TIMEOUTS == 0
        && socket.share.is_unknown()
        && !socket.adopted.load(o)
        && !socket.was_reset.load(o)
        && !socket.is_downgraded()
        && socket.reason() == Reason::Pending
        && !socket.handed.has_calls()
        && !hold::is_any_beside(socket)
        && socket.pair().is_some_and(|pair| !pair.link.is_retired())
}
