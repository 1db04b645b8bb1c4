//! Recycling, as far as it concerns the streams: both programs close a connection, the kernel is not told, and the base socket
//! and the slot serve the next connection. This module reads and writes both sides' words in the slot, and ends or begins the
//! streams; [`crate::recycle`] decides which connections are kept and who gets them.

use std::sync::atomic::Ordering;

use libc::c_int;

use shunt_shm::atomic::full;
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};
use shunt_shm::wake::Address;

use super::conn::{Conn, turns};
use super::recv::{leaves_unread, settle};
use crate::config::{self, hesitate};
use crate::control::{self, Loan};
use crate::link::Pair;
use crate::sys;
use crate::thread::give;

impl Conn<'_> {
    /// Whether the peer has closed the connection and put it aside: no FIN tells of that.
    pub(crate) fn is_put_aside_by_peer(&self) -> bool {
        self.pair.peer_state() & slot::CLOSED != 0 && turns(self.pair).has_peer_put_aside()
    }

    /// Whether the stream that comes in has ended without the kernel, behind what is in the ring: the peer has put the
    /// connection aside or [said so](end_in_memory), or this side receives no more.
    pub(crate) fn is_ended_in_memory(&self) -> bool {
        const DEAF: u32 = slot::ENDED | slot::SHUT_RD;
        let own = self.pair.own.face.state.load(Ordering::Relaxed);
        self.pair.peer_state() & slot::ENDED != 0
            || own & DEAF == DEAF
            || self.is_put_aside_by_peer()
    }

    /// The events of the base socket, and those of ends that the kernel does not know.
    pub(super) fn with_ends_in_memory(&self, kernel: i16) -> i16 {
        let mut events = kernel;
        if self.is_ended_in_memory() {
            events |= libc::POLLIN | libc::POLLRDHUP;
        }
        let has_ended = self.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_WR != 0;
        if has_ended && events & libc::POLLRDHUP != 0 {
            events |= libc::POLLHUP;
        }
        events
    }

    /// Whether the connection may be put aside, as far as both sides' words and the kernel say: it is attached at both ends,
    /// nothing has disturbed it, this side has not ended, and the peer has at most put its own end aside.
    fn is_in_order(&self) -> bool {
        let (own, peer, o) = (self.pair.own, self.pair.peer, Ordering::Acquire);
        let turns = turns(self.pair);
        let state = self.pair.peer_state();
        let closed = if turns.has_peer_put_aside() {
            slot::CLOSED
        } else {
            0
        };
        let may = slot::READY | closed | ends_in(state);
        let own_state = own.face.state.load(o);
        let returns = own.face.again.load(o) | peer.face.again.load(o);
        let forked = own.options.forked.load(o) | peer.options.forked.load(o);
        let errors = self.error().load(o) != 0 || own.options.reset_told.load(o) != 0;
        own_state == slot::READY | ends_in(own_state)
            && state & slot::READY != 0
            && state & !may == 0
            && (returns, forked, errors) == (0, slot::UNFORKED, false)
            && turns.may_put_aside()
            && turns.life() == self.pair.life()
            && (self.tells_all_in_memory() || !has_news(self))
    }

    /// Whether the kernel has neither bytes nor an end for the connection, as far as is known: nothing comes by TCP, and the
    /// peer lives. (If the peer was killed since the last look, the next `connect` finds that out, without further harm.)
    fn tells_all_in_memory(&self) -> bool {
        let lives = || self.socket.hints.kernel_state.load(Ordering::Relaxed) == 0;
        (self.way_in(), self.way_out()) == (Way::Ring, Way::Ring)
            && (turns(self.pair).has_peer_put_aside()
                || self.pair.peer_state() & slot::ENDED != 0
                || lives())
    }

    /// Ends both directions in the rings, so that the next connection begins there. A peer that has not closed yet may still
    /// have to switch to its ring; it does so when it closes.
    fn ends_in_rings(&self) -> bool {
        let own = self.pair.own;
        if self.way_out() == Way::Tcp {
            if !self.take(&own.sending.token) {
                return false;
            }
            self.try_switch_at_end();
            give(&own.sending.token);
        }
        let switches_later = || self.way_in() == Way::Tcp && !self.is_put_aside_by_peer();
        self.is_on_ring() && (self.comes_by_ring() || switches_later())
    }

    /// Whether the incoming direction is on the ring, perhaps since this call.
    fn comes_by_ring(&self) -> bool {
        let token = &self.pair.own.receiving.token;
        if self.way_in() == Way::Tcp && self.take(token) {
            settle(self);
            give(token);
        }
        self.way_in() == Way::Ring
    }
}

/// The bits of a side's state that say of its ends what the kernel does not know.
fn ends_in(state: u32) -> u32 {
    if state & slot::ENDED != 0 {
        state & (slot::ENDED | slot::SHUT_WR | slot::SHUT_RD)
    } else {
        0
    }
}

/// Ends the stream that goes out, and perhaps the other one (`how`, as for `shutdown(2)`), without the kernel, if the connection
/// may be put aside soon. `false`: the kernel must be told. Otherwise it is told [later](tell_kernel_of_end) where it must know, or
/// never.
pub(super) fn end_in_memory(conn: &Conn, how: c_int) -> bool {
    let (own, socket, o) = (conn.pair.own, conn.socket, Ordering::Relaxed);
    let may_recycle = || socket.origin.is_known() && !socket.settings.is_odd.load(o);
    // Who sleeps on it would have to be called: if both directions have ended then, it hangs up.
    let sleeps_nobody = || socket.items.is_empty() && own.receiving.sleepers.load(o) == 0;
    let comes_more = || conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == 0;
    let bits = match how {
        libc::SHUT_WR if comes_more() || sleeps_nobody() => slot::ENDED | slot::SHUT_WR,
        libc::SHUT_RDWR if sleeps_nobody() => slot::ENDED | slot::SHUT_WR | slot::SHUT_RD,
        _ => return false,
    };
    let may = config::recycles()
        && own.face.state.load(o) == slot::READY
        && may_recycle()
        && conn.is_in_order()
        && conn.ends_in_rings();
    if !may || !conn.take(&own.sending.token) {
        return false;
    }
    // What is unread may have to go by TCP yet, to a program without Shunt; that does not come behind an end.
    let is_all_read = conn.in_flight() == 0;
    if is_all_read {
        publish::set_bits(&own.face.state, bits);
    }
    hesitate();
    let is_told = is_all_read && conn.tell_beside_kernel();
    give(&own.sending.token);
    is_told
}

/// The kernel is about to be asked what this side's [end](end_in_memory) means, or another process may have the connection.
pub(crate) fn tell_kernel_of_end(conn: &Conn) {
    let state = &conn.pair.own.face.state;
    let said = state.load(Ordering::Relaxed);
    if said & slot::ENDED == 0 {
        return;
    }
    let how = match said & slot::SHUT_RD {
        0 => libc::SHUT_WR,
        _ => libc::SHUT_RDWR,
    };
    let _ = sys::shutdown(conn.fd, how);
    publish::clear_bits(state, slot::ENDED);
}

/// Whether the base socket has anything to tell: bytes, an end, an error.
fn has_news(conn: &Conn) -> bool {
    let news = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;
    sys::ready(conn.fd, news) != 0
}

/// Whether the base socket still stands between both ends.
pub(crate) fn awaits_base(conn: &Conn) -> bool {
    !has_news(conn)
}

/// Closes a connection that no other process has without the kernel, in the place of [`super::before_close`]: the slot tells the peer
/// of the end. `false`: that cannot be done, and the kernel must tell it. `watched`: the connection was in an epoll set, and so will
/// be the next one on this socket. Then the peer passes a full barrier with each publication, so that the set need not issue a heavy
/// one.
pub(crate) fn put_aside(conn: &Conn, watched: bool) -> bool {
    let own = conn.pair.own;
    // Said before the look at what is unread, the end would hide the reset from a peer that sent in time.
    let ends_well = conn.is_in_order() && conn.ends_in_rings() && !leaves_unread(conn);
    if !ends_well || !conn.take(&own.sending.token) {
        return false;
    }
    let turns = turns(conn.pair);
    if watched {
        // The peer sees this word before it offers the next connection, or takes it.
        publish::set_bits(&own.face.wait, slot::FENCED);
    }
    turns.put_aside();
    publish::set_bits(&own.face.state, slot::CLOSED);
    hesitate();
    let is_told = conn.tell_beside_kernel();
    give(&own.sending.token);
    hesitate();
    // Pairs with the barrier of a peer that closes at the same time: one of the two sees what the other one has sent. A
    // peer that does not close, and had not seen this word as it sent, is told of a reset later (`reset_if_died`).
    full();
    let has_peer_closed = conn.pair.peer_state() & slot::CLOSED != 0;
    // It cannot be put aside if the peer has sent bytes meanwhile that nobody reads, or changes the way of its bytes just now.
    let lost = leaves_unread(conn) || has_peer_closed && conn.in_flight() > 0;
    let state = conn.pair.peer_state();
    let changes = state & !(slot::READY | slot::CLOSED | ends_in(state)) != 0;
    let done = is_told && !lost && !changes;
    if !done {
        turns.give_up();
    }
    done
}

/// How long shuntd may take to lend a descriptor of an end that was put aside, in milliseconds.
const LENDS_MS: i64 = 50;

/// Has the kernel know of ends that were said in memory alone. If the peer has put its end aside, shuts it down by the peer's
/// descriptor, which shuntd lends; likewise the half that the peer has ended. If shuntd does not lend it, the peer's process tells
/// the kernel when it gives its end up, or closes it.
#[cold]
pub(crate) fn end_by_kernel(conn: &Conn) {
    tell_kernel_of_end(conn);
    let is_aside = conn.is_put_aside_by_peer();
    let how = match conn.pair.peer_state() & (slot::ENDED | slot::SHUT_RD) {
        _ if is_aside => libc::SHUT_RDWR,
        0 | slot::SHUT_RD => return,
        slot::ENDED => libc::SHUT_WR,
        _ => libc::SHUT_RDWR,
    };
    let Some(base) = conn.base() else { return };
    match control::borrow(conn.socket.cookie(), base, LENDS_MS) {
        Loan::Lent(peer) => {
            let _ = sys::shutdown(peer, how);
            sys::close(peer);
            // From here on the kernel tells of the end.
            turns(conn.pair).give_up();
        }
        Loan::Proxy(_) | Loan::Refused | Loan::Late(_) => {}
    }
}

/// A connector is about to offer the next connection: begins it in the slot. `false`: it cannot.
pub(crate) fn use_again(conn: &Conn) -> bool {
    let begins = conn.is_on_ring() && conn.comes_by_ring();
    if begins {
        let turns = turns(conn.pair);
        let offered_at = &conn.pair.own.options.offered_at;
        offered_at.store(sys::now(), Ordering::Relaxed);
        begin(conn, slot::recycled_life(turns.own().life));
    }
    begins
}

/// An acceptor takes the connection that its peer offers. `false`: none is offered any more.
pub(crate) fn take_again(conn: &Conn) -> bool {
    turns(conn.pair).take(|life| {
        begin(conn, life);
        // This comes after the new life has begun: the peer's words count only in that life. The peer may have moved to its ring
        // as it closed.
        conn.comes_by_ring();
    })
}

fn begin(conn: &Conn, life: u32) {
    let own = conn.pair.own;
    own.begin_recycled(life);
    let is_fenced = own.face.wait.load(Ordering::Relaxed) & slot::FENCED != 0;
    conn.socket.origin.note_fenced(is_fenced);
}

/// Calls the thread of the peer's that waits to accept the connection which begins now.
pub(crate) fn call_acceptor(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    hesitate();
    if conn.take(token) {
        conn.tell_beside_kernel();
        give(token);
    }
}

/// When the peer has offered the next connection (nanoseconds of the monotonic clock), if it has.
pub(crate) fn offered_at(pair: &Pair) -> Option<u64> {
    let at = &pair.peer.options.offered_at;
    turns(pair).is_offered().then(|| at.load(Ordering::Relaxed))
}

/// An acceptor's thread is about to sleep until a connection is offered: `tell` writes the address at which it can be
/// called. The caller passes [`before_sleep`] when it has said so at all, and looks for an offer after that.
pub(crate) fn await_offer(pair: &Pair, tell: impl FnOnce(&Address)) {
    let face = &pair.own.face;
    tell(&face.data);
    face.epoch.fetch_add(1, Ordering::AcqRel);
    publish::set_bits(&face.wait, slot::WAIT_RX);
}

/// See [`await_offer`].
pub(crate) fn before_sleep() {
    hesitate();
    // Pairs with the one between the peer's offer and its look at the wait word.
    full();
}

/// The acceptor's thread sleeps no more.
pub(crate) fn await_no_more(pair: &Pair) {
    let wait = &pair.own.face.wait;
    if wait.load(Ordering::Relaxed) & slot::WAIT_RX != 0 {
        publish::clear_bits(wait, slot::WAIT_RX);
    }
}
