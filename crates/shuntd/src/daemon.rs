//! The event loop: one thread, one epoll set. (What clients passed is
//! closed by other threads: see [`crate::foreign`].)

mod accounting;
mod admitting;
mod adopting;
mod crossing;
mod detailing;
mod dispatch;
mod dropping;
mod early;
mod elsewhere;
mod grouping;
mod hosting;
mod inheriting;
mod lending;
mod listing;
mod looking;
mod meeting;
mod pairing;
mod parking;
mod policing;
mod posting;
mod putting_off;
mod recalling;
mod recent;
mod resetting;
mod seeing;
mod turns;
mod viewing;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use shunt_abi::message::{FLAG_UNUSED, Kind, Message};

use accounting::Orphan;
use admitting::spare_descriptor;
use adopting::Adopting;
use early::Early;
use elsewhere::Elsewhere;
use hosting::Hosting;
use inheriting::Inheriting;
use lending::{LeftBehind, Lending};
use putting_off::PutOff;
use recent::Recent;
use turns::Turns;

use crate::between::Between;
use crate::board::Boards;
use crate::client::Client;
use crate::config::{Config, Source};
use crate::end::{EndId, Ends};
use crate::foreign::Lanes;
use crate::link::{Links, Lost};
use crate::log::Log;
use crate::mirror::Mirrors;
use crate::process::Rights;
use crate::quota::{Charge, Quotas};
use crate::{cores, devices, sys, wire};

/// Whom a daemon serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Processes of this user only.
    User(u32),
    /// Every user's processes.
    Host,
}

/// Marks an event's origin: the low two bits of its data.
const SOCKET: u64 = 0;
const PIDFD: u64 = 1;
const LISTENER: u64 = 2;
const STOP: u64 = 3;

/// The data of "a descriptor has become free": a listener's, so to speak.
const ROOM: u64 = 1 << 2 | LISTENER;
/// The data of "the processes have been looked through".
const LOOKED: u64 = 2 << 2 | LISTENER;
/// The data of "the configuration is to be read again".
const RELOAD: u64 = 3 << 2 | LISTENER;
/// The data of "other hosts have something to say".
const HOSTS: u64 = 4 << 2 | LISTENER;

/// Messages taken from one client before the others get their turn.
const BURST: usize = 64;
/// Passes over readable clients before a claim is answered without a match.
const PASSES: u32 = 8;

/// What the clients of one user make the daemon hold.
#[derive(Debug, Default)]
struct Share {
    clients: usize,
    /// Connection ends, verified or not.
    ends: usize,
    listeners: usize,
    /// Messages that they have not read.
    unread: usize,
    /// Clients that have not read their list of connections.
    lists: usize,
}

/// Lists that one user's clients may leave unread.
const LISTS: usize = 16;

/// The daemon's state.
#[derive(Debug)]
pub struct Daemon {
    scope: Scope,
    /// What it might do when it started, of which it may have given up some.
    rights: Option<Rights>,
    /// Where clients find it: `SO_NETNS_COOKIE` and the abstract name.
    address: (u64, Vec<u8>),
    config: Config,
    /// Where that came from.
    source: Option<Source>,
    /// Readable when it is to be read again.
    signal: Option<OwnedFd>,
    linger: Option<Duration>,
    /// When the last client left.
    alone_since: Instant,
    log: Log,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Where else clients knock: a socket file.
    file: Option<OwnedFd>,
    /// Closed to make room for one more accept when descriptors run out.
    reserve: Option<OwnedFd>,
    /// Nobody is accepted for want of descriptors.
    deaf: bool,
    lanes: Lanes,
    boards: Boards,
    /// Where its clients note which of them had a core.
    cores: cores::Pages,
    /// Who is whose other end, as the kernel program has seen it.
    mirrors: Mirrors,
    /// Where clients of different network namespaces call each other.
    between: Option<Between>,
    /// Other hosts, if there are any to talk to.
    hosting: Option<Hosting>,
    /// Where the kernel lists RDMA devices.
    devices: PathBuf,
    clients: HashMap<u64, Client>,
    /// Processes without a connection to us; each may still die without a line.
    orphans: HashMap<u64, Orphan>,
    per_user: HashMap<u32, Share>,
    last_client: u64,
    ends: Ends,
    links: Links,
    /// What each tenant holds.
    quotas: Quotas,
    put_off: PutOff,
    /// Pairs that wait for memory.
    parked: Vec<[EndId; 2]>,
    /// Claims of sockets that came from other processes.
    adopting: Adopting,
    /// Claims of connectors whose acceptors may still come.
    early: Early,
    inheriting: Inheriting,
    elsewhere: Elsewhere,
    turns: Turns,
    /// What the kernel said of sockets, for lists.
    recent: Recent,
    lending: Lending,
    /// Where sockets were found that were lent: process and descriptor, by inode number.
    lent: HashMap<u64, (u32, i32)>,
    /// Ends whose clients have gone.
    left_behind: LeftBehind,
    /// Readable when the processes have been looked through.
    looked: Arc<OwnedFd>,
    /// Claims whose makers wait for an answer.
    unanswered: Vec<EndId>,
    /// Clients to be dropped as soon as the present message is done with.
    doomed: Vec<u64>,
}

impl Daemon {
    /// A daemon on a listening socket made by [`crate::listen`].
    ///
    /// # Errors
    /// When the kernel refuses an epoll set or memory for the board.
    pub fn new(
        listener: OwnedFd,
        scope: Scope,
        config: Config,
        verbose: bool,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let listens = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, listens, epoll::EventFlags::IN)?;
        let lanes = Lanes::new()?;
        let room = epoll::EventData::new_u64(ROOM);
        epoll::add(&epoll, lanes.room.bell(), room, epoll::EventFlags::IN)?;
        let looked = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let done = epoll::EventData::new_u64(LOOKED);
        epoll::add(&epoll, &looked, done, epoll::EventFlags::IN)?;
        let looked = Arc::new(looked);
        let netns = sys::netns_cookie(&listener).unwrap_or(0);
        let address = (netns, wire::name_of(&listener)?);
        Ok(Self {
            scope,
            rights: Rights::own(),
            address,
            config,
            source: None,
            signal: None,
            linger: None,
            alone_since: Instant::now(),
            log: Log { verbose },
            epoll,
            listener,
            file: None,
            reserve: spare_descriptor(),
            deaf: false,
            lanes,
            boards: Boards::default(),
            cores: cores::Pages::default(),
            mirrors: Mirrors::none(),
            between: None,
            hosting: None,
            devices: devices::LIST.into(),
            clients: HashMap::new(),
            orphans: HashMap::new(),
            per_user: HashMap::new(),
            last_client: 0,
            ends: Ends::default(),
            links: Links::new(),
            quotas: Quotas::default(),
            put_off: PutOff::default(),
            parked: Vec::new(),
            adopting: Adopting::new(&looked),
            early: Early::default(),
            inheriting: Inheriting::new(&looked),
            elsewhere: Elsewhere::new(&looked),
            turns: Turns::default(),
            recent: Recent::default(),
            lending: Lending::new(&looked),
            lent: HashMap::new(),
            left_behind: LeftBehind::default(),
            looked,
            unanswered: Vec::new(),
            doomed: Vec::new(),
        })
    }

    /// Ends by itself after this long without a client.
    pub fn set_linger(&mut self, linger: Option<Duration>) {
        self.linger = linger;
    }

    fn is_alone(&self) -> bool {
        let owed = |orphan: &Orphan| orphan.account.lines.is_some();
        self.clients.is_empty() && !self.orphans.values().any(owed)
    }

    /// How long until the daemon ends for want of clients.
    fn left(&self) -> Option<Duration> {
        let linger = self.linger.filter(|_| self.is_alone())?;
        Some(linger.saturating_sub(self.alone_since.elapsed()))
    }

    /// From now on clients find it at a socket file, too, from every network namespace.
    ///
    /// # Errors
    /// When the kernel has no memory for that.
    pub fn listen_too(&mut self, file: OwnedFd) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&self.epoll, &file, data, epoll::EventFlags::IN)?;
        self.file = Some(file);
        Ok(())
    }

    /// From now on it ends when `stop` becomes readable.
    ///
    /// # Errors
    /// When the kernel has no memory for that.
    pub fn stop_by(&mut self, stop: impl AsFd) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(STOP);
        Ok(epoll::add(&self.epoll, &stop, data, epoll::EventFlags::IN)?)
    }

    /// Serves clients until it is stopped, or has lingered long enough.
    ///
    /// # Errors
    /// When epoll itself fails.
    pub fn run(&mut self) -> std::io::Result<()> {
        self.look_for_survivors();
        let mut events = Vec::with_capacity(1024);
        let mut passes = 0;
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let left = self.left();
            let rest = self.rest(left);
            // A claim that found no match is answered only when nobody's queue
            // holds the claim that it waits for.
            let timeout = if self.unanswered.is_empty() {
                rest.as_ref()
            } else {
                Some(&now)
            };
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                if event.data.u64() & 3 == STOP {
                    return Ok(());
                }
                self.take_event(event.data.u64(), event.flags);
                self.bury();
            }
            self.adopt();
            self.list_waiting();
            self.recent.forget_old(Instant::now());
            self.look_elsewhere();
            self.look_for_loans();
            self.take_links_back();
            self.settle_early();
            self.hear_put_off();
            self.bury();
            if left == Some(Duration::ZERO) && events.is_empty() {
                // Whoever knocked before this look is let in. Later ones see the
                // address vanish, and `shunt run` starts another daemon.
                self.accept();
                if self.is_alone() {
                    return Ok(());
                }
            }
            passes += 1;
            if self.unanswered.is_empty() {
                passes = 0;
            } else if events.is_empty() || passes >= PASSES {
                self.settle();
                self.bury();
                passes = 0;
            }
        }
    }

    /// For how long it may sleep, if `left` says when it ends.
    fn rest(&self, left: Option<Duration>) -> Option<Timespec> {
        let looks = [
            left,
            self.adopting.left(),
            self.elsewhere.left(),
            self.turns.left(),
            self.recent.left(),
            self.lending.left(),
            self.early.left(),
            self.links.left(),
            self.put_off.left(),
        ];
        let next = looks.into_iter().flatten().min()?;
        Timespec::try_from(next).ok()
    }

    fn take_event(&mut self, data: u64, flags: epoll::EventFlags) {
        match data & 3 {
            LISTENER if data == ROOM => {
                self.lanes.room.heard();
                self.hear(true);
            }
            LISTENER if data == LOOKED => {
                let _ = rustix::io::read(&self.looked, &mut [0; 8][..]);
                self.adopt_found();
                self.inherit();
                self.found_elsewhere();
                self.loans_found();
            }
            LISTENER if data == RELOAD => self.hear_signal(),
            LISTENER if data == HOSTS => self.hear_hosts(),
            LISTENER => self.accept(),
            PIDFD => {
                // It may have said what it counts just before.
                self.take_burst(data >> 2);
                self.drop_client(data >> 2, "its process ended");
                self.settle_orphan(data >> 2);
            }
            _ => self.serve(data >> 2, flags),
        }
    }

    /// Takes links back that nobody has used for a while.
    fn take_links_back(&mut self) {
        for lost in self.links.take_back(Instant::now()) {
            self.say_gone(lost, FLAG_UNUSED);
        }
        self.refund_links();
    }

    /// Clients are charged for links as long as they have memory for connections there.
    fn refund_links(&mut self) {
        for lost in self.links.take_freed() {
            self.refund(lost.client, Charge::link(lost.memory));
        }
    }

    fn say_gone(&mut self, lost: Lost, flags: u32) {
        let mut gone = Message::new(Kind::Gone);
        (gone.link, gone.flags) = (lost.link, flags);
        self.post(lost.client, gone, None);
    }

    /// Whether a user's processes are paired here.
    fn serves(&self, uid: u32) -> bool {
        self.scope == Scope::Host || self.scope == Scope::User(uid)
    }

    /// Does what a client's socket is ready for.
    fn serve(&mut self, id: u64, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::OUT)
            && let Some(client) = self.clients.get_mut(&id)
        {
            if client.flush().is_err() {
                self.doomed.push(id);
            }
            self.watch(id);
        }
        if flags.contains(epoll::EventFlags::IN) {
            self.take_burst(id);
        }
        if flags
            .intersects(epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR)
        {
            self.drop_client(id, "it closed its socket");
        }
    }

    fn take_burst(&mut self, id: u64) {
        for _ in 0..BURST {
            if !self.take_message(id) {
                break;
            }
            self.bury();
        }
    }
}
