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
use super::recent::{Name, Recent};
use super::viewing::Viewer;
use crate::account::Account;
use crate::diag::dump::{self, Sockets};
use crate::end::EndId;
use crate::foreign::Lane;
use crate::inspect::{self, Look, Seen};
use crate::tuple::{FAMILIES, Tuple, bytes};
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
}

/// The most descriptors that are looked at for one list: of processes that are served, and of
/// others.
const LOOKS: [usize; 2] = [1 << 16, 1 << 12];

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
    /// Wake-ups that each process has sent and received.
    pub(super) wakeups: HashMap<u64, [u64; 2]>,
}

impl Daemon {
    /// Looks into the region of every process that a client may see.
    pub(super) fn see(&self, viewer: Viewer, recent: &mut Recent) -> View {
        let mut view = View::default();
        let now = Instant::now();
        recent.begin_list(now);
        let most = self.config.limits.connections_per_client;
        let mut left = LOOKS;
        let mut sockets = None;
        for (id, holder) in self.counting() {
            if !viewer.may_see(holder.uid, holder.netns) {
                continue;
            }
            let records = holder.account.region.sockets(most);
            view.closed.extend(self.closed(id, &records));
            if let Some(owner) = holder.account.region.owner() {
                view.wakeups.insert(id, owner.wakeups);
            }
            let left = &mut left[usize::from(!self.serves(holder.uid))];
            for record in looked_at(records, left) {
                let look = || self.see_socket(&holder, &record, &mut sockets);
                let Some(seen) = recent.seen(Name::of(id, &record), now, look) else {
                    continue;
                };
                if record.stage() == Stage::Listener {
                    view.listeners
                        .push(self.listener(viewer, id, &holder, &seen));
                } else if let Some(tuple) = seen.tuple {
                    let sights = view.sights.entry(tuple).or_default();
                    sights.push(sight(id, &record, seen.carried));
                }
            }
        }
        view
    }

    /// The socket that a record names. Where the kernel lets nobody look at it, the kernel's list of all `sockets` has it,
    /// which is made once.
    fn see_socket(
        &self,
        holder: &Counting<'_>,
        record: &Record,
        sockets: &mut Option<Sockets>,
    ) -> Option<Seen> {
        let number = record.fd.load(Ordering::Relaxed);
        let cookie = record.cookie.load(Ordering::Relaxed);
        match inspect::see(holder.pidfd, number, cookie, holder.lane) {
            Err(Look::Denied) => {
                let (inode, _) = self.socket_at(holder.pid, number)?;
                let sockets = sockets.get_or_insert_with(dump::all);
                sockets.get(&inode).copied()
            }
            seen => seen.ok(),
        }
    }

    /// The row of a listener of a process that is known by this number.
    fn listener(&self, viewer: Viewer, id: u64, holder: &Counting<'_>, seen: &Seen) -> Message {
        let comm = self.face(id).unwrap_or_default().comm;
        let mut row = listener(holder.pid, comm, seen);
        self.name_container(viewer, &mut row, 0, id);
        row
    }

    /// Ends of a client that none of its records names, and that cannot be found: the
    /// descriptor names something else or, where we may not look at it, the kernel has no
    /// such connection.
    fn closed(&self, client: u64, records: &[Record]) -> Vec<EndId> {
        let cookie = |record: &Record| record.cookie.load(Ordering::Relaxed);
        let named: HashSet<u64> = records.iter().map(cookie).collect();
        let mut ends = self.ends.of(client);
        let is_lost = |id| matches!(self.look(id), Look::Gone | Look::Denied);
        ends.retain(|&id| !named.contains(&id.cookie) && is_lost(id));
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

    /// A process that is known by this number.
    pub(super) fn face(&self, id: u64) -> Option<Face> {
        if let Some(client) = self.clients.get(&id) {
            return Some(Face {
                pid: client.pid,
                uid: client.uid,
                netns: client.netns,
                comm: client.comm,
            });
        }
        let orphan = self.orphans.get(&id)?;
        Some(Face {
            pid: orphan.pid,
            uid: orphan.uid,
            netns: orphan.netns,
            comm: orphan.account.region.owner().map_or([0; 16], |o| o.comm),
        })
    }

    /// Names the container of a row's process, to who sees all of the host.
    pub(super) fn name_container(
        &self,
        viewer: Viewer,
        row: &mut Message,
        process: usize,
        id: u64,
    ) {
        if viewer.sees_all
            && let Some(name) = self.container(id)
        {
            row.set_container(process, &name);
        }
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

/// The records of a region whose descriptors are looked at, `left` at most. A region says whatever its owner likes, so
/// each descriptor is looked at once.
fn looked_at(records: Vec<Record>, left: &mut usize) -> Vec<Record> {
    let mut numbers = HashSet::new();
    let is_listed = |record: &Record| !matches!(record.stage(), Stage::Free | Stage::Fresh);
    let is_new = |record: &Record| numbers.insert(record.fd.load(Ordering::Relaxed));
    let records = records.into_iter().filter(is_listed).filter(is_new);
    let records: Vec<_> = records.take(*left).collect();
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

fn listener(pid: u32, comm: [u8; 16], seen: &Seen) -> Message {
    let mut row = Message::new(Kind::Listener);
    row.family = if seen.local.is_ipv4() {
        FAMILIES.0
    } else {
        FAMILIES.1
    };
    row.addresses[0] = bytes(seen.local.ip());
    row.ports[0] = seen.local.port();
    row.pids[0] = pid;
    row.name = comm;
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
