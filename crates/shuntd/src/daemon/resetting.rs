//! Resets that the kernel does not send by itself: a process has died with bytes unread in shared memory.
//!
//! On TCP the kernel resets such a connection as it closes it (RFC 1122, 4.2.2.13). Here it has nothing unread, and ends its
//! stream in order. The peer's library finds what is unread once it hears that end; but before that come the bytes that the
//! process had sent by TCP and the peer has not read, and a peer that waits for room reads nothing. So the kernel is brought to it:
//!
//! ```text
//! shuntd   a byte, sent by a copy of the peer's descriptor
//! kernel   the end that this comes to has been closed: a reset, which wakes whoever waits for the peer's end
//! ```
//!
//! The two processes' regions tell what is unread: as long as a connection is as both ends found it, the one's bytes sent less the
//! other's received. What they say decides whether the connection of a process that is dead ends by a reset. Nobody receives that
//! byte, whatever they say: the kernel's word is taken that no process has the end to which it goes.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shunt_abi::counters::{Counts, Record, SOCKETS, Stage};

use super::Daemon;
use super::accounting::Orphan;
use super::lending::Left;
use crate::account::Account;
use crate::diag::{self, table};
use crate::foreign::{Foreign, Lane};
use crate::hosts::Afar;
use crate::inspect::{self, Look};
use crate::sys;
use crate::tuple::Tuple;

/// A copy of the other end, for which the stream has not ended.
struct FarEnd {
    /// Who has it, and by what name.
    client: u64,
    cookie: u64,
    socket: Foreign,
    lane: Arc<Lane>,
}

impl Daemon {
    /// A process has died: ends its connections that hold unread bytes, and whose peers would not hear of it.
    pub(super) fn reset_peers(&self, dead: &Orphan) {
        let own = whole(&dead.account);
        let mut others = HashMap::new();
        for left in self.left_behind.of(dead.uid, own.keys().copied().collect()) {
            let Some(far) = self.unaware(&left) else {
                continue;
            };
            let account = || self.clients.get(&far.client)?.account.as_ref();
            let of_client = others.entry(far.client);
            let records = of_client.or_insert_with(|| account().map(whole).unwrap_or_default());
            let sender = records.get(&far.cookie);
            let is_lost = sender.is_some_and(|sender| has_unread(sender, &own[&left.cookie]));
            if is_lost && left.tuple.is_some_and(|tuple| self.is_closing(tuple)) {
                far.lane.send_byte(far.socket);
            } else {
                far.socket.close_now();
            }
        }
    }

    /// A process has died: its peers on other hosts are told how much it had received and sent through rings, as their NICs do not tell them.
    /// (What stands in the middle of a stretch only: who has gone back to TCP has named its place there.)
    pub(super) fn tell_afar(&mut self, dead: &Orphan) {
        let whole = whole(&dead.account);
        let is_of = |afar: &Afar, record: &Record| {
            let generation = record.generation.load(Ordering::Relaxed);
            let link = record.link.load(Ordering::Relaxed);
            (link, generation) == (afar.seat.link, afar.seat.generation)
        };
        let acts = dead.afar.iter().filter_map(|afar| {
            let record = whole.get(&afar.cookie)?;
            let bytes = |counts: &Counts| counts.ring_bytes.load(Ordering::Relaxed);
            is_of(afar, record).then(|| afar.died(bytes(&record.rx), bytes(&record.tx)))
        });
        self.perform(acts.collect());
    }

    /// The other end, if that has heard of no end.
    fn unaware(&self, left: &Left) -> Option<FarEnd> {
        let mate = left.mate;
        let (id, fd, _) = self.paired(mate.id.cookie).last()?;
        let holder = self.clients.get(&id.client)?;
        let copy = |fd| inspect::copy(holder.pidfd.as_fd(), fd, Some(id.cookie), &holder.lane);
        // It may be known by another descriptor than that by which it was claimed.
        let shown = || holder.account.as_ref()?.descriptor_of(id.cookie);
        let socket = copy(fd).ok().or_else(|| copy(shown()?).ok())?;
        if sys::is_established(&socket) && inspect::look_at(&socket) == Look::Found(mate.socket) {
            return Some(FarEnd {
                client: id.client,
                cookie: id.cookie,
                socket,
                lane: Arc::clone(&holder.lane),
            });
        }
        socket.close_now();
        None
    }

    /// Whether the kernel says that no process has a socket, while its peer has not taken all of its stream.
    fn is_closing(&self, tuple: Tuple) -> bool {
        if tuple.netns == self.address.0 {
            return diag::is_closing(tuple);
        }
        let mut clients = self.clients.values();
        let there = clients.find(|client| client.netns == tuple.netns);
        there.is_some_and(|client| table::is_closing(client.pid, tuple))
    }
}

/// The connections of a process whose counts tell what is unread, by `SO_COOKIE`.
fn whole(account: &Account) -> HashMap<u64, Record> {
    let is_whole = |record: &Record| {
        record.stage() == Stage::Attached && record.whole.load(Ordering::Relaxed) == 1
    };
    let records = account.region.sockets(SOCKETS).into_iter();
    let named = |record: Record| (record.cookie.load(Ordering::Relaxed), record);
    records.filter(is_whole).map(named).collect()
}

/// Whether one end of a connection has sent through its ring what the other has not received.
fn has_unread(sender: &Record, receiver: &Record) -> bool {
    let seat = |record: &Record| {
        [
            record.link.load(Ordering::Relaxed),
            record.generation.load(Ordering::Relaxed).into(),
        ]
    };
    let bytes = |counts: &Counts| counts.ring_bytes.load(Ordering::Relaxed);
    seat(sender) == seat(receiver) && bytes(&sender.tx) > bytes(&receiver.rx)
}
