//! `sendfile` and `splice`: file or pipe into the ring, ring into a pipe.

use libc::{c_int, c_uint, iovec};

use super::{Conn, receive, send};
use crate::Outcome;
use crate::sys::{self, Errno};
use crate::thread::signals;

/// Bytes moved at a time.
const CHUNK: usize = 16 << 10;
const SPLICE_F_NONBLOCK: c_uint = 2;

type Chunk = [std::mem::MaybeUninit<u8>; CHUNK];

/// Moves up to `count` bytes from the file `input` to the connection; `offset`
/// as for `sendfile`: null means the file's own position.
///
/// # Safety
/// `offset` is null or points to an offset of the program's.
pub(crate) unsafe fn sendfile(
    conn: &Conn,
    input: c_int,
    offset: *mut i64,
    count: usize,
) -> Outcome {
    let mut chunk: Chunk = [std::mem::MaybeUninit::uninit(); CHUNK];
    let mut done = 0;
    while done < count {
        let want = (count - done).min(CHUNK);
        // Look without moving the file's position until the connection has taken
        // the bytes.
        let at = if offset.is_null() {
            sys::position(input).unwrap_or(0)
        } else {
            // SAFETY: the caller's promise.
            unsafe { *offset }
        };
        let got = match sys::pread(input, chunk.as_mut_ptr().cast(), want, at) {
            Ok(0) => break,
            Ok(n) => n,
            Err(_) if done > 0 => break,
            Err(errno) => return Outcome::Fail(errno),
        };
        // SAFETY: the chunk's first `got` bytes are filled.
        let sent = match unsafe { send_chunk(conn, &mut chunk[..got]) } {
            Outcome::Done(n) => n as usize,
            _ if done > 0 => break,
            other => return other,
        };
        done += sent;
        if offset.is_null() {
            sys::set_position(input, at + sent as i64);
        } else {
            // SAFETY: the caller's promise.
            unsafe { *offset = at + sent as i64 };
        }
        if sent < got || got < want {
            break;
        }
    }
    Outcome::Done(done as isize)
}

/// # Safety
/// The chunk is filled.
unsafe fn send_chunk(conn: &Conn, chunk: &mut [std::mem::MaybeUninit<u8>]) -> Outcome {
    let part = iovec {
        iov_base: chunk.as_mut_ptr().cast(),
        iov_len: chunk.len(),
    };
    // SAFETY: the caller's promise.
    unsafe { send(conn, &[part], 0) }
}

/// A pipe's part in a `splice`.
struct Pipe {
    fd: c_int,
    /// What makes it ready.
    events: i16,
    /// Whether the call waits for it. The socket has its own `O_NONBLOCK`.
    waits: bool,
}

impl Pipe {
    fn new(fd: c_int, events: i16, flags: c_uint) -> Self {
        let own = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
        let waits = flags & SPLICE_F_NONBLOCK == 0 && own & libc::O_NONBLOCK as usize == 0;
        Self { fd, events, waits }
    }

    /// Waits, if the call may, until the pipe is ready; returns what it is.
    fn ready(&self, waits: bool, seen: signals::Seen) -> Result<i16, Errno> {
        let mut now = sys::ready(self.fd, self.events);
        while now == 0 {
            if !(waits && self.waits) {
                return Err(libc::EAGAIN);
            }
            if seen.interrupting_since() {
                return Err(libc::EINTR);
            }
            now = sys::poll_ms(self.fd, self.events, 1_000_000_000);
        }
        Ok(now)
    }
}

/// Bytes done before an end or an error are the answer.
fn so_far(done: usize, otherwise: Outcome) -> Outcome {
    if done > 0 {
        Outcome::Done(done as isize)
    } else {
        otherwise
    }
}

/// Moves up to `count` bytes from the pipe `input` to the connection; `kernel`
/// is the real call.
pub(crate) fn splice_in(
    conn: &Conn,
    input: c_int,
    count: usize,
    flags: c_uint,
    kernel: impl Fn() -> isize,
) -> Outcome {
    let mut chunk: Chunk = [std::mem::MaybeUninit::uninit(); CHUNK];
    let pipe = Pipe::new(input, libc::POLLIN, flags);
    let seen = signals::now();
    let mut deadline = None;
    let mut done = 0;
    while done < count {
        // The kernel waits for a first byte only.
        if let Err(errno) = pipe.ready(done == 0, seen) {
            return so_far(done, Outcome::Fail(errno));
        }
        // A pipe takes nothing back, so take no more than there is room for.
        match super::send::await_room(conn, &mut deadline, seen) {
            Ok(true) => {}
            Ok(false) if done > 0 => break,
            Ok(false) => return super::send::by_kernel(conn, kernel),
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        }
        let want = (count - done)
            .min(CHUNK)
            .min(conn.most().saturating_sub(conn.in_flight()) as usize);
        let got = match sys::read(input, chunk.as_mut_ptr().cast(), want) {
            Ok(0) => break,
            Ok(n) => n,
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        };
        // Not lost when another sender was faster: so this waits, whatever the flags.
        let mut rest = &mut chunk[..got];
        while !rest.is_empty() {
            // SAFETY: filled.
            match unsafe { send_chunk(conn, rest) } {
                Outcome::Done(n) => {
                    done += n as usize;
                    rest = &mut rest[n as usize..];
                }
                Outcome::Fail(libc::EAGAIN | libc::EINTR) => sys::sched_yield(),
                other => return so_far(done, other),
            }
        }
    }
    Outcome::Done(done as isize)
}

/// Moves up to `count` bytes from the connection to the pipe `out`.
pub(crate) fn splice_out(conn: &Conn, out: c_int, count: usize, flags: c_uint) -> Outcome {
    let mut chunk: Chunk = [std::mem::MaybeUninit::uninit(); CHUNK];
    let pipe = Pipe::new(out, libc::POLLOUT, flags);
    let seen = signals::now();
    let mut done = 0;
    while done < count {
        match pipe.ready(done == 0, seen) {
            // No reader: the kernel says so before it looks at the socket.
            Ok(now) if now & libc::POLLERR != 0 => return so_far(done, Outcome::Kernel),
            Ok(_) => {}
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        }
        // Look first, so that what the pipe does not take stays in the stream.
        let wait = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
        let part = iovec {
            iov_base: chunk.as_mut_ptr().cast(),
            iov_len: (count - done).min(CHUNK),
        };
        // SAFETY: our own buffer.
        let n = match unsafe { receive(conn, &[part], libc::MSG_PEEK | wait) } {
            Outcome::Done(0) => break,
            Outcome::Done(n) => n as usize,
            other => return so_far(done, other),
        };
        // SAFETY: the chunk's first `n` bytes are filled.
        let bytes = unsafe { std::slice::from_raw_parts(chunk.as_ptr().cast(), n) };
        let written = match sys::write_now(out, bytes) {
            Ok(n) => n,
            // Another writer was faster.
            Err(libc::EAGAIN) => continue,
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        };
        let part = iovec {
            iov_base: chunk.as_mut_ptr().cast(),
            iov_len: written,
        };
        // SAFETY: our own buffer; the bytes are there.
        let _ = unsafe { receive(conn, &[part], libc::MSG_DONTWAIT) };
        done += written;
    }
    Outcome::Done(done as isize)
}
