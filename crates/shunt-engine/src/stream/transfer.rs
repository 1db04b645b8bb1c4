//! `sendfile` and `splice`: file or pipe into the ring, ring into a pipe. The
//! kernel copies from and to the ring itself; where a buffer is needed it is
//! small, since threads have small stacks.

use libc::{c_int, c_uint, iovec, pollfd, timespec};
use shunt_abi::Reason;
use shunt_shm::slot::{self, Way};
use std::mem::MaybeUninit;

use super::errors::keep_error;
use super::real_call::by_kernel;
use super::send::{allowed, goes_by_ring};
use super::wait::{Stay, TURN, Waited, wait};
use super::want::{Deadline, Want};
use super::{Conn, downgrade, leave_ring, packets, receive_in, recv, send};
use crate::socket::bump;
use crate::sys::{self, Errno};
use crate::thread::sleep::Sleep;
use crate::thread::{give, signals};
use crate::{Outcome, real};

/// Bytes that the kernel puts into the ring at a time.
const STEP: usize = 32 << 10;
const SPLICE_F_NONBLOCK: c_uint = 2;

/// Where the bytes come from: a file, or a pipe.
trait Source {
    /// Waits, if it must for a first byte, until there is something to read.
    fn ready(&self, first: bool) -> Result<(), Errno>;

    /// Reads up to `length` bytes, without blocking; 0 at the end.
    ///
    /// # Safety
    /// There is room for them at `to`.
    unsafe fn read(&mut self, to: *mut u8, length: usize) -> Result<usize, Errno>;

    /// Whether the end is still to come.
    fn has_more(&self) -> bool;

    /// Sends up to `most` bytes by the real call, to the connection that a number names.
    fn by_kernel(&self, to: c_int, most: usize) -> isize;
}

/// The real call: to the connection that this descriptor names, for this number of bytes.
type Real<'a> = &'a dyn Fn(c_int, usize) -> isize;

struct File<'a> {
    fd: c_int,
    /// The program's offset; null: the file's own position counts.
    offset: *mut i64,
    kernel: Real<'a>,
}

impl Source for File<'_> {
    fn ready(&self, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    unsafe fn read(&mut self, to: *mut u8, length: usize) -> Result<usize, Errno> {
        if self.offset.is_null() {
            return sys::read(self.fd, to, length);
        }
        // SAFETY: `sendfile` demands that it is the program's offset.
        unsafe {
            let n = sys::pread(self.fd, to, length, *self.offset)?;
            *self.offset += n as i64;
            Ok(n)
        }
    }

    fn has_more(&self) -> bool {
        let at = if self.offset.is_null() {
            sys::position(self.fd).unwrap_or(0)
        } else {
            // SAFETY: as above.
            unsafe { *self.offset }
        };
        let mut byte = 0u8;
        sys::pread(self.fd, &raw mut byte, 1, at) != Ok(0)
    }

    fn by_kernel(&self, to: c_int, most: usize) -> isize {
        (self.kernel)(to, most)
    }
}

/// A pipe's part in a `splice`.
struct Pipe {
    fd: c_int,
    /// The poll events that make it ready.
    events: i16,
    /// Whether the call waits for it. The socket has its own `O_NONBLOCK`.
    waits: bool,
    /// Whether it makes a packet of each write.
    makes_packets: bool,
    seen: signals::Seen,
}

impl Pipe {
    fn new(fd: c_int, events: i16, flags: c_uint) -> Self {
        let own = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
        let waits = flags & SPLICE_F_NONBLOCK == 0 && own & libc::O_NONBLOCK as usize == 0;
        Self {
            fd,
            events,
            waits,
            makes_packets: own & libc::O_DIRECT as usize != 0,
            seen: signals::now(),
        }
    }

    /// Waits, if the call may, until the pipe is ready. Returns its poll events.
    fn ready(&self, waits: bool) -> Result<i16, Errno> {
        let mut now = sys::ready(self.fd, self.events);
        while now == 0 {
            if !(waits && self.waits) {
                return Err(libc::EAGAIN);
            }
            // A handler that runs from here on ends the sleep.
            let looked = signals::now();
            if self.seen.interrupting_since() {
                return Err(libc::EINTR);
            }
            self.sleep(looked);
            now = sys::ready(self.fd, self.events);
        }
        Ok(now)
    }

    /// Sleeps until the pipe may be ready, or a handler has run since `looked`. `splice(2)` is a cancellation point.
    fn sleep(&self, looked: signals::Seen) {
        let mut pipe = [pollfd {
            fd: self.fd,
            events: self.events,
            revents: 0,
        }];
        // SAFETY: no mask.
        let poll = |fds: &mut [_], time| unsafe {
            Sleep::poll(fds, time, std::ptr::null(), looked, &|| ())
        };
        if poll(&mut pipe, None) == Err(libc::EINVAL) {
            // The process may poll nothing (`RLIMIT_NOFILE` is 0): the caller looks from time to time.
            let turn = timespec {
                tv_sec: 0,
                tv_nsec: TURN as i64,
            };
            let _ = poll(&mut [], Some(turn));
        }
    }

    /// Writes what fits at this moment.
    fn write(&self, from: *const u8, length: usize) -> Result<usize, Errno> {
        if self.makes_packets {
            match packets::write(self.fd, from, length) {
                // Better a packet than a byte that is lost.
                Err(libc::EMFILE) => {}
                written => return written,
            }
        }
        sys::write_now(self.fd, from, length)
    }
}

struct PipeSource<'a> {
    pipe: Pipe,
    kernel: Real<'a>,
}

impl Source for PipeSource<'_> {
    fn ready(&self, first: bool) -> Result<(), Errno> {
        self.pipe.ready(first).map(|_| ())
    }

    unsafe fn read(&mut self, to: *mut u8, length: usize) -> Result<usize, Errno> {
        if packets::may_cut(self.pipe.fd, length) {
            // SAFETY: the caller's promise.
            return unsafe { packets::read(self.pipe.fd, to, length) };
        }
        sys::read_now(self.pipe.fd, to, length)
    }

    fn has_more(&self) -> bool {
        true
    }

    fn by_kernel(&self, to: c_int, most: usize) -> isize {
        (self.kernel)(to, most)
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

/// Like [`so_far`], for an outcome of the connection's: after a call that has moved something, the
/// next call reports the error.
fn so_far_of(conn: &Conn, done: usize, otherwise: Outcome) -> Outcome {
    if let Outcome::Fail(errno) = otherwise
        && done > 0
    {
        keep_error(conn, errno);
    }
    so_far(done, otherwise)
}

/// Moves up to `count` bytes from the file `input` to the connection; `offset` as for `sendfile`:
/// null means the file's own position. `kernel` makes the real call.
///
/// # Safety
/// `offset` is null or points to an offset of the program's.
pub(crate) unsafe fn sendfile(
    conn: &Conn,
    input: c_int,
    offset: *mut i64,
    count: usize,
    kernel: Real,
) -> Outcome {
    let mut file = File {
        fd: input,
        offset,
        kernel,
    };
    match pour(conn, &mut file, count) {
        // A read past the page cache (`O_DIRECT`) needs an aligned address, which the ring does not
        // have: only the kernel can do it.
        Outcome::Fail(libc::EINVAL) => by_kernel_alone(conn, || kernel(conn.fd, count)),
        outcome => outcome,
    }
}

/// Moves up to `count` bytes from the pipe `input` to the connection; `kernel` makes the real call.
pub(crate) fn splice_in(
    conn: &Conn,
    input: c_int,
    count: usize,
    flags: c_uint,
    kernel: Real,
) -> Outcome {
    let mut pipe = PipeSource {
        pipe: Pipe::new(input, libc::POLLIN, flags),
        kernel,
    };
    pour(conn, &mut pipe, count)
}

/// A call that only the kernel can make: the direction leaves the ring for it.
pub(crate) fn by_kernel_alone(conn: &Conn, call: impl FnOnce() -> isize) -> Outcome {
    leave_ring(conn, Reason::Blocked);
    // If the direction has to stay in the ring, the call fails as for a file that cannot be
    // spliced.
    by_kernel(conn, call).unwrap_or(Outcome::Fail(libc::EINVAL))
}

/// What became of an attempt to put bytes into the ring.
enum Put {
    /// This many bytes are in the ring.
    Bytes(usize),
    /// The source has ended.
    End,
    /// The ring is full.
    Full,
    /// The bytes do not go by the ring.
    Elsewhere,
}

fn pour(conn: &Conn, source: &mut impl Source, count: usize) -> Outcome {
    Stay::during(|stay| pour_in(conn, source, count, stay))
}

fn pour_in(conn: &Conn, source: &mut impl Source, count: usize, stay: &Stay) -> Outcome {
    let seen = signals::now();
    let mut deadline: Deadline = None;
    let mut done = 0;
    while done < count {
        if let Err(errno) = source.ready(done == 0) {
            return so_far(done, Outcome::Fail(errno));
        }
        match put(conn, source, count - done) {
            Ok(Put::Bytes(n)) => done += n,
            Ok(Put::End) => break,
            Ok(Put::Full) if !source.has_more() => break,
            Ok(Put::Full) if !conn.may_wait(0) => {
                if !send::ask_for_room(conn) {
                    return so_far(done, Outcome::Fail(libc::EAGAIN));
                }
            }
            // The kernel's own call, which has moved something, is in it already.
            Ok(Put::Full) if done > 0 && !stay.enter(conn) => break,
            Ok(Put::Full) => {
                let looked = seen.before_sleep();
                match wait(conn, Want::Room, &mut deadline, stay, (seen, looked)) {
                    // The kernel restarts no call that has moved something.
                    Ok(Waited::Anew) if done > 0 => break,
                    Ok(_) => {}
                    Err(errno) => return so_far(done, Outcome::Fail(errno)),
                }
            }
            // If the source has ended, the kernel finds that first, and leaves the connection's
            // error for the next call.
            Ok(Put::Elsewhere) if !source.has_more() => break,
            // Closed while it slept: the number may name anything by now.
            Ok(Put::Elsewhere) => match send_off_ring(&stay.at(conn), source, count - done) {
                // It has just moved to the ring.
                Ok(Some(0)) => {}
                // As far as the kernel's own call has come: it ends early also by a signal.
                Ok(Some(n)) => {
                    done += n;
                    break;
                }
                Ok(None) => break,
                Err(outcome) => return so_far_of(conn, done, outcome),
            },
            // Another reader was faster.
            Err(libc::EAGAIN) => {}
            Err(libc::EMFILE) if done > 0 => break,
            // Closed while it slept, as above.
            Err(libc::EMFILE) => {
                let here = stay.at(conn);
                return by_kernel_alone(&here, || source.by_kernel(here.fd, count));
            }
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        }
    }
    Outcome::Done(done as isize)
}

/// Lets the kernel put bytes into the ring.
fn put(conn: &Conn, source: &mut impl Source, count: usize) -> Result<Put, Errno> {
    if conn.is_on_ring() && conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) == slot::SHUT_WR
    {
        leave_ring(conn, Reason::HalfClosed);
    }
    let token = &conn.pair.own.sending.token;
    if !conn.take(token) {
        // This is a signal handler that has interrupted the token's holder. As long as it runs
        // nothing can be sent, and the call ends so (`EAGAIN`).
        return Ok(Put::Elsewhere);
    }
    let mut told = true;
    let result = put_with_token(conn, source, count, &mut told);
    give(token);
    if !told {
        conn.reach();
    }
    result
}

/// Puts bytes into the ring, with the sending token. Sets `told`: whether a peer that sleeps could
/// be woken.
fn put_with_token(
    conn: &Conn,
    source: &mut impl Source,
    count: usize,
    told: &mut bool,
) -> Result<Put, Errno> {
    if !goes_by_ring(conn, 0) {
        return Ok(Put::Elsewhere);
    }
    let producer = conn.producer();
    let want = count.min(STEP).min(allowed(conn));
    let Ok((room, mut at)) = producer.room(want) else {
        super::errors::abort(conn);
        return Ok(Put::Elsewhere);
    };
    let most = room.min(want);
    if most == 0 {
        return Ok(Put::Full);
    }
    // SAFETY: the room is ours, and nobody looks at it before it is published.
    let n = unsafe { source.read(producer.place(at), most) }?;
    if n == 0 {
        return Ok(Put::End);
    }
    producer.commit(&mut at, n);
    bump(&conn.socket.tx.ring_bytes, n as u64);
    bump(&conn.socket.tx.user_calls, 1);
    *told = conn.tell_data();
    Ok(Put::Bytes(n))
}

/// Sends a part while the direction is not on the ring, or the peer is gone;
/// `None` at the end of the source.
fn send_off_ring(
    conn: &Conn,
    source: &mut impl Source,
    count: usize,
) -> Result<Option<usize>, Outcome> {
    let moved = |outcome| match outcome {
        Outcome::Done(0) => Ok(None),
        Outcome::Done(n) => Ok(Some(n as usize)),
        other => Err(other),
    };
    // An error of the connection is reported before the first byte is taken from the source.
    // SAFETY: no bytes.
    match unsafe { send(conn, &[], libc::MSG_NOSIGNAL) } {
        Outcome::Done(_) => {}
        // The error stays with the connection, and the kernel reports it with SIGPIPE.
        Outcome::Fail(libc::EPIPE) => {
            let sent = real::quietly(|| source.by_kernel(conn.fd, count));
            return moved(sent.map_or_else(Outcome::Fail, Outcome::Done));
        }
        other => return Err(other),
    }
    // `None`: it has just moved to the ring.
    by_kernel(conn, || source.by_kernel(conn.fd, count)).map_or(Ok(Some(0)), moved)
}

/// Moves up to `count` bytes from the connection to the pipe `out`.
pub(crate) fn splice_out(conn: &Conn, out: c_int, count: usize, flags: c_uint) -> Outcome {
    Stay::during(|stay| splice_out_in(conn, out, count, flags, stay))
}

fn splice_out_in(conn: &Conn, out: c_int, count: usize, flags: c_uint, stay: &Stay) -> Outcome {
    let pipe = Pipe::new(out, libc::POLLOUT, flags);
    if pipe.makes_packets && !packets::may_join() {
        // What has come by TCP, the kernel moves; what nobody can send again is read in the ring.
        downgrade(conn, Reason::Blocked);
    }
    let write = |from, n| pipe.write(from, n);
    let mut done = 0;
    while done < count {
        match pipe.ready(done == 0) {
            // No reader: the kernel says so before it looks at the socket.
            Ok(now) if now & libc::POLLERR != 0 => return so_far(done, Outcome::Kernel),
            Ok(_) => {}
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        }
        let mut moved = recv::drain(conn, count - done, &write);
        if moved == Ok(0) {
            let here = stay.at(conn);
            // An error that nobody has asked for stays in the kernel, also for relatives since a fork.
            if done > 0 && sys::ready(here.fd, 0) & libc::POLLERR != 0 && recv::unread(&here) == 0 {
                break;
            }
            if stops_at_mark(&here) {
                return so_far(done, nothing_before_mark(&here));
            }
            moved = match look(conn, done == 0, stay) {
                Outcome::Done(0) => break,
                // Urgent data has come while the call slept.
                Outcome::Done(_) if stops_at_mark(&stay.at(conn)) => Ok(0),
                Outcome::Done(_) => recv::pass_on(conn, count - done, &write, stay),
                // A short count tells the program that it has everything.
                Outcome::Kernel if done > 0 => match move_from_kernel(conn, &pipe, count - done) {
                    Outcome::Done(n @ 1..) => Ok(n as usize),
                    outcome => return so_far_of(conn, done, outcome),
                },
                outcome => return so_far_of(conn, done, outcome),
            };
        }
        match moved {
            Ok(n) => done += n,
            // Another writer was faster.
            Err(libc::EAGAIN) => {}
            Err(errno) => return so_far(done, Outcome::Fail(errno)),
        }
    }
    Outcome::Done(done as isize)
}

/// Whether the next byte is the urgent one, which no `splice` passes (a receive leaves it out and goes on behind it). An error comes before it.
fn stops_at_mark(conn: &Conn) -> bool {
    conn.way_in() != Way::Ring && recv::at_mark(conn) && sys::ready(conn.fd, 0) & libc::POLLERR == 0
}

/// What a `splice` returns that can take nothing, since the next byte is the urgent one: it does not wait, and an end comes before
/// `EAGAIN` (`tcp_splice_read` of Linux).
fn nothing_before_mark(conn: &Conn) -> Outcome {
    let has_ended = || sys::ready(conn.fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
    if conn.may_wait(0) || has_ended() {
        Outcome::Done(0)
    } else {
        Outcome::Fail(libc::EAGAIN)
    }
}

/// Looks for a byte to receive, and waits for it if the call may.
fn look(conn: &Conn, waits: bool, stay: &Stay) -> Outcome {
    let mut byte = 0u8;
    let part = [iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    }];
    let wait = if waits { 0 } else { libc::MSG_DONTWAIT };
    // A handler that has run while the call waited for the pipe has made it begin anew.
    stay.seen.set(signals::now());
    // SAFETY: a byte of our own.
    unsafe { receive_in(conn, &part, libc::MSG_PEEK | wait, stay) }
}

/// Moves what the kernel has, in the middle of a call: other readers take from there without the token. So these bytes are
/// received first, and then go to the pipe, even if another writer has filled it since it was found ready.
#[cold]
fn move_from_kernel(conn: &Conn, pipe: &Pipe, count: usize) -> Outcome {
    let mut chunk = [MaybeUninit::<u8>::uninit(); recv::CHUNK];
    let part = [iovec {
        iov_base: chunk.as_mut_ptr().cast(),
        iov_len: count.min(recv::CHUNK),
    }];
    // SAFETY: our own buffer.
    let received = unsafe { recv::by_kernel_now(conn, &part, 0) };
    let Outcome::Done(n) = received else {
        return received;
    };
    let mut rest = &chunk[..n as usize];
    while !rest.is_empty() {
        match pipe.write(rest.as_ptr().cast(), rest.len()) {
            Ok(written) => rest = &rest[written..],
            Err(libc::EAGAIN) => {
                sys::poll_ms(pipe.fd, libc::POLLOUT, 1_000_000_000);
            }
            // Nobody reads there any more.
            Err(errno) => return Outcome::Fail(errno),
        }
    }
    received
}
