//! Where other hosts call.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

/// Whether the next caller may be let in though this one is gone (`accept(2)`).
pub(crate) fn is_passing(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let lacking = lacking.map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|code| !lacking.contains(&code))
}

/// Listens for other hosts at an address, which this host need not have yet. Where the kernel knows no IPv6, all addresses are those of
/// IPv4.
pub(crate) fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
    match bind(address) {
        Err(Errno::AFNOSUPPORT) if address == all => {
            Ok(bind((Ipv4Addr::UNSPECIFIED, address.port()).into())?)
        }
        bound => Ok(bound?),
    }
}

fn bind(address: SocketAddr) -> rustix::io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        // Both kinds, where it is the address of all.
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
        sockopt::set_ipv6_freebind(&socket, true)?;
    } else {
        sockopt::set_ip_freebind(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}
