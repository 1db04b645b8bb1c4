//! An attached connection, and what its words say.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use shunt_shm::path;
use shunt_shm::path::unread::Unread;
use shunt_shm::publish;
use shunt_shm::recycle::Side;
use shunt_shm::ring::{Consumer, Producer};
use shunt_shm::slot::{self, Way};

use crate::link::Pair;
use crate::socket::{Socket, Stage};
use crate::{sys, thread};

/// An attached connection, by one of its descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Conn<'a> {
    pub(crate) socket: &'static Socket,
    pub(crate) pair: &'a Pair,
    pub(crate) fd: c_int,
}

impl<'a> Conn<'a> {
    #[inline(always)]
    pub(crate) fn new(socket: &'static Socket, fd: c_int) -> Option<Conn<'static>> {
        Some(Conn {
            socket,
            pair: socket.pair()?,
            fd,
        })
    }

    /// The connection of a socket, if it is shunted.
    #[inline(always)]
    pub(crate) fn attached(socket: &'static Socket, fd: c_int) -> Option<Conn<'static>> {
        (socket.stage() == Stage::Attached)
            .then(|| Conn::new(socket, fd))
            .flatten()
    }

    /// The connection that a descriptor names, if it is shunted.
    pub(crate) fn of(fd: c_int) -> Option<Conn<'static>> {
        Self::attached(Socket::of(fd)?, fd)
    }

    #[inline(always)]
    pub(super) fn producer(&self) -> Producer<'a, impl Fn(usize) -> bool + use<>> {
        let (link, number) = (self.pair.link, self.pair.number);
        Producer {
            memory: self.pair.out,
            sending: &self.pair.own.sending,
            output: &self.pair.own.output,
            peer: &self.pair.peer.progress,
            populate: move |bytes| link.own().populate(number, bytes),
        }
    }

    #[inline(always)]
    pub(crate) fn consumer(&self) -> Consumer<'a> {
        self.pair.consumer()
    }

    /// The base socket, with a token: a descriptor that names it. Another thread may have closed ours, and its number
    /// may name anything by now; a `close` waits for the tokens ([`let_go`](super::let_go)). `None`: all are closed.
    pub(crate) fn base(&self) -> Option<c_int> {
        if self.is_at(self.fd) {
            return Some(self.fd);
        }
        self.copy()
            .or_else(|| self.is_made_apart().then_some(self.fd))
            .or_else(|| Some(self.socket.fd()).filter(|&fd| self.is_at(fd)))
    }

    /// Whether the descriptor table says that `fd` names the socket.
    #[inline(always)]
    pub(super) fn is_at(&self, fd: c_int) -> bool {
        self.socket.is_at(fd)
    }

    /// Whether the kernel would find the socket by the number of our descriptor.
    #[cold]
    pub(crate) fn is_by_number(&self) -> bool {
        self.is_at(self.fd) || self.is_made_apart()
    }

    /// The copy of the descriptor that a `close` has left to calls that are still under way. (While
    /// it moves to another number, it has two.)
    #[inline]
    pub(super) fn copy(&self) -> Option<c_int> {
        loop {
            let copy = self.socket.handed.copy()?;
            if self.is_known_to_kernel(copy) {
                return Some(copy);
            }
            if self.socket.handed.copy() == Some(copy) {
                return None;
            }
        }
    }

    /// Whether our descriptor is the socket's although the table does not say so: a `vfork` child
    /// has made it. (Of this process's own the table would say so until they are being closed.)
    #[cold]
    pub(super) fn is_made_apart(&self) -> bool {
        !thread::owns_memory() && self.is_named()
    }

    /// Whether the kernel says that our descriptor is the socket's.
    pub(crate) fn is_named(&self) -> bool {
        self.is_known_to_kernel(self.fd)
    }

    #[cold]
    pub(super) fn is_known_to_kernel(&self, fd: c_int) -> bool {
        let cookie = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        self.socket.cookie() != 0 && cookie == Ok(self.socket.cookie())
    }

    /// Whether neither direction is in its ring.
    #[inline(always)]
    pub(crate) fn is_off_rings(&self) -> bool {
        self.way_out() != Way::Ring && self.way_in() != Way::Ring
    }

    /// The path of what this side sends.
    #[inline(always)]
    pub(super) fn sender(&self) -> path::Sender<'a> {
        path::Sender {
            own: self.pair.own,
            peer: self.pair.peer,
            life: self.pair.life(),
        }
    }

    /// The path of what this side receives.
    #[inline(always)]
    pub(crate) fn receiver(&self) -> path::Receiver<'a> {
        path::Receiver {
            own: self.pair.own,
            peer: self.pair.peer,
            life: self.pair.life(),
        }
    }

    /// Bytes unread in the peer's ring; `None`: it is broken.
    pub(super) fn unread_in_ring(&self) -> Option<u64> {
        Unread::of(self.pair.own).length(self.consumer().memory)
    }

    /// An error that was taken from the base socket, and that the program must still see: once, in
    /// whichever of the processes that have this side.
    #[inline(always)]
    pub(crate) fn error(&self) -> &'a AtomicI32 {
        &self.pair.own.options.error
    }

    /// Where outgoing bytes go.
    #[inline(always)]
    pub(crate) fn way_out(&self) -> Way {
        Way::load(&self.pair.own.sending.way)
    }

    /// Where incoming bytes come from.
    #[inline(always)]
    pub(crate) fn way_in(&self) -> Way {
        Way::load(&self.pair.own.receiving.way)
    }

    /// Whether the connection is still in this life of its slot.
    pub(crate) fn is_in(&self, life: u32) -> bool {
        self.pair.life() == life
    }

    /// Whether the incoming direction is the kernel's in this life of the slot, and the connection
    /// is still in it.
    pub(crate) fn is_plain_in(&self, life: u32) -> bool {
        self.is_in(life) && self.way_in() == Way::TcpAgain
    }

    /// Whether outgoing bytes go through the ring.
    pub(crate) fn is_on_ring(&self) -> bool {
        self.way_out() == Way::Ring
    }

    /// Whether a call with these flags may wait (`MSG_DONTWAIT`, `O_NONBLOCK`).
    #[inline(always)]
    pub(super) fn may_wait(&self, flags: c_int) -> bool {
        let nonblock = &self.pair.own.options.nonblock;
        flags & libc::MSG_DONTWAIT == 0 && nonblock.load(Ordering::Relaxed) == 0
    }

    /// Stream bytes in our ring that the peer has not read.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        let written = self.pair.own.output.bytes.load(Ordering::Relaxed);
        // The peer may have read a frame before we have counted it.
        written.saturating_sub(self.pair.peer.progress.bytes.load(Ordering::Acquire))
    }

    /// Most bytes that may be in flight.
    #[inline]
    pub(super) fn most(&self) -> u64 {
        most(self.pair.own)
    }

    /// Whether a sender would find room worth waking for: a third of the whole,
    /// like `sk_stream_is_writeable` in the kernel.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        // Mostly there is plenty, and no need to fetch the line that the peer writes.
        if self.pair.own.options.most.load(Ordering::Relaxed) == 0 && self.producer().had_room() {
            return true;
        }
        let most = self.most();
        self.in_flight() <= most - most / 3 && self.producer().has_room()
    }

    /// Writes how far the peer is to read before it tells of room: a little further than makes
    /// room. To be called before this side says that it waits.
    pub(super) fn ask_at(&self) {
        let read = self.pair.peer.progress.bytes.load(Ordering::Acquire);
        let wanted = (self.in_flight() / 8 * 3).max(1);
        publish::word(&self.pair.own.output.room_at, read.wrapping_add(wanted));
    }

    /// How far the peer was to read when this side last asked for room; 0: it never has.
    #[inline(always)]
    pub(crate) fn asked_at(&self) -> u64 {
        self.pair.own.output.room_at.load(Ordering::Relaxed)
    }

    /// Whether the peer has read as far as this side has asked it to, so that it tells of room.
    pub(super) fn is_told_of_room(&self) -> bool {
        let read = self.pair.peer.progress.bytes.load(Ordering::Acquire);
        read.wrapping_sub(self.asked_at()) as i64 >= 0
    }

    /// Whether the other end is on another host: a NIC takes there what this side publishes.
    #[inline(always)]
    pub(crate) fn is_mirrored(&self) -> bool {
        self.pair.link.is_between_hosts()
    }

    /// How [`crate::reach`] names the connection: by its link and its slot.
    pub(super) fn at_nic(&self) -> (u32, u32) {
        (self.pair.link.own_number(), self.pair.number)
    }

    /// Whether this side has shut down sending.
    #[inline(always)]
    pub(super) fn is_shut(&self) -> bool {
        self.pair.own.face.state.load(Ordering::Relaxed) & (slot::SHUT_WR | slot::CLOSED) != 0
    }
}

/// The words of a slot by which both sides agree who uses the connection next.
pub(crate) fn turns(pair: &Pair) -> Side<'static> {
    Side {
        own: &pair.own.options.turn,
        peer: &pair.peer.options.turn,
    }
}

/// A bound on bytes in flight: the ring's size, or less if the program has set `SO_SNDBUF`.
fn most(own: &slot::Slot) -> u64 {
    match own.options.most.load(Ordering::Relaxed) {
        0 => shunt_abi::layout::RING_BYTES as u64 - 65_536,
        most => u64::from(most).clamp(4096, shunt_abi::layout::RING_BYTES as u64 - 65_536),
    }
}
