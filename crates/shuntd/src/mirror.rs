//! Who is whose other end, whatever lies between: by mirrored sequence numbers, where the kernel lets
//! this daemon see them (`shunt_identity`).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use shunt_hosts::Numbers;
use shunt_identity::{HANDSHAKE, Identities, Identity, Side, Unavailable};

/// How many ends of connections are remembered, those made last.
const CAPACITY: u32 = 1 << 16;

/// The other end of a connection, as that sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Its socket.
    pub(crate) cookie: u64,
    /// The network namespace of that.
    pub(crate) netns: u64,
    /// The port that it has as its peer's.
    pub(crate) peer_port: u16,
}

/// What is known of a socket's other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counterpart {
    /// It is this one.
    Found(Mirror),
    /// It is on another host, or something on the way ends one connection and begins another.
    Nobody,
    /// It is, or the handshake has not ended there: it has just ended here, at the connector.
    Early,
    /// The connection is older than the kernel's program, or too many were made since.
    Unknown,
}

/// What the kernel's program remembers, if there is one.
#[derive(Debug)]
pub(crate) struct Mirrors(Option<Identities>);

impl Mirrors {
    /// Nothing: ends are paired by their addresses.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Has the kernel remember the connections that are made from now on.
    pub(crate) fn attach() -> Result<Self, Unavailable> {
        Ok(Self(Some(Identities::attach(CAPACITY)?)))
    }

    /// Whether it does.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The sequence numbers of a socket, by which another host may know its other end.
    pub(crate) fn numbers(&self, cookie: u64) -> Option<Numbers> {
        let own = self.0.as_ref()?.of(cookie)?;
        Some(Numbers {
            sent: own.sent,
            received: own.received,
        })
    }

    /// The connector on this host whose acceptor, on another one, has these numbers.
    pub(crate) fn connector_of(&self, acceptor: Numbers) -> Option<Mirror> {
        let identities = self.0.as_ref()?;
        let (cookie, own) =
            identities.opposite(Side::Connector, acceptor.sent, acceptor.received)?;
        Some(Mirror {
            cookie,
            netns: own.netns,
            peer_port: own.remote_port,
        })
    }

    /// The other end of a socket.
    pub(crate) fn counterpart(&self, cookie: u64) -> Counterpart {
        let Some(identities) = &self.0 else {
            return Counterpart::Unknown;
        };
        let Some(own) = identities.of(cookie) else {
            return Counterpart::Unknown;
        };
        match identities.mirror(&own) {
            Some((cookie, other)) => Counterpart::Found(Mirror {
                cookie,
                netns: other.netns,
                peer_port: other.remote_port,
            }),
            None if may_be_early(&own) => Counterpart::Early,
            None => Counterpart::Nobody,
        }
    }
}

/// Whether the handshake of the other end may still end.
fn may_be_early(own: &Identity) -> bool {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    own.side == Side::Connector && now.saturating_sub(own.established) <= HANDSHAKE
}
