//! Sockets, honest ones and others.
#![allow(dead_code, unreachable_pub, unsafe_code)] // Each test program uses its own part; the crate denies what its tests need.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::net::{self, AddressFamily, SocketType, sockopt};

/// A connection to a listener: its connector and acceptor.
pub fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (connector, listener.accept().unwrap().0)
}

pub fn cookie(socket: impl AsFd) -> u64 {
    sockopt::socket_cookie(socket).unwrap()
}

pub fn set_tcp_option(socket: impl AsFd, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the value is there, of the size that is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// A connector with these numbers, without any handshake: for who owns the network namespace.
pub fn forge(sent: u32, received: u32) -> OwnedFd {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let option = |name, value| set_tcp_option(&socket, name, value);
    const RECEIVE_QUEUE: libc::c_int = 1;
    const SEND_QUEUE: libc::c_int = 2;
    option(libc::TCP_REPAIR, 1);
    option(libc::TCP_REPAIR_QUEUE, SEND_QUEUE);
    option(libc::TCP_QUEUE_SEQ, sent as i32);
    option(libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE);
    option(libc::TCP_QUEUE_SEQ, received as i32);
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
    socket
}
