//! Between a socket and a file or a pipe.

use std::ptr;

use libc::{c_int, c_uint, loff_t, off_t, size_t};

use super::buffer::MOST;
use super::target::{is_candidate, serve};
use crate::socket::{RECEIVER, SENDER};
use crate::stream::{self, Conn};
use crate::thread::cancel;
use crate::{Outcome, real, signal, sys};

const SPLICE_F_ALL: c_uint = 15;

/// `sendfile(2)`, which is no cancellation point.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> Outcome {
    // SAFETY: the caller's promise.
    let real = |out, count| unsafe { real::sendfile()(out, input, offset, count) };
    if is_candidate(input) && !is_candidate(out) {
        // To a pipe it does what `splice` does. The kernel refuses the rest.
        return serve(
            input,
            RECEIVER,
            |conn| {
                let takes = sys::is_pipe(out) && sys::is_open_for(out, libc::O_WRONLY);
                if !takes || !offset.is_null() || !is_count(count) {
                    return Outcome::Kernel;
                }
                cancel::put_off(|| stream::splice_out(&conn, out, count.min(MOST), 0))
            },
            || real(out, count),
        );
    }
    serve(
        out,
        SENDER,
        // SAFETY: the caller's promise.
        |conn| cancel::put_off(|| unsafe { send_file(&conn, input, offset, count) }),
        || real(out, count),
    )
}

/// Whether the kernel would take this number of bytes, and it is not 0.
fn is_count(count: size_t) -> bool {
    (1..=isize::MAX as usize).contains(&count)
}

/// # Safety
/// `offset` as for `sendfile(2)`.
unsafe fn send_file(conn: &Conn, input: c_int, offset: *mut off_t, count: size_t) -> Outcome {
    if offset.is_null() {
        // SAFETY: the position of the file counts.
        return unsafe { send_file_at(conn, input, ptr::null_mut(), count) };
    }
    let is_there = match signal::is_guarded() {
        true => offset as usize >= 4096 && signal::may_read(offset, 1),
        false => sys::is_readable(offset),
    };
    if !is_there {
        return Outcome::Kernel;
    }
    // SAFETY: readable, as we have just seen.
    let mut at = unsafe { offset.read_unaligned() };
    // SAFETY: an offset of our own.
    let outcome = unsafe { send_file_at(conn, input, &raw mut at, count) };
    // The program's offset is stored last, as in the kernel. SAFETY: the caller's promise.
    let is_told = || unsafe { signal::put(offset.cast(), &at.to_ne_bytes()) };
    if matches!(outcome, Outcome::Kernel) || is_told() {
        outcome
    } else {
        Outcome::Fail(libc::EFAULT)
    }
}

/// # Safety
/// `offset` is null or an offset.
unsafe fn send_file_at(conn: &Conn, input: c_int, offset: *mut off_t, count: size_t) -> Outcome {
    let position = || sys::position(input);
    // SAFETY: the caller's promise.
    let at = unsafe { offset.as_ref() }.copied().or_else(position);
    // A file without a position cannot be sent, and the kernel knows the error.
    let Some(at @ 0..) = at else {
        return Outcome::Kernel;
    };
    if !is_count(count) || at.checked_add(count as i64).is_none() {
        return Outcome::Kernel;
    }
    let count = count.min(MOST);
    // SAFETY: the caller's promise.
    let real = |out, count| unsafe { real::sendfile()(out, input, offset, count) };
    if sys::is_file(input) {
        // SAFETY: the caller's promise.
        return unsafe { stream::sendfile(conn, input, offset, count, &real) };
    }
    if position().is_none() {
        return Outcome::Kernel;
    }
    // A character device: only the kernel's `sendfile` knows what its bytes are.
    stream::by_kernel_alone(conn, || real(conn.fd, count))
}

/// `splice(2)` between a pipe and a shunted socket. Everything else that names
/// such a socket is the kernel's to refuse.
pub unsafe fn splice(
    input: c_int,
    input_offset: *mut loff_t,
    out: c_int,
    out_offset: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> Outcome {
    let real = |out, length| {
        // SAFETY: the caller's promise.
        unsafe { real::splice()(input, input_offset, out, out_offset, length, flags) }
    };
    let into = is_candidate(out);
    if !into && !is_candidate(input) {
        return Outcome::Kernel;
    }
    let (socket, who, pipe, access) = if into {
        (out, SENDER, input, libc::O_RDONLY)
    } else {
        (input, RECEIVER, out, libc::O_WRONLY)
    };
    serve(
        socket,
        who,
        |conn| {
            let offsets = !input_offset.is_null() || !out_offset.is_null();
            let refused = !is_count(length)
                || offsets
                || flags & !SPLICE_F_ALL != 0
                || !sys::is_pipe(pipe)
                || !sys::is_open_for(pipe, access);
            if refused {
                return Outcome::Kernel;
            }
            let length = length.min(MOST);
            if into {
                stream::splice_in(&conn, pipe, length, flags, &real)
            } else {
                stream::splice_out(&conn, pipe, length, flags)
            }
        },
        || real(out, length),
    )
}
