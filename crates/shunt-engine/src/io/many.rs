//! Several messages in one call.

use std::cell::Cell;

use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, timespec};

use super::buffer::{IOV_MAX, has_bad, is_bad, list, sendable};
use super::message::{fill_in, has_control, has_negative_name, recvmsg_by, sendmsg_by};
use super::send::note_urgent;
use super::target::{is_candidate, serve};
use crate::socket::{RECEIVER, SENDER};
use crate::stream::{self, Conn, Stay};
use crate::sys::Errno;
use crate::thread::is_alone;
use crate::{Outcome, entry, life, real, signal, sys};

/// Of `recvmmsg(2)`.
const MSG_WAITFORONE: c_int = 0x10000;

/// `recvmmsg(2)`. The timeout is looked at after each message, as the kernel
/// does it (`recvmmsg(2)`, BUGS).
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome {
    if is_bad(messages.cast(), 1) {
        return Outcome::Kernel;
    }
    if !is_candidate(fd) && entry::is_any() {
        // SAFETY: the caller's promise; the kernel has filled as many messages as it says.
        return unsafe {
            match real::quietly(|| real::recvmmsg()(fd, messages, count, flags, timeout) as isize) {
                Ok(received) => {
                    (0..received as usize)
                        .map(|i| &raw const (*messages.add(i)).msg_hdr)
                        .filter(|&header| has_control(&*header))
                        .for_each(|header| life::passed(header));
                    Outcome::Done(received)
                }
                Err(errno) => Outcome::Fail(errno),
            }
        };
    }
    serve(
        fd,
        RECEIVER,
        // SAFETY: the caller's promise.
        |conn| unsafe {
            match error_before(&conn) {
                Some(outcome) => outcome,
                None if is_the_kernels(&conn) => Outcome::Kernel,
                None => staying(&conn, |stay| {
                    receive_each(&conn, stay, messages, count, flags, timeout)
                }),
            }
        },
        // SAFETY: the caller's promise.
        || unsafe { real::recvmmsg()(fd, messages, count, flags, timeout) as isize },
    )
}

/// An error of the connection, which `recvmmsg` tells before what can be received
/// (`do_recvmmsg` in the kernel's `net/socket.c`).
fn error_before(conn: &Conn) -> Option<Outcome> {
    if stream::is_as_usual(conn) {
        return None;
    }
    match stream::socket_error(conn) {
        0 => None,
        errno => Some(Outcome::Fail(errno)),
    }
}

/// Whether everything that comes is the kernel's: then the call is, too.
fn is_the_kernels(conn: &Conn) -> bool {
    stream::is_plain(conn) && conn.receiver().is_bringing().is_none()
}

/// Makes a call on a connection that another thread may close meanwhile: the kernel looks the number up once,
/// whatever the call is made of.
fn staying(conn: &Conn, call: impl FnOnce(&Stay) -> Outcome) -> Outcome {
    Stay::during(|stay| {
        let is_there = is_alone() || stay.enter(conn) && conn.is_by_number();
        if is_there {
            call(stay)
        } else {
            Outcome::Fail(libc::EBADF)
        }
    })
}

/// Receives one of several messages: by the program's number, or, if that was closed since the call
/// began, by another descriptor of the connection ([`Stay::at`]).
///
/// # Safety
/// As for `recvmsg`; the header can be read.
unsafe fn receive_one(conn: &Conn, stay: &Stay, message: *mut msghdr, flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let header = message.read_unaligned();
        let parts = match parts_of(&header) {
            Ok(parts) => parts,
            Err(outcome) => return outcome,
        };
        if !stay.goes_on(&stay.at(conn)) {
            let is_ours = Cell::new(false);
            let receive = |conn: &Conn, parts: &[iovec]| {
                let outcome = stream::receive_in(conn, parts, flags, stay);
                is_ours.set(!matches!(outcome, Outcome::Kernel));
                outcome
            };
            let outcome = recvmsg_by(conn.fd, message, flags, receive);
            if !is_ours.get() {
                // After a handler the kernel has made its call anew, or has had something to return.
                stay.begin_anew();
            }
            return outcome;
        }
        if flags & libc::MSG_TRUNC == 0 && has_bad(parts) {
            return Outcome::Fail(libc::EFAULT);
        }
        let outcome = stream::receive_in(conn, parts, flags, stay);
        fill_in(&stay.at(conn), message, header, flags, outcome)
    }
}

/// A message's list of buffers, or how the kernel refuses it (`copy_msghdr_from_user`).
///
/// # Safety
/// As for [`list`].
unsafe fn parts_of<'a>(header: &msghdr) -> Result<&'a [iovec], Outcome> {
    if has_negative_name(header) {
        return Err(Outcome::Fail(libc::EINVAL));
    }
    if header.msg_iovlen > IOV_MAX {
        return Err(Outcome::Fail(libc::EMSGSIZE));
    }
    // SAFETY: the caller's promise.
    unsafe { list(header.msg_iov, header.msg_iovlen) }
}

/// # Safety
/// What is mapped of `count` messages may be written; `timeout` is null or a `timespec`.
unsafe fn receive_each(
    conn: &Conn,
    stay: &Stay,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome {
    let end = if timeout.is_null() {
        None
    } else if !signal::may_read(timeout, 1) {
        return Outcome::Kernel;
    } else {
        // SAFETY: the caller's promise.
        let t = unsafe { *timeout };
        if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
            return Outcome::Fail(libc::EINVAL);
        }
        Some(
            sys::now()
                .saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000) + t.tv_nsec as u64),
        )
    };
    let mut left = None;
    let each = (messages, count as usize);
    // SAFETY: the caller's promise.
    let outcome = unsafe { receive_until(conn, stay, each, flags, end, &mut left) };
    match (outcome, left) {
        (Outcome::Done(1..), Some(left)) => {
            let (seconds, rest) = (left / 1_000_000_000, left % 1_000_000_000);
            // SAFETY: the caller's promise.
            let is_told = unsafe { signal::put_time(timeout.cast(), seconds as i64, rest as i64) };
            if is_told {
                outcome
            } else {
                Outcome::Fail(libc::EFAULT)
            }
        }
        _ => outcome,
    }
}

/// Receives messages until the time `end` (of the monotonic clock). Sets `left` to the nanoseconds that are
/// left then.
///
/// # Safety
/// As for [`receive_each`].
unsafe fn receive_until(
    conn: &Conn,
    stay: &Stay,
    (messages, count): (*mut mmsghdr, usize),
    mut flags: c_int,
    end: Option<u64>,
    left: &mut Option<u64>,
) -> Outcome {
    for i in 0..count {
        let one = match message_at(messages, i) {
            Ok(one) => one,
            Err(outcome) => {
                if i > 0 {
                    leave(&stay.at(conn), libc::EFAULT);
                }
                return outcome;
            }
        };
        // SAFETY: the caller's promise; it can be read.
        let received = unsafe {
            let header = &raw mut (*one).msg_hdr;
            let behind = if i > 0 { stream::MSG_BEHIND } else { 0 };
            match receive_one(conn, stay, header, flags & !MSG_WAITFORONE | behind) {
                Outcome::Done(n) => tell_length(one, n),
                other => other,
            }
        };
        match received {
            Outcome::Done(_) => {}
            other if i == 0 => return other,
            Outcome::Fail(errno) => {
                leave(&stay.at(conn), errno);
                return Outcome::Done(i as isize);
            }
            Outcome::Kernel => return Outcome::Done(i as isize),
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        *left = end.map(|end| end.saturating_sub(sys::now()));
        if *left == Some(0) {
            return Outcome::Done(i as isize + 1);
        }
    }
    Outcome::Done(count as isize)
}

/// Leaves the error that has ended this call, after it had received messages, to the next call.
fn leave(conn: &Conn, errno: Errno) {
    /// The kernel's own number for an interrupted call that it would restart. It leaves this number to the next call, too.
    const ERESTARTSYS: Errno = 512;
    match errno {
        libc::EAGAIN => {}
        libc::EINTR if !stream::has_time_limit(conn) => stream::leave_error(conn, ERESTARTSYS),
        errno => stream::leave_error(conn, errno),
    }
}

/// Stores how long one of many messages was.
///
/// # Safety
/// What is mapped of it may be written.
unsafe fn tell_length(one: *mut mmsghdr, length: isize) -> Outcome {
    let bytes = (length as c_uint).to_ne_bytes();
    // SAFETY: the caller's promise.
    match unsafe { signal::put((&raw mut (*one).msg_len).cast(), &bytes) } {
        true => Outcome::Done(length),
        false => Outcome::Fail(libc::EFAULT),
    }
}

/// The message with this index, which can be read; or how the call ends, if there is none.
fn message_at(messages: *mut mmsghdr, i: usize) -> Result<*mut mmsghdr, Outcome> {
    let one = messages.wrapping_add(i);
    match i {
        _ if signal::may_read(one, 1) => Ok(one),
        0 => Err(Outcome::Kernel),
        done => Err(Outcome::Done(done as isize)),
    }
}

/// `sendmmsg(2)`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Outcome {
    if is_bad(messages.cast(), 1) {
        return Outcome::Kernel;
    }
    if !is_candidate(fd) && entry::is_any() {
        for i in 0..count.min(IOV_MAX as c_uint) as usize {
            let Ok(one) = message_at(messages, i) else {
                break;
            };
            // SAFETY: it can be read.
            unsafe {
                let header = (&raw const (*one).msg_hdr).read_unaligned();
                if has_control(&header) {
                    life::passing(&raw const header);
                }
            }
        }
        return Outcome::Kernel;
    }
    serve(
        fd,
        SENDER,
        // SAFETY: the caller's promise.
        |conn| unsafe { staying(&conn, |stay| send_each(&conn, stay, messages, count, flags)) },
        || {
            note_urgent(fd, flags);
            // SAFETY: the caller's promise.
            unsafe { real::sendmmsg()(fd, messages, count, flags) as isize }
        },
    )
}

/// Sends one of several messages, as [`receive_one`] receives one.
///
/// # Safety
/// As for `sendmsg`.
unsafe fn send_one(conn: &Conn, stay: &Stay, header: &msghdr, flags: c_int) -> Outcome {
    if !stay.goes_on(&stay.at(conn)) {
        let send = |conn: &Conn, parts: &[iovec]| {
            // SAFETY: the caller's promise.
            unsafe { stream::send_in(conn, parts, flags, stay) }
        };
        // SAFETY: the caller's promise.
        return unsafe { sendmsg_by(conn.fd, header, flags, send) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match parts_of(header) {
            Ok(parts) if has_bad(parts) && sendable(parts).is_empty() => {
                Outcome::Fail(libc::EFAULT)
            }
            Ok(parts) => stream::send_in(conn, sendable(parts), flags, stay),
            Err(outcome) => outcome,
        }
    }
}

/// # Safety
/// What is mapped of `count` messages may be written, and their buffers read.
unsafe fn send_each(
    conn: &Conn,
    stay: &Stay,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Outcome {
    let count = count.min(IOV_MAX as c_uint);
    for i in 0..count as usize {
        let one = match message_at(messages, i) {
            Ok(one) => one,
            Err(outcome) => return outcome,
        };
        // SAFETY: the caller's promise; it can be read.
        let (header, sent) = unsafe {
            let header = (&raw const (*one).msg_hdr).read_unaligned();
            let behind = if i > 0 { stream::MSG_BEHIND } else { 0 };
            let sent = match send_one(conn, stay, &header, flags | behind) {
                Outcome::Done(n) => tell_length(one, n),
                other => other,
            };
            (header, sent)
        };
        match sent {
            Outcome::Done(n) => {
                // SAFETY: the caller's promise: the message's list can be read.
                let parts = unsafe { list(header.msg_iov, header.msg_iovlen) };
                let whole = parts.map_or(0, crate::iov::total);
                if (n as usize) < whole {
                    return Outcome::Done(i as isize + 1);
                }
            }
            other if i == 0 => return other,
            _ => return Outcome::Done(i as isize),
        }
    }
    Outcome::Done(count as isize)
}
