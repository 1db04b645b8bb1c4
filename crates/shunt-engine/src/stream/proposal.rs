//! Between hosts the receiver agrees before a direction enters its ring: the sender proposes that where it has nothing more to send just
//! now, so that the answer is there before it sends again.

use std::sync::atomic::Ordering;

use super::conn::Conn;
use crate::thread::{Rest, give, try_take};
use crate::{reach, sys, tcp};

/// Proposes that the outgoing direction enters its ring. Without the sending token.
#[cold]
pub(super) fn propose(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if !conn.sender().may_switch() || !try_take(token) {
        return;
    }
    let may = conn.sender().may_switch() && !conn.socket.inside.has_sender() && !conn.is_shared();
    let written = |base| tcp::written_at_last(base, conn.socket.role());
    if let Some(written) = conn.base().filter(|_| may).and_then(written) {
        let (link, slot) = conn.at_nic();
        reach::propose(link, slot, written);
        let hints = &conn.socket.hints;
        let number = written.wrapping_add(1);
        if hints.proposed.swap(number, Ordering::Relaxed) != number {
            hints.proposals.fetch_add(1, Ordering::Relaxed);
        }
    }
    give(token);
}

/// Whether the outgoing direction may enter its ring now, or never will; proposes that, if it has not been. For who can do something else
/// meanwhile.
pub(crate) fn is_agreed(conn: &Conn) -> bool {
    let is_agreed = || {
        let (link, slot) = conn.at_nic();
        reach::agreed(link, slot).is_some()
    };
    conn.is_on_ring() || is_agreed() || {
        propose(conn);
        is_agreed() || !conn.sender().may_switch()
    }
}

/// A program that sends on and on makes each proposal void before the answer is there. After a few of them this waits for one. `true`: it
/// has come. With the sending token.
#[cold]
pub(super) fn await_answer(conn: &Conn) -> bool {
    /// Proposals that have become void, and those that are waited for until the ring is entered.
    const VOID: u32 = 4;
    const AWAITED: u32 = 4;
    /// Nanoseconds; a round trip between two hosts takes some microseconds.
    const LONGEST: u64 = 5_000_000;
    let proposals = &conn.socket.hints.proposals;
    let made = proposals.load(Ordering::Relaxed);
    let may = conn.sender().may_switch() && !conn.socket.inside.has_sender() && !conn.is_shared();
    if !may || !(VOID..VOID + AWAITED).contains(&made) {
        return false;
    }
    // Counted also where the proposal stands: a ring that is not entered all the same is not waited for again and again.
    proposals.fetch_add(1, Ordering::Relaxed);
    let written = |base| tcp::written_at_last(base, conn.socket.role());
    let Some(written) = conn.base().and_then(written) else {
        return false;
    };
    let (link, slot) = conn.at_nic();
    reach::propose(link, slot, written);
    let (until, rest) = (sys::now() + LONGEST, Rest::new());
    while sys::now() < until {
        if reach::agreed(link, slot) == Some(written) {
            return true;
        }
        rest.turn();
    }
    false
}

/// The peer, on another host, has not entered its ring at the byte where this side has looked for
/// it: this direction stays on TCP. With the receiving token.
#[cold]
pub(super) fn stay_on_tcp(conn: &Conn) {
    conn.receiver().stay_on_tcp();
    let (link, slot) = conn.at_nic();
    reach::stayed(link, slot);
}
