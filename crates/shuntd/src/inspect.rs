//! What the kernel says about a descriptor of a client.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{SocketType, ipproto, sockopt};
use rustix::process::PidfdGetfdFlags;
use shunt_abi::layout::slots_of;

use crate::foreign::{Foreign, Lane};
use crate::sys;
use crate::tuple::Tuple;

/// The outcome of looking at a claimed socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A connected TCP socket with the claimed cookie.
    Found(Connected),
    /// The claimed socket, not connected (yet, or any more).
    NotConnected,
    /// The descriptor is closed or names something else.
    Gone,
    /// We may not look: `pidfd_getfd` is refused (ptrace rules, seccomp).
    Denied,
    /// We may not look, and its client has not named its addresses: it may connect yet.
    Unnamed,
    /// We are out of descriptors, or too many copies wait to be closed.
    NoRoom,
}

/// A connected TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connected {
    pub(crate) tuple: Tuple,
    /// Its number, as `/proc` shows it among the descriptors of a process.
    pub(crate) inode: u64,
}

impl Connected {
    /// Whether it has been connected to itself.
    pub(crate) fn is_one_end(&self) -> bool {
        self.tuple.local == self.tuple.peer
    }
}

/// Looks at descriptor `fd` of the process `pidfd`.
///
/// The copy is on its way to be closed when this returns: while we hold it the
/// program's own `close` would not reach the peer. Whatever it is, nothing is
/// asked of it but socket options, which never wait.
pub(crate) fn look(pidfd: BorrowedFd<'_>, fd: i32, cookie: u64, lane: &Arc<Lane>) -> Look {
    let socket = match copy(pidfd, fd, Some(cookie), lane) {
        Ok(socket) => socket,
        Err(look) => return look,
    };
    let look = look_at(&socket);
    socket.close_now();
    look
}

/// What the kernel says of a socket that is a claimed one.
pub(crate) fn look_at(socket: impl AsFd) -> Look {
    let (Ok(netns), Ok(stat)) = (sys::netns_cookie(&socket), rustix::fs::fstat(&socket)) else {
        return Look::Gone;
    };
    let local = rustix::net::getsockname(&socket).ok();
    // ENOTCONN before the handshake is over, and after the connection's end.
    let peer = rustix::net::getpeername(&socket).ok().flatten();
    let plain = |address: Option<_>| address.and_then(|a| SocketAddr::try_from(a).ok());
    match (plain(local), plain(peer)) {
        (Some(local), Some(peer)) => Look::Found(Connected {
            tuple: Tuple::new(netns, local, peer),
            inode: stat.st_ino,
        }),
        _ => Look::NotConnected,
    }
}

/// A TCP socket as its holder's region and the kernel show it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its own address.
    pub(crate) local: SocketAddr,
    /// Its connection, if it has one.
    pub(crate) tuple: Option<Tuple>,
    /// What the kernel has carried: (sent, received).
    pub(crate) carried: (u64, u64),
    /// Its network namespace, if the kernel has named it by its cookie.
    pub(crate) netns: Option<u64>,
}

/// Looks at descriptor `fd` of the process `pidfd` for the list of connections. A cookie
/// of 0 is not known: then it is whatever TCP socket the number names. What was seen before
/// of the one that has this cookie is `known`: it is a TCP socket of that namespace for good.
///
/// # Errors
/// As for [`look`].
pub(crate) fn see(
    pidfd: BorrowedFd<'_>,
    fd: i32,
    cookie: u64,
    known: Option<&Seen>,
    lane: &Arc<Lane>,
) -> Result<Seen, Look> {
    let known = known.and_then(|seen| seen.netns).filter(|_| cookie != 0);
    let socket = copy_if(pidfd, fd, lane, |socket| {
        let is_it = cookie == 0 || has_cookie(socket, cookie);
        is_it && (known.is_some() || is_tcp(socket))
    })?;
    let plain = |address: Option<_>| address.and_then(|a| SocketAddr::try_from(a).ok());
    let local = plain(rustix::net::getsockname(&socket).ok()).ok_or(Look::Gone)?;
    let peer = plain(rustix::net::getpeername(&socket).ok().flatten());
    let netns = known.map_or_else(|| sys::netns_cookie(&socket), Ok);
    let netns = netns.map_err(|_| Look::Gone)?;
    let carried = sys::carried(&socket).unwrap_or_default();
    socket.close_now();
    Ok(Seen {
        local,
        tuple: peer.map(|peer| Tuple::new(netns, local, peer)),
        carried,
        netns: (cookie != 0).then_some(netns),
    })
}

/// A copy of descriptor `fd` of the process `pidfd`, if it is the TCP socket with
/// that cookie (`None`: any TCP socket).
pub(crate) fn copy(
    pidfd: BorrowedFd<'_>,
    fd: i32,
    cookie: Option<u64>,
    lane: &Arc<Lane>,
) -> Result<Foreign, Look> {
    let has_it = |socket: &Foreign| cookie.is_none_or(|cookie| has_cookie(socket, cookie));
    copy_if(pidfd, fd, lane, |socket| has_it(socket) && is_tcp(socket))
}

fn copy_if(
    pidfd: BorrowedFd<'_>,
    fd: i32,
    lane: &Arc<Lane>,
    is_wanted: impl FnOnce(&Foreign) -> bool,
) -> Result<Foreign, Look> {
    if fd < 0 {
        return Err(Look::Gone);
    }
    if lane.is_full() {
        return Err(Look::NoRoom);
    }
    let socket = match rustix::process::pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty()) {
        Ok(socket) => Foreign::new(socket, lane),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => return Err(Look::Denied),
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Err(Look::NoRoom),
        Err(_) => return Err(Look::Gone),
    };
    if is_wanted(&socket) {
        return Ok(socket);
    }
    socket.close_now();
    Err(Look::Gone)
}

fn has_cookie(socket: &Foreign, cookie: u64) -> bool {
    sockopt::socket_cookie(socket) == Ok(cookie)
}

/// Whether it is a TCP socket. (MPTCP has another protocol number: its subflows are not for us.)
/// No stream socket but one over IPv4 or IPv6 has that number; the callers see at its addresses
/// over which.
fn is_tcp(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && sockopt::socket_protocol(socket) == Ok(Some(ipproto::TCP))
}

/// How many slots a memfd has that can serve as an arena: nobody can resize it under its
/// peer and nobody but its present owner can map it writable. `F_GET_SEALS` fails on
/// anything that is not a memfd.
pub(crate) fn arena_slots(file: impl AsFd) -> Option<u32> {
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    let seals = rustix::fs::fcntl_get_seals(&file).ok()?;
    let size = rustix::fs::fstat(&file).ok()?.st_size;
    slots_of(u64::try_from(size).ok()?).filter(|_| seals.contains(needed))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::foreign::Lanes;

    #[test]
    fn what_never_changes_of_a_socket_is_asked_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = sockopt::socket_cookie(&near).unwrap();
        let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let lane = Lanes::new()
            .unwrap()
            .of(rustix::process::geteuid().as_raw());
        let see = |cookie, known| see(own.as_fd(), near.as_raw_fd(), cookie, known, &lane);
        let seen = match see(cookie, None) {
            Err(Look::Denied) => return eprintln!("skipped: this process may copy no descriptor"),
            seen => seen.unwrap(),
        };
        let netns = |seen: Seen| seen.tuple.unwrap().netns;
        assert_eq!(seen.netns, Some(netns(seen)));
        // No kernel says so.
        let told = Seen {
            netns: Some(u64::MAX),
            ..seen
        };
        assert_eq!(netns(see(cookie, Some(&told)).unwrap()), u64::MAX);
        // Whatever is known is known of a cookie.
        assert_eq!(see(cookie + 1, Some(&told)).unwrap_err(), Look::Gone);
        let by_number = see(0, Some(&told)).unwrap();
        assert_eq!((netns(by_number), by_number.netns), (netns(seen), None));
    }
}
