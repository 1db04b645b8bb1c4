//! An end of a connection, as it was when its handshake ended.

use std::time::Duration;

use crate::log::Record;
use crate::program::{ACTIVE_ESTABLISHED, PASSIVE_ESTABLISHED};

/// One end of a connection, as it was when the handshake ended there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cookie of its network namespace (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// Whether it connected or accepted.
    pub side: Side,
    /// The port of the other end as this end sees it.
    pub remote_port: u16,
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

/// The numbers of a connection as its connector has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Numbers {
    pub(crate) sent: u32,
    pub(crate) received: u32,
}

impl Identity {
    /// `None` if it is nothing that the program writes.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        Some(Self {
            netns: record.netns,
            side: side(record.op)?,
            remote_port: u16::try_from(u32::from_be(record.remote_port)).ok()?,
            sent: record.sent,
            received: record.received,
            established: Duration::from_nanos(record.established),
        })
    }

    pub(crate) fn numbers(&self) -> Numbers {
        Numbers::of(self.side, self.sent, self.received)
    }
}

impl Numbers {
    /// Those of a connection of which this side sends and receives so.
    pub(crate) fn of(side: Side, sent: u32, received: u32) -> Self {
        let (sent, received) = match side {
            Side::Connector => (sent, received),
            Side::Acceptor => (received, sent),
        };
        Self { sent, received }
    }
}

fn side(op: u32) -> Option<Side> {
    match op {
        ACTIVE_ESTABLISHED => Some(Side::Connector),
        PASSIVE_ESTABLISHED => Some(Side::Acceptor),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{FromBytes as _, IntoBytes as _};

    fn record() -> Record {
        Record {
            serial: 1,
            cookie: 2,
            netns: 7,
            established: 1_500_000_000,
            sent: 0xfedc_ba98,
            received: 3,
            op: PASSIVE_ESTABLISHED,
            remote_port: u32::from(40_000u16).to_be(),
        }
    }

    #[test]
    fn a_record_names_an_end() {
        assert_eq!(
            Identity::of(&record()).unwrap(),
            Identity {
                netns: 7,
                side: Side::Acceptor,
                remote_port: 40_000,
                sent: 0xfedc_ba98,
                received: 3,
                established: Duration::from_millis(1500),
            }
        );
    }

    #[test]
    fn what_the_program_never_writes_is_no_identity() {
        let wrong: [fn(&mut Record); 2] = [
            |record| record.op = 3,
            |record| record.remote_port = 1, // of the other order: 16777216
        ];
        for spoil in wrong {
            let mut record = record();
            spoil(&mut record);
            assert_eq!(Identity::of(&record), None, "{record:?}");
        }
    }

    #[test]
    fn both_ends_have_the_numbers_of_the_connector() {
        let acceptor = Identity::of(&record()).unwrap();
        let mut connector = acceptor;
        (connector.sent, connector.received) = (acceptor.received, acceptor.sent);
        connector.side = Side::Connector;
        let numbers = Numbers {
            sent: 3,
            received: 0xfedc_ba98,
        };
        assert_eq!(acceptor.numbers(), numbers);
        assert_eq!(connector.numbers(), numbers);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_identity_or_none(bytes: [u8; size_of::<Record>()]) {
            let record = Record::read_from_bytes(&bytes[..]).unwrap();
            prop_assert_eq!(record.as_bytes(), &bytes);
            if let Some(identity) = Identity::of(&record) {
                prop_assert_eq!(side(record.op), Some(identity.side));
                prop_assert_eq!(identity.sent, record.sent);
            }
        }

        /// Only two words of a record have values that are none; the rest may be anything.
        #[test]
        fn whatever_else_is_in_it(bytes: [u8; size_of::<Record>()], remote_port: u16) {
            let mut record = Record::read_from_bytes(&bytes[..]).unwrap();
            record.op = ACTIVE_ESTABLISHED;
            record.remote_port = u32::from(remote_port).to_be();
            prop_assert_eq!(Identity::of(&record).unwrap().remote_port, remote_port);
        }
    }
}
