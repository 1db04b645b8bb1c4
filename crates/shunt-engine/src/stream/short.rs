//! One small message on a connection that is on its rings, in as few instructions as
//! may be. Whatever else there may be to do, [`send`](mod@super::send) and
//! [`recv`](mod@super::recv) do.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::ring::BadBuffer;
use shunt_shm::slot::{self, Way};

use super::{Conn, owed, shares_core};
use crate::Outcome;
use crate::link::Pair;
use crate::socket::bump;
use crate::thread::Held;

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
    let token = Held::try_take(&own.sending.token)?;
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
        if received.is_none() && flags & libc::MSG_DONTWAIT == 0 && is_coming(conn.pair) {
            return receive_now(conn, target, length);
        }
        received
    }
}

/// # Safety
/// As for [`receive`].
#[inline(always)]
unsafe fn receive_now(conn: Conn, target: *mut u8, length: usize) -> Option<Outcome> {
    let (socket, own) = (conn.socket, conn.pair.own);
    let token = Held::try_take(&own.receiving.token)?;
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

/// Looks at an empty ring for about as long as a peer that is awake takes to answer,
/// without the pauses and the care of a real wait: each would cost more than the answer.
#[inline(never)]
fn is_coming(pair: &Pair) -> bool {
    const LOOKS: u32 = 64;
    let own = pair.own;
    let waits = own.options.nonblock.load(Ordering::Relaxed) == 0
        // A real wait may take this flag back.
        && own.face.wait.load(Ordering::Relaxed) & slot::FENCED == 0;
    let consumer = pair.consumer();
    waits && !consumer.is_ready() && !shares_core() && (0..LOOKS).any(|_| consumer.is_ready())
}
