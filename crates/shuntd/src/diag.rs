//! `sock_diag(7)`: asks the kernel about a TCP socket by its addresses and
//! cookie. The way out for a per-user daemon that ptrace rules (Yama) keep from
//! `pidfd_getfd`: weaker, since it shows who owns the socket (the user), not
//! which process holds it; but this daemon serves one user only.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Result;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::sys;
use crate::tuple::{FAMILIES, Tuple, bytes};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;

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

/// The tuple, in our own network namespace, of the socket with this cookie and
/// these addresses, if it exists and belongs to `uid`.
pub(crate) fn find(cookie: u64, local: SocketAddr, peer: SocketAddr, uid: u32) -> Option<Tuple> {
    let reply = ask(cookie, local, peer).ok()?;
    let found = reply.kind == BY_FAMILY && reply.uid == uid && reply.id.cookie == halves(cookie);
    if !found {
        return None;
    }
    let here = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    Some(Tuple::new(sys::netns_cookie(&here).ok()?, local, peer))
}

/// One question, one answer. The kernel answers within the send, so that the
/// receive never waits; an error comes as a message of another kind.
fn ask(cookie: u64, local: SocketAddr, peer: SocketAddr) -> Result<Reply> {
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
    request.id.cookie = halves(cookie);
    rustix::net::send(&socket, request.as_bytes(), SendFlags::DONTWAIT)?;
    let mut reply = Reply::new_zeroed();
    rustix::net::recv(&socket, reply.as_mut_bytes(), RecvFlags::DONTWAIT)?;
    Ok(reply)
}

fn halves(cookie: u64) -> [u32; 2] {
    [cookie as u32, (cookie >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn finds_a_socket_by_cookie_and_owner_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(&stream).unwrap();
        let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let uid = rustix::process::geteuid().as_raw();
        if ask(cookie, local, peer).is_err() {
            return; // This kernel has no tcp_diag.
        }
        let netns = sys::netns_cookie(&stream).unwrap();
        assert_eq!(
            find(cookie, local, peer, uid),
            Some(Tuple::new(netns, local, peer))
        );
        assert_eq!(find(cookie + 1, local, peer, uid), None);
        assert_eq!(find(cookie, local, peer, uid + 1), None);
        assert_eq!(find(cookie, local, ([127, 0, 0, 1], 1).into(), uid), None);
    }
}
