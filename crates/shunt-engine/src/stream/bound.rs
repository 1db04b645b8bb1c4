//! How much may be in flight.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;

use super::conn::Conn;
use super::leave::leave_ring;
use super::want::any_waits_for_room;
use crate::{sys, tcp, thread, wake};

/// What `SIOCOUTQ` says of a direction on the ring. The kernel counts what the peer's receive
/// buffer has not taken; here half of the ring stands for that buffer.
pub(crate) fn unsent(conn: &Conn) -> u64 {
    let received = (conn.most() / 2).max(WINDOW.into());
    conn.in_flight().saturating_sub(received)
}

/// What a peer's receive buffer takes at least, unless the peer has made it smaller: its first size
/// (`tcp_rmem`), and a segment more.
const WINDOW: u32 = 192 << 10;

/// What TCP takes at once where its segments are small (a link between network namespaces), in a send buffer as large as
/// every program may make one (`owed/kernel_room.rs`): over the loopback interface that takes a whole ring. What is in
/// flight can be sent again at any time.
const FAR: u32 = 320 << 10;

/// How many bytes may be in flight where the program has set `SO_SNDBUF` to `sndbuf` bytes (0: it has not). TCP
/// fills the send buffer and the peer's receive buffer. A peer that made the latter small before it connected
/// has left no room for larger windows (`SO_RCVBUF`; RFC 7323, section 2). Returns 0 for as much as a ring
/// takes.
pub(crate) fn bound(fd: c_int, sndbuf: u32) -> u32 {
    within_tcp(fd, by_program(fd, sndbuf))
}

fn by_program(fd: c_int, sndbuf: u32) -> u32 {
    if sndbuf == 0 {
        return u32::MAX;
    }
    let (window, widest) = tcp::send_window(fd);
    sndbuf.saturating_add(window.max(WINDOW).min(widest))
}

fn within_tcp(fd: c_int, by_program: u32) -> u32 {
    let by_tcp = if tcp::has_small_segments(fd) {
        FAR
    } else {
        u32::MAX
    };
    match by_program.min(by_tcp) {
        u32::MAX => 0,
        most => most,
    }
}

/// The program has set `SO_SNDBUF`: threads that wait for room may have some now.
pub(crate) fn resize(conn: &Conn, sndbuf: u32) {
    let own = conn.pair.own;
    let asked = by_program(conn.fd, sndbuf);
    let bound = within_tcp(conn.fd, asked);
    own.options.most.store(bound, Ordering::Relaxed);
    if sndbuf != 0 && conn.most() < asked.into() && conn.is_on_ring() && !conn.has_room() {
        // Only TCP has the room that the program has made.
        leave_ring(conn, Reason::Blocked);
    }
    // With the token a thread either has counted itself among the sleepers, or sees the bound.
    let token = &own.sending.token;
    let asleep = conn.take(token) && {
        let asleep = any_waits_for_room(conn);
        thread::give(token);
        asleep
    };
    if asleep {
        wake::wake_all();
    }
}

/// Whether a receive waits for more than one byte (`SO_RCVLOWAT`), or may do so, since the kernel does not say how the option
/// is set. Only the kernel can wait so: the connection stays on TCP.
pub(crate) fn waits_for_many(fd: c_int) -> bool {
    !sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|least| least <= 1)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    #[test]
    fn a_peer_that_began_with_a_small_receive_buffer_never_takes_more_than_its_window_can_say() {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &4096i32).unwrap();
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::listen(fd, 1) }, 0);
        // SAFETY: the descriptor is this test's.
        let listener = unsafe { TcpListener::from_raw_fd(fd) };
        let port = listener.local_addr().unwrap().port();
        let sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let fd = sender.as_raw_fd();
        let (_, widest) = tcp::send_window(fd);
        assert!(widest < WINDOW);
        assert_eq!(bound(fd, 16_384), 16_384 + widest);
    }
}
