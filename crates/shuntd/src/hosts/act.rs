//! What the table of connections to other hosts says is to be done.

use std::net::IpAddr;

use shunt_abi::Reason;
use shunt_hosts::{Claim, Frame, HostId};

use super::Seat;
use crate::end::EndId;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Find the host at this address.
    Find(IpAddr),
    /// Say this to a host.
    Tell(HostId, Frame),
    /// Nobody here has claimed the end that this one mirrors: have it claimed, if it is here.
    Invite(HostId, Claim),
    /// This end stays on TCP.
    Refuse(EndId, Reason),
    /// This end's connection has a slot.
    Meet(EndId, Seat),
    /// The other end of this one's connection was closed.
    Left(EndId, Seat),
    /// A process says something to one of ours, by its name for their link.
    Word {
        client: u64,
        link: u64,
        text: [u8; 96],
    },
    /// No new connection will use this link of a client's.
    Gone { client: u64, link: u64 },
    /// The process that had the other end of this connection has died. The numbers: how many bytes it had received, and sent,
    /// through the rings.
    Died(EndId, Seat, [u64; 2]),
}

/// A process's end that has met one on another host, as that is said when the process has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Afar {
    pub(super) host: HostId,
    /// The numbers by which the hosts name the two ends: theirs, and ours.
    pub(super) theirs: u64,
    pub(super) ours: u64,
    /// By which the process knows it (`SO_COOKIE`).
    pub(crate) cookie: u64,
    pub(crate) seat: Seat,
}

impl Afar {
    /// What that host is told.
    pub(crate) fn died(&self, received: u64, sent: u64) -> Act {
        let died = Frame::Died {
            to: self.theirs,
            from: self.ours,
            received,
            sent,
        };
        Act::Tell(self.host, died)
    }
}

/// No new connection will use this link of a client's.
pub(super) fn gone((client, link): (u64, u64)) -> Act {
    Act::Gone { client, link }
}
