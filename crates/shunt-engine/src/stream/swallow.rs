//! Which bytes in the base socket's queue are doorbells, and who takes them out?
//!
//! The peer counts a doorbell before it rings, and says where payload begins before it
//! sends any by TCP again. Ringing is [`super::bell`].

use std::sync::atomic::Ordering;

use shunt_shm::atomic::heavy;
use shunt_shm::slot::{self, Way};

use super::recv::switch_offset;
use super::{Conn, owed};
use crate::socket::bump;
use crate::sys::{self, Errno};
use crate::thread::give;

/// Takes doorbells from the base socket's queue, unless another thread must
/// still be woken by them.
pub(crate) fn swallow(conn: &Conn) {
    let receiving = &conn.pair.own.receiving;
    if conn.take(&receiving.token) {
        if conn.way_in() != Way::Ring {
            // They are told from payload by the offset where that begins.
        } else if receiving.sleepers.load(Ordering::Acquire) == 0 {
            while take_some_bells(conn, u64::MAX) == Ok(Heard::Bells) && any_bells(conn) {}
        } else {
            take_stale_bells(conn);
        }
        give(&receiving.token);
    }
}

/// With the receiving token, while threads are counted as asleep on the connection, perhaps for
/// ever: a signal handler has left their call by `siglongjmp`, or their process, which shared it
/// by fork, was killed there. Takes the doorbells that tell of nothing any more. Who does sleep
/// is told anew of whatever comes after them.
#[cold]
fn take_stale_bells(conn: &Conn) {
    // What they tell of was published before they were counted.
    let stale = sent_by_tcp(conn);
    conn.pair.own.face.naps.fetch_add(1, Ordering::AcqRel);
    // Pairs with the light barrier before a waker's look at the nap: it sees this one, or this
    // side what it has published.
    heavy();
    // Threads of several processes that wait for room look from time to time, others do not.
    let shared = conn.pair.own.options.forked.load(Ordering::Relaxed) == slot::SHARED;
    let waiting = if shared { 0 } else { slot::WAIT_TX } | slot::WANT_TX;
    let room = || {
        conn.pair.own.face.wait.load(Ordering::Relaxed) & waiting != 0
            && (conn.has_room() || conn.pair.peer_state() & slot::LEAVING != 0)
    };
    if conn.consumer().is_ready() || owed::is_withdrawn(conn) || owed::is_asked(conn) || room() {
        return;
    }
    let left =
        || stale.saturating_sub(conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed));
    while left() > 0 && take_some_bells(conn, left()) == Ok(Heard::Bells) {}
}

/// Whether the peer has counted doorbells that this side has not taken.
pub(super) fn any_bells(conn: &Conn) -> bool {
    let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
    sent_by_tcp(conn) != taken
}

/// Where the peer's TCP stream ends while it is on the ring, doorbells included.
fn sent_by_tcp(conn: &Conn) -> u64 {
    let output = &conn.pair.peer.output;
    let switched = output.switch_at.load(Ordering::Acquire).wrapping_sub(1);
    switched.wrapping_add(output.bells.load(Ordering::Acquire))
}

/// How many of them this side has not taken that the peer has rung for sure.
fn bells_for_sure(conn: &Conn) -> u64 {
    let output = &conn.pair.peer.output;
    let Some(switched) = output.switch_at.load(Ordering::Acquire).checked_sub(1) else {
        return 0;
    };
    let rung = switched.wrapping_add(output.rung.load(Ordering::Acquire));
    rung.saturating_sub(conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed))
}

/// With the receiving token, on the ring: takes the doorbells from the base
/// socket's queue. `Ok(true)`: end of file, which may be right behind them.
pub(super) fn take_bells(conn: &Conn) -> Result<bool, Errno> {
    loop {
        match take_some_bells(conn, u64::MAX)? {
            Heard::Bells => {}
            Heard::Nothing => return Ok(false),
            Heard::End => return Ok(true),
        }
    }
}

/// What the base socket's queue had.
#[derive(PartialEq, Eq)]
enum Heard {
    Bells,
    Nothing,
    End,
}

/// [`take_bells`], once, and no more than `most`.
fn take_some_bells(conn: &Conn, most: u64) -> Result<Heard, Errno> {
    let Some(base) = conn.base() else {
        return Err(libc::EBADF);
    };
    let mut bells = [0u8; 64];
    let most = most.min(bells.len() as u64) as usize;
    let sure = bells_for_sure(conn).min(most as u64) as usize;
    let taken = if sure > 0 {
        sys::recv(base, bells.as_mut_ptr(), sure, libc::MSG_DONTWAIT)
    } else {
        // Look first: if payload had followed the doorbells, the peer's word of
        // where it begins would be there by now.
        let peek = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        match sys::recv(base, bells.as_mut_ptr(), most, peek) {
            Ok(n) if n > 0 && payload_follows(conn, n) => {
                return take_last_bells(conn).map(|()| Heard::Nothing);
            }
            Ok(n) if n > 0 => sys::recv(base, bells.as_mut_ptr(), n, libc::MSG_DONTWAIT),
            other => other,
        }
    };
    match taken {
        Ok(0) => Ok(Heard::End),
        Ok(n) => {
            bump(&conn.pair.own.receiving.kernel_bytes, n as u64);
            bump(&conn.socket.rx.doorbells, n as u64);
            Ok(Heard::Bells)
        }
        Err(libc::EAGAIN | libc::EINTR) => Ok(Heard::Nothing),
        Err(errno) => {
            conn.socket.pending_error.store(errno, Ordering::Relaxed);
            Err(errno)
        }
    }
}

/// With the receiving token: takes the doorbells that the peer has sent, also
/// those still on their way.
pub(super) fn take_all_bells(conn: &Conn) {
    /// A doorbell takes microseconds, unless its sender was stopped in the middle.
    const PATIENCE: u64 = 20_000_000;
    let receiving = &conn.pair.own.receiving;
    let mut until = None;
    loop {
        let over = match conn.way_in() {
            Way::Tcp => return,
            // It has never rung in this life.
            _ if switch_offset(conn).is_none() => return,
            Way::Ring => !matches!(take_bells(conn), Ok(false)),
            Way::TcpAgain | Way::Owing => take_last_bells(conn).is_err_and(|e| e != libc::EAGAIN),
        };
        let taken = receiving.kernel_bytes.load(Ordering::Relaxed);
        if over
            || taken >= sent_by_tcp(conn)
            || sys::now() >= *until.get_or_insert_with(|| sys::now() + PATIENCE)
        {
            return;
        }
        sys::sched_yield();
    }
}

/// Whether the peer has left the ring and payload begins within the next `n` bytes.
fn payload_follows(conn: &Conn, n: usize) -> bool {
    let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
    let begins = conn.pair.peer.output.back_at.load(Ordering::Acquire);
    begins != 0 && begins - 1 < taken.saturating_add(n as u64)
}

/// Takes the doorbells before the payload, and none of that.
fn take_last_bells(conn: &Conn) -> Result<(), Errno> {
    let receiving = &conn.pair.own.receiving;
    let base = conn.base().ok_or(libc::EBADF)?;
    // The peer's word: it may say one thing now and another then.
    let back_at = conn.pair.peer.output.back_at.load(Ordering::Acquire);
    let Some(begins) = back_at.checked_sub(1).filter(|_| conn.pair.has_begun()) else {
        return Ok(());
    };
    let mut bell = [0u8; 64];
    while let left @ 1.. = begins.saturating_sub(receiving.kernel_bytes.load(Ordering::Relaxed)) {
        let n = sys::recv(
            base,
            bell.as_mut_ptr(),
            bell.len().min(left as usize),
            libc::MSG_DONTWAIT,
        )?;
        if n == 0 {
            break;
        }
        bump(&receiving.kernel_bytes, n as u64);
        bump(&conn.socket.rx.doorbells, n as u64);
    }
    Ok(())
}
