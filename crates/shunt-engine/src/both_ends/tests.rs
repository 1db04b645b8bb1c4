//! How a connection behaves whose ends are both here.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::slot::{self, Way};

use super::BothEnds;
use crate::Outcome;
use crate::epoll::{Known, Set};
use crate::hold::Held;
use crate::socket::Stage;
use crate::stream::{self, Conn};
use crate::table::{self, Word};
use crate::{epoll, sys, upgrade};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const NOW: c_int = libc::MSG_DONTWAIT;

fn part(base: *const u8, iov_len: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut().cast(),
        iov_len,
    }
}

fn send(conn: &Conn, bytes: &[u8]) -> Outcome {
    let parts = [part(bytes.as_ptr(), bytes.len())];
    // SAFETY: the bytes are there.
    unsafe { stream::send(conn, &parts, NOW | libc::MSG_NOSIGNAL) }
}

fn receive(conn: &Conn, flags: c_int) -> Result<Vec<u8>, Outcome> {
    let mut buffer = [0u8; 64];
    let parts = [part(buffer.as_mut_ptr(), buffer.len())];
    // SAFETY: the part covers the array `buffer`.
    match unsafe { stream::receive(conn, &parts, NOW | flags) } {
        Outcome::Done(n) => Ok(buffer[..n as usize].to_vec()),
        // The caller makes the real call then.
        Outcome::Kernel => match sys::recv(conn.fd, buffer.as_mut_ptr(), buffer.len(), NOW | flags)
        {
            Ok(n) => Ok(buffer[..n].to_vec()),
            Err(errno) => Err(Outcome::Fail(errno)),
        },
        other => Err(other),
    }
}

#[test]
fn a_paired_connection_is_attached_by_the_next_call() {
    let ends = BothEnds::paired();
    let [one, _] = ends.sockets;
    assert!(Conn::of(ends.fds[0]).is_none());
    assert!(upgrade::progress(one, ends.fds[0], Known::Nothing));
    assert_eq!(one.stage(), Stage::Attached);
    assert!(Conn::of(ends.fds[0]).is_some());
    let state = one.pair().unwrap().own.face.state.load(Ordering::Relaxed);
    assert_eq!(state & slot::READY, slot::READY);
}

#[test]
fn a_socket_with_a_signal_for_input_is_refused_and_the_peer_told() {
    let ends = BothEnds::paired();
    let ([one, other], [fd, _]) = (ends.sockets, ends.fds);
    sys::fcntl(fd, libc::F_SETFL, libc::O_ASYNC as usize).unwrap();
    assert!(!upgrade::progress(one, fd, Known::Nothing));
    assert_eq!((one.stage(), one.reason()), (Stage::Plain, Reason::AsyncIo));
    assert!(!upgrade::progress(other, ends.fds[1], Known::Nothing));
    assert_eq!(
        (other.stage(), other.reason()),
        (Stage::Plain, Reason::PeerRefused)
    );
}

#[test]
fn a_socket_that_waits_for_more_than_a_byte_is_refused() {
    let ends = BothEnds::paired();
    let fd = ends.fds[0];
    sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &2).unwrap();
    assert!(!upgrade::progress(ends.sockets[0], fd, Known::Nothing));
    assert_eq!(ends.sockets[0].reason(), Reason::SocketOption);
}

#[test]
fn while_a_thread_is_in_a_real_call_the_socket_is_busy() {
    let ends = BothEnds::paired();
    let (socket, fd) = (ends.sockets[0], ends.fds[0]);
    assert!(socket.go_in(fd, crate::socket::RECEIVER));
    assert!(!upgrade::progress(socket, fd, Known::Nothing));
    assert_eq!(
        (socket.stage(), socket.reason()),
        (Stage::Paired, Reason::Busy)
    );
    socket.go_out(crate::socket::RECEIVER);
    assert!(upgrade::progress(socket, fd, Known::Nothing));
}

#[test]
fn a_connection_that_relatives_have_is_not_attached() {
    let ends = BothEnds::paired();
    let (socket, fd) = (ends.sockets[0], ends.fds[0]);
    assert!(socket.share.before_fork());
    assert!(!upgrade::progress(socket, fd, Known::Nothing));
    assert_eq!(
        (socket.stage(), socket.reason()),
        (Stage::Paired, Reason::Forked)
    );
    socket.share.settle();
    assert!(upgrade::progress(socket, fd, Known::Nothing));
}

#[test]
fn while_a_registration_goes_by_a_number_of_something_else_the_socket_stays_on_tcp() {
    let ends = BothEnds::paired();
    let (socket, fd) = (ends.sockets[1], ends.fds[1]);
    let number = sys::epoll_create().unwrap();
    Set::enter(number);
    let set = Set::of(number).unwrap();
    let event = libc::epoll_event { events: IN, u64: 7 };
    let added = epoll::register(set, libc::EPOLL_CTL_ADD, socket, fd, event);
    assert_eq!(added, Outcome::Done(0));
    // It is copied, and another file has its number, in the same set.
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0).unwrap() as c_int;
    table::enter(copy, Word::of(socket));
    let other = sys::eventfd().unwrap();
    // SAFETY: descriptors of this test's.
    assert_eq!(unsafe { libc::dup2(other, fd) }, fd);
    table::enter(fd, Word::NOTHING);
    let change = |operation| {
        let mut event = libc::epoll_event { events: IN, u64: 8 };
        sys::epoll_ctl(number, operation, fd, &raw mut event)
    };
    change(libc::EPOLL_CTL_ADD).unwrap();
    assert!(!upgrade::progress(socket, copy, Known::Nothing));
    assert_eq!(
        (socket.stage(), socket.reason()),
        (Stage::Paired, Reason::Blocked)
    );
    change(libc::EPOLL_CTL_DEL).unwrap();
    // The number is the connection's again.
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(copy, fd) }, fd);
    table::enter(fd, Word::of(socket));
    assert!(upgrade::progress(socket, copy, Known::Nothing));
    table::enter(number, Word::NOTHING);
    table::enter(copy, Word::NOTHING);
    set.unhold();
    [number, copy, other].into_iter().for_each(sys::close);
}

#[test]
fn what_is_sent_is_received_in_order_through_the_ring() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    assert_eq!(send(one, b"first "), Outcome::Done(6));
    assert_eq!(send(one, b"second"), Outcome::Done(6));
    assert_eq!((one.way_out(), stream::unread(other)), (Way::Ring, 12));
    assert_eq!(receive(other, 0).unwrap(), b"first second");
    assert_eq!(receive(other, 0), Err(Outcome::Fail(libc::EAGAIN)));
    assert_eq!(sys::ioctl_int(ends.fds[1], libc::FIONREAD), Ok(0));
}

#[test]
fn both_directions_are_apart() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"there");
    send(other, b"back");
    assert_eq!(receive(one, 0).unwrap(), b"back");
    assert_eq!(receive(other, 0).unwrap(), b"there");
}

#[test]
fn a_look_takes_nothing() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"bytes");
    assert_eq!(receive(other, libc::MSG_PEEK).unwrap(), b"bytes");
    assert_eq!(
        (receive(other, 0).unwrap(), stream::unread(other)),
        (b"bytes".to_vec(), 0)
    );
}

#[test]
fn what_came_by_tcp_before_the_ring_is_received_first() {
    let ends = BothEnds::paired();
    let [one, other] = ends.sockets;
    assert_eq!(sys::send(ends.fds[0], b"tcp "), Ok(4));
    assert!(upgrade::progress(one, ends.fds[0], Known::Nothing));
    assert!(upgrade::progress(other, ends.fds[1], Known::Nothing));
    let [one, other] = &ends.conns();
    assert_eq!(send(one, b"ring"), Outcome::Done(4));
    assert_eq!((one.way_out(), other.way_in()), (Way::Ring, Way::Tcp));
    assert_eq!(receive(other, 0).unwrap(), b"tcp ring");
    assert_eq!(other.way_in(), Way::Ring);
}

#[test]
fn what_the_peer_has_not_read_is_in_flight() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"12345678");
    assert_eq!((one.in_flight(), other.in_flight()), (8, 0));
    receive(other, 0).unwrap();
    assert_eq!(one.in_flight(), 0);
}

#[test]
fn a_socket_is_readable_while_something_is_unread_and_writable_while_there_is_room() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"x");
    send(other, b"y");
    assert_eq!(stream::mask(other, IN, false) & (IN | OUT), IN);
    assert_eq!(stream::mask(other, IN | OUT, false) & (IN | OUT), IN | OUT);
    receive(other, 0).unwrap();
    assert_eq!(stream::mask(other, IN | OUT, false) & (IN | OUT), OUT);
}

#[test]
fn a_full_ring_is_not_writable_and_asks_to_be_told() {
    let ends = BothEnds::on_rings();
    let [one, other] = &ends.conns();
    let block = vec![7u8; 256 << 10];
    let mut sent = 0;
    while let Outcome::Done(n) = send(one, &block) {
        sent += n as usize;
    }
    assert!(sent > block.len() && !one.has_room());
    assert_eq!(stream::mask(one, OUT, false) & OUT, 0);
    let wait = &one.pair.own.face.wait;
    assert_ne!(wait.load(Ordering::Relaxed) & slot::WANT_TX, 0);
    let mut received = 0;
    while let Ok(bytes) = receive(other, 0) {
        received += bytes.len();
    }
    assert_eq!((received, stream::mask(one, OUT, false) & OUT), (sent, OUT));
    // Nobody need be told any more.
    assert_eq!(wait.load(Ordering::Relaxed) & slot::WANT_TX, 0);
}

#[test]
fn no_more_is_in_flight_than_the_programs_buffer_allows() {
    let ends = BothEnds::attached();
    let [one, _] = &ends.conns();
    send(one, b"x");
    stream::resize(one, 4096);
    let most = one.pair.own.options.most.load(Ordering::Relaxed);
    assert_eq!(most, stream::bound(one.fd, 4096));
    while let Outcome::Done(_) = send(one, &[1; 8192]) {}
    assert!(one.in_flight() <= u64::from(most));
}

#[test]
fn the_end_comes_behind_what_was_sent_before_it() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"last");
    assert_eq!(stream::shutdown(one, libc::SHUT_WR), Outcome::Done(0));
    assert_eq!(receive(other, 0).unwrap(), b"last");
    assert_eq!(receive(other, 0).unwrap(), b"");
    let hangup = libc::EPOLLRDHUP as u32;
    assert_ne!(stream::mask(other, IN | hangup, true) & hangup, 0);
    // The other direction goes on.
    assert_eq!(send(other, b"still"), Outcome::Done(5));
    assert_eq!(receive(one, 0).unwrap(), b"still");
}

#[test]
fn after_leaving_the_ring_bytes_go_on_by_tcp_in_order() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"ring ");
    receive(other, 0).unwrap();
    stream::leave_ring(one, Reason::Stdio);
    assert_eq!(one.way_out(), Way::TcpAgain);
    assert_eq!(sys::send(ends.fds[0], b"tcp"), Ok(3));
    assert_eq!(stream::unread(other), 3);
    assert_ne!(stream::mask(other, IN, true) & IN, 0);
    assert!(ends.sockets[0].is_downgraded());
}

#[test]
fn a_connection_that_nobody_reads_just_now_goes_back_to_tcp_at_once() {
    let ends = BothEnds::attached();
    let [one, other] = &ends.conns();
    send(one, b"x");
    receive(other, 0).unwrap();
    assert!(stream::downgrade(one, Reason::Passed));
    assert_eq!(ends.sockets[0].reason(), Reason::Passed);
    assert!(one.way_out() != Way::Ring && one.way_in() != Way::Ring);
    // What the peer sends from here on is the kernel's.
    assert_eq!(send(other, b"by tcp"), Outcome::Done(6));
    assert!(stream::is_plain(one));
}

#[test]
fn an_error_is_told_once_and_only_if_it_is_the_connections() {
    let ends = BothEnds::attached();
    let [one, _] = &ends.conns();
    one.error().store(libc::ECONNRESET, Ordering::Relaxed);
    assert_eq!(stream::socket_error(one), libc::ECONNRESET);
    assert_eq!(stream::socket_error(one), 0);
    // A relative's nonsense is a reset.
    one.error().store(1 << 20, Ordering::Relaxed);
    assert_eq!(stream::socket_error(one), libc::ECONNRESET);
}

#[test]
fn a_pending_error_makes_a_socket_readable() {
    let ends = BothEnds::on_rings();
    let [one, _] = &ends.conns();
    one.error().store(libc::ETIMEDOUT, Ordering::Relaxed);
    let error = libc::EPOLLERR as u32;
    assert_eq!(stream::mask(one, IN, false) & (IN | error), IN | error);
    assert_eq!(receive(one, 0), Err(Outcome::Fail(libc::ETIMEDOUT)));
}

#[test]
fn nothing_is_as_usual_once_a_side_leaves_its_ring() {
    let ends = BothEnds::on_rings();
    let [one, other] = &ends.conns();
    assert!(stream::is_as_usual(one) && stream::is_as_usual(other));
    assert!(!stream::may_be(one, IN | OUT, None));
    send(other, b"y");
    assert!(stream::may_be(one, IN, None) && !stream::may_be(one, OUT, None));
    receive(one, 0).unwrap();
    stream::leave_ring(one, Reason::Stdio);
    assert!(stream::leaves_ring(one) && !stream::is_as_usual(one));
    // Its own ways are as before.
    assert!(other.way_in() == Way::Ring && other.way_out() == Way::Ring);
    assert!(stream::leaves_ring(other) && !stream::is_as_usual(other));
}

#[test]
fn a_peer_that_asks_for_room_counts_what_is_unsent_beyond_its_buffer() {
    let ends = BothEnds::attached();
    let [one, _] = &ends.conns();
    send(one, b"few");
    assert_eq!(stream::unsent(one), 0);
    while let Outcome::Done(_) = send(one, &[1; 65_536]) {}
    assert!(stream::unsent(one) > 0 && stream::unsent(one) < one.in_flight());
}

#[test]
fn a_number_that_names_something_else_is_no_base_of_the_connection() {
    let ends = BothEnds::attached();
    let [one, _] = ends.conns();
    assert_eq!(one.base(), Some(ends.fds[0]));
    let elsewhere = Conn {
        fd: ends.fds[1],
        ..one
    };
    assert_eq!(elsewhere.base(), Some(ends.fds[0]));
    assert!(one.is_by_number() && !elsewhere.is_by_number());
    assert!(one.is_named() && !elsewhere.is_named());
}

/// Runs a call of the second end in a thread; `meanwhile` begins when that sleeps until something arrives, or has ended.
fn beside(
    ends: &BothEnds,
    call: impl FnOnce(Conn) -> Outcome + Send,
    meanwhile: impl FnOnce(&Conn),
) -> Outcome {
    let [one, other] = ends.conns();
    let fd = ends.fds[1];
    let sleepers = &other.pair.own.receiving.sleepers;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || call(Conn::of(fd).unwrap()));
        while sleepers.load(Ordering::Acquire) == 0 && !thread.is_finished() {
            std::thread::yield_now();
        }
        meanwhile(&one);
        thread.join().unwrap()
    })
}

#[test]
fn a_receive_that_may_wait_sleeps_until_its_peer_sends() {
    let ends = BothEnds::attached();
    let receive = |conn: Conn| {
        let mut buffer = [0u8; 64];
        let parts = [part(buffer.as_mut_ptr(), buffer.len())];
        // SAFETY: the part covers the array `buffer`.
        unsafe { stream::receive(&conn, &parts, 0) }
    };
    let received = beside(&ends, receive, |one| {
        assert_eq!(send(one, b"late"), Outcome::Done(4));
    });
    assert_eq!(received, Outcome::Done(4));
}

#[test]
fn a_receive_of_everything_waits_for_the_rest() {
    let ends = BothEnds::attached();
    send(&ends.conns()[0], b"half");
    let receive = |conn: Conn| {
        let mut buffer = [0u8; 8];
        let parts = [part(buffer.as_mut_ptr(), buffer.len())];
        // SAFETY: the part covers the array `buffer`.
        let received = unsafe { stream::receive(&conn, &parts, libc::MSG_WAITALL) };
        assert_eq!(&buffer, b"half+all");
        received
    };
    let received = beside(&ends, receive, |one| {
        assert_eq!(send(one, b"+all"), Outcome::Done(4));
    });
    assert_eq!(received, Outcome::Done(8));
}

#[test]
fn a_receive_that_sleeps_ends_with_its_peers_half() {
    let ends = BothEnds::attached();
    let receive = |conn: Conn| {
        let mut buffer = [0u8; 8];
        let parts = [part(buffer.as_mut_ptr(), buffer.len())];
        // SAFETY: the part covers the array `buffer`.
        unsafe { stream::receive(&conn, &parts, 0) }
    };
    let received = beside(&ends, receive, |one| {
        assert_eq!(stream::shutdown(one, libc::SHUT_WR), Outcome::Done(0));
    });
    assert_eq!(received, Outcome::Done(0));
}

#[test]
fn a_send_that_may_wait_goes_on_as_its_peer_reads() {
    const BYTES: usize = 12 << 20;
    let ends = BothEnds::attached();
    let [_, other] = ends.conns();
    let fd = ends.fds[0];
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let block = vec![7u8; BYTES];
            let parts = [part(block.as_ptr(), block.len())];
            // SAFETY: the bytes are there.
            unsafe { stream::send(&Conn::of(fd).unwrap(), &parts, libc::MSG_NOSIGNAL) }
        });
        let mut received = 0;
        while received < BYTES && !(sender.is_finished() && stream::unread(&other) == 0) {
            received += receive(&other, 0).map_or(0, |bytes| bytes.len());
        }
        let sent = sender.join().unwrap();
        assert_eq!((sent, received), (Outcome::Done(BYTES as isize), BYTES));
    });
}
