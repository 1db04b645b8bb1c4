//! What the end of a descriptor means for the socket or the set that it names.

use libc::c_int;
use shunt_abi::Reason;

use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{Socket, Stage};
use crate::stream::{self, Conn};
use crate::{control, epoll, recycle, sys};

/// Bookkeeping for a descriptor about to be closed.
pub(crate) fn closing(fd: c_int, entry: Entry) {
    match entry {
        Entry::Socket(socket) => closing_socket(socket, fd),
        Entry::Set(set) => {
            set.forget_fd(fd);
            entry::enter(fd, Entry::Other);
            set.unhold();
        }
        Entry::Ours | Entry::Other => {}
    }
}

/// The same of a socket.
fn closing_socket(socket: &'static Socket, fd: c_int) {
    socket.forget_fd(fd);
    let conn = Conn::attached(socket, fd);
    // The copy keeps the socket from here on, in the place of this descriptor.
    let handed = conn.is_some_and(|conn| stream::hand_over(&conn));
    let is_last = !handed && socket.holds() == 1;
    if is_last && recycle::put_aside(socket, fd) {
        return;
    }
    if is_last {
        ending(socket, fd);
    } else if socket.fd() == fd
        && let Some(conn) = conn
    {
        // No other descriptor has taken its place.
        stream::before_close_under_sleeper(&conn);
    }
    entry::enter(fd, Entry::Other);
    if !is_last {
        socket.lose_fd(fd);
    }
    if let Some(conn) = Conn::attached(socket, fd) {
        stream::let_go(&conn);
    }
    if handed {
        return;
    }
    if is_last {
        socket.unhold();
    } else if !socket.unhold_one_of_several() {
        // Another thread has closed the others meanwhile.
        ending(socket, fd);
        socket.unhold();
    }
}

/// The last of the calls ends that went on by a copy of a closed descriptor.
pub(super) fn close_copy(socket: &'static Socket, copy: c_int) {
    // The program may have closed the number behind our back.
    let is_ours = Conn::attached(socket, copy).is_some_and(|conn| conn.is_named());
    let fd = if is_ours { copy } else { -1 };
    closing_socket(socket, fd);
    if is_ours {
        sys::close(fd);
    }
}

/// The last descriptor of a socket is about to be closed.
fn ending(socket: &'static Socket, fd: c_int) {
    match socket.stage() {
        Stage::Attached => {
            if socket.reason() == Reason::Passed {
                epoll::give_back_of(socket);
            }
            if let Some(conn) = Conn::new(socket, fd) {
                stream::before_close(&conn);
            }
        }
        Stage::Listener => {
            control::unlisten(socket);
            recycle::forget_listener(socket);
        }
        Stage::Claimed | Stage::Paired => epoll::part(socket, fd),
        _ => {}
    }
}
