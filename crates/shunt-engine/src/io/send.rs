//! Bytes out: the calls and their buffers. How the bytes go, and what its flags do, stands in `stream/send.rs`.

use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t};
use shunt_abi::Reason;

use super::buffer::{MOST, flags_of, header, is_bad, is_beyond, sendable, vectored};
use super::short;
use super::target::{is_candidate, serve};
use crate::socket::{SENDER, Socket};
use crate::stream::{self, Conn};
use crate::thread::cancel::Test;
use crate::{Outcome, control, real};

/// `write(2)`, beyond what [`short::send`] does.
pub unsafe fn write(fd: c_int, buffer: *const c_void, length: size_t) -> Outcome {
    // As for `read`: the whole length.
    if is_beyond(buffer, length) && is_candidate(fd) {
        return Outcome::Fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { send(fd, buffer, length, 0) }
}

/// `writev(2)`.
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let then = |fd, parts: &[iovec]| unsafe { transmit_list(fd, parts, 0) };
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, then, |parts| send_before_bad(fd, parts, 0)) }
}

/// `pwritev2(2)`.
pub unsafe fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> Outcome {
    // A socket has no offset (`ESPIPE`).
    if offset != -1 || !is_candidate(fd) {
        return Outcome::Kernel;
    }
    let flags = flags_of(flags);
    let then = |fd, parts: &[iovec]| match flags {
        // SAFETY: the caller's promise.
        Ok(flags) => unsafe { transmit_list(fd, parts, flags) },
        Err(errno) => Outcome::Fail(errno),
    };
    let nowhere = |parts: &[iovec]| match flags {
        // SAFETY: the caller's promise.
        Ok(flags) => unsafe { send_before_bad(fd, parts, flags) },
        Err(errno) => Outcome::Fail(errno),
    };
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, then, nowhere) }
}

/// `send(2)`, beyond what [`short::send`] does.
pub unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> Outcome {
    let part = iovec {
        iov_base: buffer.cast_mut(),
        iov_len: length.min(MOST),
    };
    if is_beyond(buffer, part.iov_len) && is_candidate(fd) {
        return Outcome::Fail(libc::EFAULT);
    }
    if is_bad(buffer, part.iov_len) {
        return send_nowhere(fd, flags);
    }
    // SAFETY: the caller's promise.
    unsafe { transmit(fd, &[part], flags) }
}

/// A send from a bad buffer. The kernel finds out while it copies, after it has looked at the
/// connection: a send of nothing does the same.
pub(super) fn send_nowhere(fd: c_int, flags: c_int) -> Outcome {
    // SAFETY: with no buffers nothing is read.
    match unsafe { transmit(fd, &[], flags) } {
        Outcome::Done(_) => Outcome::Fail(libc::EFAULT),
        other => other,
    }
}

/// A send of a list with a bad buffer: what comes before that can be read.
///
/// # Safety
/// As for `sendmsg`.
pub(super) unsafe fn send_before_bad(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    match sendable(parts) {
        [] => send_nowhere(fd, flags),
        // SAFETY: the caller's promise.
        some => unsafe { transmit(fd, some, flags) },
    }
}

/// `sendto(2)`. On a connected stream the address is ignored.
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> Outcome {
    let odd = address_length as usize > size_of::<libc::sockaddr_storage>()
        || is_bad(address.cast(), address_length as usize);
    if !address.is_null() && odd {
        // The kernel refuses the address before it looks at the socket.
        return Outcome::Kernel;
    }
    // An address on a connected stream is ignored; on any other socket the
    // kernel must see it (TCP fast open connects with it).
    if !address.is_null() && !is_candidate(fd) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match short::send(fd, buffer, length, flags, Test::Done) {
            None | Some(Outcome::Kernel) => send(fd, buffer, length, flags),
            Some(outcome) => outcome,
        }
    }
}

/// A short list goes the short way.
///
/// # Safety
/// The parts are readable.
pub(super) unsafe fn transmit_list(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let send = |conn: &Conn, parts: &[iovec]| unsafe { stream::send(conn, parts, flags) };
    // SAFETY: the caller's promise.
    unsafe { transmit_list_by(fd, parts, flags, send) }
}

/// [`transmit_list`], by `send` what does not go the short way.
///
/// # Safety
/// The parts are readable.
#[inline(always)]
pub(super) unsafe fn transmit_list_by(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    send: impl Fn(&Conn, &[iovec]) -> Outcome,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        short::send_list(fd, parts, flags).unwrap_or_else(|| transmit_by(fd, parts, flags, send))
    }
}

/// # Safety
/// The parts are readable.
#[inline(always)]
pub(super) unsafe fn transmit(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let send = |conn: &Conn, parts: &[iovec]| unsafe { stream::send(conn, parts, flags) };
    // SAFETY: the caller's promise.
    unsafe { transmit_by(fd, parts, flags, send) }
}

/// Sends on a connection by `send`.
///
/// # Safety
/// The parts are readable.
#[inline(always)]
unsafe fn transmit_by(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    send: impl Fn(&Conn, &[iovec]) -> Outcome,
) -> Outcome {
    serve(
        fd,
        SENDER,
        |conn| send(&conn, parts),
        || {
            note_urgent(fd, flags);
            // SAFETY: the caller's promise; the header names only its buffers.
            unsafe {
                match parts {
                    // This takes the kernel less time.
                    [one] => real::send()(fd, one.iov_base, one.iov_len, flags),
                    _ => real::sendmsg()(fd, &header(parts), flags),
                }
            }
        },
    )
}

/// Keeps a connection on TCP by which the kernel is about to send urgent data: the receiver may skip that byte, and then its count of bytes
/// is wrong.
pub(super) fn note_urgent(fd: c_int, flags: c_int) {
    if flags & libc::MSG_OOB != 0
        && let Some(socket) = Socket::of(fd)
    {
        control::refuse(socket, Reason::Urgent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_short_list_is_one_message_in_the_ring() {
        let ends = BothEnds::attached();
        // A first message learns how much of the ring is free.
        ends.send(&[0]);
        assert_eq!(ends.receive::<1>(), [0]);
        let (head, body) = ([1; 5], [2; 6]);
        let part = |bytes: &[u8]| iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let parts = [part(&head), part(&body)];
        // SAFETY: the parts are readable.
        let sent = unsafe { writev(ends.fds[0], parts.as_ptr(), 2) };
        assert_eq!(sent, Outcome::Done(11));
        assert_eq!(ends.conns()[1].consumer().at_hand(), 11);
    }
}
