//! A socket whose connection has ended, and that is the next connection's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;

use super::{SOCKETS, Socket, Stage};
use crate::sys::{self, address};

/// How a connection was made, if the next one could be made in the same way: by which listener, or by a `connect` of this
/// process from an address that the kernel has chosen.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    by: AtomicU64,
    /// It uses the socket of a former one.
    is_again: AtomicBool,
    /// The peer passes a full barrier with each publication, and has from the first one on.
    is_fenced: AtomicBool,
}

/// A `connect`.
const CONNECT: u64 = 1;
/// 0: neither.
const NEITHER: u64 = 0;

impl Origin {
    /// Neither.
    pub(crate) fn clear(&self) {
        self.begin(NEITHER);
    }

    /// A `connect` of this process, which has not bound the socket.
    pub(crate) fn note_connect(&self) {
        self.begin(CONNECT);
    }

    /// An `accept` on this listener.
    pub(crate) fn note_accept(&self, listener: &Socket) {
        self.begin(name(listener));
    }

    fn begin(&self, by: u64) {
        self.by.store(by, Ordering::Relaxed);
        self.is_again.store(false, Ordering::Relaxed);
        self.is_fenced.store(false, Ordering::Relaxed);
    }

    /// Whether its peer has passed a full barrier with each publication since the connection began.
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// The connection is about to begin, with such a peer or without one; or the peer is about to be told that it need
    /// not pass barriers any more.
    pub(crate) fn note_fenced(&self, is_fenced: bool) {
        self.is_fenced.store(is_fenced, Ordering::Relaxed);
    }

    /// Whether the connection has begun in the rings of a former one, and on its socket.
    pub(crate) fn is_again(&self) -> bool {
        self.is_again.load(Ordering::Relaxed)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.by.load(Ordering::Relaxed) != NEITHER
    }

    pub(crate) fn is_connect(&self) -> bool {
        self.by.load(Ordering::Relaxed) == CONNECT
    }

    pub(crate) fn is_accept_of(&self, listener: &Socket) -> bool {
        self.by.load(Ordering::Relaxed) == name(listener)
    }

    /// The listener that has accepted it, if it is there still.
    pub(crate) fn listener(&self) -> Option<&'static Socket> {
        let index = (self.by.load(Ordering::Relaxed) as u32).checked_sub(FIRST)?;
        SOCKETS
            .get(index)
            .filter(|socket| self.is_accept_of(socket))
    }
}

/// In the low half of a listener's name: that of the first object.
const FIRST: u32 = 2;

/// A listener's object in this life of it: neither [`NEITHER`] nor [`CONNECT`].
fn name(listener: &Socket) -> u64 {
    let life = listener.life.load(Ordering::Relaxed);
    u64::from(life) << 32 | u64::from(listener.index() + FIRST)
}

/// Properties of a socket that never change, asked of the kernel when they are first needed. Zero: not asked yet.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    network: AtomicU64,
    cookie: AtomicU64,
    peer: [AtomicU64; 4],
}

/// The identity of a socket that no connection uses yet.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Its network namespace (`SO_NETNS_COOKIE`).
    pub(crate) network: u64,
    /// The kernel's name for it (`SO_COOKIE`).
    pub(crate) cookie: u64,
}

impl Whereabouts {
    /// Nothing is known.
    pub(super) fn clear(&self) {
        let all = [&self.network, &self.cookie].into_iter().chain(&self.peer);
        all.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Notes where the socket is, and its name.
    pub(crate) fn note(&self, place: Place) {
        self.network.store(place.network, Ordering::Relaxed);
        self.cookie.store(place.cookie, Ordering::Relaxed);
    }

    /// The network namespace that it is in; `fd` names it. `None`: this kernel does not tell (Linux 5.14 does).
    pub(crate) fn network(&self, fd: c_int) -> Option<u64> {
        known(&self.network, fd, libc::SO_NETNS_COOKIE)
    }

    /// The network namespace and the cookie, without a question to the kernel. `None`: one of them is not known yet.
    pub(crate) fn noted(&self) -> Option<Place> {
        let [network, cookie] =
            [&self.network, &self.cookie].map(|word| word.load(Ordering::Relaxed));
        (network != 0 && cookie != 0).then_some(Place { network, cookie })
    }

    /// The network namespace of the socket, and its cookie.
    pub(crate) fn place(&self, fd: c_int) -> Option<Place> {
        Some(Place {
            network: self.network(fd)?,
            cookie: known(&self.cookie, fd, libc::SO_COOKIE)?,
        })
    }

    /// The address that it is connected to, as [`address::words`] says it. One thread at a time.
    pub(crate) fn peer(&self, fd: c_int) -> Option<[u64; 4]> {
        if self.peer[0].load(Ordering::Relaxed) == 0 {
            let words = address::words(&sys::name(fd, true).ok()?);
            for (at, word) in self.peer.iter().zip(words) {
                at.store(word, Ordering::Relaxed);
            }
        }
        Some(
            self.peer
                .each_ref()
                .map(|word| word.load(Ordering::Relaxed)),
        )
    }
}

fn known(word: &AtomicU64, fd: c_int, name: c_int) -> Option<u64> {
    match word.load(Ordering::Relaxed) {
        0 => {
            let value = sys::getsockopt(fd, libc::SOL_SOCKET, name).ok()?;
            word.store(value, Ordering::Relaxed);
            Some(value)
        }
        value => Some(value),
    }
}

impl Socket {
    /// The program has closed it, and the library keeps it by this copy of its descriptor.
    pub(crate) fn put_aside(&self, copy: c_int) {
        self.name_by(copy);
        self.move_on(Stage::Attached, Stage::Aside);
    }

    /// The socket is the next connection's, which the program knows by this descriptor. The caller notes what the program
    /// has set on it.
    pub(crate) fn use_again(&self, fd: c_int) {
        self.name_by(fd);
        self.hints.clear();
        // The peer was alive just now: the kernel need not be asked soon.
        self.hints.looked_at.store(sys::ticks(), Ordering::Relaxed);
        self.again.clear();
        self.origin.is_again.store(true, Ordering::Relaxed);
        self.dealings.forget_wish();
        self.was_reset.store(false, Ordering::Relaxed);
        self.move_on(Stage::Aside, Stage::Attached);
        self.set_connected(true);
    }

    /// Notes the descriptor by which the socket is known: the program's, or the library's copy while it is put aside.
    pub(crate) fn name_by(&self, fd: c_int) {
        self.fd.store(fd, Ordering::Relaxed);
        self.record.fd.store(fd, Ordering::Relaxed);
    }

    /// The socket is not used again: it ends as an attached connection does.
    pub(crate) fn give_up_aside(&self) {
        self.move_on(Stage::Aside, Stage::Attached);
    }
}
