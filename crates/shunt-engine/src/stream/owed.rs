//! What the peer has recalled: bytes in our ring that it will not read there. They
//! are sent again over TCP, before anything that follows ([`super::downgrade`] is
//! the other side of this).

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::ring::{Consumer, Position};
use shunt_shm::slot::{self, Progress, Recall, Receiving, Way};

use super::{Conn, close, wait};
use crate::thread::give;
use crate::{sys, tcp};

/// Bytes given to the kernel at a time.
const STEP: usize = 256 << 10;
/// How long the peer may be in the middle of sending to itself in our name, in
/// nanoseconds: a few system calls, unless it was stopped there.
const PATIENCE: u64 = 5_000_000_000;
/// How long a `close` or `shutdown` waits for TCP to take what is owed.
const LAST_PATIENCE_MS: i64 = 1000;

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
    conn.pair.peer_state() & slot::RECALLED != 0
}

/// Whether something is to be done about it.
#[inline(always)]
pub(crate) fn is_due(conn: &Conn) -> bool {
    is_recalled(conn)
        && (conn.way_out() != Way::TcpAgain
            || conn.pair.own.recall.answered.load(Ordering::Relaxed) == 0)
        || conn.way_out() == Way::Owing
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
    for _ in 0..LAST_PATIENCE_MS / 10 {
        if !conn.take(token) {
            return;
        }
        let debt = pay(conn);
        give(token);
        if debt == Debt::Paid {
            return;
        }
        if let Some(fd) = conn.base() {
            sys::poll_ms(fd, libc::POLLOUT, 10);
        }
    }
}

/// With the sending token.
pub(super) fn pay(conn: &Conn) -> Debt {
    if conn.way_out() != Way::Owing && is_due(conn) && !accept(conn) {
        return Debt::Paid;
    }
    if conn.way_out() == Way::Owing {
        send_owed(conn)
    } else {
        Debt::Paid
    }
}

/// Takes note of a recall. With the sending token. `true`: something may be owed.
fn accept(conn: &Conn) -> bool {
    let (own, peer) = (conn.pair.own, conn.pair.peer);
    let done = |also: Way| {
        also.store(&own.sending.way);
        publish::half(&own.recall.answered, 1);
    };
    let Some(stage) = await_peer(conn) else {
        close::abort(conn);
        done(Way::TcpAgain);
        return false;
    };
    if conn.socket.reason() == Reason::Pending {
        conn.socket.set_reason(Reason::PeerLeft);
    }
    conn.socket.downgraded.store(1, Ordering::Relaxed);
    let back_at = own.output.back_at.load(Ordering::Relaxed);
    let way = conn.way_out();
    if way == Way::Tcp || way == Way::TcpAgain && back_at == 0 {
        done(Way::TcpAgain);
        return false;
    }
    let begins = conn
        .base()
        .and_then(|fd| tcp::written(fd, conn.socket.role()));
    // What has been sent behind the ring by TCP already cannot be overtaken.
    let behind = way == Way::TcpAgain
        && (begins != back_at.checked_sub(1) || conn.socket.inside.has_sender());
    let (Some(begins), false) = (begins, behind) else {
        done(Way::TcpAgain);
        return false;
    };
    if stage == Recall::ASKED {
        publish::set_bits(&own.face.state, slot::LEAVING);
        // Before any of it is sent: what comes from here on is payload.
        publish::word(&own.output.back_at, begins + 1);
    }
    let o = Ordering::Relaxed;
    own.recall
        .owed_read
        .store(peer.receiving.read.load(Ordering::Acquire), o);
    own.recall
        .owed_left
        .store(peer.receiving.left.load(Ordering::Acquire), o);
    own.recall
        .owed_bytes
        .store(peer.progress.bytes.load(Ordering::Acquire), o);
    done(Way::Owing);
    true
}

/// How far the peer is with its recall: asked or done. `None`: it does not say.
fn await_peer(conn: &Conn) -> Option<u32> {
    let stage = &conn.pair.peer.recall.stage;
    let mut until = None;
    loop {
        match stage.load(Ordering::Acquire) {
            now @ (Recall::ASKED | Recall::DONE) => return Some(now),
            Recall::TRYING | Recall::TAKEN => {}
            _ => return None,
        }
        if sys::now() >= *until.get_or_insert_with(|| sys::now() + PATIENCE) {
            return None;
        }
        sys::sched_yield();
    }
}

/// Sends what is owed, as far as the kernel takes it. With the sending token.
fn send_owed(conn: &Conn) -> Debt {
    let recall = &conn.pair.own.recall;
    let o = Ordering::Relaxed;
    let (receiving, progress) = (Receiving::default(), Progress::default());
    receiving.read.store(recall.owed_read.load(o), o);
    receiving.left.store(recall.owed_left.load(o), o);
    progress.bytes.store(recall.owed_bytes.load(o), o);
    let consumer = Consumer {
        memory: conn.pair.out,
        receiving: &receiving,
        progress: &progress,
    };
    let Some(base) = conn.base() else {
        return Debt::Paid;
    };
    let debt = if lies_in_ring(conn, &receiving) {
        resend(&consumer, base)
    } else {
        None
    };
    recall.owed_read.store(receiving.read.load(o), o);
    recall.owed_left.store(receiving.left.load(o), o);
    recall.owed_bytes.store(progress.bytes.load(o), o);
    match debt {
        Some(Debt::Owed) => Debt::Owed,
        Some(Debt::Paid) => {
            Way::TcpAgain.store(&conn.pair.own.sending.way);
            wait::restore_options(conn);
            Debt::Paid
        }
        None => {
            close::abort(conn);
            Way::TcpAgain.store(&conn.pair.own.sending.way);
            Debt::Paid
        }
    }
}

/// Whether the peer's word of how far it has read names a place in our ring.
fn lies_in_ring(conn: &Conn, receiving: &Receiving) -> bool {
    let at = Position::unpack(receiving.read.load(Ordering::Relaxed)).offset;
    let left = receiving.left.load(Ordering::Relaxed);
    let size = conn.pair.out.size();
    if left == 0 {
        at.is_multiple_of(8) && at < size
    } else {
        at.checked_add(left).is_some_and(|end| end <= size)
    }
}

/// Sends what a ring holds to `fd`. An error of the connection ends it: the next
/// call on it will say what it is. `None`: the ring is broken.
pub(super) fn resend(consumer: &Consumer, fd: c_int) -> Option<Debt> {
    loop {
        let send = |from: *const u8, n: usize| {
            // SAFETY: `drain` hands out bytes inside a mapped ring; the kernel copies
            // them, whatever a peer makes of them meanwhile.
            sys::send(fd, unsafe { std::slice::from_raw_parts(from, n) })
        };
        match consumer.drain(STEP, send) {
            Ok(Ok(0)) => return Some(Debt::Paid),
            Ok(Ok(_) | Err(libc::EINTR)) => {}
            Ok(Err(libc::EAGAIN)) => return Some(Debt::Owed),
            Ok(Err(_)) => return Some(Debt::Paid),
            Err(_) => return None,
        }
    }
}
