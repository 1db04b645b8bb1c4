//! All TCP sockets of our own network namespace, as `sock_diag(7)` lists them.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Result;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{BY_FAMILY, LISTEN, Reply, Request};
use crate::inspect::Seen;
use crate::sys::{self, TcpInfo};
use crate::tuple::{FAMILIES, Tuple, address};

/// `INET_DIAG_INFO`: a `tcp_info` comes along.
const INFO: u8 = 2;
/// Sockets by inode number.
pub(crate) type Sockets = HashMap<u64, Seen>;

/// Lists them; what the kernel does not tell is left out.
pub(crate) fn all() -> Sockets {
    let mut sockets = Sockets::new();
    let here = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    let Some(netns) = here.ok().and_then(|s| sys::netns_cookie(&s).ok()) else {
        return sockets;
    };
    for family in [FAMILIES.0, FAMILIES.1] {
        let _ = list(family, |reply, info| {
            if let Some(seen) = seen(netns, reply, info) {
                sockets.insert(reply.inode.into(), seen);
            }
        });
    }
    sockets
}

fn list(family: u16, mut visit: impl FnMut(&Reply, &[u8])) -> Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut request = Request::new_zeroed();
    request.len = size_of::<Request>() as u32;
    request.kind = BY_FAMILY;
    request.flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request.family = family as u8;
    request.protocol = libc::IPPROTO_TCP as u8;
    request.extensions = 1 << (INFO - 1);
    request.states = u32::MAX;
    rustix::net::send(&socket, request.as_bytes(), SendFlags::DONTWAIT)?;
    let mut buffer = vec![0_u8; 64 << 10];
    loop {
        // The kernel has the next part ready whenever the last one is taken.
        let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let mut rest = &buffer[..length];
        while let Ok((reply, _)) = Reply::read_from_prefix(rest) {
            let length = reply.len as usize;
            if reply.kind != BY_FAMILY || length < size_of::<Reply>() || length > rest.len() {
                return Ok(());
            }
            visit(&reply, &rest[size_of::<Reply>()..length]);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        // The end is a message too short for a socket, and so is an error.
        if !rest.is_empty() || length == 0 {
            return Ok(());
        }
    }
}

fn seen(netns: u64, reply: &Reply, attributes: &[u8]) -> Option<Seen> {
    let end = |i: usize| -> Option<SocketAddr> {
        let ip: IpAddr = address(reply.family.into(), &reply.id.addresses[i])?;
        Some((ip, u16::from_be_bytes(reply.id.ports[i])).into())
    };
    let (local, peer) = (end(0)?, end(1)?);
    Some(Seen {
        local,
        tuple: (reply.state != LISTEN).then(|| Tuple::new(netns, local, peer)),
        carried: info(attributes)
            .and_then(|info| TcpInfo::read_from_prefix(info).ok())
            .map(|(info, _)| info.carried())
            .unwrap_or_default(),
        netns: None,
    })
}

/// The `tcp_info` among the attributes (`netlink(7)`, `struct rtattr`).
fn info(mut attributes: &[u8]) -> Option<&[u8]> {
    loop {
        let [l0, l1, k0, k1, ..] = *attributes else {
            return None;
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let attribute = attributes.get(4..length)?;
        if u16::from_ne_bytes([k0, k1]) == INFO.into() {
            return Some(attribute);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn listeners_and_both_ends_are_listed_with_their_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.write_all(&[7; 1000]).unwrap();
        let sockets = all();
        if sockets.is_empty() {
            eprintln!("skipped: this kernel has no tcp_diag");
            return;
        }
        let of = |socket: std::os::fd::BorrowedFd<'_>| {
            sockets[&rustix::fs::fstat(socket).unwrap().st_ino]
        };
        use std::os::fd::AsFd as _;
        let (l, n, f) = (of(listener.as_fd()), of(near.as_fd()), of(far.as_fd()));
        assert_eq!((l.local, l.tuple), (listener.local_addr().unwrap(), None));
        assert_eq!(n.tuple.unwrap().flipped(), f.tuple.unwrap());
        assert_eq!((n.carried, f.carried), ((1000, 0), (0, 1000)));
    }
}
