//! Sockets by which a client calls peers in other network namespaces.
//!
//! A sleeping process is called by a datagram to an abstract name, which means something in its own
//! network namespace only. A socket looks names up in the namespace that it was made in, so the
//! daemon makes one there for each client that has peers there: the client alone sends by it, and
//! nobody receives.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use shunt_abi::message::MOST_ABROAD;

use crate::sys;

/// The namespaces (`SO_NETNS_COOKIE`) of which a client has a socket, by its number.
#[derive(Debug, Default)]
pub(crate) struct Abroad(Vec<u64>);

impl Abroad {
    /// The number of the socket of a namespace, if the client has one.
    pub(crate) fn number(&self, netns: u64) -> Option<u32> {
        let at = self.0.iter().position(|&known| known == netns)?;
        Some(number(at))
    }

    /// A number for one more socket, or for one in the place of that of a namespace which
    /// `is_left` by all clients. `None`: there is none.
    pub(crate) fn add(&mut self, netns: u64, is_left: impl Fn(u64) -> bool) -> Option<u32> {
        if self.0.len() < MOST_ABROAD as usize {
            self.0.push(netns);
            return Some(number(self.0.len() - 1));
        }
        let at = self.0.iter().position(|&known| is_left(known))?;
        self.0[at] = netns;
        Some(number(at))
    }
}

fn number(at: usize) -> u32 {
    at as u32 + 1
}

/// A datagram socket in the network namespace of a process, which must be `netns`. The daemon's
/// own thread stays where it is: another one goes there, and ends.
pub(crate) fn socket_at(process: impl AsFd + Sync, netns: u64) -> io::Result<OwnedFd> {
    let make = || {
        move_into_thread_name_spaces(process.as_fd(), ThreadNameSpaceType::NETWORK)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        if sys::netns_cookie(&socket)? != netns {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(socket)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, make)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_has_one_number_and_one_that_is_left_gives_its_up() {
        let mut abroad = Abroad::default();
        let nobody = |_| false;
        for netns in 1..=u64::from(MOST_ABROAD) {
            assert_eq!(abroad.number(netns), None);
            assert_eq!(abroad.add(netns, nobody), Some(netns as u32));
            assert_eq!(abroad.number(netns), Some(netns as u32));
        }
        assert_eq!(abroad.add(1000, nobody), None);
        assert_eq!(abroad.add(1000, |netns| netns == 7), Some(7));
        assert_eq!((abroad.number(1000), abroad.number(7)), (Some(7), None));
    }
}
