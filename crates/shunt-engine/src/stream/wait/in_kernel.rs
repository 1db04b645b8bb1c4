//! In which real call does a thread sleep, how long, and what ends that early?

use std::sync::atomic::Ordering;

use libc::pollfd;
use shunt_shm::slot::{self, Slot};

use super::Stay;
use crate::reach;
use crate::socket::{NO_RCVTIMEO, NO_SNDTIMEO, SETS_TIMEOUTS};
use crate::stream::want::{Deadline, Want, is_interrupted, is_ready, lost};
use crate::stream::{Conn, owed};
use crate::sys::{self, Errno};
use crate::thread::signals::Seen;
use crate::thread::sleep::Sleep;
use crate::wake::{self, Place};

/// What has ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// A call by the place's channel, and nothing else.
    Called,
    /// A signal after which the kernel restarts the program's call.
    Restarted,
    /// The base socket, or time.
    Otherwise,
}

/// How long a thread sleeps between two looks (nanoseconds), if nobody tells it of what it waits for.
pub(crate) const TURN: u64 = 20_000_000;

/// How long a thread that waits for room sleeps between two looks (nanoseconds), if its peer may not be able to call.
///
/// A peer that makes room and cannot call (it is elsewhere, or may not) goes back to TCP, which tells nothing: in
/// this direction that has nothing to send. TCP itself asks on for that reason (RFC 9293, 3.8.6.1: a closed window is
/// probed), and as seldom.
pub(crate) const SELDOM: u64 = 200_000_000;

/// How long a thread that waits for room in the ring sleeps between two looks, in nanoseconds.
pub(crate) fn turn(conn: &Conn, is_placed: bool) -> u64 {
    // Its own process cannot call it (it has no place), or others that share the connection by fork, which
    // cannot call here, may shut it down or take it back to TCP. And of a family that reads, whoever makes room
    // may be killed before it tells.
    let shared = |side: &Slot| side.options.forked.load(Ordering::Relaxed) == slot::SHARED;
    if !is_placed || shared(conn.pair.own) || shared(conn.pair.peer) {
        TURN
    } else {
        SELDOM
    }
}

/// Sleeps on the base socket and the place's channel: restarts, is interrupted and is
/// cancelled as the kernel's own call is. `undo` in the last case.
pub(super) fn sleep_in_kernel(
    conn: &Conn,
    want: Want,
    place: Option<Place>,
    until: Option<u64>,
    stay: &Stay,
    (seen, looked): (Seen, Seen),
    undo: &impl Fn(),
) -> Result<Woken, Errno> {
    let base = pollfd {
        fd: conn.fd,
        events: news_of_base(conn, want),
        revents: 0,
    };
    let nobody = pollfd { fd: -1, ..base };
    let nic = conn.is_mirrored().then(reach::watch).flatten();
    if nic.is_some_and(|nic| nic.has_come) {
        let is_over = until.is_some_and(|until| sys::now() >= until);
        return if is_over {
            Err(libc::EAGAIN)
        } else {
            Ok(Woken::Otherwise)
        };
    }
    let by_nic = pollfd {
        fd: nic.map_or(-1, |nic| nic.fd),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut all = [base, place.map_or(nobody, Place::watch), by_nic];
    let watched = if nic.is_some() {
        all.len()
    } else {
        1 + usize::from(place.is_some())
    };
    if !stay.is_counted() {
        return Ok(Woken::Restarted);
    }
    let turn = (want == Want::Room)
        .then(|| sys::now() + turn(conn, place.is_some()))
        .filter(|turn| until.is_none_or(|until| until > *turn));
    let result = poll_until(&mut all[..watched], turn.or(until), looked, undo);
    let [base, by_place, by_nic] = &all;
    if by_nic.revents != 0 {
        // Also for a connection that does not look at its ring.
        let _ = reach::watch();
    }
    let called = by_place.revents != 0;
    if called && let Some(place) = place {
        place.hear(is_ready(conn, want));
    }
    let may_receive = base.events == libc::POLLIN && turn.is_none() && place.is_none();
    let result = match result {
        Err(libc::EINVAL) if may_receive => sleep_in_receive(conn, looked, undo),
        result => result,
    };
    match result {
        Err(libc::EINVAL) if place.is_some() => {
            wake::do_without();
            Ok(Woken::Otherwise)
        }
        Err(libc::EINVAL) => {
            pause(looked, undo);
            Ok(Woken::Otherwise)
        }
        Err(libc::EAGAIN) if turn.is_some() => Ok(Woken::Otherwise),
        // The kernel restarts no poll, but it would the program's call.
        Err(libc::EINTR) if until.is_none() && !seen.interrupting_since() => Ok(Woken::Restarted),
        Err(errno) => Err(errno),
        Ok(()) if called && base.revents == 0 && by_nic.revents == 0 => Ok(Woken::Called),
        // The number names something else by now: after a signal the kernel looked it up once more,
        // and reported that.
        Ok(()) if !called && conn.base() != Some(conn.fd) && is_interrupted(until, seen) => {
            Err(libc::EINTR)
        }
        Ok(()) => Ok(Woken::Otherwise),
    }
}

/// What the base socket may have to tell a thread that waits.
fn news_of_base(conn: &Conn, want: Want) -> i16 {
    match want {
        // A thread that waits for room has no use for what there is to read.
        // The peer says when it is through with its recall; that it has ended says nothing of that.
        Want::Room if owed::cannot_send(conn) => 0,
        Want::Room if conn.is_on_ring() => libc::POLLRDHUP,
        Want::Room => libc::POLLIN,
        // When the kernel has room for what is owed, the next attempt sends it.
        Want::Data if owed::is_owing(conn) => libc::POLLIN | libc::POLLOUT,
        Want::Data => libc::POLLIN,
    }
}

/// Waits for data where the process may poll nothing (`RLIMIT_NOFILE` is 0): sleeps in a `recv` that only looks.
#[cold]
fn sleep_in_receive(conn: &Conn, looked: Seen, undo: &impl Fn()) -> Result<(), Errno> {
    match Sleep::peek(conn.fd, looked, undo) {
        Err(errno @ (libc::EINTR | libc::EAGAIN)) => Err(errno),
        Err(errno) => {
            conn.error().store(errno, Ordering::Relaxed);
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Waits for room where the process may poll nothing: the caller looks from time to time.
#[cold]
fn pause(looked: Seen, undo: &impl Fn()) {
    // The caller looks again whether a signal ends its wait.
    let _ = poll_until(&mut [], Some(sys::now() + TURN), looked, undo);
}

/// Waits until the kernel's socket takes more bytes. The caller holds no token.
///
/// # Errors
/// As for [`wait`](super::wait).
pub(in crate::stream) fn wait_for_kernel(
    conn: &Conn,
    deadline: &mut Deadline,
    stay: &Stay,
    seen: Seen,
) -> Result<(), Errno> {
    if !stay.enter(conn) {
        return Err(lost(seen));
    }
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let until = until(conn, Want::Room, deadline);
    let looked = seen.before_sleep();
    if is_interrupted(until, seen) {
        return Err(libc::EINTR);
    }
    let room = pollfd {
        fd: base,
        events: libc::POLLOUT,
        revents: 0,
    };
    let result = match poll_until(&mut [room], until, looked, &|| ()) {
        Err(libc::EINVAL) => {
            pause(looked, &|| ());
            Ok(())
        }
        result => result,
    };
    match result {
        // The kernel restarts no poll, but it would a send.
        Err(libc::EINTR) if until.is_none() && !seen.interrupting_since() => Ok(()),
        result => result,
    }
}

/// Polls until `until`. `looked`: the handlers that had run when the caller looked whether one ends its call.
fn poll_until(
    fds: &mut [pollfd],
    until: Option<u64>,
    looked: Seen,
    undo: &impl Fn(),
) -> Result<(), Errno> {
    let left = until.map(|until| until.saturating_sub(sys::now()));
    if left == Some(0) {
        return Err(libc::EAGAIN);
    }
    let time = left.map(|left| libc::timespec {
        tv_sec: (left / 1_000_000_000) as i64,
        tv_nsec: (left % 1_000_000_000) as i64,
    });
    // SAFETY: no mask.
    match unsafe { Sleep::poll(fds, time, std::ptr::null(), looked, undo) } {
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

/// When the call is to end by the socket's own timeout, which counts from the first wait; `None`: there is none.
pub(super) fn until(conn: &Conn, want: Want, deadline: &mut Deadline) -> Option<u64> {
    *deadline.get_or_insert_with(|| timeout(conn, want).map(|t| sys::now() + t))
}

/// Whether a receive that waits ends by itself (`SO_RCVTIMEO`).
pub(crate) fn has_time_limit(conn: &Conn) -> bool {
    timeout(conn, Want::Data).is_some()
}

/// The socket's own timeout for this direction, in nanoseconds.
pub(in crate::stream) fn timeout(conn: &Conn, want: Want) -> Option<u64> {
    let socket = conn.socket;
    let (name, none, impatient) = if want == Want::Data {
        (
            libc::SO_RCVTIMEO,
            NO_RCVTIMEO,
            &socket.settings.impatient_receiver,
        )
    } else {
        (
            libc::SO_SNDTIMEO,
            NO_SNDTIMEO,
            &socket.settings.impatient_sender,
        )
    };
    // Other processes may set it, too.
    let is_sole = conn.pair.own.options.forked.load(Ordering::Relaxed) == slot::UNFORKED
        && !socket.adopted.load(Ordering::Relaxed);
    if is_sole && socket.settings.timeouts.load(Ordering::SeqCst) & (none | SETS_TIMEOUTS) == none {
        return None;
    }
    if impatient.load(Ordering::Relaxed) {
        return Some(0);
    }
    let time: libc::timeval = sys::getsockopt(conn.fd, libc::SOL_SOCKET, name).ok()?;
    let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    if ns == 0 {
        socket.settings.timeouts.fetch_or(none, Ordering::SeqCst);
    }
    (ns != 0).then_some(ns)
}
