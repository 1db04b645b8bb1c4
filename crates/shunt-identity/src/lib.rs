//! Which two sockets of this host are the ends of one TCP connection, whatever lies between them:
//! network namespaces, bridges, translated addresses and ports.
//!
//! ```text
//!   connector                    NAT                    acceptor
//!   sent     = 7000  ── 10.1.0.2:40000 > 10.1.0.1:80 ──  received = 7000
//!   received = 9000  ── 10.2.0.1:51234 > 10.2.0.2:8080   sent     = 9000
//!        │                                                   │
//!        └── ACTIVE_ESTABLISHED_CB ─┐   ┌─ PASSIVE_ESTABLISHED_CB
//!                                   ▼   ▼
//!               log:   record of one end, record of the other, …     (memory that the kernel writes)
//!                                     │ read when somebody asks
//!                                     ▼
//!               index: socket cookie ──> record
//!                      the connector's (sent, received) ──> cookies of both
//! ```
//!
//! What translates addresses leaves sequence numbers alone. So the kernel tells each end the two
//! numbers with which its handshake has ended, and those of one end are the other's, mirrored. A
//! small eBPF program, attached to the root of the unified cgroup hierarchy, writes them down once
//! per connection, and [`Identities::mirror`] looks the other end up. What rewrites sequence numbers
//! or ends TCP itself (a SYN proxy, a relaying load balancer) has two connections with no
//! mirror between them, which is the truth.
//!
//! Sequence numbers are no secret and no proof by themselves; [`Identities::mirror`] says what else
//! it asks for, and `docs/security.md` against whom.
//!
//! Neighbour: `shuntd` uses this crate, where the kernel lets it. The crate knows sockets by their
//! cookies only. It never touches a socket, a packet or payload.

#![deny(unsafe_code)] // `bpf` alone is exempt, with a reason for each block.

mod assembly;
mod bpf;
mod cgroup;
mod identity;
mod index;
mod log;
mod program;
#[cfg(test)]
mod tests;
mod unavailable;

use std::cell::RefCell;
use std::os::fd::{AsFd as _, OwnedFd};

use identity::Numbers;
pub use identity::{Identity, Side};
pub use index::HANDSHAKE;
use index::Index;
use log::Log;
pub use unavailable::Unavailable;

/// What the kernel has said of the connections that began since [`Identities::attach`], as far as
/// there is room for them. As long as this lives, new ones are recorded.
#[derive(Debug)]
pub struct Identities {
    index: RefCell<Index<Log>>,
    /// Keeps the program attached (`BPF_LINK_CREATE`), and the program itself.
    _link: OwnedFd,
}

impl Identities {
    /// Begins to record connections: the last `capacity` sockets, of all namespaces, rounded up to a power of two. One
    /// takes 48 bytes of the kernel's memory, all of them reserved at once, and about 100 of this process's once somebody asks.
    /// Records stay until newer ones need the room, also when their sockets are closed: a connection may go to another
    /// process, which asks for it anew.
    ///
    /// Several processes may do so beside each other. What is attached goes with the last descriptor of it,
    /// so also when the process is killed; a child that was forked and has executed nothing has a copy.
    pub fn attach(capacity: u32) -> Result<Self, Unavailable> {
        let capacity = capacity.next_power_of_two();
        let root = cgroup::root()?;
        let log = Log::new(capacity).map_err(Unavailable::at("make a map"))?;
        let program = bpf::load(&program::assemble(log.as_fd(), capacity))?;
        // `EPERM` means here that another program insists on being the only one.
        let refused = |error| Unavailable::Failed("attach the eBPF program", error);
        let link = bpf::attach(program.as_fd(), root.as_fd()).map_err(refused)?;
        Ok(Self {
            index: RefCell::new(Index::new(log)),
            _link: link,
        })
    }

    /// The socket with this cookie (`SO_COOKIE`); `None` if its connection began before
    /// [`Self::attach`], or so many have begun since that there was no more room for it.
    pub fn of(&self, cookie: u64) -> Option<Identity> {
        self.look(|index| index.of(cookie))
    }

    /// The other end, if it is a socket of this host: its cookie and identity. An acceptor's is there as soon as
    /// it has been accepted; a connector's may come a moment after `connect` has returned.
    ///
    /// A process that owns a network namespace can make sockets there with sequence numbers of its
    /// choice, and those of others can be guessed by who sees the clock and tries often. So there is an answer only
    /// where nobody else can be meant:
    ///
    /// * no other recorded socket has the numbers of this end, and none those of the answer;
    /// * one of them connected and the other accepted;
    /// * the connector's handshake ended first, the acceptor's within two seconds.
    ///
    /// Both ends share an entry, so neither can be there when the other's place had to go for newer ones. The last rule is for
    /// a forger who comes between the two.
    pub fn mirror(&self, of: &Identity) -> Option<(u64, Identity)> {
        self.look(|index| index.mirror(of))
    }

    /// The end on this host, `side`, of a connection whose other end, on another host, has these numbers: the sequence
    /// numbers of the first bytes that it sends and receives. Its cookie and identity.
    ///
    /// There is an answer only where no other recorded socket can be meant: none else on this host has these numbers, on
    /// either side. Whether the other host is the one to which this end is connected, who asks must know.
    pub fn opposite(&self, side: Side, sent: u32, received: u32) -> Option<(u64, Identity)> {
        let numbers = Numbers::of(side, received, sent);
        self.look(|index| index.opposite(side, numbers))
    }

    /// Takes in what the kernel has written since somebody looked last.
    fn look<T>(&self, find: impl FnOnce(&Index<Log>) -> T) -> T {
        let mut index = self.index.borrow_mut();
        index.catch_up();
        find(&index)
    }
}
