//! What the counters regions show for `shunt ss`: listeners, connections that nobody has
//! claimed, and bytes.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_abi::counters::{Record, Stage};
use shunt_abi::message::{Kind, Message, Role};

use super::{Daemon, Scope};
use crate::client::Client;
use crate::diag::dump::{self, Sockets};
use crate::end::EndId;
use crate::inspect::{self, Look, Seen};
use crate::tuple::{FAMILIES, Tuple, bytes};

/// One end of a connection in one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) client: u64,
    pub(super) accepts: bool,
    pub(super) status: u8,
    /// Payload sent: [through rings, through the kernel].
    pub(super) sent: [u64; 2],
    /// Payload received, likewise.
    pub(super) received: [u64; 2],
}

/// So many descriptors are looked at for one list.
const LOOKS: usize = 1 << 16;

/// All ends, by their addresses.
pub(super) type Sights = HashMap<Tuple, Vec<Sight>>;

/// What all regions show.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) sights: Sights,
    /// A row for each.
    pub(super) listeners: Vec<Message>,
    /// Ends that are not open any more: a client that has to wait with its messages until
    /// we have read others says so later.
    pub(super) closed: HashSet<EndId>,
}

impl Daemon {
    /// Looks into the region of every process that `uid` may see.
    pub(super) fn see(&self, uid: u32) -> View {
        let mut view = View::default();
        let most = self.config.limits.connections_per_client;
        let mut left = LOOKS;
        // Where no socket can be looked at, the kernel's list of all.
        let mut sockets: Option<Sockets> = None;
        for (&id, client) in &self.clients {
            if self.scope == Scope::Host && uid != 0 && uid != client.uid {
                continue;
            }
            let Some(account) = &client.account else {
                continue;
            };
            let records = account.region.sockets(most);
            view.closed.extend(self.closed(id, &records));
            // A region says whatever its owner likes: each descriptor is looked at once.
            let mut numbers = HashSet::new();
            for record in records.into_iter().filter(is_listed) {
                let number = record.fd.load(Ordering::Relaxed);
                if left == 0 || !numbers.insert(number) {
                    continue;
                }
                left -= 1;
                let cookie = record.cookie.load(Ordering::Relaxed);
                let seen = inspect::see(client.pidfd.as_fd(), number, cookie, &client.lane);
                let seen = match seen {
                    Err(Look::Denied) => self.socket_at(client, number).and_then(|(inode, _)| {
                        let sockets = sockets.get_or_insert_with(dump::all);
                        sockets.get(&inode).copied()
                    }),
                    other => other.ok(),
                };
                match seen {
                    Some(seen) if record.stage() == Stage::Listener => {
                        view.listeners.push(listener(client, &seen));
                    }
                    Some(Seen {
                        tuple: Some(tuple),
                        carried,
                        ..
                    }) => view
                        .sights
                        .entry(tuple)
                        .or_default()
                        .push(sight(id, &record, carried)),
                    _ => {}
                }
            }
        }
        view
    }

    /// Ends of a client that none of its records names, nor any descriptor.
    fn closed(&self, client: u64, records: &[Record]) -> Vec<EndId> {
        let cookie = |record: &Record| record.cookie.load(Ordering::Relaxed);
        let named: HashSet<u64> = records.iter().map(cookie).collect();
        let mut ends = self.ends.of(client);
        ends.retain(|&id| !named.contains(&id.cookie) && self.look(id) == Look::Gone);
        ends
    }
}

fn is_listed(record: &Record) -> bool {
    !matches!(record.stage(), Stage::Free | Stage::Fresh)
}

fn sight(client: u64, record: &Record, carried: (u64, u64)) -> Sight {
    let ring = |count: &shunt_abi::counters::Counts| count.ring_bytes.load(Ordering::Relaxed);
    let reason = record.reason.load(Ordering::Relaxed);
    let downgraded = record.downgraded.load(Ordering::Relaxed) != 0;
    let status = match record.stage() {
        Stage::Attached if !downgraded => 0,
        // Also of one that may be shunted yet: why it is not so far.
        _ if reason != 0 => reason,
        _ => Reason::Pending as u8,
    };
    Sight {
        client,
        accepts: record.role.load(Ordering::Relaxed) == Role::Acceptor as u8,
        status,
        sent: [ring(&record.tx), record.tx.payload(carried.0)],
        received: [ring(&record.rx), record.rx.payload(carried.1)],
    }
}

fn listener(client: &Client, seen: &Seen) -> Message {
    let mut row = Message::new(Kind::Listener);
    row.family = if seen.local.is_ipv4() {
        FAMILIES.0
    } else {
        FAMILIES.1
    };
    row.addresses[0] = bytes(seen.local.ip());
    row.ports[0] = seen.local.port();
    row.pids[0] = client.pid;
    row.name = client.comm;
    row
}

/// What has gone one way: what its sender says, or else its receiver. Several processes
/// that share an end (`fork`) have each sent a part; the kernel's part is the same for all.
pub(super) fn one_way(from: &[Sight], to: &[Sight]) -> [u64; 2] {
    let sum = |parts: &mut dyn Iterator<Item = [u64; 2]>| {
        parts.fold([0, 0], |[ring, kernel]: [u64; 2], [more, other]| {
            [ring.saturating_add(more), kernel.max(other)]
        })
    };
    if from.is_empty() {
        sum(&mut to.iter().map(|sight| sight.received))
    } else {
        sum(&mut from.iter().map(|sight| sight.sent))
    }
}
