//! Between a socket and a file or a pipe.

use libc::{c_int, c_uint, loff_t, off_t, size_t};

use super::buffer::MOST;
use super::target::{is_candidate, serve};
use crate::socket::{RECEIVER, SENDER};
use crate::{Outcome, real, stream};

const SPLICE_F_ALL: c_uint = 15;

/// `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> Outcome {
    serve(
        out,
        SENDER,
        |conn| {
            // Only a regular file can be read at an offset; the rest is the kernel's to refuse.
            let readable = offset.is_null() || crate::sys::is_readable(offset);
            if !crate::sys::is_file(input) || !readable {
                return Outcome::Kernel;
            }
            // SAFETY: the caller's promise.
            unsafe { stream::sendfile(&conn, input, offset, count.min(MOST)) }
        },
        // SAFETY: the caller's promise.
        || unsafe { real::sendfile()(out, input, offset, count) },
    )
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
    // SAFETY: the caller's promise.
    let real = || unsafe { real::splice()(input, input_offset, out, out_offset, length, flags) };
    let into = is_candidate(out);
    if !into && !is_candidate(input) {
        return Outcome::Kernel;
    }
    let (socket, who, pipe) = if into {
        (out, SENDER, input)
    } else {
        (input, RECEIVER, out)
    };
    serve(
        socket,
        who,
        |conn| {
            let offsets = !input_offset.is_null() || !out_offset.is_null();
            if length == 0 || offsets || flags & !SPLICE_F_ALL != 0 || !crate::sys::is_pipe(pipe) {
                return Outcome::Kernel;
            }
            let length = length.min(MOST);
            if into {
                stream::splice_in(&conn, pipe, length, flags, real)
            } else {
                stream::splice_out(&conn, pipe, length, flags)
            }
        },
        real,
    )
}
