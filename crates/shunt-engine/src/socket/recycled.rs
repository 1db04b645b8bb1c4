//! A socket whose connection has ended, and that is the next connection's.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use super::{Socket, Stage};

/// How a connection came about, as far as another one may come about the same way: by which listener, or by a `connect` of
/// this process from an address that the kernel has chosen.
#[derive(Debug, Default)]
pub(crate) struct Origin(AtomicU64);

/// A `connect`.
const CONNECT: u64 = 1;
/// 0: neither.
const NEITHER: u64 = 0;

impl Origin {
    /// Neither.
    pub(crate) fn clear(&self) {
        self.0.store(NEITHER, Ordering::Relaxed);
    }

    /// A `connect` of this process, which has not bound the socket.
    pub(crate) fn note_connect(&self) {
        self.0.store(CONNECT, Ordering::Relaxed);
    }

    /// An `accept` on this listener.
    pub(crate) fn note_accept(&self, listener: &Socket) {
        self.0.store(name(listener), Ordering::Relaxed);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NEITHER
    }

    pub(crate) fn is_connect(&self) -> bool {
        self.0.load(Ordering::Relaxed) == CONNECT
    }

    pub(crate) fn is_accept_of(&self, listener: &Socket) -> bool {
        self.0.load(Ordering::Relaxed) == name(listener)
    }
}

/// A listener's object in this life of it: neither [`NEITHER`] nor [`CONNECT`].
fn name(listener: &Socket) -> u64 {
    let life = listener.life.load(Ordering::Relaxed);
    u64::from(life) << 32 | u64::from(listener.index() + 2)
}

impl Socket {
    /// The program has closed it, and the library keeps it by this copy of its descriptor.
    pub(crate) fn put_aside(&self, copy: c_int) {
        self.name_by(copy);
        self.move_on(Stage::Attached, Stage::Aside);
    }

    /// It is the next connection's, by this descriptor of the program's. What the program has set on it the caller notes.
    pub(crate) fn use_again(&self, fd: c_int) {
        self.name_by(fd);
        self.hints.clear();
        self.again.clear();
        self.dealings.forget_wish();
        self.was_reset.store(false, Ordering::Relaxed);
        self.move_on(Stage::Aside, Stage::Attached);
        self.set_connected(true);
    }

    /// This is the descriptor by which it is known.
    pub(crate) fn name_by(&self, fd: c_int) {
        self.fd.store(fd, Ordering::Relaxed);
        self.record.fd.store(fd, Ordering::Relaxed);
    }

    /// It is not used again: its end is an attached connection's.
    pub(crate) fn give_up_aside(&self) {
        self.move_on(Stage::Aside, Stage::Attached);
    }
}
