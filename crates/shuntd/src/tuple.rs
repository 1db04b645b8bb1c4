//! The two addresses of a TCP connection, as one of its ends sees them.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use shunt_abi::message::Message;

/// Names one end of a connection: both ends are the same connection when one
/// is the [`Tuple::flipped`] other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    /// `SO_NETNS_COOKIE`: the same addresses mean nothing in another namespace.
    pub(crate) netns: u64,
    /// This end.
    pub(crate) local: (IpAddr, u16),
    /// The other end.
    pub(crate) peer: (IpAddr, u16),
}

impl Hash for Tuple {
    /// Three words for IPv4, in the place of the nine parts (kinds, lengths, octets) that a derived one hashes: a list hashes
    /// each end several times.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.netns);
        for (ip, port) in [self.local, self.peer] {
            match ip {
                IpAddr::V4(ip) => state.write_u64(u64::from(ip.to_bits()) << 16 | u64::from(port)),
                IpAddr::V6(ip) => {
                    state.write_u128(ip.to_bits());
                    state.write_u16(port);
                }
            }
        }
    }
}

impl Tuple {
    /// From what the kernel says. An IPv4 address mapped into IPv6 becomes
    /// plain IPv4: an IPv6 listener's end and an IPv4 client's end then agree.
    pub(crate) fn new(netns: u64, local: SocketAddr, peer: SocketAddr) -> Self {
        let plain = |a: SocketAddr| (a.ip().to_canonical(), a.port());
        Self {
            netns,
            local: plain(local),
            peer: plain(peer),
        }
    }

    /// The other end's view.
    pub(crate) fn flipped(self) -> Self {
        Self {
            netns: self.netns,
            local: self.peer,
            peer: self.local,
        }
    }
}

/// `AF_INET` and `AF_INET6` in a message.
pub(crate) const FAMILIES: (u16, u16) = (libc::AF_INET as u16, libc::AF_INET6 as u16);

/// An address as messages carry it.
pub(crate) fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// An address out of a message.
pub(crate) fn address(family: u16, bytes: &[u8; 16]) -> Option<IpAddr> {
    if family == FAMILIES.0 {
        Some(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]))
    } else if family == FAMILIES.1 {
        Some(IpAddr::from(*bytes))
    } else {
        None
    }
}

/// The addresses of its own end and of its peer that a message names, if it names both.
pub(crate) fn named(message: &Message) -> Option<[SocketAddr; 2]> {
    let end = |i: usize| -> Option<SocketAddr> {
        let ip = address(message.family, &message.addresses[i])?;
        (message.ports[i] != 0).then(|| (ip.to_canonical(), message.ports[i]).into())
    };
    Some([end(0)?, end(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_ipv4_and_plain_ipv4_are_the_same_connection() {
        let server = Tuple::new(
            1,
            "[::ffff:127.0.0.1]:80".parse().unwrap(),
            "[::ffff:127.0.0.1]:4000".parse().unwrap(),
        );
        let client = Tuple::new(
            1,
            "127.0.0.1:4000".parse().unwrap(),
            "127.0.0.1:80".parse().unwrap(),
        );
        assert_eq!(client.flipped(), server);
        assert_ne!(client.flipped(), Tuple { netns: 2, ..server });
    }

    #[test]
    fn addresses_round_trip_through_messages() {
        for (family, text) in [(FAMILIES.0, "10.1.2.3"), (FAMILIES.1, "fe80::1")] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(family, &bytes(ip)), Some(ip));
        }
        assert_eq!(address(0, &[0; 16]), None);
    }
}
