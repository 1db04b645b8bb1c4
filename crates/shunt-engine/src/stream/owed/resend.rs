//! Sending again by TCP what has not been read of a ring.

use libc::c_int;
use shunt_shm::path::unread::Unread;
use shunt_shm::ring::{Consumer, Found, Memory};

use super::kernel_room::Stretched;
use crate::config::hesitate;
use crate::stream::conn::Conn;
use crate::stream::errors;
use crate::sys::{self, Errno};
use crate::tcp;

/// What became of what is owed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::stream) enum Debt {
    /// TCP has it all: the direction is the kernel's.
    Paid,
    /// The kernel has no room for all of it yet.
    Owed,
    /// The peer is in the middle of its recall, and has not said yet which side sends it.
    Unsaid,
    /// The connection has ended, with this error.
    Void(Errno),
}

impl Debt {
    /// Whether nothing can be sent yet that comes after what is owed.
    pub(in crate::stream) fn is_open(self) -> bool {
        matches!(self, Self::Owed | Self::Unsaid)
    }
}

/// Bytes given to the kernel at a time.
const STEP: usize = 256 << 10;

/// How poll tells of a connection that is over.
const ENDED: i16 = libc::POLLHUP | libc::POLLERR;

/// Sends what is owed, as far as the kernel takes it. With the sending token.
pub(super) fn send_owed(conn: &Conn, patience_ms: i64) -> Debt {
    hesitate();
    let debt = conn.base().map_or(Some(Debt::Paid), |base| {
        let written = tcp::written(base, conn.socket.role());
        match written.and_then(|written| conn.sender().owed(written)) {
            Some((unread, sent)) => resend(&unread, conn.pair.out, sent, base, patience_ms),
            // The connection is over.
            None => Some(Debt::Paid),
        }
    });
    errors::name_reset(conn);
    match debt {
        Some(debt @ (Debt::Owed | Debt::Unsaid)) => return debt,
        Some(Debt::Paid) => {}
        // The program has still to hear of it.
        Some(Debt::Void(errno)) => errors::keep_error(conn, errno),
        None => errors::abort(conn),
    }
    conn.sender().paid();
    Debt::Paid
}

/// Sends what is unread in this ring to `fd`, without the first `sent` bytes. `None`: the ring is
/// broken, or TCP refuses more although the connection is not over.
pub(in crate::stream) fn resend(
    unread: &Unread,
    ring: Memory,
    mut sent: u64,
    fd: c_int,
    patience_ms: i64,
) -> Option<Debt> {
    // A wrong word in the ring may lead into payload, and payload may lead round in circles.
    let most = u64::from(ring.size()).checked_sub(sent)?;
    unread.read_by(ring, |consumer| {
        while sent > 0 {
            // SAFETY: to nowhere.
            match unsafe { consumer.read(std::ptr::null_mut(), sent as usize, false) } {
                Ok(Found::Bytes(n)) => sent -= n as u64,
                Ok(_) => return Some(Debt::Paid),
                Err(_) => return None,
            }
        }
        drain(consumer, most, fd, patience_ms)
    })?
}

fn drain(consumer: &Consumer, mut most: u64, fd: c_int, patience_ms: i64) -> Option<Debt> {
    let mut stretched = None;
    loop {
        let send = |from: *const u8, n: usize| sys::send_more(fd, from, n);
        let debt = match consumer.drain(STEP, send) {
            Ok(Ok(0)) => Some(Debt::Paid),
            Ok(Ok(n)) if n as u64 <= most => {
                most -= n as u64;
                continue;
            }
            Ok(Err(libc::EINTR)) => continue,
            Ok(Err(libc::EAGAIN)) if stretched.is_none() => {
                stretched = Some(Stretched::new(fd));
                continue;
            }
            // The kernel's buffers grow as what they hold is acknowledged.
            Ok(Err(libc::EAGAIN)) if sys::poll_ms(fd, libc::POLLOUT, patience_ms) != 0 => continue,
            Ok(Err(libc::EAGAIN)) => Some(Debt::Owed),
            Ok(Err(errno)) if sys::ready(fd, 0) & ENDED != 0 => Some(Debt::Void(errno)),
            // If TCP refused these bytes and carried later ones, nobody would notice the gap.
            Ok(_) | Err(_) => None,
        };
        sys::push(fd);
        return debt;
    }
}
