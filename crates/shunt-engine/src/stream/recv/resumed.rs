//! A direction that comes from another host: what its NIC has brought, and how it goes back to TCP
//! ([`shunt_shm::path::record`]). The record is taken off by the first look that finds the ring empty; what the view of the ring has shown
//! by then is read there.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_rdma::link::Resumed;
use shunt_rdma::resume::BYTES;

use crate::reach;
use crate::socket::bump;
use crate::stream::conn::Conn;
use crate::stream::proposal::stay_on_tcp;
use crate::sys::{self, Errno};

/// The outcome of a look.
pub(in crate::stream) enum Resumption {
    /// Nothing new.
    Nothing,
    /// Something may be read, where the direction's way says.
    Some,
    /// Nothing more comes by TCP.
    End,
    Failed(Errno),
    /// The peer breaks the rules.
    Wrong,
}

/// Looks for what may have come where the ring is empty. With the receiving token.
#[cold]
pub(super) fn look_around(conn: &Conn) -> Resumption {
    reach::progress();
    if conn.consumer().is_ready() {
        return Resumption::Some;
    }
    let found = follow(conn, true);
    if matches!(found, Resumption::End) {
        // Takes completions: they bring what the peer has written to the ring before that.
        reach::progress();
        if conn.consumer().is_ready() {
            return Resumption::Some;
        }
    }
    found
}

/// Follows a peer that has left its ring, or has never entered it. With the receiving token, in the ring. `reads`: what the view of
/// the ring still has is read there; otherwise TCP brings it.
pub(in crate::stream) fn follow(conn: &Conn, reads: bool) -> Resumption {
    let Some(base) = conn.base() else {
        return Resumption::Failed(libc::EBADF);
    };
    if !conn.receiver().has_record()
        && let Some(found) = look_for_record(conn, base)
    {
        return found;
    }
    if reads && conn.consumer().is_ready() {
        return Resumption::Some;
    }
    drop_doubled(conn, base)
}

/// Looks for a record in what TCP has brought. `None`: there was one, and it has been taken off.
fn look_for_record(conn: &Conn, base: c_int) -> Option<Resumption> {
    let path = conn.receiver();
    if path.is_void() && !conn.consumer().is_ready() {
        stay_on_tcp(conn);
        return Some(Resumption::Some);
    }
    let mut bytes = [0; BYTES];
    let now = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let n = match sys::recv(base, bytes.as_mut_ptr(), BYTES, now) {
        Ok(0) => return Some(Resumption::End),
        Ok(n) => n,
        Err(libc::EAGAIN | libc::EINTR) => return Some(Resumption::Nothing),
        Err(errno) => return Some(Resumption::Failed(errno)),
    };
    let (link, slot) = conn.at_nic();
    match reach::resume(link, slot, &bytes[..n]) {
        Resumed::Record(doubled) => {
            let read = conn.pair.own.progress.bytes.load(Ordering::Relaxed);
            if sys::recv(base, bytes.as_mut_ptr(), BYTES, libc::MSG_DONTWAIT) != Ok(BYTES) {
                return Some(Resumption::Wrong);
            }
            bump(&conn.pair.own.receiving.kernel_bytes, BYTES as u64);
            path.note_record(read - doubled);
            None
        }
        // Bytes that only begin like a record are none, if nothing can follow them.
        Resumed::Begins if !has_ended(base) => Some(Resumption::Nothing),
        Resumed::Begins | Resumed::Plain => {
            stay_on_tcp(conn);
            Some(Resumption::Some)
        }
        Resumed::Wrong => Some(Resumption::Wrong),
    }
}

fn has_ended(base: c_int) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    sys::ready(base, libc::POLLRDHUP) & ENDED != 0
}

/// Drops those bytes behind the record that have already been read in the ring.
fn drop_doubled(conn: &Conn, base: c_int) -> Resumption {
    let path = conn.receiver();
    loop {
        let left = path.doubled();
        if left == 0 {
            path.follow_back();
            conn.socket.note_record();
            if conn.socket.reason() == Reason::Pending {
                conn.socket.set_reason(Reason::PeerLeft);
            }
            return Resumption::Some;
        }
        // Copies nothing.
        let now = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        match sys::recv(base, std::ptr::null_mut(), left as usize, now) {
            Ok(0) => return Resumption::End,
            Ok(n) => bump(&conn.pair.own.receiving.kernel_bytes, n as u64),
            Err(libc::EAGAIN | libc::EINTR) => return Resumption::Nothing,
            Err(errno) => return Resumption::Failed(errno),
        }
    }
}
