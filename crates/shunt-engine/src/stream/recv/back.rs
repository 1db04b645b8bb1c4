//! What follows the ring: the peer has left it, and its bytes come over TCP again.

use std::sync::atomic::Ordering;

use libc::iovec;
use shunt_abi::Reason;
use shunt_shm::atomic::light;
use shunt_shm::slot::{self, Recall, Way};

use super::brought::{is_bringing, note_brought};
use super::tcp::switch_offset;
use super::{PARTS, Step};
use crate::config::hesitate;
use crate::iov::{self, Cursor};
use crate::socket::bump;
use crate::stream::Conn;
use crate::stream::downgrade::{HELD, UNKNOWN, has_passed_the_end, is_never_answered};
use crate::stream::swallow::take_bells;
use crate::{real, sys};

/// The peer has left the ring: its bytes go on over TCP from `offset`.
pub(in crate::stream) fn follow_back(conn: &Conn, offset: u64) {
    let receiving = &conn.pair.own.receiving;
    receiving.resume_at.store(offset, Ordering::Relaxed);
    light();
    hesitate();
    Way::TcpAgain.store(&receiving.way);
    // Doorbells could not wait for it; payload can.
    let rcvlowat = conn.pair.own.options.rcvlowat.load(Ordering::Relaxed) as i32;
    if rcvlowat > 1 {
        let _ = sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &rcvlowat);
    }
    conn.socket.note_downgrade();
    if conn.socket.reason() == Reason::Pending {
        let peer = conn.pair.peer_state();
        conn.socket.set_reason(if peer & slot::RECALLED != 0 {
            Reason::PeerLeft
        } else if peer & slot::WITHDRAWN != 0 {
            Reason::Ended
        } else {
            Reason::Blocked
        });
    }
}

/// Having recalled the stream, with the receiving token: whether what comes by TCP
/// is payload, and all of it is sent or will be.
pub(in crate::stream) fn is_home(conn: &Conn) -> bool {
    let recall = &conn.pair.own.recall;
    let settled = match recall.stage.load(Ordering::Relaxed) {
        Recall::NONE | Recall::DONE => true,
        _ => has_answered(conn),
    };
    // An error that the kernel has is for who asks for it.
    const OVER: i16 = libc::POLLERR | libc::POLLHUP;
    if sys::ready(conn.fd, 0) & OVER != 0
        && sys::ioctl_int(conn.fd, libc::FIONREAD).is_ok_and(|n| n == 0)
    {
        return true;
    }
    let step = after_ring(conn);
    // Of one that has ended no answer is needed.
    let resume = conn.pair.own.receiving.resume_at.load(Ordering::Relaxed);
    let settled = settled || !matches!(resume, UNKNOWN | HELD);
    settled && !matches!(step, Step::Empty | Step::Held | Step::Moved)
}

/// Whether the peer has answered our recall, or had left before it and nothing is
/// lost by that.
fn has_answered(conn: &Conn) -> bool {
    let peer = conn.pair.peer;
    let on_ring = conn.pair.own.receiving.resume_at.load(Ordering::Relaxed) != HELD;
    conn.pair.has_begun()
        && (peer.recall.answered.load(Ordering::Acquire) == Recall::AGREED
            || on_ring
                && peer.output.back_at.load(Ordering::Acquire) != 0
                && conn.consumer().has_ended())
}

/// Where payload begins, once the peer has answered our recall.
fn learn_resume(conn: &Conn) -> Option<u64> {
    // In this order: who has ended begins with its ring no more.
    let only_tcp = || has_passed_the_end(conn) && switch_offset(conn).is_none();
    if !has_answered(conn) && !only_tcp() {
        return None;
    }
    let receiving = &conn.pair.own.receiving;
    // Once what came before the ring has been read, doorbells come next.
    let taken = receiving.kernel_bytes.load(Ordering::Relaxed);
    let held = receiving.resume_at.load(Ordering::Relaxed) == HELD
        && switch_offset(conn).is_none_or(|switched| taken < switched);
    hesitate();
    let back_at = conn.pair.peer.output.back_at.load(Ordering::Acquire);
    let resume = match back_at.checked_sub(1) {
        Some(resume) if !held => resume,
        // It had not begun with its ring, or no doorbell lies before what it sends.
        _ => taken,
    };
    receiving.resume_at.store(resume, Ordering::Relaxed);
    if let Some(from) = back_at.checked_sub(1) {
        note_brought(conn, from);
    }
    Some(resume)
}

/// On TCP again: swallows the doorbells before the payload goes on, then the
/// kernel does the rest.
pub(super) fn after_ring(conn: &Conn) -> Step {
    let receiving = &conn.pair.own.receiving;
    let resume = match receiving.resume_at.load(Ordering::Relaxed) {
        unknown @ (UNKNOWN | HELD) => match learn_resume(conn) {
            Some(resume) => resume,
            None if is_never_answered(conn) => return Step::Moved,
            None if unknown == HELD => return Step::Held,
            None => {
                return match take_bells(conn) {
                    Ok(true) => Step::End,
                    Ok(false) => Step::Empty,
                    Err(errno) => Step::Failed(errno),
                };
            }
        },
        resume => resume,
    };
    loop {
        let taken = receiving.kernel_bytes.load(Ordering::Relaxed);
        if taken >= resume {
            let brings = is_bringing(conn).is_some();
            return if brings { Step::Brings } else { Step::Kernel };
        }
        let Some(base) = conn.base() else {
            return Step::Failed(libc::EBADF);
        };
        let mut bells = [0u8; 64];
        let want = bells.len().min((resume - taken) as usize);
        match sys::recv(base, bells.as_mut_ptr(), want, libc::MSG_DONTWAIT) {
            Ok(0) => return Step::End,
            Ok(n) => bump(&receiving.kernel_bytes, n as u64),
            Err(libc::EAGAIN) => return Step::Empty,
            Err(errno) => return Step::Failed(errno),
        }
    }
}

/// After the ring: what TCP has already, and `least` bytes in all. What stops it
/// is told by the next call, as after any short count.
///
/// # Safety
/// The cursor's parts are writable.
pub(super) unsafe fn rest_from_tcp(conn: &Conn, cursor: &mut Cursor, least: usize) {
    // The kernel tells an error once, and not to who has bytes to return.
    let has_failed = || sys::ready(conn.fd, 0) & libc::POLLERR != 0;
    while cursor.remaining() > 0 && !at_mark(conn) && !has_failed() {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PARTS];
        let count = cursor.copy_rest(&mut rest);
        // SAFETY: all-zero is a valid header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = count;
        let wanted = iov::total(&rest[..count]);
        let waits = cursor.done() < least;
        let n = if waits {
            // SAFETY: the caller's promise.
            real::quietly(|| unsafe { real::recvmsg()(conn.fd, &raw mut message, 0) }).unwrap_or(0)
                as usize
        } else {
            sys::recvmsg(conn.fd, &raw mut message, libc::MSG_DONTWAIT).unwrap_or(0)
        };
        cursor.skip(n);
        if n == 0 || n < wanted && cursor.done() >= least {
            break;
        }
    }
}

/// Whether the next byte on TCP is the urgent one, which ends a receive
/// (`tcp(7)`, `SIOCATMARK`).
pub(crate) fn at_mark(conn: &Conn) -> bool {
    const SIOCATMARK: u64 = 0x8905;
    sys::ioctl_int(conn.fd, SIOCATMARK).is_ok_and(|mark| mark != 0)
}
