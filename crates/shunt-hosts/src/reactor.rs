//! The thread that talks to other hosts: one epoll set with its listeners, its conversations, and the daemon's bell.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::book::{Book, Known};
use crate::bucket::Bucket;
use crate::door::is_passing;
use crate::frame::{Frame, HostId, VERSION};
use crate::link::{Link, Stage};
use crate::queue::Queues;
use crate::tls::Tls;
use crate::{Admits, Event, Fault, Order, Setup};

/// Conversations, with whomever.
const LINKS: usize = 4096;
/// Hosts that are called at a time, and that wait to be.
const CALLS: [usize; 2] = [64, 1024];
/// Callers that have not said Hello.
const CALLERS: usize = 128;
/// Conversations with callers of one address: more than one are hosts behind it that share it.
const FROM_ONE: usize = 8;
/// Callers that are let in to say it, in a second and at once. Each costs some tenths of a millisecond.
const DOOR: [u32; 2] = [50, 100];
/// Callers turned away that the daemon is told of, likewise.
const TOLD: [u32; 2] = [1, 16];
/// How long nobody is let in after the kernel had no descriptor for a caller.
const DEAF: Duration = Duration::from_secs(1);

/// The data of the daemon's bell; conversations have even numbers from 2 on, listeners odd ones.
const WAKE: u64 = 0;

pub(crate) struct Reactor {
    queues: Arc<Queues>,
    me: HostId,
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    /// When listeners are watched again.
    deaf: Option<Instant>,
    tls: Tls,
    port: u16,
    admits: Admits,
    links: HashMap<u64, Link>,
    last: u64,
    /// Conversations that are not heard until the daemon has room for what they say.
    stalled: HashSet<u64>,
    book: Book,
    /// To be called when others have answered.
    waiting: VecDeque<IpAddr>,
    door: Bucket,
    told: Bucket,
}

impl Reactor {
    pub(crate) fn new(queues: Arc<Queues>, me: HostId, setup: Setup) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, queues.wake(), wake, epoll::EventFlags::IN)?;
        let now = Instant::now();
        let mut reactor = Self {
            queues,
            me,
            epoll,
            listeners: Vec::new(),
            deaf: None,
            tls: Tls::new(&setup.keys).map_err(io::Error::other)?,
            port: setup.port,
            admits: setup.admits,
            links: HashMap::new(),
            last: 0,
            stalled: HashSet::new(),
            book: Book::default(),
            waiting: VecDeque::new(),
            door: Bucket::new(DOOR[0], DOOR[1], now),
            told: Bucket::new(TOLD[0], TOLD[1], now),
        };
        reactor.listen(setup.listeners.unwrap_or_default());
        Ok(reactor)
    }

    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(256);
        loop {
            let rest = self.rest();
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), rest.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return, // Never said of a set that is one.
            }
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    if !self.obey() {
                        return;
                    }
                } else if data & 1 == 1 {
                    self.accept((data / 2) as usize);
                } else {
                    self.turn(data, event.flags);
                }
            }
            self.expire();
        }
    }

    /// How long it may sleep: for ever, unless somebody is to answer.
    fn rest(&self) -> Option<Timespec> {
        let due = self.links.values().filter_map(Link::due);
        let next = due.chain(self.deaf).min()?;
        let rest = next.saturating_duration_since(Instant::now());
        Timespec::try_from(rest).ok()
    }

    /// Does what the daemon wants; `false`: it wants an end.
    fn obey(&mut self) -> bool {
        let Some(orders) = self.queues.take_orders() else {
            return false;
        };
        let mut told = HashSet::new();
        for order in orders {
            match order {
                Order::Find(address) => self.find(address),
                Order::Tell(host, frame) => told.extend(self.tell(host, &frame)),
                Order::Configure(setup) => self.configure(setup),
            }
        }
        let now = Instant::now();
        for number in told {
            if let Some(link) = self.links.get_mut(&number) {
                link.ask(now);
            }
            self.turn(number, epoll::EventFlags::empty());
        }
        for number in std::mem::take(&mut self.stalled) {
            self.turn(number, epoll::EventFlags::empty());
        }
        true
    }

    fn find(&mut self, address: IpAddr) {
        if !(self.admits)(address) {
            let fault = Fault::Refused;
            return self.queues.tell(Event::Failed { address, fault });
        }
        match self.book.look(address, Instant::now()) {
            Known::Called => {}
            Known::Here(host) => self.queues.tell(Event::Found { address, host }),
            Known::Failed(fault) => self.queues.tell(Event::Failed { address, fault }),
            Known::New => self.call(address),
        }
    }

    /// Calls an address, which is noted as called, now or when others have answered.
    fn call(&mut self, address: IpAddr) {
        if self.may_call() {
            let at = SocketAddr::new(address, self.port);
            match Link::call(at, &self.tls, Instant::now()) {
                Ok(link) => self.add(link),
                Err(fault) => self.fail_call(address, fault),
            }
        } else if self.waiting.len() < CALLS[1] {
            self.waiting.push_back(address);
        } else {
            self.fail_call(address, Fault::Busy);
        }
    }

    /// Whether one more may be called at a time.
    fn may_call(&self) -> bool {
        let is_called = |link: &&Link| link.is_ours && !matches!(link.stage, Stage::Up(_));
        self.links.values().filter(is_called).count() < CALLS[0]
    }

    fn fail_call(&mut self, address: IpAddr, fault: Fault) {
        self.book.failed(address, fault, Instant::now());
        self.queues.tell(Event::Failed { address, fault });
    }

    /// Says something to a host, by the first conversation with it: which one it is.
    fn tell(&mut self, host: HostId, frame: &Frame) -> Option<u64> {
        let up = self.links.iter_mut();
        let up = up.filter(|(_, link)| link.stage == Stage::Up(host));
        // Always the same one, so that what is said comes in order.
        let (number, link) = up.min_by_key(|(number, _)| **number)?;
        link.say(frame);
        Some(*number)
    }

    /// What is known of hosts by what held before is forgotten, and they are met anew.
    fn configure(&mut self, setup: Setup) {
        let Ok(tls) = Tls::new(&setup.keys) else {
            return; // A key that signs is one that TLS takes.
        };
        (self.tls, self.port, self.admits) = (tls, setup.port, setup.admits);
        if let Some(listeners) = setup.listeners {
            self.listen(listeners);
        }
        self.book.forgive();
        let links = std::mem::take(&mut self.links);
        let mut lost = HashSet::new();
        let mut called: Vec<_> = self.waiting.drain(..).collect();
        for link in links.into_values() {
            match link.stage {
                Stage::Up(host) => _ = lost.insert(host),
                _ if link.is_ours => called.push(link.peer),
                _ => {}
            }
        }
        for host in lost {
            self.lose(host, Fault::Refused);
        }
        for address in called {
            if (self.admits)(address) {
                self.call(address);
            } else {
                self.fail_call(address, Fault::Refused);
            }
        }
    }

    fn listen(&mut self, listeners: Vec<TcpListener>) {
        self.watch_door(false);
        self.listeners = listeners;
        self.watch_door(true);
    }

    /// Watches for callers, or does not.
    fn watch_door(&mut self, hears: bool) {
        self.deaf = None;
        for (i, listener) in self.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(2 * i as u64 + 1);
            if !hears {
                let _ = epoll::delete(&self.epoll, listener); // It may not have been watched.
                continue;
            }
            match epoll::add(&self.epoll, listener, data, epoll::EventFlags::IN) {
                // Watched before another one could not be.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(_) => self.deaf = Some(Instant::now() + DEAF),
            }
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..DOOR[1] {
            let Some(listener) = self.listeners.get(listener) else {
                return;
            };
            match listener.accept() {
                Ok((stream, from)) => {
                    let from = from.ip().to_canonical();
                    if let Err(fault) = self.let_in(stream, from) {
                        self.turn_away(from, fault);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_passing(&error) => {}
                Err(_) => {
                    // No descriptors or no memory: it would be told again at once.
                    self.watch_door(false);
                    self.deaf = Some(Instant::now() + DEAF);
                    return;
                }
            }
        }
    }

    fn let_in(&mut self, stream: std::net::TcpStream, from: IpAddr) -> Result<(), Fault> {
        if !(self.admits)(from) {
            return Err(Fault::Refused);
        }
        let now = Instant::now();
        let is_new = |link: &&Link| !link.is_ours && !matches!(link.stage, Stage::Up(_));
        let callers = self.links.values().filter(is_new).count();
        let is_of_it = |link: &&Link| !link.is_ours && link.peer == from;
        let of_it = self.links.values().filter(is_of_it).count();
        let has_room = callers < CALLERS && of_it < FROM_ONE && self.links.len() < LINKS;
        if !has_room || !self.door.take(now) {
            return Err(Fault::Busy);
        }
        let link = Link::answer(stream, from, &self.tls, now)?;
        self.add(link);
        Ok(())
    }

    fn turn_away(&mut self, address: IpAddr, fault: Fault) {
        if self.told.take(Instant::now()) {
            self.queues.tell(Event::TurnedAway { address, fault });
        }
    }

    fn add(&mut self, mut link: Link) {
        link.say(&Frame::Hello {
            version: VERSION,
            host: self.me,
        });
        self.last += 2;
        link.watched = link.wanted(true);
        let data = epoll::EventData::new_u64(self.last);
        let added = epoll::add(&self.epoll, &link, data, link.watched);
        self.links.insert(self.last, link);
        if added.is_err() {
            self.end(self.last, Fault::Busy);
        }
    }

    /// Goes on with a conversation.
    fn turn(&mut self, number: u64, flags: epoll::EventFlags) {
        let Some(link) = self.links.get_mut(&number) else {
            return;
        };
        let hears = self.queues.has_room();
        let now = Instant::now();
        let mut frames = Vec::new();
        let mut done = link.turn(flags, hears, &mut frames, now);
        for frame in frames {
            if let Err(fault) = self.hear(number, frame) {
                done = Err(fault);
                break;
            }
        }
        let Some(link) = self.links.get_mut(&number) else {
            return;
        };
        // Answers that hearing it has called for.
        let sent = link.turn(epoll::EventFlags::empty(), false, &mut Vec::new(), now);
        if let Err(fault) = done.and(sent) {
            return self.end(number, fault);
        }
        if !hears {
            self.stalled.insert(number);
        }
        let wanted = link.wanted(hears);
        if wanted != link.watched {
            link.watched = wanted;
            let data = epoll::EventData::new_u64(number);
            let _ = epoll::modify(&self.epoll, &*link, data, wanted);
        }
    }

    fn hear(&mut self, number: u64, frame: Frame) -> Result<(), Fault> {
        let Some(link) = self.links.get_mut(&number) else {
            return Ok(());
        };
        match (link.stage, frame) {
            (Stage::Greeting, Frame::Hello { .. }) if !link.speaks_ours() => {
                return Err(Fault::Protocol);
            }
            (Stage::Greeting, Frame::Hello { version, host }) => {
                if version != VERSION {
                    return Err(Fault::Version);
                }
                if host == self.me {
                    return Err(Fault::Itself);
                }
                if host == HostId::NOBODY {
                    if link.is_ours {
                        return Err(Fault::Protocol);
                    }
                    // Our Hello, which goes first, is its answer.
                    link.stage = Stage::Asked;
                    return Ok(());
                }
                link.rise(host);
                let address = link.peer;
                self.book.found(address, host);
                self.queues.tell(Event::Found { address, host });
                self.call_next();
            }
            (Stage::Up(_), Frame::Ping(number)) => link.say(&Frame::Pong(number)),
            (Stage::Up(_), Frame::Pong(number)) => link.answered(number),
            (Stage::Connecting | Stage::Greeting | Stage::Asked, _) | (_, Frame::Hello { .. }) => {
                return Err(Fault::Protocol);
            }
            (Stage::Up(host), frame) => self.queues.tell(Event::Said { host, frame }),
        }
        Ok(())
    }

    /// A conversation is over.
    fn end(&mut self, number: u64, fault: Fault) {
        let Some(link) = self.links.remove(&number) else {
            return;
        };
        match link.stage {
            Stage::Up(host) => self.lose(host, fault),
            Stage::Asked => {}
            _ if link.is_ours => {
                self.fail_call(link.peer, fault);
                self.call_next();
            }
            _ => self.turn_away(link.peer, fault),
        }
    }

    /// A host is gone. What was said to it by one conversation may be lost, so all others with it end, too: both sides
    /// begin anew.
    fn lose(&mut self, host: HostId, fault: Fault) {
        self.links.retain(|_, link| link.stage != Stage::Up(host));
        self.book.forget(host);
        self.queues.tell(Event::Lost { host, fault });
    }

    fn call_next(&mut self) {
        // A call that fails at once leaves its place to the next.
        while self.may_call()
            && let Some(address) = self.waiting.pop_front()
        {
            self.call(address);
        }
    }

    /// Sees to those whose time has come.
    fn expire(&mut self) {
        let now = Instant::now();
        if self.deaf.is_some_and(|until| until <= now) {
            self.watch_door(true);
        }
        let due = |link: &Link| link.is_late(now) || link.due().is_some_and(|due| due <= now);
        let due = self.links.iter().filter(|(_, link)| due(link));
        for number in due.map(|(number, _)| *number).collect::<Vec<_>>() {
            if self
                .links
                .get(&number)
                .is_some_and(|link| link.is_late(now))
            {
                self.end(number, Fault::Silent);
            } else {
                self.turn(number, epoll::EventFlags::empty());
            }
        }
    }
}
