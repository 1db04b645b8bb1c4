//! Bytes in: the calls and their buffers. How the bytes come, and what its flags do, stands in `stream/recv.rs`.

use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t};

use super::buffer::{MOST, before_bad, flags_of, header, is_bad, is_beyond, vectored};
use super::short;
use super::target::{Target, is_candidate, serve, target};
use crate::socket::RECEIVER;
use crate::thread::cancel::Test;
use crate::{Outcome, iov, real, signal, stream};

/// `read(2)`, beyond what [`short::recv`] does.
pub unsafe fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> Outcome {
    if length == 0 {
        // Zero at once, unlike recv (socket.c: "Match SYS5 behaviour"); the real
        // call says so too, and knows bad descriptors.
        return Outcome::Kernel;
    }
    // Here the kernel looks at the whole length, and cuts it later than `recv` (`vfs_read`).
    if is_beyond(buffer, length) && is_candidate(fd) {
        return Outcome::Fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { recv(fd, buffer, length, 0) }
}

/// `readv(2)`.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let then = |fd, parts: &[iovec]| unsafe { receive(fd, parts, 0) };
    // SAFETY: the caller's promise.
    unsafe {
        vectored(fd, iov, count, then, |parts| {
            receive_before_bad(fd, parts, 0)
        })
    }
}

/// `preadv2(2)`.
pub unsafe fn preadv2(
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
        Ok(flags) => unsafe { receive(fd, parts, flags) },
        Err(errno) => Outcome::Fail(errno),
    };
    let nowhere = |parts: &[iovec]| match flags {
        // SAFETY: the caller's promise.
        Ok(flags) => unsafe { receive_before_bad(fd, parts, flags) },
        Err(errno) => Outcome::Fail(errno),
    };
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, then, nowhere) }
}

/// `recv(2)`, beyond what [`short::recv`] does.
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> Outcome {
    let part = iovec {
        iov_base: buffer,
        iov_len: length.min(MOST),
    };
    if is_beyond(buffer, part.iov_len) && is_candidate(fd) {
        return Outcome::Fail(libc::EFAULT);
    }
    // With MSG_TRUNC the bytes are thrown away, so the buffer does not matter (tcp(7)).
    if is_bad(buffer, part.iov_len) && flags & libc::MSG_TRUNC == 0 {
        // SAFETY: nothing is stored in the one buffer, which is bad.
        return unsafe { receive_before_bad(fd, &[part], flags) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive(fd, &[part], flags) }
}

/// `recvfrom(2)`. On a connected stream the address is not filled and its
/// length becomes 0, as the kernel does it.
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> Outcome {
    // SAFETY: the caller's promise.
    let any = || unsafe {
        match short::recv(fd, buffer, length, flags, Test::Done) {
            None | Some(Outcome::Kernel) => recv(fd, buffer, length, flags),
            Some(outcome) => outcome,
        }
    };
    if address.is_null() {
        return any();
    }
    serve(
        fd,
        RECEIVER,
        |_| {
            let outcome = any();
            if !matches!(outcome, Outcome::Done(_)) {
                return outcome;
            }
            // The kernel copies the address out last: the data is gone by then.
            if is_bad(address_length.cast(), 4) || !signal::may_read(address_length, 1) {
                return Outcome::Fail(libc::EFAULT);
            }
            // SAFETY: it can be read; alignment is the program's choice.
            if unsafe { address_length.read_unaligned() } as i32 <= -1 {
                return Outcome::Fail(libc::EINVAL);
            }
            // SAFETY: the caller's promise.
            if unsafe { signal::put(address_length.cast(), &[0; size_of::<socklen_t>()]) } {
                outcome
            } else {
                Outcome::Fail(libc::EFAULT)
            }
        },
        // SAFETY: the caller's promise.
        || unsafe { real::recvfrom()(fd, buffer, length, flags, address, address_length) },
    )
}

/// # Safety
/// The parts are writable.
#[inline(always)]
unsafe fn receive(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    serve(
        fd,
        RECEIVER,
        // SAFETY: the caller's promise.
        |conn| unsafe { stream::receive(&conn, parts, flags) },
        // SAFETY: the caller's promise; the header names only its buffers.
        || unsafe {
            match parts {
                // This takes the kernel less time.
                [one] => real::recv()(fd, one.iov_base, one.iov_len, flags),
                _ => real::recvmsg()(fd, &mut header(parts), flags),
            }
        },
    )
}

/// A receive into a list with a bad buffer. Once there is something to receive: what the buffers before that one can hold; or
/// `EFAULT` if more is there, and nothing is lost.
///
/// # Safety
/// The parts before the bad one are writable.
pub(super) unsafe fn receive_before_bad(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    match target(fd, RECEIVER) {
        Target::Counted(socket) => {
            // The real call takes nothing, so it need not be counted.
            socket.go_out(RECEIVER);
            Outcome::Kernel
        }
        Target::Shunted(conn) => {
            let mut byte = 0u8;
            let part = iovec {
                iov_base: (&raw mut byte).cast(),
                iov_len: 1,
            };
            // SAFETY: the one buffer is a byte on this stack.
            match unsafe {
                stream::receive(&conn, &[part], flags & !libc::MSG_WAITALL | libc::MSG_PEEK)
            } {
                Outcome::Done(n) if n > 0 => {}
                other => return other,
            }
            let good = before_bad(parts);
            if good.is_empty() || stream::unread(&conn) > iov::total(good) as u64 {
                return Outcome::Fail(libc::EFAULT);
            }
            // SAFETY: the caller's promise.
            unsafe { stream::receive(&conn, good, flags) }
        }
        Target::Kernel => Outcome::Kernel,
    }
}
