//! Waking the peer: its wait words and logs, and the call by the channel that it has named.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::atomic::{AtomicU32, full, light};
use shunt_shm::slot;
use shunt_shm::wake::Address;

use super::owed::publish;
use super::{Conn, meet};
use crate::link::Pair;
use crate::socket::Socket;
use crate::thread::{give, is_alone};
use crate::{reach, sys, tcp, wake};

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// There is something to read.
    Data,
    /// There is room to write.
    Room,
}

impl Conn<'_> {
    /// After a publication in the ring, with the sending token: wakes a peer
    /// that waits for data. `false`: it cannot be called, so the caller gives the token back and
    /// [reaches](Self::reach) it.
    #[inline(always)]
    #[must_use]
    pub(super) fn tell_data(&self) -> bool {
        let wait = self.peer_waits();
        wait == 0 || tell_data_slowly(self.socket, self.pair, self.fd, wait)
    }

    /// After a publication: the peer's wait word. 0: it waits for nothing.
    #[inline(always)]
    pub(super) fn peer_waits(&self) -> u32 {
        light();
        self.pair.peer.face.wait.load(Ordering::Relaxed)
    }

    /// [`Self::tell_data`] to a peer whose wait word is not 0.
    #[must_use]
    pub(super) fn tell_data_of(&self, wait: u32) -> bool {
        if wait & slot::MIRRORED != 0 {
            return publish(self);
        }
        self.tell(wait, News::Data)
    }

    /// After reading from the ring, without a token: wakes a peer that waits for
    /// room, once there is enough.
    #[inline(always)]
    pub(super) fn tell_room(&self) {
        light();
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        if wait & (slot::WAIT_TX | slot::WANT_TX | slot::MIRRORED) != 0 {
            tell_room_slowly(self.socket, self.pair, self.fd, wait);
        }
    }

    fn tell_room_slowly(&self, wait: u32) {
        if wait & slot::MIRRORED != 0 {
            return self.credit();
        }
        let read = self.pair.own.progress.bytes.load(Ordering::Relaxed);
        let asked = self.pair.peer.output.room_at.load(Ordering::Acquire);
        let there = read.wrapping_sub(asked) as i64 >= 0;
        if (there || !self.consumer().is_ready()) && self.take(&self.pair.own.sending.token) {
            let told = self.tell(wait, News::Room);
            give(&self.pair.own.sending.token);
            if !told {
                self.reach();
            }
        }
    }

    /// Tells a peer on another host how far this side has read, if that is due.
    fn credit(&self) {
        let token = &self.pair.own.receiving.token;
        if self.take(token) {
            let (link, slot) = self.at_nic();
            reach::has_read(link, slot);
            give(token);
        }
    }

    /// Whether the peer waits for room and has not been told of any: then no more will come before
    /// some of what is there is read.
    pub(crate) fn keeps_peer_waiting(&self) -> bool {
        let wait = self.pair.peer.face.wait.load(Ordering::Acquire);
        let read = self.pair.own.progress.bytes.load(Ordering::Relaxed);
        let asked = self.pair.peer.output.room_at.load(Ordering::Acquire);
        wait & (slot::WAIT_TX | slot::WANT_TX) != 0 && (read.wrapping_sub(asked) as i64) < 0
    }

    /// Wakes a peer that waits for more data than fits (`MSG_WAITALL`), since the ring is full: it
    /// must take what is there. To be called after this side has said that it waits for room, with
    /// the sending token. Returns what [`tell_data`](Self::tell_data) does.
    #[must_use]
    pub(super) fn tell_full(&self) -> bool {
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        wait & (slot::WAIT_RX | slot::WATCHED) == 0 || self.tell(wait, News::Data)
    }

    /// Wakes a peer that waits for `news`, whether or not they have come. With the sending token.
    /// (A peer that cannot be called is woken by TCP.)
    pub(super) fn tell_always(&self, news: News) {
        light();
        self.tell(self.pair.peer.face.wait.load(Ordering::Relaxed), news);
    }

    /// Wakes a peer that waits for data or for room, when this side begins a recall or has a next step of one: the peer may
    /// have met this side in the middle. Without the sending token.
    #[cold]
    pub(super) fn tell_of_recall(&self) {
        let token = &self.pair.own.sending.token;
        if self.take(token) {
            self.tell_always(News::Data);
            self.tell_always(News::Room);
            give(token);
        }
    }

    /// Wakes a peer that waits for data or for room because of an end that the kernel does not tell, or because the next
    /// connection begins. With the sending token. `false`: a thread sleeps there that cannot be called.
    pub(super) fn tell_beside_kernel(&self) -> bool {
        light();
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        self.tell(wait, News::Data) && self.tell(wait, News::Room)
    }

    /// Wakes the threads that wait for `news`, as the peer's wait word says. With the sending token. `false`: a thread
    /// sleeps there that cannot be called.
    #[cold]
    fn tell(&self, wait: u32, news: News) -> bool {
        let wait = self.pair.peer.face.look_again(wait);
        let (sleeping, watching) = match news {
            News::Data => (wait & slot::WAIT_RX != 0, wait & slot::WATCHED != 0),
            News::Room => (
                wait & slot::WAIT_TX != 0,
                wait & slot::WATCHED != 0 && wait & slot::WANT_TX != 0,
            ),
        };
        let (mut overdue, mut failed) = (false, false);
        let mut note = |call| match call {
            Call::Done => {}
            Call::Overdue => overdue = true,
            Call::Failed => failed = true,
        };
        if watching {
            let group = wait >> slot::GROUP_SHIFT & 0x3f;
            let link = self.pair.link;
            link.own().log(group).append(self.pair.number);
            // Pairs with the sleeper's, between its place at the door and its look at
            // the log.
            full();
            let door = link.peer().door(group);
            if door.sleepers.load(Ordering::Relaxed) != 0 {
                let epoch = door.epoch.load(Ordering::Acquire);
                let called = &link.own().tail(group).called;
                self.before_call(called, epoch, news);
                note(call_once(called, epoch, &door.address));
            }
        }
        if sleeping {
            let (face, sending) = (&self.pair.peer.face, &self.pair.own.sending);
            let epoch = face.epoch.load(Ordering::Acquire);
            let (called, at) = match news {
                News::Data => (&sending.called, &face.data),
                News::Room => (&sending.called_for_room, &face.room),
            };
            self.before_call(called, epoch, news);
            note(call_once(called, epoch, at));
        }
        if overdue {
            self.look_at_sleeper();
        }
        !failed
    }

    /// If the peer is about to be called because of data: it may be better to call it from its own core. And if it shares this one it
    /// should make way next time: a thread that sleeps is woken by each message anew, in the place of the one that sends them.
    fn before_call(&self, called: &AtomicU32, epoch: u32, news: News) {
        if news == News::Data && called.load(Ordering::Relaxed) != epoch && !self.is_mirrored() {
            self.say_core();
            meet::before_call(self);
        }
    }

    /// Says on which core this thread is, unless that would say little: the process has several threads, or a set waits for the
    /// connection, too. Returns it: 1 + its number.
    #[inline(always)]
    pub(super) fn say_core(&self) -> u32 {
        let said = &self.pair.own.face.core;
        let here = sys::core();
        let is_sole = is_alone() && self.socket.items.is_empty();
        let core = if is_sole { here } else { 0 };
        if said.load(Ordering::Relaxed) != core {
            said.store(core, Ordering::Relaxed);
        }
        here
    }

    /// A thread that was called and has not come may have been killed. This asks the kernel about that now and
    /// then; if the peer has ended, the next send is the kernel's.
    fn look_at_sleeper(&self) {
        /// Ticks, about 1 ms.
        const SELDOM: u64 = 2_600_000;
        const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let (now, looked_at) = (sys::ticks(), &self.socket.hints.looked_at);
        if now.wrapping_sub(looked_at.load(Ordering::Relaxed)) > SELDOM {
            looked_at.store(now, Ordering::Relaxed);
            let ended = self.base().map_or(0, |base| sys::ready(base, ENDED)) & ENDED;
            let state = &self.socket.hints.kernel_state;
            state.fetch_or(ended as u32, Ordering::Relaxed);
        }
    }

    /// Moves the outgoing direction to the ring if the peer honours it and
    /// nobody is sending through the kernel. With the sending token.
    pub(super) fn try_switch(&self) -> bool {
        self.sender().may_switch() && self.switch()
    }

    /// [`Self::try_switch`] before this side puts the connection aside, as its peer may already have done.
    pub(super) fn try_switch_at_end(&self) -> bool {
        self.sender().may_switch_at_end() && self.switch()
    }

    fn switch(&self) -> bool {
        let path = self.sender();
        if self.socket.inside.has_sender() || self.is_shared() {
            return false;
        }
        let Some(base) = self.base() else {
            return false;
        };
        let Some(written) = tcp::written_at_last(base, self.socket.role()) else {
            return false;
        };
        if self.producer().lacks_memory() {
            self.socket.set_reason(Reason::NoResources);
            path.stay_with_kernel();
            return false;
        }
        let (link, slot) = self.at_nic();
        if self.is_mirrored() {
            if !reach::enter(link, slot, written) {
                return false;
            }
            self.socket.hints.proposals.store(0, Ordering::Relaxed);
        }
        path.switch(written);
        true
    }

    /// Whether a forked relative may be sending through the kernel.
    pub(crate) fn is_shared(&self) -> bool {
        let forked = &self.pair.own.options.forked;
        if forked.load(Ordering::Acquire) == slot::SHARED {
            if self.socket.share.is_unknown() || self.socket.share.is_shared() {
                return true;
            }
            forked.store(slot::INHERITED, Ordering::Release);
        }
        false
    }
}

/// The outcome of a call.
pub(super) enum Call {
    /// The sleepers have been called just now, or there are none.
    Done,
    /// They were called before in this epoch, and have not come yet.
    Overdue,
    /// They cannot be called.
    Failed,
}

/// Calls the threads that sleep at this address, unless that was done in this epoch.
pub(super) fn call_once(called: &AtomicU32, epoch: u32, at: &Address) -> Call {
    if called.load(Ordering::Relaxed) == epoch {
        return Call::Overdue;
    }
    if !wake::call(at) {
        return Call::Failed;
    }
    called.store(epoch, Ordering::Relaxed);
    Call::Done
}

// By values, which stay in registers as long as there is nobody to tell.

#[cold]
fn tell_data_slowly(socket: &'static Socket, pair: &Pair, fd: c_int, wait: u32) -> bool {
    Conn { socket, pair, fd }.tell_data_of(wait)
}

#[cold]
fn tell_room_slowly(socket: &'static Socket, pair: &Pair, fd: c_int, wait: u32) {
    Conn { socket, pair, fd }.tell_room_slowly(wait);
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::both_ends::BothEnds;

    #[test]
    fn a_direction_that_relatives_share_stays_on_tcp() {
        let ends = BothEnds::attached();
        let conn = &ends.conns()[0];
        let forked = &conn.pair.own.options.forked;
        forked.store(slot::SHARED, Ordering::Relaxed);
        assert!(conn.socket.share.before_fork());
        ends.send(b"by tcp");
        assert!(!conn.is_on_ring());
        conn.socket.share.settle();
        forked.store(slot::INHERITED, Ordering::Relaxed);
        ends.send(b"by the ring");
        assert!(conn.is_on_ring());
        assert_eq!(ends.receive::<32>(), b"by tcpby the ring");
    }
}
