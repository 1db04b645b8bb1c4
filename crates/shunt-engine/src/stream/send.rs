//! How a send goes: one attempt after another, into the ring or through the kernel
//! ([`kernel`]).

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::atomic::heavy;
use shunt_shm::copy::is_readable;
use shunt_shm::publish;
use shunt_shm::ring::{STEP, Stopped};
use shunt_shm::slot::{self, Way};

use super::errors::is_over;
use super::leave::{leave_if_ending, leave_ring};
use super::owed::{self, Debt};
use super::wait::{Stay, Waited, is_patient, out_of_patience, wait, wait_for_kernel};
use super::want::Want;
use super::{Conn, spin};
use crate::config::hesitate;
use crate::iov::Cursor;
use crate::socket::bump;
use crate::thread::{give, signals};
use crate::{Outcome, sys};

mod kernel;

pub(super) use kernel::by_kernel;
use kernel::{enter_kernel, error_before_kernel, through_kernel};

/// What one attempt came to.
enum Step {
    /// All is written.
    Done,
    /// The ring is full.
    Full,
    /// The ring has space, but the system no memory for it.
    NoMemory,
    /// There is room, but the peer has much to read already; all is written, or not.
    Ahead { done: bool },
    /// The peer sleeps, and cannot be called.
    Unheard,
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
    // SAFETY: the caller's promise.
    Stay::during(|stay| unsafe { send_in(conn, iov, flags, stay) })
}

/// The same as a part of a call.
///
/// # Safety
/// The parts are readable.
#[inline]
pub(crate) unsafe fn send_in(conn: &Conn, iov: &[iovec], flags: c_int, stay: &Stay) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        leave_ring(conn, Reason::Urgent);
        return Outcome::Kernel;
    }
    if conn.way_out() == Way::TcpAgain {
        conn.socket.may_return(conn.fd);
    }
    let token = &conn.pair.own.sending.token;
    let mut cursor = Cursor::new(iov);
    let seen = signals::now();
    let (mut deadline, mut has_slept) = (None, false);
    loop {
        // After its end of file a peer's death shows only in the kernel's answer
        // to what it is sent.
        if conn.is_on_ring()
            && conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == slot::SHUT_WR
        {
            leave_ring(conn, Reason::HalfClosed);
        }
        let patient = || is_patient(conn, Want::Room, may_wait(conn, flags), &mut deadline, seen);
        if !conn.take_while(token, patient) {
            return cursor.done_or(out_of_patience(seen));
        }
        let (program, conn) = (conn, &stay.at(conn));
        // SAFETY: the caller's promise.
        let step = unsafe { attempt(conn, &mut cursor, flags) };
        if let Step::Kernel = step {
            hesitate();
        }
        if let Step::Kernel = step
            && owed::is_due(conn)
            && owed::pay(conn) == Debt::Owed
        {
            give(token);
            let waited = if may_wait(conn, flags) {
                wait_for_kernel(program, &mut deadline, stay, seen)
            } else {
                Err(libc::EAGAIN)
            };
            match waited {
                Ok(()) => continue,
                Err(errno) => return cursor.done_or(errno),
            }
        }
        if let Step::Kernel = step {
            hesitate();
            if conn.is_on_ring() && !is_over(conn) {
                let has_number = conn.base().is_some();
                give(token);
                if has_number {
                    continue; // The peer has taken a recall back.
                }
                // A relative answers that, and this call could not go on by TCP.
                return cursor.done_or(libc::EBADF);
            }
            // Shut down in the middle of the call: no error of this one.
            if cursor.done() > 0 && conn.is_shut() {
                give(token);
                return Outcome::Done(cursor.done() as isize);
            }
            if let Some(errno) = error_before_kernel(conn) {
                if cursor.done() > 0 {
                    // The next call says so.
                    conn.error().store(errno, Ordering::Relaxed);
                }
                give(token);
                return cursor.done_or(errno);
            }
            enter_kernel(conn);
            hesitate();
        }
        give(token);
        match step {
            Step::Done => return Outcome::Done(cursor.done() as isize),
            // SAFETY: the caller's promise.
            Step::Kernel => return unsafe { through_kernel(conn, &mut cursor, flags) },
            Step::BadBuffer => return cursor.done_or(libc::EFAULT),
            Step::Ahead { done } => {
                spin::make_way();
                if done {
                    return Outcome::Done(cursor.done() as isize);
                }
                continue;
            }
            Step::NoMemory => {
                leave_ring(conn, Reason::NoResources);
                continue;
            }
            Step::Unheard => {
                conn.reach();
                if cursor.remaining() == 0 {
                    return Outcome::Done(cursor.done() as isize);
                }
                continue;
            }
            Step::Full => {}
        }
        // A call that sleeps goes on so, whatever other threads set.
        if !has_slept && !may_wait(conn, flags) {
            if ask_for_room(conn) {
                continue;
            }
            return cursor.done_or(libc::EAGAIN);
        }
        // The kernel's own call, which has sent something, is in it already.
        if cursor.done() > 0 && !stay.enter(program) {
            return cursor.done_or(libc::EBADF);
        }
        match wait(program, Want::Room, &mut deadline, stay, seen) {
            // Any handler ends a call that has moved something.
            Ok(Waited::Anew) if cursor.done() > 0 => return Outcome::Done(cursor.done() as isize),
            Ok(waited) => has_slept = waited == Waited::Enough,
            Err(errno) => return cursor.done_or(errno),
        }
    }
}

/// A non-blocking sender has found the ring full: whoever watches the socket is
/// to hear when it is writable again (in the kernel: `SOCK_NOSPACE`). `true`: it
/// is now, or the kernel has taken over; try again.
#[cold]
pub(crate) fn ask_for_room(conn: &Conn) -> bool {
    if leave_if_ending(conn) {
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
        let told = conn.tell_full();
        give(&conn.pair.own.sending.token);
        if !told {
            conn.reach();
            return true;
        }
    }
    room
}

/// With the sending token: whether bytes go through the ring, perhaps from now on.
/// After our shutdown, or when the peer has closed, the kernel knows the right
/// error, and whether it comes with SIGPIPE.
#[inline(always)]
pub(super) fn goes_by_ring(conn: &Conn, flags: c_int) -> bool {
    let may_switch = || conn.way_out() == Way::Tcp && !must_stay_full(conn, flags);
    let goes = (conn.is_on_ring() || may_switch() && conn.try_switch())
        && !(is_over(conn) || owed::is_recalled(conn));
    if !goes && conn.is_on_ring() {
        check_recall(conn);
    }
    goes
}

/// A ring that is recalled is left by who answers that. Where it is not, a relative has written nonsense,
/// and the connection ends: a sender would look again and again for which way to go.
#[cold]
fn check_recall(conn: &Conn) {
    // This side's own word, with the token: the recall may be taken back at any moment.
    let is_answered = conn.sender().has_answered();
    if is_answered && owed::is_recalled(conn) {
        super::errors::abort(conn);
    }
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
            if !conn.tell_data() {
                break Step::Unheard;
            }
        }
        break match written {
            Err(Stopped::Fault) => {
                super::errors::abort(conn);
                Step::Kernel
            }
            Err(Stopped::BadBuffer(_)) => Step::BadBuffer,
            Ok(filled) => match (filled, cursor.remaining() == 0) {
                (Filled::All, false)
                    if n == 0 && allowed(conn) > 0 && conn.producer().lacks_memory() =>
                {
                    Step::NoMemory
                }
                (Filled::All, false) => Step::Full,
                (_, done) if may_wait(conn, flags) && is_ahead(conn) => Step::Ahead { done },
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

/// The kernel copies about so much at once, and sends none of it if it meets a bad address
/// (`skb_page_frag_refill`).
const AT_ONCE: usize = 32 << 10;

/// A sender that may wait makes way for its peer whenever so much more is in flight: on
/// one core the peer reads it while it is still in the cache.
const AHEAD: u64 = 256 << 10;

/// Whether so much more has been written since the last look, and the peer is behind;
/// not looked at each time, since the peer writes what it has read.
#[inline]
fn is_ahead(conn: &Conn) -> bool {
    let written = conn.pair.own.output.bytes.load(Ordering::Relaxed);
    let looked_at = &conn.socket.looked_ahead;
    if written.wrapping_sub(looked_at.load(Ordering::Relaxed)) < AHEAD {
        return false;
    }
    looked_at.store(written, Ordering::Relaxed);
    conn.in_flight() > AHEAD / 2
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
        // What is published cannot be taken back.
        if cursor.done() == 0
            && (want < length || length > STEP)
            && !is_readable(base, length.min(AT_ONCE))
        {
            return Err(Stopped::BadBuffer(0));
        }
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
