//! Waiting on one connection: spin, then sleep in a real call on the base socket.

use std::sync::atomic::Ordering;

use libc::pollfd;
use shunt_abi::Reason;
use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::slot::{self, Way};
use shunt_shm::token::Token;

use super::parking::{self, Place};
use super::send::{has_unread_tcp, leave_ring};
use super::{Conn, Spin, owed};
use crate::life;
use crate::real;
use crate::socket::bump;
use crate::sys::{self, Errno};
use crate::thread::{give, signals::Seen};

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Something to read.
    Data,
    /// Room to write.
    Room,
}

impl Want {
    /// A sleeper of each kind.
    pub(crate) const ALL_UNITS: u32 = 1 | 1 << 16;

    /// One sleeper of this kind in `Receiving::sleepers`.
    fn unit(self) -> u32 {
        match self {
            Self::Data => 1,
            Self::Room => 1 << 16,
        }
    }

    fn bit(self) -> u32 {
        match self {
            Self::Data => slot::WAIT_RX,
            Self::Room => slot::WAIT_TX,
        }
    }
}

fn token<'a>(conn: &Conn<'a>, want: Want) -> &'a Token {
    match want {
        Want::Data => &conn.pair.own.receiving.token,
        Want::Room => &conn.pair.own.sending.token,
    }
}

fn is_ready(conn: &Conn, want: Want) -> bool {
    match want {
        // On TCP the kernel wakes us; look at the ring once the peer has switched.
        Want::Data if conn.way_in() != Way::Ring => false,
        Want::Data => conn.consumer().is_ready() || owed::is_withdrawn(conn),
        Want::Room => {
            conn.has_room()
                || conn.way_out() != Way::Ring
                || conn.is_shut()
                || owed::is_recalled(conn)
        }
    }
}

/// A wait's deadline in nanoseconds of the monotonic clock; `Some(None)`: none.
pub(crate) type Deadline = Option<Option<u64>>;

/// Waits until `want` may have come. The caller holds no token, and looks again.
///
/// # Errors
/// `EINTR` where the kernel's call would give it; `EAGAIN` at the socket's own
/// timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
pub(crate) fn wait(
    conn: &Conn,
    want: Want,
    deadline: &mut Deadline,
    seen: Seen,
) -> Result<(), Errno> {
    life::see_to_wishes();
    let mut spin = Spin::new();
    while !is_ready(conn, want) {
        if seen.interrupting_since() {
            return Err(libc::EINTR);
        }
        if conn.way_in() == Way::Tcp && want == Want::Data || !spin.turn() {
            let result = sleep(conn, want, deadline, seen);
            spin.woke();
            return result;
        }
    }
    spin.paid();
    if want == Want::Data && conn.pair.own.face.wait.load(Ordering::Relaxed) & slot::FENCED != 0 {
        stay_awake(conn);
    }
    Ok(())
}

/// A wait has ended without sleep on a connection on which the peer passes a barrier
/// with each publication. It need not any more if that goes on.
#[cold]
fn stay_awake(conn: &Conn) {
    /// In a row.
    const WAITS: u32 = 16;
    if conn.socket.awake.fetch_add(1, Ordering::Relaxed) >= WAITS {
        conn.unfence();
    }
}

#[cold]
fn sleep(conn: &Conn, want: Want, deadline: &mut Deadline, seen: Seen) -> Result<(), Errno> {
    if want == Want::Room && only_the_kernel_can_wake(conn) {
        return Ok(());
    }
    // Closed under a call that was awake: nothing is left to sleep on.
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let conn = &Conn { fd: base, ..*conn };
    let until = *deadline.get_or_insert_with(|| timeout(conn, want).map(|t| sys::now() + t));
    let place = match want {
        Want::Data => None,
        Want::Room => match parking::enter() {
            None => return Ok(()),
            place => place,
        },
    };
    let leave = || {
        if let Some(place) = place {
            place.leave();
        }
        conn.socket.unhold();
    };
    conn.socket.hold();
    let come = asleep(conn, want);
    let result = if come {
        awake(conn, want, false);
        Ok(())
    } else {
        let counts = if want == Want::Data {
            &conn.socket.rx
        } else {
            &conn.socket.tx
        };
        counts.sleeps.fetch_add(1, Ordering::Relaxed);
        // A call with a timeout is never restarted (signal(7)).
        let interrupted = if until.is_some() {
            seen.any_since()
        } else {
            seen.interrupting_since()
        };
        let result = if interrupted {
            Err(libc::EINTR)
        } else {
            let undo = || {
                awake(conn, want, false);
                leave();
            };
            match place {
                None => sleep_in_kernel(conn, until, &undo),
                Some(place) => sleep_for_room(conn, place, until, seen, &undo),
            }
        };
        awake(conn, want, result.is_ok());
        // Whatever woke us, the kernel may have news.
        conn.socket.looked_at.store(0, Ordering::Relaxed);
        result
    };
    leave();
    result
}

/// Whether a thread sleeps until there is room. With the sending token.
pub(super) fn any_waits_for_room(conn: &Conn) -> bool {
    conn.pair.own.receiving.sleepers.load(Ordering::Acquire) >= Want::Room.unit()
}

/// Says in our arena that a thread sleeps on the connection, until [`awake`].
/// `true`: what it waits for has just come, so it should not.
pub(crate) fn asleep(conn: &Conn, want: Want) -> bool {
    let own = conn.pair.own;
    if !conn.take(token(conn, want)) {
        // A signal handler that interrupted the token's holder: not registered,
        // and `awake` will see the same.
        return true;
    }
    own.receiving
        .sleepers
        .fetch_add(want.unit(), Ordering::AcqRel);
    if want == Want::Room {
        conn.ask_at();
    }
    own.face.naps.fetch_add(1, Ordering::AcqRel);
    match want {
        Want::Data => {
            conn.socket.awake.store(0, Ordering::Relaxed);
            own.face.say_asleep();
        }
        Want::Room => {
            publish::set_bits(&own.face.wait, slot::WAIT_TX);
            // Pairs with the light barrier before a waker's look at the wait word.
            heavy();
        }
    }
    let come = is_ready(conn, want)
        || owed::is_asked(conn)
        || (want == Want::Data
            && conn.way_in() == Way::Tcp
            && super::recv::settle(conn)
            && conn.consumer().is_ready());
    if want == Want::Room && !come {
        conn.tell_full();
    }
    give(token(conn, want));
    come
}

/// The thread sleeps no more; the last one swallows the doorbells, if there are any:
/// the kernel has said so (`heard`), or the peer has counted them.
pub(crate) fn awake(conn: &Conn, want: Want, heard: bool) {
    let own = conn.pair.own;
    if conn.take(token(conn, want)) {
        let left = own
            .receiving
            .sleepers
            .fetch_sub(want.unit(), Ordering::AcqRel)
            - want.unit();
        let same_kind = if want == Want::Data {
            left & 0xffff
        } else {
            left >> 16
        };
        if same_kind == 0 {
            publish::clear_bits(&own.face.wait, want.bit());
        }
        give(token(conn, want));
    }
    // A byte in the queue wakes every sleeper; whoever is last takes it, so that
    // none misses it.
    for _ in 0..50 {
        if own.receiving.sleepers.load(Ordering::Acquire) == 0 {
            break;
        }
        sys::sched_yield();
    }
    if heard || any_bells(conn) {
        swallow(conn);
    }
}

/// Takes doorbells from the base socket's queue, unless another thread must
/// still be woken by them.
pub(crate) fn swallow(conn: &Conn) {
    let receiving = &conn.pair.own.receiving;
    if conn.take(&receiving.token) {
        let mut more =
            conn.way_in() == Way::Ring && receiving.sleepers.load(Ordering::Acquire) == 0;
        while more {
            more = take_some_bells(conn) == Ok(Heard::Bells) && any_bells(conn);
        }
        give(&receiving.token);
    }
}

/// Whether the peer has counted doorbells that this side has not taken.
fn any_bells(conn: &Conn) -> bool {
    let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
    sent_by_tcp(conn) != taken
}

/// Where the peer's TCP stream ends while it is on the ring, doorbells included.
fn sent_by_tcp(conn: &Conn) -> u64 {
    let output = &conn.pair.peer.output;
    let switched = output.switch_at.load(Ordering::Acquire).wrapping_sub(1);
    switched.wrapping_add(output.bells.load(Ordering::Acquire))
}

/// With the receiving token, on the ring: takes the doorbells from the base
/// socket's queue. `Ok(true)`: end of file, which may be right behind them.
pub(super) fn take_bells(conn: &Conn) -> Result<bool, Errno> {
    loop {
        match take_some_bells(conn)? {
            Heard::Bells => {}
            Heard::Nothing => return Ok(false),
            Heard::End => return Ok(true),
        }
    }
}

/// What the base socket's queue had.
#[derive(PartialEq, Eq)]
enum Heard {
    Bells,
    Nothing,
    End,
}

/// [`take_bells`], once.
fn take_some_bells(conn: &Conn) -> Result<Heard, Errno> {
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let mut bells = [0u8; 64];
    // Look first: if payload had followed the doorbells, the peer's word of
    // where it begins would be there by now.
    let peek = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let taken = match sys::recv(base, bells.as_mut_ptr(), bells.len(), peek) {
        Ok(n) if n > 0 && payload_follows(conn, n) => {
            return take_last_bells(conn).map(|()| Heard::Nothing);
        }
        Ok(n) if n > 0 => sys::recv(base, bells.as_mut_ptr(), n, libc::MSG_DONTWAIT),
        other => other,
    };
    match taken {
        Ok(0) => Ok(Heard::End),
        Ok(n) => {
            bump(&conn.pair.own.receiving.kernel_bytes, n as u64);
            bump(&conn.socket.rx.doorbells, n as u64);
            Ok(Heard::Bells)
        }
        Err(libc::EAGAIN | libc::EINTR) => Ok(Heard::Nothing),
        Err(errno) => {
            conn.socket.pending_error.store(errno, Ordering::Relaxed);
            Err(errno)
        }
    }
}

/// With the receiving token: takes the doorbells that the peer has sent, also
/// those still on their way.
pub(super) fn take_all_bells(conn: &Conn) {
    /// A doorbell takes microseconds, unless its sender was stopped in the middle.
    const PATIENCE: u64 = 20_000_000;
    let receiving = &conn.pair.own.receiving;
    let mut until = None;
    loop {
        let over = match conn.way_in() {
            Way::Tcp => return,
            Way::Ring => !matches!(take_bells(conn), Ok(false)),
            Way::TcpAgain | Way::Owing => take_last_bells(conn).is_err_and(|e| e != libc::EAGAIN),
        };
        let taken = receiving.kernel_bytes.load(Ordering::Relaxed);
        if over
            || taken >= sent_by_tcp(conn)
            || sys::now() >= *until.get_or_insert_with(|| sys::now() + PATIENCE)
        {
            return;
        }
        sys::sched_yield();
    }
}

/// Whether the peer has left the ring and payload begins within the next `n` bytes.
fn payload_follows(conn: &Conn, n: usize) -> bool {
    let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
    let begins = conn.pair.peer.output.back_at.load(Ordering::Acquire);
    begins != 0 && begins - 1 < taken.saturating_add(n as u64)
}

/// Takes the doorbells before the payload, and none of that.
fn take_last_bells(conn: &Conn) -> Result<(), Errno> {
    let receiving = &conn.pair.own.receiving;
    let base = conn.base().ok_or(libc::EBADF)?;
    // The peer's word: it may say one thing now and another then.
    let back_at = conn.pair.peer.output.back_at.load(Ordering::Acquire);
    let Some(begins) = back_at.checked_sub(1).filter(|_| conn.pair.has_begun()) else {
        return Ok(());
    };
    let mut bell = [0u8; 64];
    while let left @ 1.. = begins.saturating_sub(receiving.kernel_bytes.load(Ordering::Relaxed)) {
        let n = sys::recv(
            base,
            bell.as_mut_ptr(),
            bell.len().min(left as usize),
            libc::MSG_DONTWAIT,
        )?;
        if n == 0 {
            break;
        }
        bump(&receiving.kernel_bytes, n as u64);
        bump(&conn.socket.rx.doorbells, n as u64);
    }
    Ok(())
}

/// The real blocking call: restarts, is interrupted and is cancelled as the
/// kernel's own receive is. `undo` in the last case.
fn sleep_in_kernel(conn: &Conn, until: Option<u64>, undo: &impl Fn()) -> Result<(), Errno> {
    if owed::is_owing(conn) {
        // What the kernel has room for is sent by the attempt after this.
        let mut either = watch(conn);
        either.events |= libc::POLLOUT;
        return match poll_until(&mut [either], until, undo) {
            Err(libc::EINTR) if until.is_none() => Ok(()),
            result => result,
        };
    }
    if until.is_some() {
        return poll_until(&mut [watch(conn)], until, undo);
    }
    let mut byte = 0u8;
    // SAFETY: one byte of our own.
    match real::sleeping(undo, || unsafe {
        real::recv()(conn.fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK)
    }) {
        Ok(_) => Ok(()),
        Err(libc::EINTR) => Err(libc::EINTR),
        Err(libc::EAGAIN) => Err(libc::EAGAIN),
        Err(errno) => {
            conn.socket.pending_error.store(errno, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// How long a sender sleeps between two looks at a connection that other processes
/// may shut down, or take back to TCP; nanoseconds.
const TURN: u64 = 20_000_000;

/// The same for a sender, which may also be woken from within its process.
fn sleep_for_room(
    conn: &Conn,
    place: Place,
    until: Option<u64>,
    seen: Seen,
    undo: &impl Fn(),
) -> Result<(), Errno> {
    // Other processes that share the connection cannot ring there.
    // And of a family that reads, whoever makes room may be killed before it tells.
    let shared = [conn.pair.own, conn.pair.peer]
        .iter()
        .any(|side| side.options.forked.load(Ordering::Relaxed) == slot::SHARED);
    let turn = sys::now() + TURN;
    if shared && until.is_none_or(|until| until > turn) {
        return match poll_until(&mut [watch(conn), place.watch()], Some(turn), undo) {
            Err(libc::EINTR) if seen.interrupting_since() => Err(libc::EINTR),
            _ => Ok(()),
        };
    }
    match poll_until(&mut [watch(conn), place.watch()], until, undo) {
        // The kernel restarts no poll, but it would a send.
        Err(libc::EINTR) if until.is_none() && !seen.interrupting_since() => Ok(()),
        result => result,
    }
}

/// Waits until the kernel's socket takes more bytes. The caller holds no token.
///
/// # Errors
/// As for [`wait`].
pub(super) fn wait_for_kernel(
    conn: &Conn,
    deadline: &mut Deadline,
    seen: Seen,
) -> Result<(), Errno> {
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let until = *deadline.get_or_insert_with(|| timeout(conn, Want::Room).map(|t| sys::now() + t));
    if seen.interrupting_since() || until.is_some() && seen.any_since() {
        return Err(libc::EINTR);
    }
    conn.socket.hold();
    let room = pollfd {
        fd: base,
        events: libc::POLLOUT,
        revents: 0,
    };
    let result = poll_until(&mut [room], until, &|| conn.socket.unhold());
    conn.socket.unhold();
    match result {
        // The kernel restarts no poll, but it would a send.
        Err(libc::EINTR) if until.is_none() && !seen.interrupting_since() => Ok(()),
        result => result,
    }
}

fn watch(conn: &Conn) -> pollfd {
    pollfd {
        fd: conn.fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

fn poll_until(fds: &mut [pollfd], until: Option<u64>, undo: &impl Fn()) -> Result<(), Errno> {
    let left = until.map(|until| until.saturating_sub(sys::now()));
    if left == Some(0) {
        return Err(libc::EAGAIN);
    }
    let time = left.map(|left| libc::timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (array, count) = (fds.as_mut_ptr(), fds.len() as libc::nfds_t);
    // SAFETY: our own array.
    match real::sleeping(undo, || unsafe {
        real::ppoll()(array, count, time, std::ptr::null()) as isize
    }) {
        Err(errno) => Err(errno),
        Ok(0) => Err(libc::EAGAIN),
        Ok(_) => Ok(()),
    }
}

/// The socket's own timeout for this direction, in nanoseconds.
pub(super) fn timeout(conn: &Conn, want: Want) -> Option<u64> {
    let name = if want == Want::Data {
        libc::SO_RCVTIMEO
    } else {
        libc::SO_SNDTIMEO
    };
    let time: libc::timeval = sys::getsockopt(conn.fd, libc::SOL_SOCKET, name).ok()?;
    let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (ns != 0).then_some(ns)
}

/// A sender that must wait, but that no doorbell can reach (the peer has shut
/// down its sending half or left the ring, or unread TCP data lies before any
/// doorbell), goes back to TCP and waits there.
pub(crate) fn only_the_kernel_can_wake(conn: &Conn) -> bool {
    let closing = conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) != 0
        || sys::ready(conn.fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
            != 0;
    if closing {
        leave_ring(conn, Reason::HalfClosed);
    } else if conn.pair.peer_state() & slot::LEAVING != 0 || has_unread_tcp(conn) {
        leave_ring(conn, Reason::Blocked);
    } else {
        return false;
    }
    conn.way_out() != Way::Ring
}

/// Once a direction carries payload over TCP again, the program's own options
/// apply to it.
pub(super) fn restore_options(conn: &Conn) {
    if conn.way_in() == Way::Ring {
        return;
    }
    let options = &conn.pair.own.options;
    let set = |name, value: i32| {
        let _ = sys::setsockopt(conn.fd, libc::IPPROTO_TCP, name, &value);
    };
    if options.nodelay.load(Ordering::Relaxed) == 0 {
        set(libc::TCP_NODELAY, 0);
    }
    if conn.way_out() == Way::TcpAgain && options.cork.load(Ordering::Relaxed) != 0 {
        set(libc::TCP_CORK, 1);
    }
    let least = options.rcvlowat.load(Ordering::Relaxed) as i32;
    // Before the ring doorbells are still to come.
    if least > 1 && conn.way_in() == Way::TcpAgain {
        let _ = sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &least);
    }
}
