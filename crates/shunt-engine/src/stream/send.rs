//! Sending.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::atomic::heavy;
use shunt_shm::publish;
use shunt_shm::ring::Stopped;
use shunt_shm::slot::{self, Way};

use super::close::{has_died, reset_if_died, take_error};
use super::owed::{self, Debt, Withdrawal};
use super::wait::{Want, only_the_kernel_can_wake, wait, wait_for_kernel};
use super::{Conn, closed_cleanly, spin};
use crate::iov::Cursor;
use crate::socket::{SENDER, bump};
use crate::sys;
use crate::thread::{give, signals};
use crate::{Outcome, real, tcp};

/// What one attempt came to.
enum Step {
    /// All is written.
    Done,
    /// The ring is full.
    Full,
    /// There is room, but the peer has much to read already; all is written, or not.
    Ahead { done: bool },
    /// The kernel must do it.
    Kernel,
    /// The program's buffer is bad.
    BadBuffer,
}

/// Sends the bytes of `iov` like `sendmsg`.
///
/// # Safety
/// The parts are readable.
#[inline]
pub(crate) unsafe fn send(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        leave_ring(conn, Reason::Urgent);
        return Outcome::Kernel;
    }
    let token = &conn.pair.own.sending.token;
    let mut cursor = Cursor::new(iov);
    let seen = signals::now();
    let mut deadline = None;
    loop {
        // After its end of file a peer's death shows only in the kernel's answer
        // to what it is sent.
        if conn.is_on_ring()
            && conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == slot::SHUT_WR
        {
            leave_ring(conn, Reason::HalfClosed);
        }
        if !conn.take(token) {
            return Outcome::Fail(libc::EAGAIN);
        }
        // SAFETY: the caller's promise.
        let step = unsafe { attempt(conn, &mut cursor, flags) };
        if let Step::Kernel = step
            && owed::is_due(conn)
            && owed::pay(conn) == Debt::Owed
        {
            give(token);
            let waited = if may_wait(conn, flags) {
                wait_for_kernel(conn, &mut deadline, seen)
            } else {
                Err(libc::EAGAIN)
            };
            match waited {
                Ok(()) => continue,
                Err(errno) if cursor.done() == 0 => return Outcome::Fail(errno),
                Err(_) => return Outcome::Done(cursor.done() as isize),
            }
        }
        if let Step::Kernel = step {
            // Shut down in the middle of the call: no error of this one.
            if cursor.done() > 0 && conn.is_shut() {
                give(token);
                return Outcome::Done(cursor.done() as isize);
            }
            match before_kernel(conn, cursor.remaining() > 0) {
                Before::Go => {}
                Before::Fail(errno) => {
                    give(token);
                    return if cursor.done() == 0 {
                        Outcome::Fail(errno)
                    } else {
                        Outcome::Done(cursor.done() as isize)
                    };
                }
                Before::Lost => {
                    give(token);
                    return Outcome::Done((cursor.done() + cursor.remaining()) as isize);
                }
            }
            enter_kernel(conn);
        }
        give(token);
        match step {
            Step::Done => return Outcome::Done(cursor.done() as isize),
            // SAFETY: the caller's promise.
            Step::Kernel => return unsafe { through_kernel(conn, &mut cursor, flags) },
            Step::BadBuffer if cursor.done() == 0 => return Outcome::Fail(libc::EFAULT),
            Step::BadBuffer => return Outcome::Done(cursor.done() as isize),
            Step::Ahead { done } => {
                spin::make_way();
                if done {
                    return Outcome::Done(cursor.done() as isize);
                }
                continue;
            }
            Step::Full => {}
        }
        if !may_wait(conn, flags) {
            if ask_for_room(conn) {
                continue;
            }
            return match cursor.done() {
                0 => Outcome::Fail(libc::EAGAIN),
                n => Outcome::Done(n as isize),
            };
        }
        match wait(conn, Want::Room, &mut deadline, seen) {
            Ok(()) => {}
            Err(errno) if cursor.done() == 0 => return Outcome::Fail(errno),
            Err(_) => return Outcome::Done(cursor.done() as isize),
        }
    }
}

/// A non-blocking sender has found the ring full: whoever watches the socket is
/// to hear when it is writable again (in the kernel: `SOCK_NOSPACE`). `true`: it
/// is now, or the kernel has taken over; try again.
#[cold]
pub(crate) fn ask_for_room(conn: &Conn) -> bool {
    if only_the_kernel_can_wake(conn) {
        return true;
    }
    conn.ask_at();
    let wait = &conn.pair.own.face.wait;
    let first = wait.load(Ordering::Relaxed) & slot::WANT_TX == 0;
    if first {
        publish::set_bits(wait, slot::WANT_TX);
    }
    // Pairs with the light barrier before the peer's look at the wait word.
    heavy();
    let room = conn.has_room();
    if first && !room && conn.take(&conn.pair.own.sending.token) {
        conn.tell_full();
        give(&conn.pair.own.sending.token);
    }
    room
}

/// What must be known before the kernel sends.
enum Before {
    /// Nothing.
    Go,
    /// An error of the connection that was taken from the kernel.
    Fail(sys::Errno),
    /// The bytes go to a peer that has closed: TCP takes them, and a reset comes back.
    Lost,
}

/// With the sending token.
fn before_kernel(conn: &Conn, payload: bool) -> Before {
    let closed = conn.pair.peer_state() & slot::CLOSED != 0;
    if !closed
        && conn.way_out() == Way::Tcp
        && conn.socket.pending_error.load(Ordering::Relaxed) == 0
    {
        return Before::Go;
    }
    reset_if_died(conn);
    match take_error(conn) {
        // With SIGPIPE: the kernel says it again.
        Some(libc::EPIPE) => return Before::Go,
        Some(errno) => return Before::Fail(errno),
        None => {}
    }
    if !payload || conn.is_shut() {
        return Before::Go;
    }
    let by_doorbell = reset_by_doorbell(conn);
    conn.socket.sent_late.store(true, Ordering::Relaxed);
    if by_doorbell {
        // Its reset has come already, in answer to a doorbell.
        conn.socket
            .pending_error
            .store(libc::EPIPE, Ordering::Relaxed);
        return Before::Lost;
    }
    Before::Go
}

/// Whether what is sent now is [`Before::Lost`].
pub(super) fn is_lost(conn: &Conn) -> bool {
    let closed = conn.pair.peer_state() & slot::CLOSED != 0;
    if !closed && !has_died(conn) || conn.is_shut() {
        return false;
    }
    reset_if_died(conn);
    conn.socket.pending_error.load(Ordering::Relaxed) == 0 && reset_by_doorbell(conn)
}

/// The peer has closed, and the base socket's reset is only the answer to a doorbell.
fn reset_by_doorbell(conn: &Conn) -> bool {
    let closed = conn.pair.peer_state() & slot::CLOSED != 0;
    (closed || has_died(conn))
        && closed_cleanly(conn)
        && sys::ready(conn.fd, 0) & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Makes a real call that sends, so that the direction cannot switch meanwhile;
/// `None`: it is on the ring, where the bytes would be taken for doorbells.
pub(super) fn by_kernel(conn: &Conn, call: impl FnOnce() -> isize) -> Option<Outcome> {
    let token = &conn.pair.own.sending.token;
    if !conn.take(token) {
        return Some(Outcome::Fail(libc::EAGAIN));
    }
    // Behind what the peer has recalled.
    if owed::is_due(conn) && owed::pay(conn) == Debt::Owed {
        give(token);
        return Some(Outcome::Fail(libc::EAGAIN));
    }
    let on_ring = conn.is_on_ring();
    if !on_ring {
        enter_kernel(conn);
    }
    give(token);
    if on_ring {
        return None;
    }
    let sent = real::quietly(call);
    leave_kernel(conn);
    Some(sent.map_or_else(Outcome::Fail, Outcome::Done))
}

/// A real call that sends is about to be made. With the sending token, so that the
/// direction cannot switch meanwhile.
fn enter_kernel(conn: &Conn) {
    conn.pair
        .own
        .sending
        .in_kernel
        .fetch_add(1, Ordering::AcqRel);
    while !conn.socket.inside.enter(SENDER) {}
}

fn leave_kernel(conn: &Conn) {
    conn.socket.inside.leave(SENDER);
    conn.pair
        .own
        .sending
        .in_kernel
        .fetch_sub(1, Ordering::AcqRel);
}

/// With the sending token: whether bytes go through the ring, perhaps from now on.
/// After our shutdown, or when the peer has closed, the kernel knows the right
/// error, and whether it comes with SIGPIPE.
#[inline(always)]
pub(super) fn goes_by_ring(conn: &Conn, flags: c_int) -> bool {
    let may_switch = || conn.way_out() == Way::Tcp && !must_stay_full(conn, flags);
    (conn.is_on_ring() || may_switch() && conn.try_switch())
        && !(conn.is_shut()
            || conn.pair.peer_state() & (slot::CLOSED | slot::RECALLED) != 0
            || has_died(conn))
}

/// So many more bytes may be in flight.
#[inline(always)]
pub(super) fn allowed(conn: &Conn) -> usize {
    if conn.pair.own.options.most.load(Ordering::Relaxed) == 0 {
        return usize::MAX;
    }
    conn.most().saturating_sub(conn.in_flight()) as usize
}

/// Whether the program may know that the kernel has no room: then a ring must not
/// suddenly have some. A sender that blocks knows nothing.
#[cold]
fn must_stay_full(conn: &Conn, flags: c_int) -> bool {
    !may_wait(conn, flags)
        && conn.pair.peer_state() & slot::READY != 0
        && sys::ready(conn.fd, libc::POLLOUT) & libc::POLLOUT == 0
}

/// With the sending token.
///
/// # Safety
/// The cursor's parts are readable.
#[inline]
unsafe fn attempt(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    if !goes_by_ring(conn, flags) {
        return Step::Kernel;
    }
    let step = loop {
        let before = cursor.done();
        let written = if cursor.remaining() > 0 {
            // SAFETY: the caller's promise.
            unsafe { fill(conn, cursor) }
        } else {
            Ok(Filled::All)
        };
        let n = cursor.done() - before;
        if n > 0 {
            bump(&conn.socket.tx.ring_bytes, n as u64);
            conn.tell_data();
        }
        break match written {
            Err(Stopped::Fault) => {
                super::close::abort(conn);
                Step::Kernel
            }
            Err(Stopped::BadBuffer(_)) => Step::BadBuffer,
            Ok(filled) => match (filled, cursor.remaining() == 0) {
                (Filled::All, false) => Step::Full,
                (_, done) if is_ahead(conn, n) && may_wait(conn, flags) => Step::Ahead { done },
                (_, true) => Step::Done,
                (Filled::Part, false) => continue,
            },
        };
    };
    bump(&conn.socket.tx.user_calls, 1);
    step
}

/// So much of a large message is published before the peer is told, so that one that
/// sleeps wakes in time to copy while the rest is written.
const PART: usize = 64 << 10;

/// A sender that may wait makes way for its peer whenever so much more is in flight: on
/// one core the peer reads it while it is still in the cache.
const AHEAD: u64 = 256 << 10;

/// Whether `n` more bytes have made it so much; looked at once in as many, since the
/// peer writes what it has read.
#[inline]
fn is_ahead(conn: &Conn, n: usize) -> bool {
    let written = conn.pair.own.output.bytes.load(Ordering::Relaxed);
    written / AHEAD != written.saturating_sub(n as u64) / AHEAD && conn.in_flight() > AHEAD / 2
}

fn may_wait(conn: &Conn, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && conn.pair.own.options.nonblock.load(Ordering::Relaxed) == 0
}

/// How far [`fill`] has come.
enum Filled {
    /// To the end of the message, or as far as there is room.
    All,
    /// There may be room for more.
    Part,
}

/// # Safety
/// The cursor's parts are readable.
#[inline]
unsafe fn fill(conn: &Conn, cursor: &mut Cursor) -> Result<Filled, Stopped> {
    let producer = conn.producer();
    let mut left = PART;
    while let Some((base, length)) = cursor.part() {
        if left == 0 {
            return Ok(Filled::Part);
        }
        let want = length.min(allowed(conn));
        // SAFETY: the caller's promise.
        let written = unsafe { producer.write(base, want.min(left)) };
        if let Err(Stopped::BadBuffer(n)) = written {
            cursor.advance(n);
        }
        let n = written?;
        cursor.advance(n);
        if n < length.min(left) {
            break;
        }
        left -= n;
    }
    Ok(Filled::All)
}

/// The rest goes the kernel's way, blocking as the kernel blocks. The caller has
/// entered `inside` as a sender.
///
/// # Safety
/// The cursor's parts are readable.
unsafe fn through_kernel(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Outcome {
    let outcome = loop {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 64];
        let count = cursor.copy_rest(&mut rest);
        // SAFETY: all-zero is a valid header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = count;
        // SAFETY: the caller's promise.
        let sent = real::quietly(|| unsafe { real::sendmsg()(conn.fd, &message, flags) });
        conn.socket.tx.kernel_calls.fetch_add(1, Ordering::Relaxed);
        match sent {
            Err(errno) if cursor.done() == 0 => break Outcome::Fail(errno),
            Err(_) => break Outcome::Done(cursor.done() as isize),
            Ok(n) => cursor.skip(n as usize),
        }
        if sent != Ok(crate::iov::total(&rest[..count]) as isize) || cursor.remaining() == 0 {
            break Outcome::Done(cursor.done() as isize);
        }
    };
    leave_kernel(conn);
    outcome
}

/// How long who leaves the ring waits for a peer that is in the middle of a receive,
/// in nanoseconds.
const LEAVING_PATIENCE: u64 = 5_000_000;

/// Moves the outgoing direction back to TCP: what follows is the kernel's.
pub(crate) fn leave_ring(conn: &Conn, reason: Reason) {
    leave_ring_within(conn, reason, LEAVING_PATIENCE);
}

/// The same with more or less patience, in nanoseconds. What the peer has not read
/// goes first, so that it may give the connection to another program at any time;
/// unless it is receiving all this while, or TCP has no room: then it reads the ring
/// to its end.
pub(super) fn leave_ring_within(conn: &Conn, reason: Reason, patience: u64) {
    let sending = &conn.pair.own.sending;
    let mut until = None;
    loop {
        if !conn.take(&sending.token) {
            return;
        }
        let first = until.is_none();
        let now = sys::now();
        let may_wait = now < *until.get_or_insert(now + patience);
        let waits = leave(conn, reason, first, may_wait);
        give(&sending.token);
        if !waits {
            break;
        }
        await_receiver(conn, || sys::now() < now + LEAVING_PATIENCE);
    }
    super::wait::restore_options(conn);
}

/// Waits until the peer is in the middle of no receive. `false`: it still is.
pub(super) fn await_receiver(conn: &Conn, mut patient: impl FnMut() -> bool) -> bool {
    while conn.pair.peer.receiving.token.is_taken() && !owed::is_recalled(conn) {
        if !patient() {
            return false;
        }
        sys::sched_yield();
    }
    true
}

/// With the sending token. `true`: the peer is receiving, which `may_wait` says to
/// wait for.
fn leave(conn: &Conn, reason: Reason, first: bool, may_wait: bool) -> bool {
    let own = conn.pair.own;
    if owed::is_due(conn) {
        owed::pay(conn);
    }
    match conn.way_out() {
        Way::Ring => {
            if first {
                publish::set_bits(&own.face.state, slot::LEAVING);
                heavy();
                conn.tell_leaving();
            }
            // Doorbells are sent under this token too, so nothing is under way.
            let withdrawal = if conn.in_flight() > 0 {
                owed::withdraw(conn)
            } else {
                Withdrawal::No
            };
            match withdrawal {
                Withdrawal::Done => {}
                Withdrawal::PeerReceives if may_wait => return true,
                Withdrawal::PeerReceives | Withdrawal::No => {
                    let Some(offset) = tcp::written(conn.fd, conn.socket.role()) else {
                        return false;
                    };
                    publish::word(&own.output.back_at, offset + 1);
                    conn.producer().leave(offset);
                    Way::TcpAgain.store(&own.sending.way);
                }
            }
            conn.socket.set_reason(reason);
            conn.socket.downgraded.store(1, Ordering::Relaxed);
        }
        Way::Tcp => Way::TcpAgain.store(&own.sending.way),
        Way::TcpAgain | Way::Owing => {}
    }
    false
}

/// Whether the base socket's receive queue has bytes that the program has not
/// read and that we may not take.
pub(super) fn has_unread_tcp(conn: &Conn) -> bool {
    // The peer may have moved to the ring since we last received: what lies there
    // then is a doorbell.
    let token = &conn.pair.own.receiving.token;
    if conn.way_in() == Way::Tcp && conn.take(token) {
        super::recv::settle(conn);
        give(token);
    }
    match conn.way_in() {
        Way::Ring => false,
        Way::Tcp | Way::TcpAgain | Way::Owing => {
            sys::ioctl_int(conn.fd, libc::FIONREAD).is_ok_and(|n| n > 0)
        }
    }
}
