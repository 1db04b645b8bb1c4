//! Counts of bytes: taken from TCP, waiting there, and in the ring.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_shm::slot::Way;

use crate::stream::conn::Conn;
use crate::sys::{self, Errno};
use crate::tcp;

/// Asks the kernel how much was taken from the base socket, where this side's own count may be behind:
/// a process has died with the receiving token, or a call has received without it. With the receiving
/// token. `false`: the kernel does not know, and it matters.
pub(in crate::stream) fn recount(conn: &Conn) -> bool {
    let receiving = &conn.pair.own.receiving;
    let way = conn.way_in();
    // From there on the program takes bytes by real calls, without the token.
    let path = conn.receiver();
    if way == Way::TcpAgain && !path.awaits() && path.is_bringing().is_none() {
        return true;
    }
    let Some(taken) = conn.base().and_then(tcp::consumed_at_last) else {
        return way == Way::Ring;
    };
    // Nobody counts what he has not taken; and of a connection whose reset has been told the kernel's count is one less.
    receiving.kernel_bytes.fetch_max(taken, Ordering::Relaxed);
    true
}

/// Shortens a list of buffers to `most` bytes; returns how many are left.
pub(super) fn truncate(parts: &mut [iovec], mut most: usize) -> usize {
    for (i, part) in parts.iter_mut().enumerate() {
        if part.iov_len >= most {
            part.iov_len = most;
            return i + 1;
        }
        most -= part.iov_len;
    }
    parts.len()
}

/// How much a receive of up to `most` bytes would take now.
pub(super) fn arrived(base: c_int, most: usize) -> Result<usize, Errno> {
    // Copies nothing, and leaves the bytes there.
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    sys::recv(base, std::ptr::null_mut(), most, flags)
}

/// Bytes in the peer's ring: never more than can be read, and some if any can.
pub(super) fn ring_bytes(conn: &Conn) -> u64 {
    if conn.is_mirrored() {
        return conn.unread_in_ring().unwrap_or(0);
    }
    let read = conn.pair.own.progress.bytes.load(Ordering::Relaxed);
    let written = conn.pair.peer.output.bytes.load(Ordering::Acquire);
    written
        .saturating_sub(read)
        .max(u64::from(conn.consumer().at_hand()))
        .min(shunt_abi::layout::RING_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_shortened_to_a_number_of_bytes() {
        let of = |lengths: [usize; 3]| {
            lengths.map(|iov_len| iovec {
                iov_base: std::ptr::null_mut(),
                iov_len,
            })
        };
        let shortened = |most| {
            let mut parts = of([4, 4, 4]);
            let left = truncate(&mut parts, most);
            parts[..left]
                .iter()
                .map(|part| part.iov_len)
                .collect::<Vec<_>>()
        };
        assert_eq!((shortened(6), shortened(4)), (vec![4, 2], vec![4]));
        assert_eq!((shortened(0), shortened(100)), (vec![0], vec![4, 4, 4]));
    }
}

#[cfg(all(test, not(miri)))]
mod recounted {
    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn what_was_taken_before_a_reset_counts_after_it() {
        let ends = BothEnds::attached();
        let [near, far] = ends.fds;
        let conn = &ends.conns()[1];
        let counted = || conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
        let mut bytes = [0u8; 3];
        assert_eq!(sys::send(near, b"abc"), Ok(3));
        assert_eq!(sys::recv(far, bytes.as_mut_ptr(), 3, 0), Ok(3));
        assert!(recount(conn));
        assert_eq!(counted(), 3);
        sys::reset(near);
        while sys::ready(far, libc::POLLHUP) & libc::POLLHUP == 0 {
            std::thread::yield_now();
        }
        let told = sys::recv(far, bytes.as_mut_ptr(), 3, libc::MSG_DONTWAIT);
        assert_eq!(told, Err(libc::ECONNRESET));
        recount(conn);
        assert_eq!(counted(), 3);
    }
}
