//! Bytes in our ring that the peer will not read there: it has recalled them
//! ([`downgrade`](mod@super::downgrade) is the other side of this), or this side withdraws
//! them. They are sent again over TCP, before anything that follows.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::recall::{self, Look};
use shunt_shm::slot::{self, Recall, Way};
use shunt_shm::token::Token;

use super::tell::News;
use super::{Conn, close};
use crate::config::hesitate;
use crate::thread::{self, give};
use crate::{sys, tcp};

mod unread;
mod withdrawal;

use withdrawal::withdrawn;

pub(super) use unread::Unread;
pub(crate) use withdrawal::is_withdrawn;
pub(super) use withdrawal::{Withdrawal, follow_withdrawal, has_room, withdraw};

/// How long the peer may be in the middle of sending to itself in our name, in
/// nanoseconds: a few system calls, unless it was stopped there.
const PATIENCE: u64 = 5_000_000_000;
/// How long the kernel's socket is given to make room, in milliseconds.
pub(super) const GROWTH_MS: i64 = 10;
/// How long a `close` or `shutdown` waits for TCP to take what is owed: so many steps of so
/// many milliseconds.
const LAST_STEPS: u32 = 100;
const LAST_STEP_MS: i64 = 10;

/// What became of what is owed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Debt {
    /// TCP has it all: the direction is the kernel's.
    Paid,
    /// The kernel has no room for all of it yet.
    Owed,
}

/// Whether the peer reads our ring no more.
#[inline(always)]
pub(crate) fn is_recalled(conn: &Conn) -> bool {
    as_sender(conn).is_recalled()
}

/// The handshake of a recall, on this side.
#[inline(always)]
fn as_sender<'a>(conn: &Conn<'a>) -> recall::Sender<'a> {
    recall::Sender {
        own: conn.pair.own,
        peer: conn.pair.peer,
        life: conn.pair.life(),
    }
}

/// Whether something is to be done about it. What was recalled behind the end of the stream
/// the peer reads in the ring.
#[inline(always)]
pub(crate) fn is_due(conn: &Conn) -> bool {
    is_asked(conn) && !conn.is_shut() || is_owing(conn)
}

/// Whether a recall has not been answered.
#[inline(always)]
pub(super) fn is_asked(conn: &Conn) -> bool {
    as_sender(conn).is_asked()
}

/// Whether something is still to be sent again.
#[inline(always)]
pub(crate) fn is_owing(conn: &Conn) -> bool {
    conn.way_out() == Way::Owing
}

/// Answers a recall, and sends what the kernel takes of what is owed. Without a token.
#[cold]
pub(crate) fn answer(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if conn.take(token) {
        pay(conn);
        give(token);
    }
}

/// The same before the direction is shut down: waits for the kernel, within bounds.
#[cold]
pub(super) fn answer_at_last(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    for _ in 0..LAST_STEPS {
        if !conn.take(token) {
            return;
        }
        let paid = pay_and_wait(conn);
        give(token);
        if paid {
            return;
        }
    }
}

/// The same with the sending token, which it keeps.
#[cold]
pub(super) fn pay_at_last(conn: &Conn) {
    for _ in 0..LAST_STEPS {
        if pay_and_wait(conn) {
            return;
        }
    }
}

/// Whether TCP has all of it; otherwise waits a little for room.
fn pay_and_wait(conn: &Conn) -> bool {
    if pay(conn) == Debt::Paid {
        return true;
    }
    if let Some(fd) = conn.base() {
        sys::poll_ms(fd, libc::POLLOUT, LAST_STEP_MS);
    }
    false
}

/// With the sending token.
pub(super) fn pay(conn: &Conn) -> Debt {
    let accepts = !is_owing(conn) && is_asked(conn);
    if accepts && !accept(conn) || !is_owing(conn) {
        return Debt::Paid;
    }
    send_owed(conn, if accepts { GROWTH_MS } else { 0 })
}

/// Takes note of a recall. With the sending token. `true`: something may be owed.
fn accept(conn: &Conn) -> bool {
    let own = conn.pair.own;
    let done = |way: Way| as_sender(conn).answer(Recall::AGREED, way);
    hesitate();
    let asked = match await_peer(conn) {
        Some(Look::TakenBack) => return false,
        Some(look) => look == Look::Asked,
        None => {
            close::abort(conn);
            done(Way::TcpAgain);
            return false;
        }
    };
    hesitate();
    if conn.socket.reason() == Reason::Pending {
        conn.socket.set_reason(Reason::PeerLeft);
    }
    conn.socket.note_downgrade();
    let output = &own.output;
    let back_at = output.back_at.load(Ordering::Relaxed);
    let way = conn.way_out();
    if way == Way::Tcp || way == Way::TcpAgain && back_at == 0 {
        done(Way::TcpAgain);
        return false;
    }
    // First: who is out of the kernel by then has written what it writes.
    let sends = own.sending.in_kernel.load(Ordering::Acquire) > 0;
    let written = conn
        .base()
        .and_then(|fd| tcp::written(fd, conn.socket.role()));
    // What has been sent behind the ring by TCP already cannot be overtaken.
    let late = sends || written != back_at.checked_sub(1);
    let behind = asked && (way == Way::TcpAgain && late || close::is_deaf(conn.pair.peer_state()));
    let (Some(written), false) = (written, behind) else {
        // Nor can it be sent once all descriptors are closed, under a thread that sleeps.
        let stays = behind || asked && way == Way::Ring;
        if stays && Unread::of(conn.pair.peer).is_any(conn.pair.out) {
            as_sender(conn).answer(Recall::REFUSED, Way::TcpAgain);
            // Nothing comes by TCP that would wake it.
            conn.tell_always(News::Data);
            return false;
        }
        done(Way::TcpAgain);
        return false;
    };
    let from = if asked {
        written
    } else {
        // The peer has begun to send it where the ring began.
        output.switch_at.load(Ordering::Relaxed).wrapping_sub(1)
    };
    note_unread(conn, from);
    if asked {
        hesitate();
        publish::set_bits(&own.face.state, slot::LEAVING);
        // Before any of it is sent.
        publish::word(&output.back_at, from + 1);
    }
    hesitate();
    done(Way::Owing);
    hesitate();
    true
}

/// What the peer, which reads no more, has not read is owed, from that offset of the
/// TCP stream on.
fn note_unread(conn: &Conn, from: u64) {
    let recall = &conn.pair.own.recall;
    let (read, left) = Unread::of(conn.pair.peer).words();
    recall.owed_read.store(read, Ordering::Relaxed);
    recall.owed_left.store(left, Ordering::Relaxed);
    recall.owed_from.store(from, Ordering::Relaxed);
}

/// With the sending token of a process that died with it, perhaps in [`withdraw`]
/// or [`pay`]: the peer must not wait for it.
pub(super) fn finish(conn: &Conn) {
    let own = conn.pair.own;
    let state = own.face.state.load(Ordering::Relaxed);
    let withdraws = state & (slot::WITHDRAWING | slot::WITHDRAWN) == slot::WITHDRAWING;
    let begins = own.output.back_at.load(Ordering::Relaxed).checked_sub(1);
    match (conn.way_out(), begins) {
        (Way::Ring, None) if withdraws => {
            publish::clear_bits(&own.face.state, slot::WITHDRAWING);
        }
        (Way::Ring | Way::Owing, Some(_)) if withdraws => withdrawn(conn),
        (Way::Owing, _) => publish::half(&own.recall.answered, Recall::AGREED),
        // It was leaving the ring.
        (Way::Ring, Some(offset)) if !is_recalled(conn) => {
            if conn.producer().leave(offset).is_err() {
                close::abort(conn);
            }
            Way::TcpAgain.store(&own.sending.way);
        }
        _ => {}
    }
}

/// Whether the peer's last process died with one of its tokens.
fn has_died_with(conn: &Conn, token: &Token) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    thread::is_held_by_dead(token) && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0
}

/// How far the peer is with its recall, once this side need not wait for it. `None`: it does
/// not say.
fn await_peer(conn: &Conn) -> Option<Look> {
    let mut until = None;
    loop {
        match as_sender(conn).look() {
            Look::Wait => {}
            Look::Nonsense => return None,
            look => return Some(look),
        }
        let late = sys::now() >= *until.get_or_insert_with(|| sys::now() + PATIENCE);
        if late || has_died_with(conn, &conn.pair.peer.receiving.token) {
            return None;
        }
        sys::sched_yield();
    }
}

/// Sends what is owed, as far as the kernel takes it. With the sending token.
fn send_owed(conn: &Conn, patience_ms: i64) -> Debt {
    hesitate();
    let recall = &conn.pair.own.recall;
    let unread = Unread::noted(
        recall.owed_read.load(Ordering::Relaxed),
        recall.owed_left.load(Ordering::Relaxed),
    );
    let debt = conn.base().map_or(Some(Debt::Paid), |base| {
        let written = tcp::written(base, conn.socket.role());
        let from = recall.owed_from.load(Ordering::Relaxed);
        match written.and_then(|written| written.checked_sub(from)) {
            Some(sent) => unread.resend(conn.pair.out, sent, base, patience_ms),
            // It is over.
            None => Some(Debt::Paid),
        }
    });
    close::name_reset(conn);
    if debt == Some(Debt::Owed) {
        return Debt::Owed;
    }
    if debt.is_none() {
        close::abort(conn);
    }
    hesitate();
    Way::TcpAgain.store(&conn.pair.own.sending.way);
    Debt::Paid
}
