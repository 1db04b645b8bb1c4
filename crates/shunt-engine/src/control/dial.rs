//! Finding the daemon and being introduced to it.

use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use shunt_abi::message::{Kind, Message};
use shunt_abi::{PROTOCOL, Reason};

use super::wire::Sent;
use super::{GREETED, PATIENCE_MS, RETRY_AT, RETRY_NS, SOCKET, WHY_NOT, board, request, wire};
use crate::{region, stats, sys};

/// As which user this process, or the one that forked it, found a daemon last.
static SERVED: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;

/// Connects, introduces itself, and waits a little for the welcome. With the lock.
pub(super) fn open() -> bool {
    RETRY_AT.store(sys::now() + RETRY_NS, Ordering::Relaxed);
    // SAFETY: takes nothing and cannot fail.
    let uid = unsafe { libc::geteuid() };
    if !shunt_shm::atomic::register() {
        return false;
    }
    let (fd, patience) = match GREETED.take() {
        Some(fd) => (fd, 0),
        None => match greet(uid) {
            Some(fd) => {
                show_counters(fd);
                (fd, PATIENCE_MS)
            }
            None => {
                let served = SERVED.load(Ordering::Relaxed);
                if served != NOBODY && served != uid {
                    WHY_NOT.store(Reason::OtherUser as u32, Ordering::Relaxed);
                }
                return false;
            }
        },
    };
    if sys::poll_ms(fd, libc::POLLIN, patience) == 0 {
        // Overloaded or stopped: looked at again soon, without waiting.
        GREETED.keep(fd);
        RETRY_AT.store(sys::now() + RETRY_NS / 100, Ordering::Relaxed);
        return false;
    }
    let welcome = match wire::receive(fd) {
        Ok(Some((m, passed))) if m.kind() == Some(Kind::Welcome) => (m, passed),
        _ => {
            sys::close(fd);
            return false;
        }
    };
    let (m, passed) = welcome;
    let mapped = passed.map(|b| (board::map(b), sys::close(b)).0);
    let refused = if m.protocol != PROTOCOL {
        Reason::Version as u8
    } else {
        m.status
    };
    let (0, Some(Some(board))) = (refused, mapped) else {
        WHY_NOT.store(u32::from(refused.max(1)), Ordering::Relaxed);
        sys::close(fd);
        return false;
    };
    board::adopt(board, m.index);
    SERVED.store(uid, Ordering::Relaxed);
    SOCKET.keep(fd);
    request::tell_everything();
    true
}

/// A new connection on which this process has introduced itself.
pub(super) fn greet(uid: u32) -> Option<c_int> {
    let fd = sys::move_high(dial(None, uid).or_else(|| dial(Some(uid), uid))?);
    let mut hello = Message::new(Kind::Hello);
    hello.name = sys::comm();
    if wire::transmit(fd, &hello, None) == Sent::Done {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// Right behind the introduction, so that the daemon knows of the counters however late it
/// comes to read, and whatever becomes of this process.
fn show_counters(fd: c_int) {
    if let Some(file) = region::file()
        && wire::transmit(fd, &Message::new(Kind::Counters), Some(file)) == Sent::Done
        && let Some(lines) = stats::file()
    {
        wire::transmit(fd, &Message::new(Kind::Statistics), Some(lines));
    }
}

/// A connection to the daemon at this address, if it is one to be trusted.
fn dial(serves: Option<u32>, uid: u32) -> Option<c_int> {
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let mut name = [0u8; 40];
    let length = write_name(&mut name, serves);
    for (to, from) in address.sun_path[1..].iter_mut().zip(&name[..length]) {
        *to = *from as _;
    }
    let fd = sys::socket(
        libc::AF_UNIX,
        libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
    )
    .ok()?;
    let reached = sys::connect(fd, &address, size_of::<u16>() + 1 + length).is_ok();
    let owner = sys::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED);
    if reached && owner.is_ok_and(|o| o.uid == 0 || o.uid == uid) {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// [`shunt_abi::control_name`] without an allocator.
fn write_name(to: &mut [u8; 40], serves: Option<u32>) -> usize {
    use std::io::Write as _;
    let mut cursor = std::io::Cursor::new(&mut to[..]);
    let _ = match serves {
        Some(uid) => write!(cursor, "shunt/{PROTOCOL}/user/{uid}"),
        None => write!(cursor, "shunt/{PROTOCOL}/host"),
    };
    cursor.position() as usize
}
