//! The byte stream of an attached connection. Each direction is on TCP, on the
//! ring, or on TCP again:
//!
//! ```text
//!          peer READY: note the offset            cannot wait here
//!   Tcp ───────────────────────────────> Ring ───────────────────────> TcpAgain
//!          "byte N and later: ring"              Back frame: "byte M and
//!                                                 later: TCP"
//! ```
//!
//! Once both directions are on TCP again, and what sent them there is over, the slot may begin
//! another life, with both on `Tcp` ([`crate::upgrade`]).
//!
//! While a direction is on the ring, nothing comes by TCP in that direction but its end; who
//! sleeps is called beside it ([`wake`]).
//! The sender decides both moves; the receiver follows at the exact offset. It may
//! also *recall* the stream ([`downgrade`](mod@downgrade)): then what it has not read of the ring
//! is sent again over TCP ([`owed`]), before what follows.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use shunt_shm::path;
use shunt_shm::path::unread::Unread;
use shunt_shm::publish;
use shunt_shm::ring::{Consumer, Producer};
use shunt_shm::slot::{self, Way};
use shunt_shm::token::Token;

use crate::link::Pair;
use crate::socket::{Socket, Stage};
use crate::thread::{self, Got};
use crate::{sys, tcp, wake};

mod close;
mod crowd;
mod downgrade;
mod leave;
mod mask;
mod owed;
mod recv;
mod send;
pub(crate) mod short;
mod spin;
mod stand_in;
mod tell;
mod transfer;
mod wait;
mod wish;

pub(crate) use close::{
    before_close, before_close_under_sleeper, before_reset, hand_over, let_go, make_way, shutdown,
    socket_error,
};
pub(crate) use downgrade::{downgrade, give_up, is_plain};
pub(crate) use leave::{leave_ring, leave_to_half_closed};
pub(crate) use mask::{is_as_usual, leaves_ring, mask, mask_at_a_glance, may_be};
pub(crate) use owed::{
    answer as answer_recall, is_due as recall_is_due, is_owing as recall_is_owing,
};
pub(crate) use recv::{is_any_in_ring, leaves_unread, pump, receive, receive_in, unread};
pub(crate) use send::{send, send_in};
pub(crate) use spin::{Spin, share_crowd, shares_core};
pub(crate) use stand_in::for_ended_peer;
pub(crate) use transfer::{by_kernel_alone, sendfile, splice_in, splice_out};
pub(crate) use wait::{
    Stay, TURN, Want, asleep, awake, foresee_sleep, interrupted, is_on_rings, must_be_called,
    must_look, say_again,
};
pub(crate) use wish::see_to_wishes;

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
    fn producer(&self) -> Producer<'a, impl Fn(usize) -> bool + use<>> {
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

    /// Takes a token of this connection; `false` in a signal handler that
    /// interrupted its holder.
    #[inline(always)]
    pub(crate) fn take(&self, token: &Token) -> bool {
        self.take_while(token, || true)
    }

    /// The same for who is patient only so long with a relative that is stopped in the middle of a call.
    #[inline(always)]
    fn take_while(&self, token: &Token, patient: impl FnMut() -> bool) -> bool {
        match thread::take_while(token, patient) {
            Got::Token => true,
            Got::Nothing => false,
            Got::FromTheDead => {
                close::take_over(self, token);
                true
            }
        }
    }

    /// The peer need not pass a barrier with each publication any more.
    pub(crate) fn unfence(&self) {
        let (wait, token) = (&self.pair.own.face.wait, &self.pair.own.receiving.token);
        if wait.load(Ordering::Relaxed) & slot::FENCED != 0 && self.take(token) {
            publish::clear_bits(wait, slot::FENCED);
            thread::give(token);
        }
    }

    /// The base socket, with a token: a descriptor that names it. Another thread
    /// may have closed ours, and its number may name anything by now; who closes
    /// it waits for the tokens ([`close::let_go`]). `None`: all are closed.
    pub(crate) fn base(&self) -> Option<c_int> {
        if self.is_at(self.fd) {
            return Some(self.fd);
        }
        self.copy()
            .or_else(|| self.is_made_apart().then_some(self.fd))
            .or_else(|| Some(self.socket.fd()).filter(|&fd| self.is_at(fd)))
    }

    /// Whether the table says that a number names the socket.
    #[inline(always)]
    fn is_at(&self, fd: c_int) -> bool {
        self.socket.is_at(fd)
    }

    /// Whether the kernel would find the socket by the number of our descriptor.
    #[cold]
    pub(crate) fn is_by_number(&self) -> bool {
        self.is_at(self.fd) || self.is_made_apart()
    }

    /// The copy that a `close` has left to calls that go on; one that moves just now has two
    /// numbers.
    #[inline]
    fn copy(&self) -> Option<c_int> {
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
    fn is_made_apart(&self) -> bool {
        !thread::owns_memory() && self.is_named()
    }

    /// Whether the kernel says that our descriptor is the socket's.
    pub(crate) fn is_named(&self) -> bool {
        self.is_known_to_kernel(self.fd)
    }

    #[cold]
    fn is_known_to_kernel(&self, fd: c_int) -> bool {
        let cookie = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        self.socket.cookie() != 0 && cookie == Ok(self.socket.cookie())
    }

    /// The path of what this side sends.
    #[inline(always)]
    fn sender(&self) -> path::Sender<'a> {
        path::Sender {
            own: self.pair.own,
            peer: self.pair.peer,
            life: self.pair.life(),
        }
    }

    /// The path of what it receives.
    #[inline(always)]
    pub(crate) fn receiver(&self) -> path::Receiver<'a> {
        path::Receiver {
            own: self.pair.own,
            peer: self.pair.peer,
            life: self.pair.life(),
        }
    }

    /// Bytes unread in the peer's ring; `None`: it is broken.
    fn unread_in_ring(&self) -> Option<u64> {
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

    /// Whether the connection is still in that life.
    pub(crate) fn is_in(&self, life: u32) -> bool {
        self.pair.life() == life
    }

    /// Whether what arrives is the kernel's in that life, and the connection is still in it.
    pub(crate) fn is_plain_in(&self, life: u32) -> bool {
        self.is_in(life) && self.way_in() == Way::TcpAgain
    }

    /// Whether outgoing bytes go through the ring.
    pub(crate) fn is_on_ring(&self) -> bool {
        self.way_out() == Way::Ring
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
    fn most(&self) -> u64 {
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

    /// Before this side says that it waits for room: how far the peer is to read
    /// before it tells, a little more than makes room.
    fn ask_at(&self) {
        let read = self.pair.peer.progress.bytes.load(Ordering::Acquire);
        let wanted = (self.in_flight() / 8 * 3).max(1);
        publish::word(&self.pair.own.output.room_at, read.wrapping_add(wanted));
    }

    /// Whether this side has shut down sending.
    #[inline(always)]
    fn is_shut(&self) -> bool {
        self.pair.own.face.state.load(Ordering::Relaxed) & (slot::SHUT_WR | slot::CLOSED) != 0
    }
}

/// What `SIOCOUTQ` says of a direction on the ring: the kernel counts what the
/// peer's receive buffer has not taken, and that is half of the ring here.
pub(crate) fn unsent(conn: &Conn) -> u64 {
    let received = (conn.most() / 2).max(WINDOW.into());
    conn.in_flight().saturating_sub(received)
}

/// What a peer's receive buffer takes at least, unless that has made it smaller: as much as it has
/// at first (`tcp_rmem`), and a segment more.
const WINDOW: u32 = 192 << 10;

/// The bound that goes with an `SO_SNDBUF` of so many bytes, 0 if the program set none: beside
/// the send buffer TCP fills the peer's receive buffer.
pub(crate) fn bound(fd: c_int, sndbuf: u32) -> u32 {
    match sndbuf {
        0 => 0,
        _ => sndbuf.saturating_add(tcp::send_window(fd).max(WINDOW)),
    }
}

/// The program has set `SO_SNDBUF`: threads that wait for room may have some now.
pub(crate) fn resize(conn: &Conn, sndbuf: u32) {
    let own = conn.pair.own;
    own.options
        .most
        .store(bound(conn.fd, sndbuf), Ordering::Relaxed);
    // With the token a thread either has counted itself among the sleepers, or sees the bound.
    let token = &own.sending.token;
    let asleep = conn.take(token) && {
        let asleep = wait::any_waits_for_room(conn);
        thread::give(token);
        asleep
    };
    if asleep {
        wake::wake_all();
    }
}

/// Whether a receive waits for more than one byte (`SO_RCVLOWAT`), which the kernel does; or may do so,
/// as the kernel does not say what options are set.
pub(crate) fn waits_for_many(fd: c_int) -> bool {
    !sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|least| least <= 1)
}

/// A bound on bytes in flight: the ring's size, or less if the program has set `SO_SNDBUF`.
fn most(own: &slot::Slot) -> u64 {
    match own.options.most.load(Ordering::Relaxed) {
        0 => shunt_abi::layout::RING_BYTES as u64 - 65_536,
        most => u64::from(most).clamp(4096, shunt_abi::layout::RING_BYTES as u64 - 65_536),
    }
}
