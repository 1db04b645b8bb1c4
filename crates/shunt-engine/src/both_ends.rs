//! For tests: a connection of which this process has both ends, attached, without a daemon.

use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, iovec, sockaddr_storage};
use shunt_abi::message::Role;
use shunt_shm::arena::Arena;
use shunt_shm::slot::{self, Way};

use crate::epoll::Known;
use crate::link::{Link, Pair};
use crate::socket::{Socket, Stage};
use crate::stream::{self, Conn};
use crate::table::{self, Word};
use crate::{Outcome, sys, thread, upgrade};

mod tests;

/// For tests of what there is once in a process.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The accepted end, then the connecting one.
pub(crate) struct BothEnds {
    pub(crate) fds: [c_int; 2],
    pub(crate) sockets: [&'static Socket; 2],
    _alone: MutexGuard<'static, ()>,
}

impl BothEnds {
    /// Paired, and not attached yet.
    pub(crate) fn paired() -> Self {
        const GENERATION: u32 = 1;
        let alone = one_at_a_time();
        thread::learn_pid();
        thread::set_used();
        assert!(shunt_shm::atomic::register());
        let listener = sys::Listener::at(&loopback(), &loopback()).unwrap();
        let connector = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        let fds = [listener.connect(connector, &loopback()).unwrap(), connector];
        let roles = [Role::Acceptor, Role::Connector];
        let mut sockets = fds.into_iter().zip(roles).map(|(fd, role)| {
            let socket = Socket::enter(fd, Stage::Claimed).unwrap();
            let cookie = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
            socket.set_cookie(cookie.unwrap());
            socket.set_role(role);
            socket
        });
        let sockets = [(); 2].map(|()| sockets.next().unwrap());
        for (socket, link) in sockets.into_iter().zip(links()) {
            let pair = Pair::new(link, 0, GENERATION).unwrap();
            pair.own.begin(slot::first_life(GENERATION), pair.out);
            assert!(socket.set_pair(pair));
        }
        Self {
            fds,
            sockets,
            _alone: alone,
        }
    }

    /// Attached at both ends.
    pub(crate) fn attached() -> Self {
        let ends = Self::paired();
        for (socket, fd) in ends.sockets.into_iter().zip(ends.fds) {
            assert!(upgrade::progress(socket, fd, Known::Nothing));
        }
        ends
    }

    /// Attached, and both directions are on their rings: no call has to ask the kernel anyway. Nothing is unread.
    pub(crate) fn on_rings() -> Self {
        let ends = Self::attached();
        ends.exchange(b"x");
        for conn in ends.conns() {
            assert!(conn.way_in() == Way::Ring && conn.way_out() == Way::Ring);
        }
        ends
    }

    /// Each end sends these bytes, which the other one receives.
    pub(crate) fn exchange(&self, bytes: &[u8]) {
        let [accepted, connecting] = &self.conns();
        for (from, to) in [(accepted, connecting), (connecting, accepted)] {
            assert_eq!(send(from, bytes), Outcome::Done(bytes.len() as isize));
            assert_eq!(receive::<64>(to), bytes);
        }
    }

    /// Both connections.
    pub(crate) fn conns(&self) -> [Conn<'static>; 2] {
        self.fds.map(|fd| Conn::of(fd).unwrap())
    }

    /// The accepted end sends these bytes, as many as have room.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> Outcome {
        send(&self.conns()[0], bytes)
    }

    /// The accepted end sends these bytes, all of which have room.
    pub(crate) fn send(&self, bytes: &[u8]) {
        assert_eq!(self.try_send(bytes), Outcome::Done(bytes.len() as isize));
    }

    /// What the connecting end has to receive, up to `MOST` bytes.
    pub(crate) fn receive<const MOST: usize>(&self) -> Vec<u8> {
        receive::<MOST>(&self.conns()[1])
    }
}

fn send(conn: &Conn, bytes: &[u8]) -> Outcome {
    let parts = [iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: the bytes are there.
    unsafe { stream::send(conn, &parts, libc::MSG_DONTWAIT) }
}

fn receive<const MOST: usize>(conn: &Conn) -> Vec<u8> {
    let mut bytes = [0u8; MOST];
    let parts = [iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: MOST,
    }];
    // SAFETY: the part covers the array `bytes`.
    match unsafe { stream::receive(conn, &parts, libc::MSG_DONTWAIT) } {
        Outcome::Done(n) => bytes[..n as usize].to_vec(),
        other => panic!("{other:?}"),
    }
}

impl Drop for BothEnds {
    fn drop(&mut self) {
        for (socket, fd) in self.sockets.into_iter().zip(self.fds) {
            table::enter(fd, Word::NOTHING);
            socket.move_on(Stage::Paired, Stage::Plain);
            socket.lose_memory();
            sys::close(fd);
        }
    }
}

/// What a forked child of this process sees: runs `look` there. Other threads may hold any lock just now, so it allocates nothing.
pub(crate) fn in_child(look: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes `look`'s system calls, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(c_int::from(look()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert!(libc::WIFEXITED(status), "{status:x}");
        libc::WEXITSTATUS(status) == 1
    }
}

/// One link, from both of its ends.
fn links() -> [&'static Link; 2] {
    const SLOTS: u32 = 2;
    let [(one, one_fd), (other, other_fd)] = [(); 2].map(|()| Arena::create(SLOTS).unwrap());
    let [ones, others] = [one_fd, other_fd].map(|fd| Arena::open(fd, SLOTS).unwrap());
    sys::close(one_fd);
    sys::close(other_fd);
    [
        Link::open(1, 1, one, others).unwrap(),
        Link::open(1, 2, other, ones).unwrap(),
    ]
}

pub(crate) fn loopback() -> sockaddr_storage {
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut name: sockaddr_storage = unsafe { std::mem::zeroed() };
    name.ss_family = libc::AF_INET as u16;
    // SAFETY: the storage is larger, and aligned for it.
    let to = unsafe { &mut *(&raw mut name).cast::<libc::sockaddr_in>() };
    to.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    name
}
