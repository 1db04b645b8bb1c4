//! Receiving.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::ring::{Found, Stopped};
use shunt_shm::slot::{self, Way};

use super::Conn;
use super::close::{reset_if_died, take_error};
use super::wait::{Want, take_bells, timeout, wait};
use crate::iov::{self, Cursor};
use crate::socket::bump;
use crate::sys::{self, Errno};
use crate::thread::{signals, wait_for};
use crate::{Outcome, real};

/// The kernel is asked about an empty ring at least this often (ticks, about
/// 40 µs), so that a killed peer is noticed by a program that only polls.
const LOOK_EVERY: u64 = 100_000;
/// As many buffers as one call hands over at once.
const PARTS: usize = 16;

/// What one attempt came to.
enum Step {
    Bytes,
    Empty,
    End,
    Failed(Errno),
    /// The program's buffer is bad.
    BadBuffer,
    /// The kernel must do it.
    Kernel,
}

/// Receives into `iov` like `recvmsg`. `flags` as for `recv`.
///
/// # Safety
/// The parts are writable.
#[inline]
pub(crate) unsafe fn receive(conn: &Conn, iov: &[iovec], flags: c_int) -> Outcome {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Outcome::Kernel;
    }
    let options = &conn.pair.own.options;
    let token = &conn.pair.own.receiving.token;
    let peek = flags & libc::MSG_PEEK != 0;
    let mut cursor = Cursor::new(iov);
    let total = cursor.remaining();
    let least = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        total.min(options.rcvlowat.load(Ordering::Relaxed) as usize)
    };
    if total == 0 {
        // The kernel waits for something to receive, then takes none of it.
        return nothing(conn, flags);
    }
    let seen = signals::now();
    let mut deadline = None;
    loop {
        if !wait_for(token) {
            return Outcome::Fail(libc::EAGAIN);
        }
        let there = if peek { unread(conn) } else { 0 };
        // SAFETY: the caller's promise.
        let step = unsafe { attempt(conn, &mut cursor, flags) };
        token.give();
        let done = cursor.done();
        match step {
            Step::Bytes => {
                if !peek {
                    conn.tell_room();
                }
                // A short count tells the program that it has everything: go on
                // where the stream changes its way.
                if !peek && done < total && goes_on(conn) {
                    continue;
                }
                if done >= least || done == total || (peek && there >= least as u64) {
                    return Outcome::Done(done as isize);
                }
                if peek {
                    let now = flags & libc::MSG_DONTWAIT != 0
                        || options.nonblock.load(Ordering::Relaxed) != 0;
                    if now || !wait_for_more(conn, there, seen) {
                        return Outcome::Done(done as isize);
                    }
                    // It sees the same bytes again: it cannot add up.
                    cursor = Cursor::new(iov);
                    continue;
                }
            }
            Step::Empty => {}
            Step::End => return Outcome::Done(done as isize),
            Step::Failed(_) if done > 0 => return Outcome::Done(done as isize),
            Step::Failed(errno) => {
                conn.socket.pending_error.store(0, Ordering::Relaxed);
                return Outcome::Fail(errno);
            }
            Step::BadBuffer if done == 0 => return Outcome::Fail(libc::EFAULT),
            Step::BadBuffer => return Outcome::Done(done as isize),
            Step::Kernel if done == 0 => return Outcome::Kernel,
            Step::Kernel => {
                let now = flags & libc::MSG_DONTWAIT != 0
                    || options.nonblock.load(Ordering::Relaxed) != 0;
                let least = if now { 0 } else { least };
                // SAFETY: the caller's promise.
                unsafe { rest_from_tcp(conn, &mut cursor, least) };
                return Outcome::Done(cursor.done() as isize);
            }
        }
        let done = cursor.done();
        if flags & libc::MSG_DONTWAIT != 0 || options.nonblock.load(Ordering::Relaxed) != 0 {
            return if done > 0 {
                Outcome::Done(done as isize)
            } else {
                Outcome::Fail(libc::EAGAIN)
            };
        }
        if let Err(errno) = wait(conn, Want::Data, &mut deadline, seen) {
            return if done > 0 {
                Outcome::Done(done as isize)
            } else {
                Outcome::Fail(errno)
            };
        }
    }
}

/// Whether there is more, behind a change of way.
#[inline]
fn goes_on(conn: &Conn) -> bool {
    match conn.way_in() {
        Way::Ring => conn.consumer().is_ready(),
        Way::Tcp => switch_offset(conn).is_some() && conn.consumer().is_ready(),
        Way::TcpAgain => true,
    }
}

/// Whether the next byte on TCP is the urgent one, which ends a receive
/// (`tcp(7)`, `SIOCATMARK`).
pub(crate) fn at_mark(conn: &Conn) -> bool {
    const SIOCATMARK: u64 = 0x8905;
    sys::ioctl_int(conn.fd, SIOCATMARK).is_ok_and(|mark| mark != 0)
}

/// After the ring: what TCP has already, and `least` bytes in all. What stops it
/// is told by the next call, as after any short count.
unsafe fn rest_from_tcp(conn: &Conn, cursor: &mut Cursor, least: usize) {
    while cursor.remaining() > 0 && !at_mark(conn) {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PARTS];
        let count = cursor.copy_rest(&mut rest);
        // SAFETY: all-zero is a valid header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = count;
        let wanted = iov::total(&rest[..count]);
        let waits = cursor.done() < least;
        let n = if waits {
            // SAFETY: the caller's promise.
            real::quietly(|| unsafe { real::recvmsg()(conn.fd, &raw mut message, 0) }).unwrap_or(0)
                as usize
        } else {
            sys::recvmsg(conn.fd, &raw mut message, libc::MSG_DONTWAIT).unwrap_or(0)
        };
        cursor.skip(n);
        if n == 0 || n < wanted && cursor.done() >= least {
            break;
        }
    }
}

/// `recv` of no bytes.
#[cold]
fn nothing(conn: &Conn, flags: c_int) -> Outcome {
    let mut byte = 0u8;
    let part = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: a byte of our own.
    match unsafe { receive(conn, &[part], flags | libc::MSG_PEEK) } {
        Outcome::Done(_) => Outcome::Done(0),
        other => other,
    }
}

/// Waits for more than the `there` bytes that a peek has seen; `false` if none
/// will come. No doorbell rings while those lie unread, so this looks from time
/// to time.
#[cold]
fn wait_for_more(conn: &Conn, there: u64, seen: signals::Seen) -> bool {
    let mut pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let until = timeout(conn, Want::Data).map(|ns| sys::now() + ns);
    while unread(conn) <= there {
        let over = sys::ready(conn.fd, libc::POLLRDHUP)
            & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
            != 0;
        if over || until.is_some_and(|until| sys::now() >= until) || seen.interrupting_since() {
            return unread(conn) > there;
        }
        // SAFETY: no descriptors.
        let _ = real::quietly(|| unsafe {
            real::ppoll()(std::ptr::null_mut(), 0, &raw const pause, std::ptr::null()) as isize
        });
        pause.tv_nsec = (pause.tv_nsec * 2).min(16_000_000);
    }
    true
}

/// With the receiving token.
#[inline]
unsafe fn attempt(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    // SAFETY: the caller's promise.
    unsafe {
        match conn.way_in() {
            Way::Ring => from_ring(conn, cursor, flags),
            Way::Tcp => from_tcp(conn, cursor, flags),
            Way::TcpAgain => after_ring(conn),
        }
    }
}

unsafe fn from_ring(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    let mut parts = [(std::ptr::null_mut(), 0); PARTS];
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let count = cursor.copy_rest(&mut rest);
    let discard = flags & libc::MSG_TRUNC != 0;
    for (part, rest) in parts.iter_mut().zip(&rest[..count]) {
        *part = (
            if discard {
                std::ptr::null_mut()
            } else {
                rest.iov_base.cast()
            },
            rest.iov_len,
        );
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let mut looked = false;
    loop {
        // SAFETY: the caller's promise.
        match unsafe { conn.consumer().read_parts(&parts[..count], peek) } {
            Ok(Found::Bytes(n)) => {
                let more = !peek && n == iov::total(&rest[..count]) && n < cursor.remaining();
                cursor.skip(n);
                if !peek {
                    bump(&conn.socket.rx.ring_bytes, n as u64);
                }
                if more && conn.consumer().is_ready() {
                    // SAFETY: the caller's promise.
                    return unsafe { from_ring(conn, cursor, flags) };
                }
                bump(&conn.socket.rx.user_calls, 1);
                return Step::Bytes;
            }
            Ok(Found::Back(offset)) => {
                follow_back(conn, offset);
                return after_ring(conn);
            }
            Err(Stopped::BadBuffer(_)) => return Step::BadBuffer,
            Err(Stopped::Fault) => {
                super::close::abort(conn);
                return Step::Failed(libc::ECONNRESET);
            }
            Ok(Found::Empty) if looked => return Step::Empty,
            Ok(Found::Empty) => {
                bump(&conn.socket.rx.user_calls, 1);
                match look(conn) {
                    None => return Step::Empty,
                    Some(step) => {
                        // What was published before the close comes first.
                        if conn.consumer().is_ready() {
                            looked = true;
                            continue;
                        }
                        return step;
                    }
                }
            }
        }
    }
}

/// The peer has left the ring: its bytes go on over TCP from `offset`.
fn follow_back(conn: &Conn, offset: u64) {
    let receiving = &conn.pair.own.receiving;
    receiving.resume_at.store(offset, Ordering::Relaxed);
    Way::TcpAgain.store(&receiving.way);
    // Doorbells could not wait for it; payload can.
    let rcvlowat = conn.pair.own.options.rcvlowat.load(Ordering::Relaxed) as i32;
    if rcvlowat > 1 {
        let _ = sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &rcvlowat);
    }
    conn.socket.downgraded.store(1, Ordering::Relaxed);
    if conn.socket.reason() == Reason::Pending {
        conn.socket.set_reason(Reason::Blocked);
    }
}

/// Asks the kernel about a connection whose ring is empty: rarely, and at once
/// when the peer says that it is closing. `None`: nothing new.
fn look(conn: &Conn) -> Option<Step> {
    let socket = conn.socket;
    let ending = conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) != 0
        || conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD != 0
        || socket.kernel_state.load(Ordering::Relaxed) != 0;
    let pending = socket.pending_error.load(Ordering::Relaxed);
    let now = sys::ticks();
    let stale = now.wrapping_sub(socket.looked_at.load(Ordering::Relaxed)) > LOOK_EVERY;
    if !ending && pending == 0 && !stale {
        return None;
    }
    socket.looked_at.store(now, Ordering::Relaxed);
    if pending != 0 {
        return Some(failure(conn, pending));
    }
    bump(&socket.rx.kernel_calls, 1);
    let heard = if conn.pair.own.receiving.sleepers.load(Ordering::Acquire) == 0
        && !crate::epoll::may_sleep(conn)
    {
        take_bells(conn)
    } else {
        // Others must still be woken by what is in the queue.
        let ready = sys::ready(conn.fd, libc::POLLRDHUP);
        if ready & (libc::POLLERR | libc::POLLHUP) != 0 {
            take_bells(conn)
        } else {
            Ok(ready & libc::POLLRDHUP != 0)
        }
    };
    match heard {
        Ok(false) => None,
        Ok(true) => Some(end(conn)),
        Err(errno) => Some(failure(conn, errno)),
    }
}

/// The base socket has ended.
fn end(conn: &Conn) -> Step {
    conn.socket
        .kernel_state
        .fetch_or(libc::POLLRDHUP as u32, Ordering::Relaxed);
    reset_if_died(conn);
    last(conn)
}

/// The end of the stream, or the error that comes before it.
fn last(conn: &Conn) -> Step {
    take_error(conn).map_or(Step::End, Step::Failed)
}

fn failure(conn: &Conn, errno: Errno) -> Step {
    conn.socket.pending_error.store(errno, Ordering::Relaxed);
    last(conn)
}

/// Whether a peer that is gone left nothing of ours unread: TCP would have said
/// FIN, whatever became of doorbells.
pub(crate) fn closed_cleanly(conn: &Conn) -> bool {
    let state = conn.pair.peer_state();
    let deliberate = state & (slot::CLOSED | slot::LINGERS) != 0;
    let all_read = deliberate || conn.way_out() == Way::Ring && conn.in_flight() == 0;
    all_read && state & slot::UNREAD == 0 && !conn.socket.sent_late.load(Ordering::Relaxed)
}

/// Moves the incoming direction to the ring if the program has read everything
/// that came before it. With the receiving token. `true`: it is on the ring.
pub(super) fn settle(conn: &Conn) -> bool {
    let receiving = &conn.pair.own.receiving;
    if conn.way_in() == Way::Tcp
        && switch_offset(conn) == Some(receiving.kernel_bytes.load(Ordering::Relaxed))
    {
        Way::Ring.store(&receiving.way);
    }
    conn.way_in() == Way::Ring
}

/// The stream offset from which the peer uses the ring.
fn switch_offset(conn: &Conn) -> Option<u64> {
    conn.pair.peer.state(conn.pair.generation)?;
    conn.pair
        .peer
        .output
        .switch_at
        .load(Ordering::Acquire)
        .checked_sub(1)
}

/// On TCP, and the peer may switch at any moment: what lies beyond its offset
/// are doorbells.
unsafe fn from_tcp(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    if settle(conn) {
        // SAFETY: the caller's promise.
        return unsafe { from_ring(conn, cursor, flags) };
    }
    // Taken from the kernel by a call that had bytes to return.
    let pending = conn.socket.pending_error.load(Ordering::Relaxed);
    if pending != 0 {
        return failure(conn, pending);
    }
    let receiving = &conn.pair.own.receiving;
    let before = receiving.kernel_bytes.load(Ordering::Relaxed);
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let mut count = cursor.copy_rest(&mut rest);
    if let Some(offset) = switch_offset(conn) {
        count = truncate(&mut rest[..count], offset.saturating_sub(before) as usize);
    }
    // SAFETY: all-zero is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = rest.as_mut_ptr();
    message.msg_iovlen = count;
    let peek = flags & libc::MSG_PEEK != 0;
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    bump(&conn.socket.rx.kernel_calls, 1);
    let n = match sys::recvmsg(conn.fd, &raw mut message, flags) {
        Ok(0) if iov::total(&rest[..count]) == 0 => return Step::Bytes,
        // The peer may have moved to the ring before it ended.
        // SAFETY: the caller's promise.
        Ok(0) if settle(conn) => return unsafe { from_ring(conn, cursor, flags) },
        Ok(0) => return last(conn),
        Ok(n) => n,
        Err(libc::EAGAIN) => return Step::Empty,
        Err(errno) => {
            if settle(conn) {
                conn.socket.pending_error.store(errno, Ordering::Relaxed);
                // SAFETY: the caller's promise.
                return unsafe { from_ring(conn, cursor, flags) };
            }
            return failure(conn, errno);
        }
    };
    if !peek {
        receiving
            .kernel_bytes
            .store(before + n as u64, Ordering::Relaxed);
    }
    // The peer may have switched and rung while we received.
    let payload = match switch_offset(conn) {
        Some(offset) if before + n as u64 > offset => {
            bump(&conn.socket.rx.doorbells, before + n as u64 - offset);
            if !peek {
                Way::Ring.store(&receiving.way);
            }
            offset.saturating_sub(before) as usize
        }
        _ => n,
    };
    cursor.skip(payload);
    if payload == 0 {
        // SAFETY: the caller's promise.
        return unsafe { from_ring(conn, cursor, flags) };
    }
    if peek && flags & libc::MSG_TRUNC == 0 && switch_offset(conn) == Some(before + payload as u64)
    {
        // SAFETY: the caller's promise.
        unsafe { peek_on(conn, cursor) };
    }
    if !peek && payload == iov::total(&rest[..count]) && cursor.remaining() > 0 {
        // More buffers than go at once.
        // SAFETY: the caller's promise.
        return match unsafe { from_tcp(conn, cursor, flags) } {
            Step::Failed(errno) => {
                // Told by the next call, as after any short count.
                conn.socket.pending_error.store(errno, Ordering::Relaxed);
                Step::Bytes
            }
            Step::Empty | Step::End => Step::Bytes,
            other => other,
        };
    }
    Step::Bytes
}

/// A look at the last bytes on TCP goes on in the ring.
unsafe fn peek_on(conn: &Conn, cursor: &mut Cursor) {
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let mut parts = [(std::ptr::null_mut(), 0); PARTS];
    let count = cursor.copy_rest(&mut rest);
    for (part, rest) in parts.iter_mut().zip(&rest[..count]) {
        *part = (rest.iov_base.cast(), rest.iov_len);
    }
    // SAFETY: the caller's promise.
    if let Ok(Found::Bytes(n)) = unsafe { conn.consumer().read_parts(&parts[..count], true) } {
        cursor.skip(n);
    }
}

/// Shortens a list of buffers to `most` bytes; returns how many are left.
fn truncate(parts: &mut [iovec], mut most: usize) -> usize {
    for (i, part) in parts.iter_mut().enumerate() {
        if part.iov_len >= most {
            part.iov_len = most;
            return i + 1;
        }
        most -= part.iov_len;
    }
    parts.len()
}

/// On TCP again: swallows the doorbells before the payload goes on, then the
/// kernel does the rest.
fn after_ring(conn: &Conn) -> Step {
    let receiving = &conn.pair.own.receiving;
    let resume = receiving.resume_at.load(Ordering::Relaxed);
    loop {
        let taken = receiving.kernel_bytes.load(Ordering::Relaxed);
        if taken >= resume {
            return Step::Kernel;
        }
        let mut bells = [0u8; 64];
        let want = bells.len().min((resume - taken) as usize);
        match sys::recv(conn.fd, bells.as_mut_ptr(), want, libc::MSG_DONTWAIT) {
            Ok(0) => return Step::End,
            Ok(n) => bump(&receiving.kernel_bytes, n as u64),
            Err(libc::EAGAIN) => return Step::Empty,
            Err(errno) => return Step::Failed(errno),
        }
    }
}

/// Follows what the peer did to the way of its bytes, so that readiness can be
/// told: past a `Back` frame or onto the ring. Takes the token if it is free.
pub(crate) fn pump(conn: &Conn) {
    let receiving = &conn.pair.own.receiving;
    if receiving.token.try_take(crate::thread::me()).is_err() {
        return;
    }
    if conn.way_in() == Way::Tcp {
        settle(conn);
    }
    if conn.way_in() == Way::Ring && conn.consumer().is_ready() {
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        if let Ok(Found::Back(offset)) = unsafe { conn.consumer().read(&raw mut byte, 1, true) } {
            follow_back(conn, offset);
        }
    }
    if conn.way_in() == Way::TcpAgain {
        after_ring(conn);
    }
    receiving.token.give();
}

/// Bytes in the peer's ring: never more than can be read, and some if any can.
pub(crate) fn ring_bytes(conn: &Conn) -> u64 {
    let read = conn.pair.own.progress.bytes.load(Ordering::Relaxed);
    let written = conn.pair.peer.output.bytes.load(Ordering::Acquire);
    written
        .saturating_sub(read)
        .max(u64::from(conn.consumer().at_hand()))
        .min(shunt_abi::layout::RING_BYTES as u64)
}

/// Bytes that could be received now (`FIONREAD`).
pub(crate) fn unread(conn: &Conn) -> u64 {
    pump(conn);
    let ring = || ring_bytes(conn);
    let queued = || sys::ioctl_int(conn.fd, libc::FIONREAD).unwrap_or(0) as u64;
    match conn.way_in() {
        Way::Ring => ring(),
        Way::TcpAgain => queued(),
        Way::Tcp => {
            // The queue first: a doorbell in it follows the offset.
            let queued = queued();
            let before = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
            match switch_offset(conn) {
                Some(offset) => offset.saturating_sub(before).min(queued) + ring(),
                None => queued,
            }
        }
    }
}
