//! The way back to TCP, in both directions, of a connection that must be a plain
//! kernel socket from here on: for a program that `exec` starts, a process that is
//! given the descriptor, a stdio stream, an option that only the kernel has.
//!
//! ```text
//! this side                                   peer
//!   RECALLED: reads the ring no more ───────> sends again what was not read,
//!   swallows doorbells until there   <─────── "payload from TCP offset N on"
//!   leaves its own ring (Back frame) ───────> reads on to there, then TCP
//! ```
//!
//! A peer that is in no operation when it is recalled cannot begin one without
//! seeing that. So if the ring is empty nobody need answer; and if the peer does not
//! come by, shuntd lends its descriptor, and this side sends to itself what it has
//! not read.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::atomic::{heavy, light};
use shunt_shm::publish;
use shunt_shm::slot::{self, Recall, Way};

use super::bell::News;
use super::recv::{is_home, settle};
use super::{Conn, leave_ring, owed, parking, wait};
use crate::thread::{self, give};
use crate::{control, sys};

/// The peer answers by itself within this time if it is awake, or sleeps on the
/// connection; nanoseconds.
const ANSWER: u64 = 300_000;
/// Between two requests for its descriptor.
const AGAIN: u64 = 5_000_000;
/// After this it is given up: the peer is stopped, or there is no daemon to lend.
const PATIENCE: u64 = 3_000_000_000;

/// `Receiving::resume_at` until the peer has answered.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// Makes the connection a plain kernel socket. `false`: the peer has not answered in
/// time, so bytes in its ring are still to come. The caller holds no token.
#[cold]
pub(crate) fn downgrade(conn: &Conn, reason: Reason) -> bool {
    if is_plain(conn) {
        return true;
    }
    conn.socket.set_reason(reason);
    recall(conn);
    // Of a connection that the kernel has ended nothing can be sent, and the error is
    // for who uses it next.
    if sys::ready(conn.fd, 0) & (libc::POLLERR | libc::POLLHUP) == 0 {
        wake(conn);
        withdraw(conn);
        leave_ring(conn, reason);
    } else {
        stay_out(conn);
    }
    let home = await_answer(conn);
    conn.socket.downgraded.store(1, Ordering::Relaxed);
    wait::restore_options(conn);
    if wait::any_waits_for_room(conn) {
        parking::ring();
    }
    // In a `vfork` child the connection to the daemon is not ours.
    if thread::owns_memory() {
        control::report(conn.socket, conn.fd, Some(reason));
    }
    home
}

/// Whether both directions are the kernel's already.
pub(crate) fn is_plain(conn: &Conn) -> bool {
    let receiving = &conn.pair.own.receiving;
    conn.way_out() == Way::TcpAgain
        && conn.way_in() == Way::TcpAgain
        && receiving.kernel_bytes.load(Ordering::Relaxed)
            >= receiving.resume_at.load(Ordering::Relaxed)
        && !owed::is_due(conn)
}

/// Reads the peer's ring no more.
fn recall(conn: &Conn) {
    let own = conn.pair.own;
    if !conn.take(&own.receiving.token) {
        return;
    }
    let recalled = own.face.state.load(Ordering::Relaxed) & slot::RECALLED != 0;
    settle(conn);
    if conn.way_in() == Way::Ring && owed::is_withdrawn(conn) {
        owed::follow_withdrawal(conn);
    }
    if conn.way_in() != Way::TcpAgain && !recalled {
        // Payload that came by TCP before the ring is read there.
        let resume = match conn.way_in() {
            Way::Ring => UNKNOWN,
            _ => own.receiving.kernel_bytes.load(Ordering::Relaxed),
        };
        own.receiving.resume_at.store(resume, Ordering::Relaxed);
        light();
        Way::TcpAgain.store(&own.receiving.way);
        publish::half(&own.recall.stage, Recall::TRYING);
        publish::set_bits(&own.face.state, slot::RECALLED);
        send_to_self(conn, None);
    }
    give(&own.receiving.token);
}

/// Takes the peer's part, if it is in no operation: sends what is unread in its ring
/// by its descriptor, which is needed if there is any. With the receiving token.
fn send_to_self(conn: &Conn, lent: Option<c_int>) {
    let (own, peer) = (conn.pair.own, conn.pair.peer);
    let stage = &own.recall.stage;
    publish::half(stage, Recall::TRYING);
    // Either we see its token taken, or it sees, with its token, that it is recalled.
    heavy();
    let busy = peer.sending.token.is_taken()
        || peer.recall.answered.load(Ordering::Acquire) != 0
        || peer.output.back_at.load(Ordering::Acquire) != 0;
    let switched = peer.output.switch_at.load(Ordering::Acquire).checked_sub(1);
    let unread = switched.is_some() && conn.consumer().is_ready();
    if busy || unread && lent.is_none() {
        publish::half(stage, Recall::ASKED);
        return;
    }
    publish::half(stage, Recall::TAKEN);
    if unread && let Some(lent) = lent {
        // What TCP does not take now the peer sends when it comes by.
        let _ = owed::resend(&conn.consumer(), lent, owed::GROWTH_MS);
    }
    taken(conn);
}

/// The peer's part has been taken, and it waits: the last step of that.
fn taken(conn: &Conn) {
    let (own, output) = (conn.pair.own, &conn.pair.peer.output);
    let switched = output.switch_at.load(Ordering::Acquire).checked_sub(1);
    let resume = &own.receiving.resume_at;
    if let (Some(switched), UNKNOWN) = (switched, resume.load(Ordering::Relaxed)) {
        let bells = output.bells.load(Ordering::Acquire);
        resume.store(switched.wrapping_add(bells), Ordering::Relaxed);
    }
    publish::half(&own.recall.stage, Recall::DONE);
}

/// With the receiving token of a process that died with it, perhaps in [`recall`]
/// or [`send_to_self`]: the peer must not wait for it.
pub(super) fn finish_recall(conn: &Conn) {
    if conn.way_in() != Way::TcpAgain {
        return;
    }
    let own = conn.pair.own;
    let recalled = own.face.state.load(Ordering::Relaxed) & slot::RECALLED != 0;
    let stage = &own.recall.stage;
    match stage.load(Ordering::Relaxed) {
        Recall::TAKEN => taken(conn),
        Recall::TRYING => publish::half(stage, Recall::ASKED),
        // The peer has not left: so this side has.
        Recall::NONE if !recalled && conn.pair.peer.output.back_at.load(Ordering::Acquire) == 0 => {
            publish::half(stage, Recall::ASKED);
        }
        _ => return,
    }
    publish::set_bits(&own.face.state, slot::RECALLED);
}

fn stay_out(conn: &Conn) {
    let sending = &conn.pair.own.sending;
    if conn.take(&sending.token) {
        Way::TcpAgain.store(&sending.way);
        give(&sending.token);
    }
}

/// What the peer has not read goes to the kernel too, if it can.
pub(super) fn withdraw(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if conn.take(token) {
        if conn.way_out() == Way::Ring {
            owed::withdraw(conn);
        }
        give(token);
    }
}

/// A peer that sleeps is to see that it is recalled.
fn wake(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if conn.take(token) {
        conn.tell_always(News::Data);
        conn.tell_always(News::Room);
        give(token);
    }
}

/// Waits until what comes by TCP is payload.
fn await_answer(conn: &Conn) -> bool {
    let own = conn.pair.own;
    let start = sys::now();
    let mut borrow_at = start + ANSWER;
    loop {
        // It may be waiting for ours.
        if owed::is_due(conn) {
            owed::answer(conn);
        }
        if !conn.take(&own.receiving.token) {
            return false;
        }
        let home = is_home(conn);
        give(&own.receiving.token);
        let now = sys::now();
        if home || now - start > PATIENCE {
            return home;
        }
        if now >= borrow_at {
            if let Some(lent) = control::borrow(conn.socket.cookie(), conn.fd) {
                if conn.take(&own.receiving.token) {
                    if own.recall.stage.load(Ordering::Relaxed) == Recall::ASKED {
                        send_to_self(conn, Some(lent));
                    }
                    give(&own.receiving.token);
                }
                sys::close(lent);
            }
            borrow_at = sys::now() + AGAIN;
        }
        sys::sched_yield();
    }
}
