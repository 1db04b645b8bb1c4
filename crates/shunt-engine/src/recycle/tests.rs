//! What is kept, offered and taken, with both ends in this process.

use std::sync::atomic::Ordering;

use libc::{c_int, sockaddr_storage};
use shunt_shm::recycle::Turn;
use shunt_shm::slot::{self, Way};

use super::*;
use crate::both_ends::BothEnds;
use crate::epoll::Known;
use crate::socket::{Queued, Socket, Stage};
use crate::stream::{self, Conn, Want};
use crate::sys::{self, address};
use crate::table::{self, Word};
use crate::{Outcome, config, epoll, hold::Held, thread, upgrade, wake};

mod aside;
mod new_socket;
mod offered;

/// Both ends, as `connect` and `accept` leave them, and a listener that has nothing in the kernel's queue.
struct Scene {
    ends: BothEnds,
    listener: c_int,
}

/// The accepted end, and the connecting one.
const ACCEPTED: usize = 0;
const CONNECTED: usize = 1;

impl Scene {
    fn new() -> Self {
        let ends = BothEnds::paired();
        config::set_recycles(true);
        for (socket, fd) in ends.sockets.into_iter().zip(ends.fds) {
            assert!(upgrade::progress(socket, fd, Known::Nothing));
        }
        let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::listen(listener, 4) }, 0);
        let listens = Socket::enter(listener, Stage::Listener).unwrap();
        ends.sockets[ACCEPTED].origin.note_accept(listens);
        let connected = ends.sockets[CONNECTED];
        connected.origin.note_connect();
        connected.set_port(address::parts(&sys::name(ends.fds[CONNECTED], true).unwrap()).1);
        let scene = Self { ends, listener };
        scene.talk(b"once");
        scene
    }

    /// The accepted end sends bytes, as connections have them before they are closed. The other direction stays on TCP.
    fn talk(&self, bytes: &[u8]) {
        self.ends.send(bytes);
        assert_eq!(self.ends.receive::<16>(), bytes);
    }

    /// Closes an end as the program does. `true`: it is kept.
    fn close(&self, end: usize) -> bool {
        let (socket, fd) = (self.ends.sockets[end], self.ends.fds[end]);
        let is_kept = put_aside(socket, fd);
        if is_kept {
            sys::close(fd);
        }
        is_kept
    }

    /// The connection at an end that is not closed, or not kept.
    fn conn(&self, end: usize) -> Conn<'static> {
        Conn::new(self.ends.sockets[end], self.ends.fds[end]).unwrap()
    }

    /// Where the connecting end leads.
    fn target(&self) -> sockaddr_storage {
        sys::name(self.ends.sockets[CONNECTED].fd(), true).unwrap()
    }

    /// A new socket of the program's.
    fn fresh() -> c_int {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
        Socket::enter(fd, Stage::Fresh).unwrap();
        fd
    }

    fn connect(fd: c_int, to: &sockaddr_storage) -> Outcome {
        let length = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: an address of this test's.
        unsafe { connect(fd, std::ptr::from_ref(to).cast(), length) }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        config::set_recycles(false);
        // Those that are kept end here, and what is left is the ends' own to close.
        give_up_all();
        if let Some(listener) = Socket::of(self.listener) {
            table::enter(self.listener, Word::NOTHING);
            listener.unhold();
        }
        sys::close(self.listener);
        for (socket, fd) in self.ends.sockets.into_iter().zip(&mut self.ends.fds) {
            // Its memory is gone with it.
            if !socket.is_live() || !socket.is_at(*fd) {
                *fd = -1;
            }
        }
    }
}

impl Scene {
    fn listener(&self) -> &'static Socket {
        Socket::of(self.listener).unwrap()
    }

    /// Both ends are closed, and a readiness call of this thread waits at the listener.
    fn awaited(&self) -> Waits {
        assert!(self.close(ACCEPTED) && self.close(CONNECTED));
        let waits = Waits::none();
        waits.begin(self.listener(), false);
        assert!(waits.are_any() && !waits.have_news());
        waits
    }

    /// A connect that is to find somebody who waits.
    fn connect_again(&mut self) {
        let fd = Self::fresh();
        assert_eq!(Self::connect(fd, &self.target()), Outcome::Done(0));
        self.ends.fds[CONNECTED] = fd;
    }

    /// The program accepts what is there.
    fn accept_again(&mut self) {
        let none = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let accepted = unsafe { accept(self.listener, none, none.cast(), libc::SOCK_CLOEXEC) };
        let Outcome::Done(accepted) = accepted else {
            panic!("nothing was accepted");
        };
        self.ends.fds[ACCEPTED] = accepted as c_int;
    }
}
