//! The network namespace in which processes of different ones call each other.
//!
//! A sleeping process is called by a datagram to an abstract name, which means something in one
//! network namespace only. A socket looks names up in the namespace that it was made in. So the daemon
//! makes sockets in a namespace of its own, in which there is nothing else, and passes them to its
//! clients. One that was made in the peer's namespace would do, too, but its holder could send to all
//! abstract names there, and ask for the interfaces.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sys;

/// So many are made at once.
const BATCH: usize = 16;

/// That namespace, and sockets that were made there and have no holder yet.
#[derive(Debug)]
pub(crate) struct Between {
    namespace: OwnedFd,
    ready: Vec<OwnedFd>,
}

impl Between {
    /// Makes it.
    pub(crate) fn new() -> io::Result<Self> {
        let make = || {
            sys::leave_network_namespace()?;
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        };
        let namespace = aside(make)?;
        Ok(Self {
            namespace,
            ready: Vec::new(),
        })
    }

    /// A datagram socket for one client alone.
    pub(crate) fn socket(&mut self) -> io::Result<OwnedFd> {
        if self.ready.is_empty() {
            let namespace = self.namespace.as_fd();
            let make = || {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let kind = SocketType::DGRAM;
                let socket = |_| rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
                Ok((0..BATCH).map(socket).collect::<Result<_, _>>()?)
            };
            self.ready = aside(make)?;
        }
        self.ready.pop().ok_or(io::ErrorKind::OutOfMemory.into())
    }
}

/// Does something in a thread that ends then: the daemon's own stays in its namespace.
fn aside<R: Send>(work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
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
        let sockets: Vec<_> = (0..=BATCH).map(|_| between.socket().unwrap()).collect();
        let of = |socket: &OwnedFd| sys::netns_cookie(socket).unwrap();
        assert!(sockets.iter().all(|socket| of(socket) == of(&sockets[0])));
        let flags = SocketFlags::CLOEXEC;
        let own = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        assert_ne!(of(&own.unwrap()), of(&sockets[0]));
    }
}
