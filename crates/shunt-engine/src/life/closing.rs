//! What the end of a descriptor means for the socket or the set that it names.

use libc::c_int;
use shunt_abi::Reason;

use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{Socket, Stage};
use crate::stream::{self, Conn};
use crate::{control, epoll, recycle, sys, tcp};

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

/// Bookkeeping for a descriptor of a socket that is about to be closed.
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
        // No other descriptor has taken the place of this one.
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
        // Another thread has closed the other descriptors meanwhile.
        ending(socket, fd);
        socket.unhold();
    }
}

/// The last of the calls that used a copy of a closed descriptor has ended: closes the copy.
pub(super) fn close_copy(socket: &'static Socket, copy: c_int) {
    // The program may have closed the number behind our back.
    let is_ours = Conn::attached(socket, copy).is_some_and(|conn| conn.is_named());
    let fd = if is_ours { copy } else { -1 };
    closing_socket(socket, fd);
    if is_ours {
        sys::close(fd);
    }
}

/// Notes that a connection on which its peer has sent something was accepted, and is in no
/// listener's queue any more.
fn note_answered(socket: &Socket, fd: c_int) {
    if tcp::consumed_at_last(fd).is_some_and(|bytes| bytes > 0) {
        socket.queued.note_end(socket.port());
    }
}

/// The last descriptor of a socket is about to be closed.
fn ending(socket: &'static Socket, fd: c_int) {
    if socket.queued.is_open() && control::accelerates(socket.port()) {
        note_answered(socket, fd);
    }
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
        Stage::Claimed | Stage::Paired => epoll::unregister_before_close(socket, fd),
        _ => {}
    }
    // Work beside this close may use the socket for some time yet, of which no set tells anything any more.
    epoll::forget(socket);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use libc::epoll_event;

    use crate::both_ends::{BothEnds, loopback, one_at_a_time};
    use crate::epoll::{Room, Set};
    use crate::socket::is_any_queued;
    use crate::{Outcome, hold, thread};

    /// Whether a connection that is closed may still be in the queue. `answers`: its peer has sent something.
    fn is_left_in_queue(answers: bool) -> bool {
        let _alone = one_at_a_time();
        thread::learn_pid();
        let listener = sys::Listener::at(&loopback(), &loopback()).unwrap();
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        let socket = Socket::enter(fd, Stage::Candidate).unwrap();
        const PORT: u16 = 4;
        socket.set_port(PORT);
        socket.queued.note_connect(PORT);
        let accepted = listener.connect(fd, &loopback()).unwrap();
        let mut byte = 0u8;
        if answers {
            // SAFETY: a byte of this test's, here and below.
            let written = unsafe { libc::write(accepted, (&raw const byte).cast(), 1) };
            // SAFETY: as above.
            let read = unsafe { libc::read(fd, (&raw mut byte).cast(), 1) };
            assert_eq!((written, read), (1, 1));
        }
        note_answered(socket, fd);
        let is_left = is_any_queued(PORT);
        closing(fd, Entry::Socket(socket));
        sys::close(fd);
        sys::close(accepted);
        is_left
    }

    /// What a set tells of a shunted connection that the program has closed, while work of the library's own on it goes on.
    #[test]
    fn a_connection_that_is_closed_beside_work_on_it_is_in_no_set() {
        let ends = BothEnds::attached();
        let ([_, socket], [_, fd]) = (ends.sockets, ends.fds);
        let set_fd = sys::epoll_create().unwrap();
        Set::enter(set_fd);
        let set = Set::of(set_fd).unwrap();
        let told = || {
            let mut events = [epoll_event { events: 0, u64: 0 }; 2];
            // SAFETY: the array is there as long as the room is.
            let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
            epoll::collect(set, &mut room, true, 0)
        };
        let event = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 7,
        };
        let registered = epoll::register(set, libc::EPOLL_CTL_ADD, socket, fd, event);
        assert_eq!(registered, Outcome::Done(0));
        ends.send(b"x");
        assert_eq!(told(), 1);
        hold::beside_close(socket, || {
            closing(fd, Entry::Socket(socket));
            // The number names another file now, as after a `close` and an `open`.
            sys::dup3(set_fd, fd, 0).unwrap();
            assert_eq!(told(), 0);
        });
        closing(set_fd, Entry::Set(set));
        sys::close(set_fd);
    }

    #[test]
    fn who_was_answered_has_been_accepted() {
        assert!(!is_left_in_queue(true));
        assert!(is_left_in_queue(false));
    }
}
