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
use std::sync::atomic::Ordering;

use shunt_abi::counters::{Counts, Record, SOCKETS, Stage};

use super::Daemon;
use super::accounting::Orphan;
use crate::account::Account;
use crate::diag;
use crate::end::Mate;
use crate::inspect::{self, Look};

impl Daemon {
    /// A process has died: ends its connections that hold unread bytes, and whose peers would not hear of it.
    pub(super) fn reset_peers(&self, dead: &Orphan) {
        let left = whole(&dead.account);
        let mates = self.left_behind.mates(dead.uid, left.keys().copied());
        let far = |mate: &Mate| mate.socket.tuple.flipped();
        let closing = diag::closing(mates.iter().map(|(_, mate)| far(mate)).collect());
        let stuck = mates
            .into_iter()
            .filter(|(_, mate)| closing.contains(&far(mate)));
        let mut others = HashMap::new();
        for (cookie, mate) in stuck {
            let Some((id, ..)) = self.paired(mate.id.cookie).last() else {
                continue;
            };
            let Some(holder) = self.clients.get(&id.client) else {
                continue;
            };
            let Some(account) = &holder.account else {
                continue;
            };
            let records = others.entry(id.client).or_insert_with(|| whole(account));
            let Some(record) = records.get(&id.cookie) else {
                continue;
            };
            if !has_unread(record, &left[&cookie]) {
                continue;
            }
            let fd = record.fd.load(Ordering::Relaxed);
            let copy = inspect::copy(holder.pidfd.as_fd(), fd, Some(id.cookie), &holder.lane);
            let Ok(socket) = copy else { continue };
            if inspect::look_at(&socket) == Look::Found(mate.socket) {
                holder.lane.send_byte(socket);
            } else {
                socket.close_now();
            }
        }
    }
}

/// The connections of a process whose counts tell what is unread, by `SO_COOKIE`.
fn whole(account: &Account) -> HashMap<u64, Record> {
    let records = account.region.sockets(SOCKETS).into_iter();
    let is_whole = |record: &Record| {
        record.stage() == Stage::Attached && record.whole.load(Ordering::Relaxed) == 1
    };
    let whole = records.filter(is_whole);
    whole
        .map(|record| (record.cookie.load(Ordering::Relaxed), record))
        .collect()
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
