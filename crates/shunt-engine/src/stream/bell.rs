//! Waking the peer: its wait words and logs, the call by its channel, and the doorbell byte
//! for who has none.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::atomic::{AtomicU32, full, light};
use shunt_shm::publish;
use shunt_shm::slot::{self, Recall, Way};
use shunt_shm::wake::Address;

use super::Conn;
use crate::config::hesitate;
use crate::link::Pair;
use crate::socket::{Socket, bump};
use crate::thread::give;
use crate::{epoll, sys, tcp, wake};

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
    /// that waits for data.
    #[inline(always)]
    pub(super) fn tell_data(&self) {
        light();
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        if wait != 0 {
            tell_data_slowly(self.socket, self.pair, self.fd, wait);
        }
    }

    /// After reading from the ring, without a token: wakes a peer that waits for
    /// room, once there is enough.
    #[inline(always)]
    pub(super) fn tell_room(&self) {
        light();
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        if wait & (slot::WAIT_TX | slot::WANT_TX) != 0 {
            tell_room_slowly(self.socket, self.pair, self.fd, wait);
        }
    }

    fn tell_room_slowly(&self, wait: u32) {
        let read = self.pair.own.progress.bytes.load(Ordering::Relaxed);
        let asked = self.pair.peer.output.room_at.load(Ordering::Acquire);
        let there = read.wrapping_sub(asked) as i64 >= 0;
        if (there || !self.consumer().is_ready()) && self.take(&self.pair.own.sending.token) {
            self.tell(wait, News::Room);
            give(&self.pair.own.sending.token);
        }
    }

    /// Whether the peer waits for room and has not been told of any: what there
    /// is to read will not become more until some is read.
    pub(crate) fn keeps_peer_waiting(&self) -> bool {
        let wait = self.pair.peer.face.wait.load(Ordering::Acquire);
        let read = self.pair.own.progress.bytes.load(Ordering::Relaxed);
        let asked = self.pair.peer.output.room_at.load(Ordering::Acquire);
        wait & (slot::WAIT_TX | slot::WANT_TX) != 0 && (read.wrapping_sub(asked) as i64) < 0
    }

    /// Having said that this side waits for room, with the sending token: a peer
    /// that waits for more data than is there must make do with that.
    pub(super) fn tell_full(&self) {
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        if wait & (slot::WAIT_RX | slot::WATCHED) != 0 {
            self.tell(wait, News::Data);
        }
    }

    /// Tells a peer that waits for either, whether or not it has come. With the
    /// sending token.
    pub(super) fn tell_always(&self, news: News) {
        light();
        self.tell(self.pair.peer.face.wait.load(Ordering::Relaxed), news);
    }

    /// With the sending token.
    #[cold]
    fn tell(&self, wait: u32, news: News) {
        let wait = self.pair.peer.face.look_again(wait);
        let (sleeping, watching) = match news {
            News::Data => (wait & slot::WAIT_RX != 0, wait & slot::WATCHED != 0),
            News::Room => (
                wait & slot::WAIT_TX != 0,
                wait & slot::WATCHED != 0 && wait & slot::WANT_TX != 0,
            ),
        };
        let mut rung = false;
        // Somebody has been woken for this nap, and has not come.
        let mut overdue = false;
        if watching {
            let group = wait >> slot::GROUP_SHIFT & 0x3f;
            let link = self.pair.link;
            link.own().log(group).append(self.pair.number);
            // Pairs with the sleeper's, between its place at the door and its look at
            // the log.
            full();
            let door = link.peer().door(group);
            if door.sleepers.load(Ordering::Relaxed) != 0 {
                let naps = door.naps.load(Ordering::Acquire);
                rung = if self.pair.peer.options.forked.load(Ordering::Acquire) == slot::UNFORKED {
                    let (name, _) = door.address.look();
                    // Any connection's doorbell wakes the set: one ring per nap.
                    let told = if group == epoll::SHARED || name == Address::MANY {
                        &self.pair.own.sending.rung_at_door
                    } else {
                        &link.own().tail(group).rung
                    };
                    overdue = told.load(Ordering::Relaxed) == naps;
                    let called = !overdue && wake::call(&door.address);
                    if called {
                        told.store(naps, Ordering::Relaxed);
                    }
                    !called && self.ring_once(told, naps)
                } else {
                    // Relatives have sets of their own behind the same door.
                    self.ring_bell()
                };
            }
        }
        if sleeping && !rung {
            overdue |= !self.wake_sleeper(news);
        }
        if overdue {
            self.look_at_sleeper();
        }
    }

    /// Calls who sleeps on the connection itself, unless it has been done for this nap.
    /// `true`: it was done.
    fn wake_sleeper(&self, news: News) -> bool {
        let (face, sending) = (&self.pair.peer.face, &self.pair.own.sending);
        let naps = face.naps.load(Ordering::Acquire);
        let (told, at) = match news {
            News::Data => (&sending.rung, &face.data),
            News::Room => (&sending.rung_for_room, &face.room),
        };
        if told.load(Ordering::Relaxed) != naps && wake::call(at) {
            told.store(naps, Ordering::Relaxed);
            return true;
        }
        self.ring_once(told, naps)
    }

    /// Who has been rung and has not come may have been killed. The kernel knows, and is
    /// asked now and then: with what it says the next call is the kernel's.
    fn look_at_sleeper(&self) {
        /// Ticks, about 1 ms.
        const SELDOM: u64 = 2_600_000;
        const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let (now, looked_at) = (sys::ticks(), &self.socket.looked_at);
        if now.wrapping_sub(looked_at.load(Ordering::Relaxed)) > SELDOM {
            looked_at.store(now, Ordering::Relaxed);
            let ended = self.base().map_or(0, |base| sys::ready(base, ENDED)) & ENDED;
            let state = &self.socket.kernel_state;
            state.fetch_or(ended as u32, Ordering::Relaxed);
        }
    }

    /// Rings unless it has been done for this nap. `true`: a doorbell was sent.
    fn ring_once(&self, rung: &AtomicU32, naps: u32) -> bool {
        if rung.load(Ordering::Relaxed) == naps || !self.ring_bell() {
            return false;
        }
        rung.store(naps, Ordering::Relaxed);
        true
    }

    /// Sends one byte on the base socket, with the sending token. Only a
    /// direction that is on the ring may carry one.
    fn ring_bell(&self) -> bool {
        if self.way_out() == Way::Tcp {
            self.try_switch();
        }
        // To a peer that has recalled the stream every byte is payload.
        if self.pair.peer_state() & slot::RECALLED != 0 {
            return false;
        }
        let (Way::Ring, Some(base)) = (self.way_out(), self.base()) else {
            return false;
        };
        // Counted first: a peer that closes waits for what is counted, and who
        // counts after its last look sees that it waits for nothing any more.
        let bells = &self.pair.own.output.bells;
        let before = bells.load(Ordering::Relaxed);
        publish::word(bells, before + 1);
        light();
        let sent = self.pair.peer_state() & slot::CLOSED == 0 && sys::send(base, &[0]).is_ok();
        if sent {
            publish::word(&self.pair.own.output.rung, before + 1);
        } else {
            publish::word(bells, before);
        }
        bump(&self.socket.tx.doorbells, u64::from(sent));
        sent
    }

    /// With the sending token of a process that died with it: a doorbell that it has
    /// counted may not have been sent.
    pub(super) fn recount_bells(&self) {
        let output = &self.pair.own.output;
        let (Way::Ring, Some(switched)) = (
            self.way_out(),
            output.switch_at.load(Ordering::Relaxed).checked_sub(1),
        ) else {
            return;
        };
        // What it, or the peer in its name, may have sent since is payload.
        let spoken_for = self.pair.own.recall.waits.load(Ordering::Relaxed) != 0
            || matches!(
                self.pair.peer.recall.stage.load(Ordering::Acquire),
                Recall::TAKEN | Recall::DONE
            );
        if spoken_for || output.back_at.load(Ordering::Relaxed) != 0 {
            return;
        }
        let sent = self
            .base()
            .and_then(|fd| tcp::written(fd, self.socket.role()))
            .and_then(|written| written.checked_sub(switched));
        if let Some(sent) = sent {
            publish::word(&output.bells, sent);
        }
    }

    /// Before this side leaves the ring, with the sending token: a peer that
    /// waits for room must know, since no doorbell will reach it any more.
    pub(super) fn tell_leaving(&self) {
        let wait = self.pair.peer.face.wait.load(Ordering::Relaxed);
        if wait & (slot::WAIT_TX | slot::WANT_TX) != 0 {
            self.tell(wait, News::Room);
        }
    }

    /// Moves the outgoing direction to the ring if the peer honours it and
    /// nobody is sending through the kernel. With the sending token.
    pub(super) fn try_switch(&self) -> bool {
        let own = self.pair.own;
        let peer = self.pair.peer_state();
        if peer & slot::READY == 0
            || peer & (slot::SHUT_WR | slot::CLOSED | slot::REFUSED | slot::RECALLED) != 0
            || self.is_shut()
            || self.socket.inside.has_sender()
            || self.is_shared()
        {
            return false;
        }
        let Some(base) = self.base() else {
            return false;
        };
        let Some(written) = tcp::written_while_open(base, self.socket.role()) else {
            return false;
        };
        if self.producer().lacks_memory() {
            self.socket.set_reason(Reason::NoResources);
            Way::TcpAgain.store(&own.sending.way);
            return false;
        }
        // What `MSG_MORE` holds back would wait for a doorbell, which may not be needed.
        sys::push(base);
        hesitate();
        publish::word(&own.output.switch_at, written + 1);
        hesitate();
        Way::Ring.store(&own.sending.way);
        // A fork has said that it would not switch.
        publish::clear_bits(&own.face.state, slot::LEAVING);
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

// By values, which stay in registers as long as there is nobody to tell.

#[cold]
fn tell_data_slowly(socket: &'static Socket, pair: &Pair, fd: c_int, wait: u32) {
    Conn { socket, pair, fd }.tell(wait, News::Data);
}

#[cold]
fn tell_room_slowly(socket: &'static Socket, pair: &Pair, fd: c_int, wait: u32) {
    Conn { socket, pair, fd }.tell_room_slowly(wait);
}
