//! In which real call does a thread sleep, how long, and what ends that early?

use std::sync::atomic::Ordering;

use libc::pollfd;
use shunt_shm::slot;

use super::{Deadline, Want};
use crate::real;
use crate::stream::parking::Place;
use crate::stream::{Conn, owed};
use crate::sys::{self, Errno};
use crate::thread::signals::Seen;

/// The real blocking call: restarts, is interrupted and is cancelled as the
/// kernel's own receive is. `undo` in the last case.
pub(super) fn sleep_in_kernel(
    conn: &Conn,
    until: Option<u64>,
    undo: &impl Fn(),
) -> Result<(), Errno> {
    if owed::is_owing(conn) {
        // What the kernel has room for is sent by the attempt after this.
        let mut either = watch(conn);
        either.events |= libc::POLLOUT;
        return match poll_until(&mut [either], until, undo) {
            Err(libc::EINTR) if until.is_none() => Ok(()),
            result => result,
        };
    }
    if until.is_some() {
        return poll_until(&mut [watch(conn)], until, undo);
    }
    let mut byte = 0u8;
    // SAFETY: one byte of our own.
    match real::sleeping(undo, || unsafe {
        real::recv()(conn.fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK)
    }) {
        Ok(_) => Ok(()),
        Err(libc::EINTR) => Err(libc::EINTR),
        Err(libc::EAGAIN) => Err(libc::EAGAIN),
        Err(errno) => {
            conn.socket.pending_error.store(errno, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// How long a sender sleeps between two looks at a connection that other processes
/// may shut down, or take back to TCP; nanoseconds.
const TURN: u64 = 20_000_000;

/// What [`sleep_in_kernel`] does, for a sender: it may also be woken from within its process.
pub(super) fn sleep_for_room(
    conn: &Conn,
    place: Place,
    until: Option<u64>,
    seen: Seen,
    undo: &impl Fn(),
) -> Result<(), Errno> {
    // Other processes that share the connection cannot ring there.
    // And of a family that reads, whoever makes room may be killed before it tells.
    let shared = [conn.pair.own, conn.pair.peer]
        .iter()
        .any(|side| side.options.forked.load(Ordering::Relaxed) == slot::SHARED);
    let turn = sys::now() + TURN;
    if shared && until.is_none_or(|until| until > turn) {
        return match poll_until(&mut [watch(conn), place.watch()], Some(turn), undo) {
            Err(libc::EINTR) if seen.interrupting_since() => Err(libc::EINTR),
            _ => Ok(()),
        };
    }
    match poll_until(&mut [watch(conn), place.watch()], until, undo) {
        // The kernel restarts no poll, but it would a send.
        Err(libc::EINTR) if until.is_none() && !seen.interrupting_since() => Ok(()),
        result => result,
    }
}

/// Waits until the kernel's socket takes more bytes. The caller holds no token.
///
/// # Errors
/// As for [`wait`](super::wait).
pub(in crate::stream) fn wait_for_kernel(
    conn: &Conn,
    deadline: &mut Deadline,
    seen: Seen,
) -> Result<(), Errno> {
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let until = *deadline.get_or_insert_with(|| timeout(conn, Want::Room).map(|t| sys::now() + t));
    if seen.interrupting_since() || until.is_some() && seen.any_since() {
        return Err(libc::EINTR);
    }
    conn.socket.hold();
    let room = pollfd {
        fd: base,
        events: libc::POLLOUT,
        revents: 0,
    };
    let result = poll_until(&mut [room], until, &|| conn.socket.unhold());
    conn.socket.unhold();
    match result {
        // The kernel restarts no poll, but it would a send.
        Err(libc::EINTR) if until.is_none() && !seen.interrupting_since() => Ok(()),
        result => result,
    }
}

fn watch(conn: &Conn) -> pollfd {
    pollfd {
        fd: conn.fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

fn poll_until(fds: &mut [pollfd], until: Option<u64>, undo: &impl Fn()) -> Result<(), Errno> {
    let left = until.map(|until| until.saturating_sub(sys::now()));
    if left == Some(0) {
        return Err(libc::EAGAIN);
    }
    let time = left.map(|left| libc::timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let (array, count) = (fds.as_mut_ptr(), fds.len() as libc::nfds_t);
    // SAFETY: our own array.
    match real::sleeping(undo, || unsafe {
        real::ppoll()(array, count, time, std::ptr::null()) as isize
    }) {
        Err(errno) => Err(errno),
        Ok(0) => Err(libc::EAGAIN),
        // Closed meanwhile, which the kernel sees as the time is over: it looks the
        // numbers up once more then.
        Ok(_)
            if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0)
                && until.is_some_and(|until| sys::now() >= until) =>
        {
            Err(libc::EAGAIN)
        }
        Ok(_) => Ok(()),
    }
}

/// The socket's own timeout for this direction, in nanoseconds.
pub(in crate::stream) fn timeout(conn: &Conn, want: Want) -> Option<u64> {
    let name = if want == Want::Data {
        libc::SO_RCVTIMEO
    } else {
        libc::SO_SNDTIMEO
    };
    let time: libc::timeval = sys::getsockopt(conn.fd, libc::SOL_SOCKET, name).ok()?;
    let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (ns != 0).then_some(ns)
}
