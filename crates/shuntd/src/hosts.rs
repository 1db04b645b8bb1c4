//! Connections to other hosts: which ends of theirs are ends of ours, and what the processes that have them may say to each
//! other. Pure: it says what is to be done ([`Act`]).
//!
//! ```text
//!            address found          mirrored claim of the same host        slot
//!  Asked ──────────────────> Told ────────────────────────────────> ... ────────> Met
//!    ^                         │            │ one of both cannot
//!    └──── host lost ──────────┘            └──────────────────────> Refuse, with the reason
//! ```
//!
//! Both hosts do the same: each tells the other of an end that a process has claimed, if the connection's other address leads
//! to that host. A host is believed only about connections whose other end is at an address where it was found; so one that
//! has the key, too, cannot have connections of others.

mod act;
mod hearing;
mod index;
mod pair;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use shunt_abi::Reason;
use shunt_hosts::{Claim, Frame, HostId};

use crate::end::EndId;
use act::gone;
pub(crate) use act::{Act, Afar};
use hearing::reason;
use index::Index;
use pair::Pairs;
pub(crate) use pair::{Budget, Seat};

/// How far an end of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// Its host is looked for.
    Asked,
    /// That host knows of it.
    Told(HostId),
    /// With that host's end of this number.
    Met(HostId, u64, Seat),
}

/// An end of ours.
#[derive(Debug)]
struct Ours {
    id: EndId,
    claim: Claim,
    /// Where the other end is.
    address: IpAddr,
    stand: Stand,
}

/// Another host.
#[derive(Debug, Default)]
struct Host {
    addresses: BTreeSet<IpAddr>,
    /// What it has told us, and we it.
    theirs: Index,
    told: Index,
}

/// What is known of the host at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// It has been found.
    pub(crate) is_found: bool,
    /// Why it could not be talked to when that was tried last.
    pub(crate) fault: Option<Reason>,
    /// Ends of ours that wait for theirs, or for it to be found.
    pub(crate) waiting: u32,
    /// Ends that have met theirs.
    pub(crate) met: u32,
}

/// All ends that are, or may be, connected to other hosts.
#[derive(Debug)]
pub(crate) struct Table {
    me: HostId,
    last: u64,
    ours: HashMap<u64, Ours>,
    by_id: HashMap<EndId, u64>,
    /// Ends that have met those of other hosts, by these.
    met: HashMap<(HostId, u64), u64>,
    /// Ends that wait for the host at an address.
    asked: HashMap<IpAddr, BTreeSet<u64>>,
    places: HashMap<IpAddr, HostId>,
    hosts: HashMap<HostId, Host>,
    pairs: Pairs,
}

impl Table {
    pub(crate) fn new(me: HostId, budget: Budget) -> Self {
        Self {
            me,
            last: 0,
            ours: HashMap::new(),
            by_id: HashMap::new(),
            met: HashMap::new(),
            asked: HashMap::new(),
            places: HashMap::new(),
            hosts: HashMap::new(),
            pairs: Pairs::new(budget),
        }
    }

    /// Whether an end is, or may be, connected to another host.
    pub(crate) fn knows(&self, id: EndId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Ends that have not met theirs.
    pub(crate) fn waiting(&self) -> Vec<EndId> {
        let waits = |ours: &&Ours| !matches!(ours.stand, Stand::Met(..));
        self.ours
            .values()
            .filter(waits)
            .map(|ours| ours.id)
            .collect()
    }

    /// Where a host is.
    pub(crate) fn addresses(&self, host: HostId) -> Vec<IpAddr> {
        let known = self.hosts.get(&host).into_iter();
        known.flat_map(|known| &known.addresses).copied().collect()
    }

    /// From now on this much memory may be pinned.
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.pairs.set_budget(budget);
    }

    /// A client has claimed an end; where it is connected to is in the claim, whose number is given here.
    pub(crate) fn claim(&mut self, id: EndId, claim: Claim) -> Vec<Act> {
        let mut acts = self.forget(id);
        self.last += 1;
        let (end, address) = (self.last, claim.peer.ip());
        let ours = Ours {
            id,
            claim: Claim { end, ..claim },
            address,
            stand: Stand::Asked,
        };
        self.ours.insert(end, ours);
        self.by_id.insert(id, end);
        if let Some(&host) = self.places.get(&address) {
            self.tell(end, host, &mut acts);
            return acts;
        }
        let asked = self.asked.entry(address).or_default();
        if asked.is_empty() {
            acts.push(Act::Find(address));
        }
        asked.insert(end);
        acts
    }

    /// An end is not claimed any more.
    pub(crate) fn forget(&mut self, id: EndId) -> Vec<Act> {
        let Some(end) = self.by_id.remove(&id) else {
            return Vec::new();
        };
        let Some(ours) = self.ours.remove(&end) else {
            return Vec::new();
        };
        let host = match ours.stand {
            Stand::Asked => {
                self.forget_asked(ours.address, end);
                return Vec::new();
            }
            Stand::Told(host) => host,
            Stand::Met(host, theirs, seat) => {
                self.met.remove(&(host, theirs));
                self.pairs.leave(seat);
                host
            }
        };
        let Some(known) = self.hosts.get_mut(&host) else {
            return Vec::new();
        };
        known.told.remove(end);
        vec![Act::Tell(host, Frame::Drop(end))]
    }

    fn forget_asked(&mut self, address: IpAddr, end: u64) {
        if let Some(asked) = self.asked.get_mut(&address) {
            asked.remove(&end);
            // An empty one stays until the answer comes: it has been asked for.
        }
    }

    /// An end that has met its other one.
    pub(crate) fn afar(&self, id: EndId) -> Option<Afar> {
        let &ours = self.by_id.get(&id)?;
        let Stand::Met(host, theirs, seat) = self.ours.get(&ours)?.stand else {
            return None;
        };
        Some(Afar {
            host,
            theirs,
            ours,
            cookie: id.cookie,
            seat,
        })
    }

    /// A client has ended, and all its ends are forgotten.
    pub(crate) fn forget_client(&mut self, client: u64) -> Vec<Act> {
        let hosts = self.pairs.forget_client(client);
        let tell = |host| Act::Tell(host, Frame::Gone(client));
        hosts.into_iter().map(tell).collect()
    }

    /// At this address is that host.
    pub(crate) fn found(&mut self, address: IpAddr, host: HostId) -> Vec<Act> {
        let mut acts = Vec::new();
        if let Some(former) = self.places.insert(address, host)
            && former != host
            && let Some(former) = self.hosts.get_mut(&former)
        {
            former.addresses.remove(&address);
        }
        let known = self.hosts.entry(host).or_default();
        known.addresses.insert(address);
        for end in self.asked.remove(&address).unwrap_or_default() {
            self.tell(end, host, &mut acts);
        }
        acts
    }

    /// At this address is nobody; the ends that wait for him.
    pub(crate) fn failed(&mut self, address: IpAddr) -> Vec<EndId> {
        let asked = self.asked.remove(&address).unwrap_or_default();
        let id = |end| Some(self.ours.get(&end)?.id);
        asked.into_iter().filter_map(id).collect()
    }

    /// A host is gone, with all that it has said. Connections that have met theirs go on.
    pub(crate) fn lost(&mut self, host: HostId) -> Vec<Act> {
        let Some(known) = self.hosts.remove(&host) else {
            return Vec::new();
        };
        for address in known.addresses {
            self.places.remove(&address);
        }
        let closed = self.pairs.forget_host(host);
        let mut acts: Vec<_> = closed.into_iter().map(gone).collect();
        let mut again = BTreeSet::new();
        for (end, ours) in &mut self.ours {
            if ours.stand == Stand::Told(host) {
                ours.stand = Stand::Asked;
                again.insert((ours.address, *end));
            }
        }
        for (address, end) in again {
            let asked = self.asked.entry(address).or_default();
            if asked.is_empty() {
                acts.push(Act::Find(address));
            }
            asked.insert(end);
        }
        acts
    }

    /// What a client says to the process at the other end of its link, if it has such a link.
    pub(crate) fn word(&self, client: u64, link: u64, text: [u8; 96]) -> Option<Act> {
        let (host, process) = self.pairs.other(client, link)?;
        let word = Frame::Word {
            to: process,
            from: client,
            text,
        };
        Some(Act::Tell(host, word))
    }

    /// Where other hosts are, and where one is looked for; how many of our ends wait there, and how many have met theirs.
    pub(crate) fn list(&self) -> BTreeMap<IpAddr, Row> {
        let mut rows: BTreeMap<_, Row> = BTreeMap::new();
        for address in self.places.keys() {
            rows.entry(*address).or_default().is_found = true;
        }
        for address in self.asked.keys() {
            rows.entry(*address).or_default();
        }
        for ours in self.ours.values() {
            let row = rows.entry(ours.address).or_default();
            match ours.stand {
                Stand::Asked | Stand::Told(_) => row.waiting += 1,
                Stand::Met(..) => row.met += 1,
            }
        }
        rows
    }

    fn tell(&mut self, end: u64, host: HostId, acts: &mut Vec<Act>) {
        let Some(ours) = self.ours.get_mut(&end) else {
            return;
        };
        ours.stand = Stand::Told(host);
        let claim = ours.claim;
        let known = self.hosts.entry(host).or_default();
        known.told.insert(claim);
        acts.push(Act::Tell(host, Frame::Claim(claim)));
        if let Some(&theirs) = known.theirs.mirror(&claim) {
            self.match_up(host, end, &theirs, acts);
        }
    }

    /// Two ends are those of one connection. The host with the smaller name gives them a slot.
    fn match_up(&mut self, host: HostId, end: u64, theirs: &Claim, acts: &mut Vec<Act>) {
        let Some(ours) = self.ours.get_mut(&end) else {
            return;
        };
        if ours.stand != Stand::Told(host) {
            return;
        }
        let mut obstacles = [ours.claim.obstacle, theirs.obstacle].into_iter();
        if let Some(number) = obstacles.find(|number| *number != 0) {
            acts.push(Act::Refuse(ours.id, reason(number)));
            return;
        }
        if host < self.me {
            return; // It will say which slot.
        }
        let processes = (ours.id.client, host, theirs.process);
        let (slot, generation) = match self.pairs.give(processes, theirs.end) {
            Ok(seat) => {
                ours.stand = Stand::Met(host, theirs.end, seat);
                self.met.insert((host, theirs.end), end);
                acts.push(Act::Meet(ours.id, seat));
                (seat.slot, seat.generation)
            }
            Err(reason) => {
                acts.push(Act::Refuse(ours.id, reason));
                (reason as u32, 0)
            }
        };
        let seat = Frame::Seat {
            to: theirs.end,
            from: end,
            slot,
            generation,
        };
        // Before what a refusal says.
        acts.insert(acts.len() - 1, Act::Tell(host, seat));
    }
}

#[cfg(test)]
mod tests;
