//! Finding the daemon and being introduced to it.

use std::mem::size_of;
use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::message::{Kind, Message};
use shunt_abi::{PROTOCOL, Reason};

use super::{
    FD, GREETED, INODE, PATIENCE_MS, RETRY_AT, RETRY_NS, WHY_NOT, board, inode, request, wire,
};
use crate::sys;
use crate::table::{self, Entry};

/// Connects, introduces itself, and waits a little for the welcome. With the lock.
pub(super) fn open() -> bool {
    RETRY_AT.store(sys::now() + RETRY_NS, Ordering::Relaxed);
    // SAFETY: takes nothing and cannot fail.
    let uid = unsafe { libc::geteuid() };
    if !shunt_shm::atomic::register() {
        return false;
    }
    let (fd, patience) = match greeted() {
        Some(fd) => (fd, 0),
        None => match greet(uid) {
            Some(fd) => (fd, PATIENCE_MS),
            None => return false,
        },
    };
    if sys::poll_ms(fd, libc::POLLIN, patience) == 0 {
        // Overloaded or stopped: looked at again soon, without waiting.
        INODE.store(inode(fd), Ordering::Relaxed);
        table::enter(fd, Entry::Ours);
        GREETED.store(fd, Ordering::Release);
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
    INODE.store(inode(fd), Ordering::Relaxed);
    board::adopt(board, m.index);
    table::enter(fd, Entry::Ours);
    FD.store(fd, Ordering::Release);
    request::tell_everything();
    true
}

/// The connection whose welcome was late, if the program has not closed it.
fn greeted() -> Option<c_int> {
    let fd = GREETED.swap(-1, Ordering::AcqRel);
    if fd < 0 {
        return None;
    }
    table::enter(fd, Entry::Other);
    (inode(fd) == INODE.load(Ordering::Relaxed)).then_some(fd)
}

/// A new connection on which this process has introduced itself.
pub(super) fn greet(uid: u32) -> Option<c_int> {
    let fd = sys::move_high(dial(None, uid).or_else(|| dial(Some(uid), uid))?);
    let mut hello = Message::new(Kind::Hello);
    // SAFETY: PR_GET_NAME fills 16 bytes, and the name has them.
    unsafe { libc::prctl(libc::PR_GET_NAME, hello.name.as_mut_ptr()) };
    if wire::transmit(fd, &hello, None) {
        return Some(fd);
    }
    sys::close(fd);
    None
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
