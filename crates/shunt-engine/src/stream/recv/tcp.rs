//! What TCP has to give before the ring, and where the ring begins.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_shm::slot::{self, Way};

use super::back::after_ring;
use super::count::{arrived, truncate};
use super::end::{failure, last};
use super::ring::{from_ring, peek_on};
use super::settle::settle;
use super::step::{PARTS, Step};
use crate::config::hesitate;
use crate::iov::{self, Cursor};
use crate::socket::bump;
use crate::stream::Conn;
use crate::sys;

/// On TCP, and the peer may switch at any moment.
///
/// # Safety
/// The cursor's parts are writable.
pub(super) unsafe fn from_tcp(conn: &Conn, cursor: &mut Cursor, flags: c_int) -> Step {
    if settle(conn) {
        // SAFETY: the caller's promise.
        return unsafe { from_ring(conn, cursor, flags) };
    }
    if conn.way_in() != Way::Tcp {
        return after_ring(conn);
    }
    let receiving = &conn.pair.own.receiving;
    let before = receiving.kernel_bytes.load(Ordering::Relaxed);
    let mut rest = [iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS];
    let mut count = cursor.copy_rest(&mut rest);
    let path = conn.receiver();
    if let Some(offset) = path.switch_offset() {
        count = truncate(&mut rest[..count], offset.saturating_sub(before) as usize);
    }
    let wanted = iov::total(&rest[..count]);
    let Some(base) = conn.base() else {
        return Step::Failed(libc::EBADF);
    };
    // SAFETY: all-zero is a valid header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = rest.as_mut_ptr();
    message.msg_iovlen = count;
    let peek = flags & libc::MSG_PEEK != 0;
    if peek && count == PARTS {
        // A look cannot be had in parts.
        let all = cursor.all();
        message.msg_iov = all.as_ptr().cast_mut();
        message.msg_iovlen = all.len();
    }
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    bump(&conn.socket.rx.kernel_calls, 1);
    hesitate();
    // The peer may switch to its ring and leave that again before this takes anything; not one that
    // has refused to.
    let stays = conn.pair.peer_state() & slot::REFUSED != 0;
    let unsure = !peek && wanted > 0 && !stays && path.switch_offset().is_none();
    let arrived = if unsure {
        arrived(base, wanted)
    } else {
        Ok(wanted)
    };
    hesitate();
    let received = match arrived {
        Ok(there @ 1..) if unsure => {
            let most = path.before_ring(there as u64) as usize;
            message.msg_iovlen = truncate(&mut rest[..count], most);
            sys::recvmsg(base, &raw mut message, flags)
        }
        Ok(_) if !unsure => sys::recvmsg(base, &raw mut message, flags),
        ended => ended,
    };
    let n = match received {
        Ok(0) if wanted == 0 => return Step::Bytes,
        // The peer may have moved to the ring before it ended.
        // SAFETY: the caller's promise.
        Ok(0) if settle(conn) => return unsafe { from_ring(conn, cursor, flags) },
        Ok(0) => return last(conn),
        Ok(n) => n,
        Err(libc::EAGAIN) => {
            // Taken from the kernel by a call that had bytes to return; behind what was
            // in the queue, as in the kernel.
            let pending = conn.error().load(Ordering::Relaxed);
            return match pending {
                0 => Step::Empty,
                errno => failure(conn, errno),
            };
        }
        Err(errno) => {
            if settle(conn) {
                conn.error().store(errno, Ordering::Relaxed);
                // SAFETY: the caller's promise.
                return unsafe { from_ring(conn, cursor, flags) };
            }
            return failure(conn, errno);
        }
    };
    if !peek {
        receiving
            .kernel_bytes
            .store(before + n as u64, Ordering::Relaxed);
    }
    hesitate();
    // A look may have seen what follows the ring.
    let payload = path.before_ring(n as u64) as usize;
    let payload = if peek { payload } else { n };
    cursor.skip(payload);
    if payload == 0 {
        return Step::Moved;
    }
    if peek && path.switch_offset() == Some(before + payload as u64) {
        // SAFETY: the caller's promise.
        unsafe { peek_on(conn, cursor, flags) };
    }
    if !peek && payload == wanted && cursor.remaining() > 0 {
        // More buffers than go at once.
        // SAFETY: the caller's promise.
        return match unsafe { from_tcp(conn, cursor, flags) } {
            Step::Failed(errno) => {
                // Told by the next call, as after any short count.
                conn.error().store(errno, Ordering::Relaxed);
                Step::Bytes
            }
            Step::Empty | Step::End => Step::Bytes,
            other => other,
        };
    }
    Step::Bytes
}
