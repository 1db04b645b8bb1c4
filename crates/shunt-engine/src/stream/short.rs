//! One small message on a connection that is on its rings, in as few instructions as
//! may be. Whatever else there may be to do, [`send`](mod@super::send) and
//! [`recv`](mod@super::recv) do.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::ring::BadBuffer;
use shunt_shm::slot::{self, Way};

use super::spin::{self, Peer, shares_core};
use super::{Conn, owed};
use crate::Outcome;
use crate::link::Pair;
use crate::ready;
use crate::socket::{Socket, bump};
use crate::thread::{Held, is_alone};

/// A message up to this is short: copying it takes less than all the rest.
const SHORT: usize = 2048;

/// Flags that change nothing here.
const ANY_WAY: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Sends it. `None`: nothing has been done.
///
/// # Safety
/// `length` bytes at `source` are readable.
#[inline(always)]
pub(crate) unsafe fn send(
    conn: Conn,
    source: *const u8,
    length: usize,
    flags: c_int,
) -> Option<Outcome> {
    const ELSEWHERE: u32 = slot::SHUT_WR | slot::CLOSED | slot::RECALLED;
    let (socket, own) = (conn.socket, conn.pair.own);
    if length.wrapping_sub(1) >= SHORT || flags & !ANY_WAY != 0 {
        return None;
    }
    let token = Held::try_take(&own.sending.token, &own.options)?;
    let as_usual = Way::load(&own.sending.way) == Way::Ring
        && conn.pair.peer_state() & ELSEWHERE == 0
        && !conn.is_shut()
        && own.options.most.load(Ordering::Relaxed) == 0
        && socket.kernel_state.load(Ordering::Relaxed) == 0;
    let sent = if as_usual {
        // SAFETY: the caller's promise.
        unsafe { conn.producer().write_short(source, length as u32) }
    } else {
        None
    };
    if sent == Some(Ok(())) {
        bump(&socket.tx.ring_bytes, length as u64);
        bump(&socket.tx.user_calls, 1);
        conn.tell_data();
    }
    token.give();
    Some(match sent? {
        Ok(()) => Outcome::Done(length as isize),
        Err(BadBuffer) => Outcome::Fail(libc::EFAULT),
    })
}

/// Receives what is there, or is just about to come. `None`: nothing has been done.
///
/// # Safety
/// `length` bytes at `target` are writable.
#[inline(always)]
pub(crate) unsafe fn receive(
    conn: Conn,
    target: *mut u8,
    length: usize,
    flags: c_int,
) -> Option<Outcome> {
    if length == 0 || flags & !ANY_WAY != 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let received = receive_now(conn, target, length);
        if received.is_some() {
            return received;
        }
        if flags & libc::MSG_DONTWAIT == 0 && is_coming(conn.socket, conn.pair) {
            return receive_now(conn, target, length);
        }
        is_all(conn.socket, conn.pair, flags).then_some(Outcome::Fail(libc::EAGAIN))
    }
}

/// Who has just read, and may not wait, asks whether that is all: the peer was there a
/// moment ago, so nobody else need be asked.
#[inline(never)]
fn is_all(socket: &'static Socket, pair: &Pair, flags: c_int) -> bool {
    let read = socket.rx.ring_bytes.load(Ordering::Relaxed);
    if socket.read_at.load(Ordering::Relaxed) == read {
        return false;
    }
    let options = &pair.own.options;
    let conn = Conn {
        socket,
        pair,
        fd: -1,
    };
    let is_all = (flags & libc::MSG_DONTWAIT != 0 || options.nonblock.load(Ordering::Relaxed) != 0)
        && options.forked.load(Ordering::Relaxed) == slot::UNFORKED
        && ready::is_as_usual(&conn)
        && !pair.consumer().is_ready();
    if is_all {
        socket.read_at.store(read, Ordering::Relaxed);
        bump(&socket.rx.user_calls, 1);
    }
    is_all
}

/// # Safety
/// As for [`receive`].
#[inline(always)]
unsafe fn receive_now(conn: Conn, target: *mut u8, length: usize) -> Option<Outcome> {
    let (socket, own) = (conn.socket, conn.pair.own);
    let token = Held::try_take(&own.receiving.token, &own.options)?;
    let as_usual = Way::load(&own.receiving.way) == Way::Ring
        && !owed::is_withdrawn(&conn)
        && own.options.rcvlowat.load(Ordering::Relaxed) == 1;
    let got = if as_usual {
        // SAFETY: the caller's promise.
        unsafe { conn.consumer().read_short(target, length) }
    } else {
        None
    };
    if let Some(Ok(n)) = got {
        bump(&socket.rx.ring_bytes, n as u64);
        bump(&socket.rx.user_calls, 1);
    }
    token.give();
    Some(match got? {
        Ok(n) => {
            conn.tell_room();
            Outcome::Done(n as isize)
        }
        Err(BadBuffer) => Outcome::Fail(libc::EFAULT),
    })
}

/// Looks at an empty ring for about as long as a peer that is awake takes to answer, or
/// makes way once for a peer on the same core, without the pauses and the care of a real
/// wait: each would cost more than the answer.
#[inline(never)]
fn is_coming(socket: &'static Socket, pair: &Pair) -> bool {
    const LOOKS: u32 = 64;
    /// Where others want the core, a real wait looks so often how long this goes on.
    const BURST: u64 = 32;
    let own = pair.own;
    let waits = own.options.nonblock.load(Ordering::Relaxed) == 0
        // A real wait may take this flag back.
        && own.face.wait.load(Ordering::Relaxed) & slot::FENCED == 0;
    let consumer = pair.consumer();
    if !waits || consumer.is_ready() {
        return false;
    }
    let looks = || (0..LOOKS).any(|_| consumer.is_ready());
    match spin::compare(
        own.face.core.load(Ordering::Relaxed),
        pair.peer.face.core.load(Ordering::Relaxed),
    ) {
        // Another thread may end the connection meanwhile: a real wait is safe from that.
        Peer::Here => is_alone() && spin::give_turn() && consumer.is_ready(),
        Peer::Elsewhere if spin::is_wanted() => {
            let calls = socket.rx.user_calls.load(Ordering::Relaxed);
            !calls.is_multiple_of(BURST) && looks()
        }
        Peer::Elsewhere => looks(),
        Peer::Somewhere => !shares_core() && looks(),
    }
}
