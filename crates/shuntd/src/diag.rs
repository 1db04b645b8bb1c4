//! `sock_diag(7)`: asks the kernel about a TCP socket by its addresses. The way out
//! for a per-user daemon that may not use `pidfd_getfd`. Where the kernel has no
//! `tcp_diag`, its tables in `/proc` say the same, without the cookie.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

pub(crate) mod dump;
pub(crate) mod table;

use crate::inspect::Connected;
use crate::sys;
use crate::tuple::{FAMILIES, Tuple, bytes};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
/// `TCP_FIN_WAIT1`: closed, and the end of its stream is not acknowledged.
const FIN_WAIT1: u8 = 4;

/// `struct inet_diag_sockid`; ports and addresses in network order.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SocketId {
    ports: [[u8; 2]; 2],
    addresses: [[u8; 16]; 2],
    interface: u32,
    cookie: [u32; 2],
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

/// `struct nlmsghdr` and `struct inet_diag_msg`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Reply {
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    state: u8,
    timer: u8,
    retransmits: u8,
    id: SocketId,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    uid: u32,
    inode: u32,
}

const _: () = assert!(size_of::<Request>() == 72 && size_of::<Reply>() == 88);

/// Whether this kernel has no `tcp_diag`, found out when it first knows a socket not: the
/// claim was made of one that is there.
static MISSING: OnceLock<bool> = OnceLock::new();

/// A socket in our own network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) tuple: Tuple,
    /// Its owner.
    pub(crate) uid: u32,
    /// `SO_COOKIE`, where the kernel tells it.
    pub(crate) cookie: Option<u64>,
    pub(crate) inode: u64,
}

impl Found {
    /// What was found, in the form in which a look at the socket itself shows it.
    pub(crate) fn connected(&self) -> Connected {
        Connected {
            tuple: self.tuple,
            inode: self.inode,
        }
    }
}

/// The socket with these addresses, if there is one.
pub(crate) fn find(local: SocketAddr, peer: SocketAddr) -> Option<Found> {
    let here = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    let tuple = Tuple::new(sys::netns_cookie(&here).ok()?, local, peer);
    // A kernel without tcp_diag would look for the module at each question.
    let told = if MISSING.get() == Some(&true) {
        Err(Errno::NOENT)
    } else {
        ask(local, peer)
    };
    match told {
        // A look-up that finds no connection finds its listener, and TIME-WAIT has no owner.
        Ok(reply) if reply.kind == BY_FAMILY && (reply.state == LISTEN || reply.inode == 0) => None,
        Ok(reply) if reply.kind == BY_FAMILY => Some(Found {
            tuple,
            uid: reply.uid,
            cookie: Some(u64::from(reply.id.cookie[0]) | u64::from(reply.id.cookie[1]) << 32),
            inode: reply.inode.into(),
        }),
        // The same answer (ENOENT) whether there is no such socket or no tcp_diag.
        _ if *MISSING.get_or_init(|| dump::all().is_empty()) => {
            let (uid, inode) = table::find(tuple)?;
            Some(Found {
                tuple,
                uid,
                cookie: None,
                inode,
            })
        }
        _ => None,
    }
}

/// Whether a socket of our own network namespace is closed and no process has it, while its peer has not taken all of its stream.
pub(crate) fn is_closing(tuple: Tuple) -> bool {
    let reply = ask(tuple.local.into(), tuple.peer.into());
    reply.is_ok_and(|reply| reply.kind == BY_FAMILY && (reply.state, reply.inode) == (FIN_WAIT1, 0))
}

/// One question, one answer. The kernel answers within the send, so that the
/// receive never waits; an error comes as a message of another kind.
fn ask(local: SocketAddr, peer: SocketAddr) -> Result<Reply> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut request = Request::new_zeroed();
    request.len = size_of::<Request>() as u32;
    request.kind = BY_FAMILY;
    request.flags = libc::NLM_F_REQUEST as u16;
    let family = if matches!(local.ip(), IpAddr::V4(_)) {
        FAMILIES.0
    } else {
        FAMILIES.1
    };
    request.family = family as u8;
    request.protocol = libc::IPPROTO_TCP as u8;
    request.states = u32::MAX;
    request.id.ports = [local.port().to_be_bytes(), peer.port().to_be_bytes()];
    request.id.addresses = [bytes(local.ip()), bytes(peer.ip())];
    request.id.cookie = [u32::MAX; 2]; // INET_DIAG_NOCOOKIE
    rustix::net::send(&socket, request.as_bytes(), SendFlags::DONTWAIT)?;
    let mut reply = Reply::new_zeroed();
    rustix::net::recv(&socket, reply.as_mut_bytes(), RecvFlags::DONTWAIT)?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ways_find_a_socket_by_its_addresses() {
        for any in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let listener = match TcpListener::bind(any) {
                // A container may have no IPv6 loopback.
                Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => continue,
                listener => listener.unwrap(),
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            for socket in [&stream, &far] {
                let cookie = rustix::net::sockopt::socket_cookie(socket).unwrap();
                let (local, peer) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
                let tuple = Tuple::new(sys::netns_cookie(socket).unwrap(), local, peer);
                let uid = rustix::process::geteuid().as_raw();
                let inode = rustix::fs::fstat(socket).unwrap().st_ino;
                assert_eq!(table::find(tuple), Some((uid, inode)), "{any}");
                let found = find(tuple.local.into(), tuple.peer.into()).unwrap();
                assert_eq!((found.tuple, found.uid, found.inode), (tuple, uid, inode));
                // Where this kernel has tcp_diag.
                assert!(found.cookie.is_none_or(|told| told == cookie));
                assert_eq!(find(local, ([127, 0, 0, 1], 1).into()), None);
            }
        }
    }
}
