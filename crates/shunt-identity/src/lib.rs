//! Which two sockets of this host are the ends of one TCP connection, whatever lies between them:
//! network namespaces, bridges, translated addresses and ports.
//!
//! ```text
//!   connector                    NAT                    acceptor
//!   sent     = 7000  ── 10.1.0.2:40000 > 10.1.0.1:80 ──  received = 7000
//!   received = 9000  ── 10.2.0.1:51234 > 10.2.0.2:8080   sent     = 9000
//!        │                                                   │
//!        └── ACTIVE_ESTABLISHED_CB ─┐   ┌─ PASSIVE_ESTABLISHED_CB
//!                                   ▼   ▼
//!               ends:  socket cookie ──> record        (LRU hash map)
//!               pairs: the connector's (sent, received) ──> cookies of both
//! ```
//!
//! What translates addresses leaves sequence numbers alone. So the kernel tells each end the two
//! numbers with which its handshake has ended, and those of one end are the other's, mirrored. A
//! small eBPF program, attached to the root of the unified cgroup hierarchy, writes them down once
//! per connection, and [`Identities::mirror`] looks the other end up. What rewrites sequence numbers
//! or ends TCP itself (a SYN proxy, a relaying load balancer) has two connections with no
//! mirror between them, which is the truth.
//!
//! Sequence numbers are no secret and no proof by themselves; [`Identities::mirror`] says what else
//! it asks for, and `docs/security.md` against whom.
//!
//! Neighbour: `shuntd` uses this crate, where the kernel lets it. The crate knows sockets by their
//! cookies only. It never touches a socket, a packet or payload.

#![deny(unsafe_code)] // `bpf` alone is exempt, with a reason for each block.

mod assembly;
mod attachment;
mod bpf;
mod cgroup;
mod program;
mod record;
#[cfg(test)]
mod tests;
mod unavailable;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use attachment::Attachment;
use record::{Numbers, place};
pub use unavailable::Unavailable;

/// In the place of a socket's cookie in `pairs`: several sockets of its side have had these numbers. The kernel counts
/// cookies from 1 up, and some from -1 down, so none is near it.
const AMBIGUOUS: i32 = i32::MIN;

/// How much later than its connector an acceptor may have ended the handshake. A connector whose
/// last segment of the handshake is lost sends it again when it is asked once more, after a second.
pub const HANDSHAKE: Duration = Duration::from_secs(2);

/// What the kernel has said of the connections that began since [`Identities::attach`], as far as
/// there is room for them. As long as this lives, new ones are recorded.
#[derive(Debug)]
pub struct Identities {
    attachment: Attachment,
}

/// One end of a connection, as it was when the handshake ended there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cookie of its network namespace (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// Whether it connected or accepted.
    pub side: Side,
    /// Its own address. An IPv4 address mapped into IPv6 is given as plain IPv4.
    pub local: SocketAddr,
    /// The address of the other end as this end sees it.
    pub remote: SocketAddr,
    /// The sequence number of the first byte that it sends.
    pub sent: u32,
    /// The sequence number of the first byte that it receives.
    pub received: u32,
    /// When the handshake ended here (`CLOCK_MONOTONIC`).
    pub established: Duration,
}

/// The part of an end in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// It called `connect`.
    Connector,
    /// It came out of a listener.
    Acceptor,
}

impl Identities {
    /// Begins to record connections: the last `capacity` sockets or so, of all namespaces. One
    /// takes about 240 bytes of the kernel's memory, all of them reserved at once. Records stay until newer ones
    /// need the room, also when their sockets are closed: a connection may go to another process, which asks for it
    /// anew.
    ///
    /// Several processes may do so beside each other. What is attached goes with the last descriptor of it,
    /// so also when the process is killed; a child that was forked and has executed nothing has a copy.
    pub fn attach(capacity: u32) -> Result<Self, Unavailable> {
        Ok(Self {
            attachment: Attachment::new(capacity)?,
        })
    }

    /// The socket with this cookie (`SO_COOKIE`); `None` if its connection began before
    /// [`Self::attach`], or so many have begun since that there was no more room for it.
    pub fn of(&self, cookie: u64) -> io::Result<Option<Identity>> {
        self.attachment
            .ends
            .lookup(&cookie)?
            .map(|record| record.identity().ok_or(io::ErrorKind::InvalidData.into()))
            .transpose()
    }

    /// The other end, if it is a socket of this host: its cookie and identity. An acceptor's is there as soon as
    /// it has been accepted; a connector's may come a moment after `connect` has returned.
    ///
    /// A process that owns a network namespace can make sockets there with sequence numbers of its
    /// choice, and those of others can be guessed by who sees the clock and tries often. So there is an answer only
    /// where nobody else can be meant:
    ///
    /// * no other recorded socket has the numbers of this end, and none those of the answer;
    /// * one of them connected and the other accepted;
    /// * the connector's handshake ended first, the acceptor's within two seconds.
    ///
    /// Both ends share an entry, so neither can be there when the other's place had to go for newer ones. The last rule is for
    /// a forger who comes between the two.
    pub fn mirror(&self, of: &Identity) -> io::Result<Option<(u64, Identity)>> {
        let Some([own, other]) = self.entry(of)? else {
            return Ok(None);
        };
        if self.of(own)?.as_ref() != Some(of) {
            return Ok(None);
        }
        // A socket that has connected anew since has other numbers.
        let is_end = |other: &Identity| Numbers::of(other) == Numbers::of(of);
        let identity = self.of(other)?.filter(is_end);
        let identity = identity.filter(|other| is_one_handshake(of, other));
        Ok(identity.map(|identity| (other, identity)))
    }

    /// The end on this host, `side`, of a connection whose other end, on another host, has these numbers: the sequence
    /// numbers of the first bytes that it sends and receives. Its cookie and identity.
    ///
    /// There is an answer only where no other recorded socket can be meant: none else on this host has these numbers, on
    /// either side. Whether the other host is the one to which this end is connected, who asks must know.
    pub fn opposite(
        &self,
        side: Side,
        sent: u32,
        received: u32,
    ) -> io::Result<Option<(u64, Identity)>> {
        let numbers = match side {
            Side::Connector => Numbers {
                sent: received,
                received: sent,
            },
            Side::Acceptor => Numbers { sent, received },
        };
        let Some(places) = self.attachment.pairs.lookup(&numbers)? else {
            return Ok(None);
        };
        let own = place(side);
        if places[1 - own] != 0 {
            return Ok(None);
        }
        let is_it = |identity: &Identity| identity.side == side && Numbers::of(identity) == numbers;
        let identity = self.of(places[own])?.filter(is_it);
        Ok(identity.map(|identity| (places[own], identity)))
    }

    /// The cookies of the one socket with these numbers on this side, and of the one on the other. (Nobody has that of
    /// an end that is not there, or is ambiguous.)
    fn entry(&self, of: &Identity) -> io::Result<Option<[u64; 2]>> {
        let places = self.attachment.pairs.lookup(&Numbers::of(of))?;
        Ok(places.map(|places| {
            let own = place(of.side);
            [places[own], places[1 - own]]
        }))
    }
}

/// Whether two ends with mirrored numbers have ended their handshakes as those of one connection do:
/// an acceptor does so by the answer of a connector that has done so.
fn is_one_handshake(one: &Identity, other: &Identity) -> bool {
    let (connector, acceptor) = match (one.side, other.side) {
        (Side::Connector, Side::Acceptor) => (one, other),
        (Side::Acceptor, Side::Connector) => (other, one),
        _ => return false,
    };
    let later = acceptor.established.checked_sub(connector.established);
    later.is_some_and(|later| later <= HANDSHAKE)
}
