//! What the eBPF program writes down, and what we believe of it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::program::{ACTIVE_ESTABLISHED, PASSIVE_ESTABLISHED};
use crate::{Identity, Side};

/// A value of `ends`, as the program lays it on its stack: fields of `struct bpf_sock_ops` as
/// they are there. There is no gap in it, so all of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Record {
    pub(crate) netns: u64,
    /// `bpf_ktime_get_ns`.
    pub(crate) established: u64,
    /// `snd_nxt` and `rcv_nxt`.
    pub(crate) sent: u32,
    pub(crate) received: u32,
    /// The callback: which side it was.
    pub(crate) op: u32,
    pub(crate) family: u32,
    /// A number in the order of this machine.
    pub(crate) local_port: u32,
    /// A number in the order of the network.
    pub(crate) remote_port: u32,
    /// An IPv4 address is in the first four bytes.
    pub(crate) local: [u8; 16],
    pub(crate) remote: [u8; 16],
}

impl Record {
    /// `None` if it is nothing that the program writes.
    pub(crate) fn identity(&self) -> Option<Identity> {
        let address = |bytes, port| {
            let port = u16::try_from(port).ok()?;
            Some(SocketAddr::new(address(self.family, bytes)?, port))
        };
        Some(Identity {
            netns: self.netns,
            side: side(self.op)?,
            local: address(self.local, self.local_port)?,
            remote: address(self.remote, u32::from_be(self.remote_port))?,
            sent: self.sent,
            received: self.received,
            established: Duration::from_nanos(self.established),
        })
    }
}

/// A key of `pairs`: the numbers of a connection as its connector has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Numbers {
    pub(crate) sent: u32,
    pub(crate) received: u32,
}

/// A value of `pairs`: the cookies of both ends, each at its [`place`]. It is 0 as long as there is none.
pub(crate) type Places = [u64; 2];

impl Numbers {
    pub(crate) fn of(identity: &Identity) -> Self {
        let (sent, received) = match identity.side {
            Side::Connector => (identity.sent, identity.received),
            Side::Acceptor => (identity.received, identity.sent),
        };
        Self { sent, received }
    }
}

/// Where an end's cookie is.
pub(crate) const fn place(side: Side) -> usize {
    match side {
        Side::Connector => 0,
        Side::Acceptor => 1,
    }
}

fn side(op: u32) -> Option<Side> {
    match op {
        ACTIVE_ESTABLISHED => Some(Side::Connector),
        PASSIVE_ESTABLISHED => Some(Side::Acceptor),
        _ => None,
    }
}

fn address(family: u32, bytes: [u8; 16]) -> Option<IpAddr> {
    match i32::try_from(family).ok()? {
        libc::AF_INET => bytes.first_chunk::<4>().map(|&v4| IpAddr::from(v4)),
        libc::AF_INET6 => Some(IpAddr::from(bytes).to_canonical()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        let mut record = Record {
            netns: 7,
            established: 1_500_000_000,
            sent: 0xfedc_ba98,
            received: 3,
            op: PASSIVE_ESTABLISHED,
            family: libc::AF_INET as u32,
            local_port: 8080,
            remote_port: u32::from(40_000u16).to_be(),
            local: [0; 16],
            remote: [0; 16],
        };
        record.local[..4].copy_from_slice(&[10, 0, 0, 2]);
        record.remote[..4].copy_from_slice(&[10, 0, 0, 1]);
        record
    }

    #[test]
    fn a_record_names_both_ends() {
        let identity = record().identity().unwrap();
        assert_eq!(
            identity,
            Identity {
                netns: 7,
                side: Side::Acceptor,
                local: "10.0.0.2:8080".parse().unwrap(),
                remote: "10.0.0.1:40000".parse().unwrap(),
                sent: 0xfedc_ba98,
                received: 3,
                established: Duration::from_millis(1500),
            }
        );
    }

    #[test]
    fn an_ipv4_address_mapped_into_ipv6_is_plain_ipv4() {
        let mut record = record();
        record.family = libc::AF_INET6 as u32;
        record.local = "::ffff:10.0.0.2"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets();
        record.remote = "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let identity = record.identity().unwrap();
        assert_eq!(identity.local.to_string(), "10.0.0.2:8080");
        assert_eq!(identity.remote.to_string(), "[fd00::1]:40000");
    }

    #[test]
    fn what_the_program_never_writes_is_no_identity() {
        let wrong: [fn(&mut Record); 4] = [
            |record| record.op = 3,
            |record| record.family = libc::AF_UNIX as u32,
            |record| record.local_port = 65_536,
            |record| record.remote_port = 1, // of the other order: 16777216
        ];
        for spoil in wrong {
            let mut record = record();
            spoil(&mut record);
            assert_eq!(record.identity(), None, "{record:?}");
        }
    }

    #[test]
    fn both_ends_have_the_numbers_of_the_connector() {
        let acceptor = record().identity().unwrap();
        let mut connector = acceptor;
        (connector.sent, connector.received) = (acceptor.received, acceptor.sent);
        connector.side = Side::Connector;
        let numbers = Numbers {
            sent: 3,
            received: 0xfedc_ba98,
        };
        assert_eq!(Numbers::of(&acceptor), numbers);
        assert_eq!(Numbers::of(&connector), numbers);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_identity_or_none(bytes: [u8; size_of::<Record>()]) {
            let record = Record::read_from_bytes(&bytes[..]).unwrap();
            prop_assert_eq!(record.as_bytes(), &bytes);
            if let Some(identity) = record.identity() {
                prop_assert_eq!(side(record.op), Some(identity.side));
                prop_assert_eq!(identity.sent, record.sent);
            }
        }

        /// Only two words of a record have values that are none; the rest may be anything.
        #[test]
        fn whatever_else_is_in_it(bytes: [u8; size_of::<Record>()], local_port: u16, remote_port: u16) {
            let mut record = Record::read_from_bytes(&bytes[..]).unwrap();
            (record.op, record.family) = (ACTIVE_ESTABLISHED, libc::AF_INET6 as u32);
            record.local_port = local_port.into();
            record.remote_port = u32::from(remote_port).to_be();
            let identity = record.identity().unwrap();
            prop_assert_eq!(identity.local.port(), local_port);
            prop_assert_eq!(identity.remote.port(), remote_port);
        }
    }
}
