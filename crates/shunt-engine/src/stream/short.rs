//! One small message on a connection that is on its rings, in as few instructions as
//! may be. Whatever else there may be to do, [`super::send`] and [`super::recv`] do.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::slot::{self, Way};

use super::{Conn, owed};
use crate::socket::bump;
use crate::thread::{give, try_take};

/// A message up to this is short: copying it takes less than all the rest.
const SHORT: usize = 2048;

/// Flags that change nothing here.
const ANY_WAY: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Sends it. `false`: nothing has been done.
///
/// # Safety
/// `length` bytes at `source` are readable.
#[inline(always)]
pub(crate) unsafe fn send(conn: &Conn, source: *const u8, length: usize, flags: c_int) -> bool {
    const ELSEWHERE: u32 = slot::SHUT_WR | slot::CLOSED | slot::RECALLED;
    let own = conn.pair.own;
    let token = &own.sending.token;
    if length.wrapping_sub(1) >= SHORT || flags & !ANY_WAY != 0 || !try_take(token) {
        return false;
    }
    let as_usual = conn.is_on_ring()
        && conn.pair.peer_state() & ELSEWHERE == 0
        && !conn.is_shut()
        && own.options.most.load(Ordering::Relaxed) == 0
        && conn.socket.kernel_state.load(Ordering::Relaxed) == 0;
    // SAFETY: the caller's promise.
    let sent = as_usual && unsafe { conn.producer().write_short(source, length as u32) };
    if sent {
        bump(&conn.socket.tx.ring_bytes, length as u64);
        bump(&conn.socket.tx.user_calls, 1);
        conn.tell_data();
    }
    give(token);
    sent
}

/// Receives what is there. `None`: nothing has been done.
///
/// # Safety
/// `length` bytes at `target` are writable.
#[inline(always)]
pub(crate) unsafe fn receive(
    conn: &Conn,
    target: *mut u8,
    length: usize,
    flags: c_int,
) -> Option<usize> {
    let own = conn.pair.own;
    let token = &own.receiving.token;
    if length == 0 || flags & !ANY_WAY != 0 || !try_take(token) {
        return None;
    }
    let as_usual = conn.way_in() == Way::Ring
        && !owed::is_withdrawn(conn)
        && own.options.rcvlowat.load(Ordering::Relaxed) == 1;
    // SAFETY: the caller's promise.
    let got = as_usual
        .then(|| unsafe { conn.consumer().read_short(target, length) })
        .flatten();
    if let Some(n) = got {
        bump(&conn.socket.rx.ring_bytes, n as u64);
        bump(&conn.socket.rx.user_calls, 1);
    }
    give(token);
    if got.is_some() {
        conn.tell_room();
    }
    got
}
