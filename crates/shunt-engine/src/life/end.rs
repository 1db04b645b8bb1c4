//! The end of a socket's life.

use super::closing::close_copy;
use crate::socket::Socket;
use crate::socket::above::Above;
use crate::{control, epoll, stats, upgrade};

/// The functions that the rooms below call when a socket ends.
pub(super) static ABOVE: Above = Above {
    end,
    close_copy,
    look_again: epoll::look_again,
    may_return: upgrade::may_return,
    bury,
};

/// No descriptor names it, and no call is left that has slept on it.
fn end(socket: &'static Socket) {
    if socket.inside.is_empty() {
        socket.share.leave();
    }
    epoll::forget(socket);
    stats::add(socket);
    socket.leave_slots();
    upgrade::note_end(socket);
    if socket.retire() {
        bury(socket);
    }
}

/// No thread is inside a real call on the socket any more: its object is free.
#[cold]
fn bury(socket: &'static Socket) {
    socket.lose_memory();
    control::bury(socket);
}
