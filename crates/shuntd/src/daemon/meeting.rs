//! Connections to other hosts. The daemon passes the claims of its clients to [`crate::hosts`], which decides what is to be done.
//! It then hands each order to the thread that talks to other hosts, or a message to a client, and passes on what that thread hears.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use shunt_abi::Reason;
use shunt_abi::message::{FLAG_NEW_LINK, FLAG_REACHES, Kind, Message, Role};
use shunt_hosts::{Claim, Event, Fault, HostId, Order, Side};

use super::Daemon;
use super::dispatch::Malformed;
use super::hosting::reason;
use crate::config::PINNED;
use crate::end::{EndId, State};
use crate::hosts::{Act, Afar, Seat};
use crate::mirror::Counterpart;
use crate::namespaces::{self, Ends};
use crate::{devices, process};

/// After a call that was not answered, lists of connections do not make the daemon call that host again for this time.
const STALE: Duration = Duration::from_secs(60);
/// What other hosts say that is heard in one turn, so that clients do not wait long for theirs.
const EVENTS: usize = 256;

impl Daemon {
    /// Whether the other end of a connection may be looked for on the host at this address.
    pub(super) fn may_ask_host(&self, address: IpAddr) -> bool {
        let between = self
            .config
            .hosts
            .as_ref()
            .filter(|_| self.hosting.is_some());
        between.is_some_and(|between| between.names(address))
    }

    /// Looks for the other end of a claim that has no match here on the host at its address, if that may be. Nobody waits for
    /// it. `Some`: why it will not be found.
    pub(super) fn ask_host(&mut self, id: EndId) -> Option<Reason> {
        let (tuple, role) = self.ends.get(id).map(|end| (end.tuple(), end.role))?;
        let tuple = tuple?;
        let leaves = namespaces::leaves(namespaces::ends(tuple)).is_some();
        let is_found = || matches!(self.mirrors.counterpart(id.cookie), Counterpart::Found(_));
        if !leaves || !self.may_ask_host(tuple.peer.0) || is_found() {
            return None;
        }
        let obstacle = self.obstacle(id).map_or(0, |reason| reason as u8);
        let claim = Claim {
            end: 0,
            process: id.client,
            side: match role {
                Role::Connector => Side::Connector,
                Role::Acceptor => Side::Acceptor,
            },
            numbers: self.mirrors.numbers(id.cookie),
            local: tuple.local.into(),
            peer: tuple.peer.into(),
            obstacle,
        };
        let hosting = self.hosting.as_mut()?;
        if !hosting.table.knows(id) {
            let acts = hosting.table.claim(id, claim);
            self.perform(acts);
        }
        None
    }

    /// Why the other end of a connection that nobody has claimed is not on another host that could be asked for it. Where
    /// nothing is known yet of its host, that is called, so that the next who asks is told.
    pub(super) fn reason_afar(&self, ends: Ends) -> Option<Reason> {
        let address = namespaces::leaves(ends)?;
        let hosting = self.hosting.as_ref()?;
        if !self.may_ask_host(address) {
            return None;
        }
        let fault = hosting.faults.iter().find(|(at, ..)| *at == address);
        let is_new = |(.., since): &&(IpAddr, Reason, Instant)| since.elapsed() < STALE;
        if !hosting.found.contains_key(&address) && fault.filter(is_new).is_none() {
            hosting.hosts.order(Order::Find(address));
        }
        fault.map(|(_, reason, _)| *reason)
    }

    /// Why an end cannot go by RDMA, as far as this host knows.
    fn obstacle(&self, id: EndId) -> Option<Reason> {
        let cannot_lock = || {
            let pid = self.clients.get(&id.client)?.pid;
            (process::lockable(pid)? < PINNED).then_some(Reason::Pinned)
        };
        let reaches = self.ends.get(id).is_some_and(|end| end.reaches);
        let hosts = self.config.hosts.as_ref();
        let device = hosts.and_then(|hosts| hosts.device.as_deref());
        let is_on = reaches && hosts.is_some_and(|hosts| hosts.rdma);
        self.against_leaving(id)
            .or_else(|| devices::obstacle(&self.devices, device))
            .or_else(cannot_lock)
            .or_else(|| (!is_on).then_some(Reason::OtherHost))
    }

    /// An end is claimed no more, or has found its match here.
    pub(super) fn leave_hosts(&mut self, id: EndId) {
        if let Some(hosting) = &mut self.hosting {
            let acts = hosting.table.forget(id);
            self.perform(acts);
        }
    }

    /// A client has ended.
    pub(super) fn leave_hosts_for_good(&mut self, client: u64) {
        if let Some(hosting) = &mut self.hosting {
            let acts = hosting.table.forget_client(client);
            self.perform(acts);
        }
    }

    /// Does what is to be done.
    pub(super) fn perform(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Find(address) => self.order(Order::Find(address)),
                Act::Tell(host, frame) => self.order(Order::Tell(host, frame)),
                Act::Invite(host, claim) => self.invite(host, claim),
                Act::Refuse(id, reason) => self.drop_claim(id, reason),
                Act::Meet(id, seat) => self.meet(id, seat),
                Act::Left(id, seat) => self.say_left(id, seat),
                Act::Word { client, link, text } => {
                    let mut word = Message::new(Kind::Word);
                    word.link = link;
                    word.set_text(&text);
                    self.post(client, word, None);
                }
                Act::Gone { client, link } => {
                    let mut gone = Message::new(Kind::Gone);
                    (gone.link, gone.flags) = (link, FLAG_REACHES);
                    self.post(client, gone, None);
                }
                Act::Died(id, seat, bytes) => self.say_died_afar(id, seat, bytes),
            }
        }
    }

    fn order(&self, order: Order) {
        if let Some(hosting) = &self.hosting {
            hosting.hosts.order(order);
        }
    }

    /// Other hosts have something to say.
    pub(super) fn hear_hosts(&mut self) {
        let hosts = self.hosting.as_ref().map(|hosting| &hosting.hosts);
        let events = hosts.map(|hosts| hosts.events(EVENTS));
        for event in events.unwrap_or_default() {
            self.hear_host(event);
        }
    }

    fn hear_host(&mut self, event: Event) {
        let Some(hosting) = &mut self.hosting else {
            return;
        };
        match event {
            Event::Found { address, host } => {
                hosting.note_found(address);
                let acts = hosting.table.found(address, host);
                self.perform(acts);
                self.log.event(|| format!("the host at {address} is found"));
            }
            Event::Failed { address, fault } => {
                hosting.note_fault(address, reason(fault));
                for id in hosting.table.failed(address) {
                    self.stay_here(id, reason(fault));
                }
                self.log.event(|| format!("the host at {address}: {fault}"));
            }
            Event::Said { host, frame } => {
                let acts = hosting.table.said(host, frame);
                self.perform(acts);
            }
            Event::Lost { host, fault } => {
                for address in hosting.table.addresses(host) {
                    if fault == Fault::Refused {
                        // Another configuration holds: nothing is known of it yet.
                        hosting.found.remove(&address);
                    } else {
                        hosting.note_fault(address, reason(fault));
                    }
                    self.log
                        .event(|| format!("the host at {address} is lost: {fault}"));
                }
                let acts = hosting.table.lost(host);
                let ports = hosting.forget_ports(host);
                self.unlist(ports);
                self.perform(acts);
            }
            Event::TurnedAway { address, fault } => {
                self.log
                    .event(|| format!("a caller from {address} is turned away: {fault}"));
            }
        }
    }

    /// Nobody can be asked for the other end of a claim.
    fn stay_here(&mut self, id: EndId, reason: Reason) {
        if self.mirrors.counterpart(id.cookie) == Counterpart::Early {
            // It may yet turn out to be here; when it has not in time, it is asked for again.
            return self.leave_hosts(id);
        }
        self.drop_claim(id, reason);
    }

    /// The acceptor of a connection is claimed on another host: its connector, if it is here, learns that a claim is worth it.
    fn invite(&mut self, host: HostId, claim: Claim) {
        if claim.side != Side::Acceptor {
            return;
        }
        self.resolve_connectors();
        let found = match claim.numbers.filter(|_| self.mirrors.is_on()) {
            Some(numbers) => {
                let found = self.mirrors.connector_of(numbers);
                found.map(|mirror| (mirror.netns, mirror.peer_port))
            }
            None => Some((self.address.0, claim.local.port())),
        };
        let (Some((netns, port)), Some(hosting)) = (found, &mut self.hosting) else {
            return;
        };
        let board = self.boards.get(netns);
        if board.is_some_and(|board| board.lists(port)) {
            return;
        }
        let Some(gone) = hosting.listed.entry(host).or_default().add(netns, port) else {
            return;
        };
        if let Some(board) = board {
            board.add_listener(port);
        }
        self.unlist(gone);
    }

    fn meet(&mut self, id: EndId, seat: Seat) {
        self.set_state(id, State::Met);
        let mut meet = Message::new(Kind::Meet);
        if let Some(end) = self.ends.get_mut(id) {
            end.answer = false;
            end.status = end.status.filter(|&s| s != Reason::PeerPlain as u8);
            meet.fd = end.fd;
        }
        meet.cookie = id.cookie;
        (meet.link, meet.slot, meet.generation) = (seat.link, seat.slot, seat.generation);
        meet.role = (!seat.is_ours).into();
        if seat.is_first {
            meet.flags = FLAG_NEW_LINK;
        }
        meet.bytes[0][0] = seat.left;
        let hosts = self.config.hosts.as_ref();
        if let Some(device) = hosts.and_then(|hosts| hosts.device.as_ref()) {
            meet.set_device(device);
        }
        self.post(id.client, meet, None);
    }

    fn say_left(&mut self, id: EndId, seat: Seat) {
        let mut left = Message::new(Kind::Unpaired);
        left.cookie = id.cookie;
        left.fd = self.ends.get(id).map_or(-1, |end| end.fd);
        left.status = Reason::PeerLeft as u8;
        (left.link, left.slot, left.generation) = (seat.link, seat.slot, seat.generation);
        self.post(id.client, left, None);
    }

    fn say_died_afar(&mut self, id: EndId, seat: Seat, bytes: [u64; 2]) {
        let mut died = Message::new(Kind::Died);
        died.cookie = id.cookie;
        died.fd = self.ends.get(id).map_or(-1, |end| end.fd);
        (died.link, died.slot, died.generation) = (seat.link, seat.slot, seat.generation);
        died.bytes[0] = bytes;
        self.post(id.client, died, None);
    }

    /// Those of these ends that have met ones on other hosts.
    pub(super) fn ends_afar(&self, ends: &[EndId]) -> Vec<Afar> {
        let hosting = self.hosting.iter();
        hosting
            .flat_map(|hosting| ends.iter().filter_map(|&end| hosting.table.afar(end)))
            .collect()
    }

    /// A client says something to the process at the other end of its link.
    pub(super) fn say_word(&mut self, id: u64, message: &Message) -> Result<(), Malformed> {
        let hosting = self.hosting.as_ref();
        let act = hosting.and_then(|hosting| hosting.table.word(id, message.link, message.text()));
        // The link may be gone by now.
        self.perform(act.into_iter().collect());
        Ok(())
    }
}
