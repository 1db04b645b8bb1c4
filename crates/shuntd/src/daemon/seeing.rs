//! What the counters regions show for `shunt ss`: listeners, connections that nobody has
//! claimed, and bytes.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use shunt_abi::Reason;
use shunt_abi::counters::{Record, Stage};
use shunt_abi::message::{Kind, Message, Role};

use super::Daemon;
use super::grouping::Table;
use super::recent::{Name, Recent};
use super::viewing::Viewer;
use crate::account::Account;
use crate::diag::dump::{self, Sockets};
use crate::end::EndId;
use crate::foreign::Lane;
use crate::inspect::{self, Look, Seen};
use crate::tuple::{FAMILIES, bytes};
use crate::{container, process};

/// One end of a connection in one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) client: u64,
    pub(super) accepts: bool,
    pub(super) status: u8,
    /// The link and the generation of its slot: the same at the other end.
    pub(super) seat: (u64, u32),
    /// Payload sent: [through rings, through the kernel].
    pub(super) sent: [u64; 2],
    /// Payload received: [through rings, through the kernel].
    pub(super) received: [u64; 2],
    /// Calls that sent, and that received: [without a system call, by one].
    pub(super) calls: [[u64; 2]; 2],
    /// Waits that went to sleep.
    pub(super) sleeps: u64,
    /// As in [`Record::since`].
    pub(super) since: u32,
}

/// A process whose region is known.
struct Counting<'a> {
    pid: u32,
    uid: u32,
    netns: u64,
    pidfd: BorrowedFd<'a>,
    lane: &'a Arc<Lane>,
    account: &'a Account,
}

/// What a list shows of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Face {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) netns: u64,
    pub(super) comm: [u8; 16],
    /// Its container, if it is in one and the viewer sees all of the host.
    pub(super) container: Option<[u8; 16]>,
    /// Wake-ups that it has sent and received.
    pub(super) wakeups: [u64; 2],
}

/// The processes of one list for its viewer, each looked up once.
pub(super) struct Faces<'a> {
    daemon: &'a Daemon,
    pub(super) viewer: Viewer,
    /// Wake-ups that those have sent and received whose regions the viewer may see.
    wakeups: HashMap<u64, [u64; 2]>,
    known: HashMap<u64, Option<Face>>,
}

impl<'a> Faces<'a> {
    pub(super) fn new(daemon: &'a Daemon, viewer: Viewer) -> Self {
        Self {
            daemon,
            viewer,
            wakeups: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// The process that is known by this number.
    pub(super) fn of(&mut self, id: u64) -> Option<Face> {
        let look = || {
            let mut face = self.daemon.face(id)?;
            let container = self.viewer.sees_all.then(|| self.daemon.container(id));
            face.container = container.flatten();
            face.wakeups = self.wakeups.get(&id).copied().unwrap_or_default();
            Some(face)
        };
        *self.known.entry(id).or_insert_with(look)
    }
}

/// The most descriptors that are looked at for one list: of processes that are served, and of
/// others.
const LOOKS: [usize; 2] = [1 << 16, 1 << 12];

/// What all regions show.
#[derive(Debug, Default)]
pub(super) struct View<'a> {
    pub(super) table: Table<'a>,
    /// A row for each.
    pub(super) listeners: Vec<Message>,
    /// Ends that are not open any more: a client that has to wait with its messages until
    /// we have read others says so later.
    pub(super) closed: HashSet<EndId>,
}

impl Daemon {
    /// Looks into the region of every process that a client may see.
    pub(super) fn see(&self, faces: &mut Faces<'_>, recent: &mut Recent) -> View<'_> {
        let mut view = View::default();
        let now = Instant::now();
        recent.begin_list(now);
        let most = self.config.limits.connections_per_client;
        let mut left = LOOKS;
        let mut sockets = None;
        for (id, holder) in self.counting() {
            if !faces.viewer.may_see(holder.uid, holder.netns) {
                continue;
            }
            let (owner, records) = holder.account.region.read(most).unzip();
            let records = records.unwrap_or_default();
            view.closed.extend(self.closed(id, &records));
            if let Some(owner) = owner {
                faces.wakeups.insert(id, owner.wakeups);
            }
            let left = &mut left[usize::from(!self.serves(holder.uid))];
            let records = looked_at(records, left);
            view.table.reserve(records.len());
            for record in records {
                let look =
                    |known: Option<&Seen>| self.see_socket(&holder, &record, known, &mut sockets);
                let name = Name::of(id, &record);
                if name.is_none() {
                    recent.forget(id, &record);
                }
                let Some(seen) = recent.seen(name, now, look) else {
                    continue;
                };
                if record.stage() == Stage::Listener {
                    view.listeners.push(listener(faces.of(id), &holder, &seen));
                } else if let Some(tuple) = seen.tuple {
                    let known = view.table.entry(tuple).or_default();
                    known.sights.push(sight(id, &record, seen.carried));
                }
            }
        }
        view
    }

    /// The socket that a record names, of which this is known. Where the kernel lets nobody look at it, the kernel's
    /// list of all `sockets` has it, which is made once.
    fn see_socket(
        &self,
        holder: &Counting<'_>,
        record: &Record,
        known: Option<&Seen>,
        sockets: &mut Option<Sockets>,
    ) -> Option<Seen> {
        let number = record.fd.load(Ordering::Relaxed);
        let cookie = record.cookie.load(Ordering::Relaxed);
        match inspect::see(holder.pidfd, number, cookie, known, holder.lane) {
            Err(Look::Denied) => {
                let (inode, _) = self.socket_at(holder.pid, number)?;
                let sockets = sockets.get_or_insert_with(dump::all);
                sockets.get(&inode).copied()
            }
            seen => seen.ok(),
        }
    }

    /// Ends of a client that none of its records names, and that cannot be found: the
    /// descriptor names something else or, where we may not look at it, the kernel has no
    /// such connection.
    fn closed(&self, client: u64, records: &[Record]) -> Vec<EndId> {
        let cookie = |record: &Record| record.cookie.load(Ordering::Relaxed);
        let mut named: Vec<u64> = records.iter().map(cookie).collect();
        named.sort_unstable();
        let is_named = |id: &EndId| named.binary_search(&id.cookie).is_ok();
        let is_lost = |id| matches!(self.look(id), Look::Gone | Look::Denied);
        let mut ends = self.ends.of(client);
        ends.retain(|&id| !is_named(&id) && is_lost(id));
        ends
    }

    /// Every process whose region is known.
    fn counting(&self) -> impl Iterator<Item = (u64, Counting<'_>)> {
        let clients = self.clients.iter().filter_map(|(&id, client)| {
            let counting = Counting {
                pid: client.pid,
                uid: client.uid,
                netns: client.netns,
                pidfd: client.pidfd.as_fd(),
                lane: &client.lane,
                account: client.account.as_ref()?,
            };
            Some((id, counting))
        });
        let orphans = self.orphans.iter();
        let orphans = orphans.filter(|(_, orphan)| self.answers_for(orphan));
        let orphans = orphans.map(|(&id, orphan)| {
            let counting = Counting {
                pid: orphan.pid,
                uid: orphan.uid,
                netns: orphan.netns,
                pidfd: orphan.pidfd.as_fd(),
                lane: &orphan.lane,
                account: &orphan.account,
            };
            (id, counting)
        });
        clients.chain(orphans)
    }

    /// A process that is known by this number, but for what [`Faces`] adds.
    fn face(&self, id: u64) -> Option<Face> {
        if let Some(client) = self.clients.get(&id) {
            return Some(Face {
                pid: client.pid,
                uid: client.uid,
                netns: client.netns,
                comm: client.comm,
                ..Face::default()
            });
        }
        let orphan = self.orphans.get(&id)?;
        Some(Face {
            pid: orphan.pid,
            uid: orphan.uid,
            netns: orphan.netns,
            comm: orphan.account.region.owner().map_or([0; 16], |o| o.comm),
            ..Face::default()
        })
    }

    /// The container of a process that is known by this number, as lists show it.
    fn container(&self, id: u64) -> Option<[u8; 16]> {
        if let Some(client) = self.clients.get(&id) {
            return client.profile().container.as_deref().map(container::shown);
        }
        let orphan = self.orphans.get(&id)?;
        let cgroups = process::cgroups(orphan.pid)?;
        let lives = orphan.pid != 0 && !process::has_ended(&orphan.pidfd);
        container::of(&cgroups)
            .filter(|_| lives)
            .map(container::shown)
    }
}

/// The records of a region whose descriptors are looked at, `left` at most: those of the lowest numbers. A region says
/// whatever its owner likes, so each descriptor is looked at once.
fn looked_at(mut records: Vec<Record>, left: &mut usize) -> Vec<Record> {
    if *left == 0 {
        return Vec::new();
    }
    records.retain(|record| !matches!(record.stage(), Stage::Free | Stage::Fresh));
    let number = |record: &Record| record.fd.load(Ordering::Relaxed);
    if !records.is_sorted_by_key(number) {
        records.sort_by_cached_key(number); // They are large.
    }
    records.dedup_by_key(|record| number(record));
    records.truncate(*left);
    *left -= records.len();
    records
}

fn sight(client: u64, record: &Record, carried: (u64, u64)) -> Sight {
    let ring = |count: &shunt_abi::counters::Counts| count.ring_bytes.load(Ordering::Relaxed);
    let calls = |count: &shunt_abi::counters::Counts| {
        [&count.user_calls, &count.kernel_calls].map(|calls| calls.load(Ordering::Relaxed))
    };
    let sleeps = |count: &shunt_abi::counters::Counts| count.sleeps.load(Ordering::Relaxed);
    let reason = record.reason.load(Ordering::Relaxed);
    let downgraded = record.downgraded.load(Ordering::Relaxed) != 0;
    let status = match record.stage() {
        Stage::Attached | Stage::Aside if !downgraded => 0,
        // Also of one that may be shunted yet: why it is not so far.
        _ if reason != 0 => reason,
        _ => Reason::Pending as u8,
    };
    Sight {
        client,
        accepts: record.role.load(Ordering::Relaxed) == Role::Acceptor as u8,
        status,
        seat: (
            record.link.load(Ordering::Relaxed),
            record.generation.load(Ordering::Relaxed),
        ),
        sent: [ring(&record.tx), record.tx.payload(carried.0)],
        received: [ring(&record.rx), record.rx.payload(carried.1)],
        calls: [calls(&record.tx), calls(&record.rx)],
        sleeps: sleeps(&record.tx).saturating_add(sleeps(&record.rx)),
        since: record.since.load(Ordering::Relaxed),
    }
}

/// The row of a listener of this process.
fn listener(face: Option<Face>, holder: &Counting<'_>, seen: &Seen) -> Message {
    let face = face.unwrap_or_default();
    let mut row = Message::new(Kind::Listener);
    row.family = if seen.local.is_ipv4() {
        FAMILIES.0
    } else {
        FAMILIES.1
    };
    row.addresses[0] = bytes(seen.local.ip());
    row.ports[0] = seen.local.port();
    row.pids[0] = holder.pid;
    row.name = face.comm;
    if let Some(container) = face.container {
        row.set_container(0, &container);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_is_looked_at_once_and_the_first_record_of_it_counts() {
        let record = |stage: Stage, fd, cookie| {
            let record = Record::default();
            record.stage.store(stage as u8, Ordering::Relaxed);
            record.fd.store(fd, Ordering::Relaxed);
            record.cookie.store(cookie, Ordering::Relaxed);
            record
        };
        let records = || {
            vec![
                record(Stage::Free, 3, 0),
                record(Stage::Attached, 9, 1),
                record(Stage::Listener, 4, 2),
                record(Stage::Plain, 9, 3),
                record(Stage::Fresh, 5, 4),
                record(Stage::Attached, 7, 5),
            ]
        };
        let mut left = 5;
        let mut look = || {
            let looked_at = looked_at(records(), &mut left);
            let cookies = looked_at.iter().map(|r| r.cookie.load(Ordering::Relaxed));
            (cookies.collect::<Vec<_>>(), left)
        };
        assert_eq!(look(), (vec![2, 5, 1], 2));
        assert_eq!(look(), (vec![2, 5], 0));
        assert_eq!(look(), (vec![], 0));
    }
}
