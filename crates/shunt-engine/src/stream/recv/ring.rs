//! What the ring has to give.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::ring::{Found, Stopped};
use shunt_shm::slot::Way;

use super::back::{after_ring, follow_back};
use super::eof::look;
use super::step::Step;
use crate::iov::Cursor;
use crate::socket::bump;
use crate::stream::errors::abort;
use crate::stream::{Conn, owed};

/// Reads what is in the ring. With the receiving token.
///
/// # Safety
/// The cursor's parts are writable.
pub(super) unsafe fn from_ring(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    let discard = flags & libc::MSG_TRUNC != 0;
    let place = |part| place(part, discard);
    let peek = flags & libc::MSG_PEEK != 0;
    if owed::is_withdrawn(conn) {
        if !owed::follow_withdrawal(conn) {
            return Step::Withdrawn;
        }
        if conn.way_in() != Way::Ring {
            return after_ring(conn);
        }
    } else {
        owed::forget_waits_that_are_over(conn);
    }
    if !peek
        && !discard
        && let Some((target, length)) = cursor.single()
        // SAFETY: the caller's promise.
        && let Some(Ok(n)) = unsafe { conn.consumer().read_short(target, length) }
    {
        cursor.skip(n);
        bump(&conn.socket.rx.ring_bytes, n as u64);
        bump(&conn.socket.rx.user_calls, 1);
        return Step::Bytes;
    }
    // SAFETY: the caller's promise.
    let mut found = unsafe { conn.consumer().read_parts(cursor.rest().map(place), peek) };
    if let Ok(Found::Empty) = found {
        match look(conn) {
            // Bytes that were published before the close come first.
            Some(step) if conn.consumer().is_ready() => {
                if let Step::Failed(errno) = step {
                    conn.error().store(errno, Ordering::Relaxed);
                }
                // SAFETY: the caller's promise.
                found = unsafe { read_behind_end(conn, cursor, flags) };
            }
            seen => {
                let step = seen.unwrap_or(Step::Empty);
                // A call that waits now is counted when it has come to something.
                if matches!(step, Step::End | Step::Failed(_)) || !conn.may_wait(flags) {
                    bump(&conn.socket.rx.user_calls, 1);
                }
                return step;
            }
        }
    }
    match found {
        Ok(Found::Bytes(n)) => {
            cursor.skip(n);
            if !peek {
                bump(&conn.socket.rx.ring_bytes, n as u64);
            }
            bump(&conn.socket.rx.user_calls, 1);
            Step::Bytes
        }
        Ok(Found::Empty) => Step::Empty,
        Ok(Found::Back(_)) => {
            follow_back(conn);
            after_ring(conn)
        }
        Err(Stopped::BadBuffer(_)) => Step::BadBuffer,
        Err(Stopped::Fault) => {
            abort(conn);
            Step::Failed(libc::ECONNRESET)
        }
    }
}

/// Reads the ring once more after the peer's end was seen: bytes that were published before the end
/// come first.
///
/// # Safety
/// The cursor's parts are writable.
#[cold]
unsafe fn read_behind_end(conn: &Conn, cursor: &Cursor, flags: c_int) -> Result<Found, Stopped> {
    let discard = flags & libc::MSG_TRUNC != 0;
    let rest = cursor.rest().map(|part| place(part, discard));
    // SAFETY: the caller's promise.
    unsafe {
        conn.consumer()
            .read_parts(rest, flags & libc::MSG_PEEK != 0)
    }
}

/// Where bytes go: nowhere, if they are only counted (`MSG_TRUNC`).
fn place((base, length): (*mut u8, usize), discard: bool) -> (*mut u8, usize) {
    (if discard { null_mut() } else { base }, length)
}

/// Continues a peek in the ring, after it has seen the last bytes on TCP.
///
/// # Safety
/// The cursor's parts are writable.
pub(super) unsafe fn peek_on(conn: &Conn, cursor: &mut Cursor, flags: c_int) {
    let discard = flags & libc::MSG_TRUNC != 0;
    let rest = cursor.rest().map(|part| place(part, discard));
    // SAFETY: the caller's promise.
    if let Ok(Found::Bytes(n)) = unsafe { conn.consumer().read_parts(rest, true) } {
        cursor.skip(n);
    }
}
