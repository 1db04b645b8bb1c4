//! The way back to TCP of a direction whose receiver is on another host: a record, then what that receiver is not known to have read,
//! then TCP ([`shunt_shm::path::record`]). It goes that way alone and at once, and whenever what it publishes does not go out.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_rdma::resume::BYTES;

use super::kernel_room::Stretched;
use super::look::{GROWTH_MS, is_owing};
use super::resend::{Debt, send_owed};
use crate::stream::conn::Conn;
use crate::stream::errors::{break_off, keep_error};
use crate::stream::far_death::has_died_afar;
use crate::stream::wait::SELDOM;
use crate::thread::{Rest, give};
use crate::{reach, sys, tcp};

/// How long a sender waits until the peer, which is on another host, can receive more, in nanoseconds.
const RECEIVES: u64 = 2_000_000;

/// The events by which the kernel tells that a connection is over, or that a peer sends no more.
const ENDED: u32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as u32;

/// Has the NIC send what has been put into the ring; or leaves the ring, so that TCP sends it. With the sending token. `false`:
/// the direction is the kernel's now.
pub(in crate::stream) fn publish(conn: &Conn) -> bool {
    let (link, slot) = conn.at_nic();
    let reason = if has_ended(conn) {
        Reason::HalfClosed
    } else if !post(link, slot) {
        Reason::Blocked
    } else if conn.sender().is_recalled() {
        Reason::PeerLeft
    } else {
        return true;
    };
    leave_by_record(conn, reason);
    false
}

/// Whether the peer has ended, as of the last look at the kernel, which is asked now and then. Only the kernel knows what becomes of bytes
/// that are sent to such a peer.
fn has_ended(conn: &Conn) -> bool {
    /// Ticks, about 40 µs.
    const SELDOM: u64 = 100_000;
    let (hints, now) = (&conn.socket.hints, sys::ticks());
    if now.wrapping_sub(hints.looked_at.load(Ordering::Relaxed)) > SELDOM
        && let Some(base) = conn.base()
    {
        hints.looked_at.store(now, Ordering::Relaxed);
        let ended = sys::ready(base, libc::POLLRDHUP) as u32 & ENDED;
        hints.kernel_state.fetch_or(ended, Ordering::Relaxed);
    }
    hints.kernel_state.load(Ordering::Relaxed) & ENDED != 0
}

/// For a sender that finds its ring full. `true`: there is room by now, or the direction is the kernel's. A ring of which the peer reads
/// nothing for [`SELDOM`] is left: TCP takes more than it holds, and programs count on that. Without a token.
#[cold]
pub(crate) fn has_room_again(conn: &Conn) -> bool {
    reach::progress();
    if !conn.is_on_ring() || conn.has_room() {
        return true;
    }
    let read = conn.pair.peer.progress.bytes.load(Ordering::Acquire);
    if conn.socket.hints.note_full(read, sys::now()) < SELDOM {
        return false;
    }
    let token = &conn.pair.own.sending.token;
    let taken = conn.take(token);
    if taken {
        if conn.is_on_ring() && !conn.has_room() {
            leave_by_record(conn, Reason::Blocked);
        }
        give(token);
    }
    taken
}

/// Has the NIC send what is in the ring. Where the peer has no receive left, it may be about to post some: this waits for [`RECEIVES`]. `false`: not
/// all of it is out.
fn post(link: u32, slot: u32) -> bool {
    if reach::publish(link, slot) {
        return true;
    }
    let (until, rest) = (sys::now() + RECEIVES, Rest::new());
    loop {
        rest.turn();
        if reach::publish(link, slot) {
            return true;
        }
        if sys::now() >= until || !reach::may_publish(link, slot) {
            return false;
        }
    }
}

/// Leaves the ring. With the sending token.
#[cold]
pub(in crate::stream) fn leave_by_record(conn: &Conn, reason: Reason) {
    let (link, slot) = conn.at_nic();
    let written = |base| tcp::written(base, conn.socket.role());
    let written = conn.base().and_then(written);
    match (written, reach::leave(link, slot)) {
        (Some(written), Some(left)) => {
            let behind = written + BYTES as u64;
            conn.sender()
                .leave_by_record(&left.unread, left.from, behind);
            send(conn);
        }
        // This is a child of the process that has the NIC, or the connection is over.
        _ => {
            break_off(conn);
            conn.sender().agree();
        }
    }
    conn.socket.again.stay();
    conn.socket.set_reason(reason);
    conn.socket.note_record();
}

/// Keeps a direction that is on TCP from ever entering its ring. With the sending token.
pub(in crate::stream) fn stay_out(conn: &Conn) {
    let (link, slot) = conn.at_nic();
    reach::leave(link, slot);
}

/// Answers a recall, and sends what is owed as far as the kernel takes it. With the sending token.
#[cold]
pub(super) fn pay_by_record(conn: &Conn) -> Debt {
    if conn.sender().is_asked() && reach::is_here() && !has_died_afar(conn) {
        if conn.is_on_ring() {
            leave_by_record(conn, Reason::PeerLeft);
        } else {
            stay_out(conn);
            conn.sender().agree();
        }
    }
    if is_owing(conn) {
        send(conn)
    } else {
        Debt::Paid
    }
}

fn send(conn: &Conn) -> Debt {
    let sent = conn.base().map_or(Ok(()), |base| send_record(conn, base));
    match sent {
        Ok(()) => send_owed(conn, GROWTH_MS),
        Err(libc::EAGAIN) => Debt::Owed,
        Err(errno) => {
            keep_error(conn, errno);
            conn.sender().paid();
            Debt::Paid
        }
    }
}

/// Sends what the kernel has not got yet of the record.
fn send_record(conn: &Conn, base: c_int) -> Result<(), sys::Errno> {
    let (link, slot) = conn.at_nic();
    let lacks = || {
        let written = tcp::written(base, conn.socket.role())?;
        conn.sender().lacks_of_record(BYTES as u64, written)
    };
    let Some(mut lacks) = lacks() else {
        // The connection is over, as the next step finds, too.
        return Ok(());
    };
    if lacks == 0 {
        return Ok(());
    }
    let from = conn.pair.own.recall.owed_bytes.load(Ordering::Relaxed);
    let record = reach::record(link, slot, from).ok_or(libc::EPIPE)?;
    let mut stretched = None;
    while lacks > 0 {
        let rest = &record[BYTES - lacks as usize..];
        match sys::send_more(base, rest.as_ptr(), rest.len()) {
            Ok(n) => lacks -= n as u64,
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) if stretched.is_none() => stretched = Some(Stretched::new(base)),
            Err(errno) => return Err(errno),
        }
    }
    // Has the kernel send the record now, also where nothing that is owed follows it.
    sys::push(base);
    Ok(())
}
