//! One small message on a connection that is on its rings, in as few instructions as
//! may be. Whatever else there may be to do, [`send`](mod@super::send) and
//! [`recv`](mod@super::recv) do.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_shm::ring::{BadBuffer, Consumer};
use shunt_shm::slot::{self, Way};

use super::spin::{self, Peer, shares_core};
use super::usual::is_as_usual;
use super::wait::timeout;
use super::want::Want;
use super::{Conn, owed};
use crate::Outcome;
use crate::iov::total;
use crate::link::Pair;
use crate::socket::{IN_VAIN, Socket, Stage, bump};
use crate::sys;
use crate::thread::signals::{self, Seen};
use crate::thread::{Held, is_alone};

/// A message of up to this many bytes is short: to copy it takes less than everything else in the
/// call.
pub(crate) const SHORT: usize = 2048;

/// Flags that make no difference here.
const ANY_WAY: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Sends a message, if it is short and all is as usual. `None`: nothing has been done.
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
    let token = enter(conn, length, flags)?;
    // SAFETY: the caller's promise.
    let sent = unsafe { conn.producer().write_short(source, length as u32) };
    leave(conn, token, length, sent)
}

/// Sends what lies in these parts as one message, if all is as usual. `None`: nothing has been
/// done.
///
/// # Safety
/// The parts are readable.
pub(crate) unsafe fn send_list(conn: Conn, parts: &[iovec], flags: c_int) -> Option<Outcome> {
    let length = total(parts);
    let token = enter(conn, length, flags)?;
    // SAFETY: the caller's promise.
    let sent = unsafe { conn.producer().write_short_list(parts, length as u32) };
    leave(conn, token, length, sent)
}

/// Takes the sending token, if a message of `length` bytes is short, and all is as usual.
#[inline(always)]
fn enter(conn: Conn, length: usize, flags: c_int) -> Option<Held<'static>> {
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
        && socket.hints.kernel_state.load(Ordering::Relaxed) & !IN_VAIN == 0;
    if !as_usual {
        token.give();
        return None;
    }
    Some(token)
}

/// Counts what was sent, tells the peer, and gives the token back.
#[inline(always)]
fn leave(
    conn: Conn,
    token: Held,
    length: usize,
    sent: Option<Result<(), BadBuffer>>,
) -> Option<Outcome> {
    if sent != Some(Ok(())) {
        token.give();
        return sent.map(|_| Outcome::Fail(libc::EFAULT));
    }
    let counts = &*conn.socket.tx;
    bump(&counts.ring_bytes, length as u64);
    bump(&counts.user_calls, 1);
    match conn.peer_waits() {
        0 => token.give(),
        wait => tell(conn.socket, conn.pair, conn.fd, wait, token),
    }
    Some(Outcome::Done(length as isize))
}

/// Tells a peer that waits, as `wait` says, and gives the token back.
// By values, which stay in registers as long as there is nobody to tell.
#[cold]
#[inline(never)]
fn tell(socket: &'static Socket, pair: &Pair, fd: c_int, wait: u32, token: Held) {
    let conn = Conn { socket, pair, fd };
    let told = conn.tell_data_of(wait);
    token.give();
    if !told {
        conn.reach();
    }
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
        if flags & libc::MSG_DONTWAIT == 0 {
            match look(conn.socket, conn.pair, conn.fd) {
                Looked::InVain => {}
                Looked::Come => return receive_now(conn, target, length),
                Looked::Interrupted => return Some(Outcome::Fail(libc::EINTR)),
            }
        }
        is_all(conn.socket, conn.pair, flags).then_some(Outcome::Fail(libc::EAGAIN))
    }
}

/// Whether the caller has just read, may not wait, and so only asks whether there is more. The peer was alive a
/// moment ago, so the kernel need not be asked.
#[inline(never)]
fn is_all(socket: &'static Socket, pair: &Pair, flags: c_int) -> bool {
    let read = socket.rx.ring_bytes.load(Ordering::Relaxed);
    if socket.hints.read_at.load(Ordering::Relaxed) == read {
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
        && is_as_usual(&conn)
        && !pair.consumer().is_ready();
    if is_all {
        socket.hints.read_at.store(read, Ordering::Relaxed);
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
    let as_usual = Way::load(&own.receiving.way) == Way::Ring && !owed::is_withdrawn(&conn);
    let got = if as_usual {
        // SAFETY: the caller's promise.
        unsafe { conn.consumer().read_short(target, length) }
    } else {
        None
    };
    if let Some(Ok(n)) = got {
        let counts = &*socket.rx;
        bump(&counts.ring_bytes, n as u64);
        bump(&counts.user_calls, 1);
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

/// The outcome of a look at an empty ring.
enum Looked {
    InVain,
    /// There is a message.
    Come,
    /// A signal handler has run, so that the call ends.
    Interrupted,
}

/// Looks at an empty ring for about as long as a peer that is awake takes to answer, or
/// makes way once for a peer on the same core, without the pauses and the care of a real
/// wait: each would cost more than the answer.
#[inline(never)]
fn look(socket: &'static Socket, pair: &Pair, fd: c_int) -> Looked {
    let own = pair.own;
    let waits = own.options.nonblock.load(Ordering::Relaxed) == 0
        // A real wait may take this flag back.
        && own.face.wait.load(Ordering::Relaxed) & slot::FENCED == 0;
    let consumer = pair.consumer();
    if !waits || consumer.is_ready() {
        return Looked::InVain;
    }
    let seen = signals::now();
    let told = own.face.core.load(Ordering::Relaxed);
    let comes = match spin::compare(told, pair.peer.face.core.load(Ordering::Relaxed)) {
        // Another thread might end the connection meanwhile, or this thread has moved to another
        // core: the real wait does this.
        Peer::Here if !is_alone() || told != sys::core() => false,
        Peer::Here => spin::give_turn() && consumer.is_ready(),
        Peer::Elsewhere if spin::is_wanted() && spin::is_burst_over(sys::ticks()) => false,
        Peer::Somewhere if shares_core() => false,
        _ => comes_soon(&consumer),
    };
    if seen.any_since() {
        return after_signal(socket, pair, fd, seen);
    }
    if comes { Looked::Come } else { Looked::InVain }
}

/// Looks for as long as a peer that is awake takes to answer. A pause keeps two looks apart: each takes the message's cache line
/// away from the core that is just about to write there, or its share of the core from a peer that is a sibling on it.
#[inline(always)]
fn comes_soon(consumer: &Consumer) -> bool {
    /// Ticks, about 0.8 µs.
    const ANSWER: u64 = 2_000;
    /// Looks between two at the clock: where a pause takes 140 cycles, these take about a quarter of that time.
    const LOOKS: u32 = 4;
    let began = sys::ticks();
    loop {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            if consumer.is_ready() {
                return true;
            }
        }
        if sys::ticks().wrapping_sub(began) > ANSWER {
            return false;
        }
    }
}

/// A handler ran while this thread looked or made way, which counts as a wait: data that has come
/// is received first, as in the kernel, else the call may end. The handler may have ended the
/// connection.
#[cold]
fn after_signal(socket: &'static Socket, pair: &Pair, fd: c_int, seen: Seen) -> Looked {
    let now = Socket::of(fd).filter(|now| std::ptr::eq(*now, socket));
    let now = now.filter(|now| now.stage() == Stage::Attached);
    let mut is_limited = false;
    if let Some(now) = now.and_then(|now| Conn::new(now, fd))
        && std::ptr::eq(now.pair, pair)
    {
        if now.consumer().is_ready() {
            return Looked::Come;
        }
        // A call with a timeout is never restarted (signal(7)).
        is_limited = timeout(&now, Want::Data).is_some();
    }
    if seen.interrupting_since() || is_limited {
        Looked::Interrupted
    } else {
        Looked::InVain
    }
}
