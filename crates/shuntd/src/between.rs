//! The network namespace in which processes of different ones call each other.
//!
//! A sleeping process is called by a datagram to an abstract name, which means something in one
//! network namespace only. A socket looks names up in the namespace that it was made in. So the daemon
//! makes sockets in a namespace of its own, in which there is nothing else, and passes them to its
//! clients. One that was made in the peer's namespace would do, too, but its holder could send to all
//! abstract names there, and ask for the interfaces.
//!
//! A thread lives there and makes them: to go there again would take `CAP_SYS_ADMIN` for all the daemon's
//! life.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{rights, sys};

/// How many sockets are made at once, …
const BATCH: usize = 64;
/// … which is ordered when no more than this many are left. The daemon waits for none as long as the thread gets a
/// processor in time.
const FEW: usize = BATCH / 2;

/// What the thread has made.
type Sockets = io::Result<Vec<OwnedFd>>;

/// The daemon's own namespace, and sockets that were made there and given to no client yet.
#[derive(Debug)]
pub(crate) struct Between {
    /// A word for each batch.
    wanted: SyncSender<()>,
    made: Receiver<Sockets>,
    /// A batch is on its way.
    is_ordered: bool,
    ready: Vec<OwnedFd>,
}

impl Between {
    /// Makes it, with some sockets.
    pub(crate) fn new() -> io::Result<Self> {
        let (wanted, orders) = sync_channel(1);
        let (delivery, made) = sync_channel(1);
        let thread = std::thread::Builder::new().name("shuntd-between".to_owned());
        thread.spawn(move || live(&orders, &delivery))?;
        let mut between = Self {
            wanted,
            made,
            is_ordered: false,
            ready: Vec::new(),
        };
        between.order()?;
        between.receive()?;
        Ok(between)
    }

    /// A datagram socket for one client alone.
    pub(crate) fn socket(&mut self) -> io::Result<OwnedFd> {
        if self.ready.len() <= FEW && !self.is_ordered {
            self.order()?;
        }
        if self.ready.is_empty() {
            self.receive()?;
        }
        self.ready.pop().ok_or(io::ErrorKind::OutOfMemory.into())
    }

    fn order(&mut self) -> io::Result<()> {
        // The thread lives as long as both.
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.wanted.send(()).map_err(gone)?;
        self.is_ordered = true;
        Ok(())
    }

    /// Waits for the batch that is ordered.
    fn receive(&mut self) -> io::Result<()> {
        self.is_ordered = false;
        let gone = |_| Err(io::ErrorKind::BrokenPipe.into());
        self.ready = self.made.recv().unwrap_or_else(gone)?;
        Ok(())
    }
}

/// The thread's life: it ends when nobody can want anything any more.
fn live(orders: &Receiver<()>, delivery: &SyncSender<Sockets>) {
    let moved = sys::leave_network_namespace().and_then(|()| Ok(rights::give_up_all()?));
    while orders.recv().is_ok() {
        let made = match &moved {
            Ok(()) => sockets(),
            Err(error) => Err(error.kind().into()),
        };
        if delivery.send(made).is_err() {
            return;
        }
    }
}

fn sockets() -> Sockets {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::DGRAM;
    let socket = |_| rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
    Ok((0..BATCH).map(socket).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_sockets_are_of_one_namespace_and_this_thread_is_in_another() {
        let Ok(mut between) = Between::new() else {
            eprintln!("skipped: no network namespaces");
            return;
        };
        let sockets: Vec<_> = (0..=2 * BATCH).map(|_| between.socket().unwrap()).collect();
        let of = |socket: &OwnedFd| sys::netns_cookie(socket).unwrap();
        assert!(sockets.iter().all(|socket| of(socket) == of(&sockets[0])));
        let flags = SocketFlags::CLOEXEC;
        let own = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        assert_ne!(of(&own.unwrap()), of(&sockets[0]));
    }
}
