//! How shuntd talks to the shuntd of another host: it finds that at the address to which a connection itself goes, shows
//! that it has the key which both hosts were given, and exchanges small messages with it.
//!
//! ```text
//!   shuntd's thread                 thread "shuntd-hosts"                     the other host
//!        │ Order: find 10.0.0.2         │                                            │
//!        ├─────────────────────────────>│ connect, TLS 1.3, Hello ──────────────────>│
//!        │                              │<────────────────────────────────── Hello ──┤
//!        │<─────────────────────────────┤ Event: 10.0.0.2 is host H                  │
//!        │ Order: tell H a claim        │                                            │
//!        ├─────────────────────────────>├─ Claim, Ping ─────────────────────────────>│
//!        │                              │<─────────────────────────── Pong, Claim ───┤
//!        │<─────────────────────────────┤ Event: H says a claim                      │
//! ```
//!
//! All that comes from the network is handled by a thread of its own, which has no capabilities and shares two queues with
//! the daemon. Nothing here waits for another host: sockets are non-blocking, what is sent and what is read is bounded in
//! number, size and rate, and who does not answer in time is left alone for a while that doubles each time.
//!
//! Neighbours: `shuntd` decides what to ask of which host ([`Hosts`]), `shunt` makes key files ([`key`]). The crate knows no
//! sockets but its own, and no process.

#![forbid(unsafe_code)]

mod book;
mod bucket;
mod door;
mod fault;
pub mod frame;
pub mod key;
mod link;
mod queue;
mod reactor;
#[cfg(test)]
mod tests;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use fault::Fault;
pub use frame::{Claim, Frame, HostId, Numbers, Side};
pub use key::Keys;
use queue::Queues;
use reactor::Reactor;

/// At which port each host's daemon listens, unless the configuration says otherwise.
pub const PORT: u16 = 7482;

/// Says whether an address is of a host that is talked to.
pub type Admits = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What the daemon's configuration says of other hosts.
pub struct Setup {
    /// Where other hosts are listened to. `None`: where they are listened to already.
    pub listeners: Option<Vec<TcpListener>>,
    /// The port at which other hosts listen.
    pub port: u16,
    /// What shows that a host is one of ours.
    pub keys: Keys,
    /// Who is called, and let in.
    pub admits: Admits,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("listeners", &self.listeners)
            .field("port", &self.port)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// What the daemon wants of the thread.
#[derive(Debug)]
pub enum Order {
    /// Find the host at this address. Answered by one [`Event::Found`] or [`Event::Failed`].
    Find(IpAddr),
    /// Say this to a host. Where it cannot be said, [`Event::Lost`] says so.
    Tell(HostId, Frame),
    /// From now on this holds. Hosts that were let in by another key are told nothing more.
    Configure(Setup),
}

/// What the thread has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The host at this address is this one. Also said without having been asked, of who has called.
    Found {
        /// The address.
        address: IpAddr,
        /// Who is there.
        host: HostId,
    },
    /// At this address is nobody who could be talked to.
    Failed {
        /// The address.
        address: IpAddr,
        /// Why.
        fault: Fault,
    },
    /// A host has said this.
    Said {
        /// Who.
        host: HostId,
        /// What: any [`Frame`] but a Hello, a Ping or a Pong.
        frame: Frame,
    },
    /// A host that was found is gone, and with it all that it has claimed. What was said to it last may not have come.
    Lost {
        /// Who.
        host: HostId,
        /// Why.
        fault: Fault,
    },
    /// Somebody has called who was not let in.
    TurnedAway {
        /// From where.
        address: IpAddr,
        /// Why.
        fault: Fault,
    },
}

/// The thread that talks to other hosts. It ends when this is dropped.
#[derive(Debug)]
pub struct Hosts {
    name: HostId,
    queues: Arc<Queues>,
    thread: Option<JoinHandle<()>>,
}

impl Hosts {
    /// Starts the thread. `first` is what it does before all else, such as giving up capabilities.
    ///
    /// # Errors
    /// When the kernel has no thread or no descriptors for it.
    pub fn start(setup: Setup, first: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Self::start_as(HostId::draw()?, setup, first)
    }

    fn start_as(
        name: HostId,
        setup: Setup,
        first: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let queues = Arc::new(Queues::new()?);
        let mut reactor = Reactor::new(Arc::clone(&queues), name, setup)?;
        let thread = std::thread::Builder::new().name("shuntd-hosts".to_owned());
        let thread = thread.spawn(move || {
            first();
            reactor.run();
        })?;
        Ok(Self {
            name,
            queues,
            thread: Some(thread),
        })
    }

    /// By what other hosts know this daemon.
    #[must_use]
    pub fn name(&self) -> HostId {
        self.name
    }

    /// Has the thread do something. It never waits.
    pub fn order(&self, order: Order) {
        self.queues.order(order);
    }

    /// Readable when there are events.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.queues.bell()
    }

    /// Takes the first `most` events, or all there are. The bell stays readable while there are others.
    #[must_use]
    pub fn events(&self, most: usize) -> Vec<Event> {
        self.queues.take_events(most)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.queues.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens for other hosts. What is bound already by this user may be bound again, so that a new configuration can be
/// tried while the old one holds.
///
/// # Errors
/// The first address that cannot be listened at, and why.
pub fn listen(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let listen = |&address| door::listen_at(address).map_err(|error| (address, error));
    addresses.iter().map(listen).collect()
}

/// Whether a host's daemon can be reached: calls it, says Hello, and waits for its answer as long as a daemon would. It calls as
/// nobody, so that the host does not take it for a daemon that is lost at once.
///
/// # Errors
/// Why it cannot.
pub fn reach(setup: Setup, address: IpAddr) -> Result<HostId, Fault> {
    let hosts = Hosts::start_as(HostId::NOBODY, setup, || ()).map_err(|_| Fault::Busy)?;
    hosts.order(Order::Find(address));
    loop {
        let mut bell = [rustix::event::PollFd::from_borrowed_fd(
            hosts.bell(),
            rustix::event::PollFlags::IN,
        )];
        let _ = rustix::event::poll(&mut bell, None);
        for event in hosts.events(usize::MAX) {
            match event {
                Event::Found { address: at, host } if at == address => return Ok(host),
                Event::Failed { address: at, fault } if at == address => return Err(fault),
                _ => {}
            }
        }
    }
}
