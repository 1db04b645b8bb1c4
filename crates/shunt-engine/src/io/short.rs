//! The one branch of every short call: done in a few instructions if all is as usual,
//! otherwise left to the functions beside this one.

use libc::{c_int, c_void, iovec, size_t};

use super::buffer::is_bad_or_long;
use super::target::call_unless_shunted;
use crate::Outcome;
use crate::socket::{RECEIVER, SENDER, Socket, Stage};
use crate::stream::{Conn, small};
use crate::thread::cancel::{self, Test};

/// Does what [`send`](super::send()) and [`write`](super::write) do, if the message is short and
/// all is as usual. `None` and [`Outcome::Kernel`]: nothing has been done. The latter says that
/// `fd` is not shunted.
#[inline(always)]
pub unsafe fn send(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    test: Test,
) -> Option<Outcome> {
    let conn = match usual(fd, buffer, length, small::SHORT, test) {
        Ok(conn) => conn,
        Err(outcome) => return outcome,
    };
    // SAFETY: the caller's promise.
    unsafe { small::send(conn, buffer.cast(), length, flags) }
}

/// Does what [`writev`](super::writev) and [`sendmsg`](super::sendmsg) do, if the list is short and all is as usual.
/// The caller has checked that a program can have its addresses. `None`: nothing has been done.
///
/// # Safety
/// The parts are readable.
pub(super) unsafe fn send_list(fd: c_int, parts: &[iovec], flags: c_int) -> Option<Outcome> {
    let socket = Socket::of(fd).filter(|socket| socket.stage() == Stage::Attached)?;
    // SAFETY: the caller's promise.
    unsafe { small::send_list(Conn::new(socket, fd)?, parts, flags) }
}

/// Does what [`recv`](super::recv()) and [`read`](super::read) do, if a message is there and all is
/// as usual. `None` and [`Outcome::Kernel`]: nothing has been done. The latter says that `fd` is
/// not shunted.
#[inline(always)]
pub unsafe fn recv(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    test: Test,
) -> Option<Outcome> {
    let conn = match usual(fd, buffer.cast_const(), length, 1 << 30, test) {
        Ok(conn) => conn,
        Err(outcome) => return outcome,
    };
    // SAFETY: the caller's promise.
    unsafe { small::receive(conn, buffer.cast(), length, flags) }
}

/// Whether `fd` is shunted.
#[inline(always)]
pub fn is_shunted(fd: c_int) -> bool {
    Socket::of(fd).is_some_and(|socket| socket.stage() == Stage::Attached)
}

/// Makes the real call that sends at once, if `fd` is not shunted and nothing is due to
/// change that. `None`: nothing has been done.
#[inline(always)]
pub fn send_unless_shunted(fd: c_int, flags: c_int, call: impl FnOnce() -> isize) -> Option<isize> {
    if flags & libc::MSG_OOB != 0 {
        // Urgent data: the slow path must take note of it.
        return None;
    }
    call_unless_shunted(fd, SENDER, call)
}

/// Makes the real call that receives at once, if `fd` is not shunted and nothing is due to change
/// that. `None`: nothing has been done.
#[inline(always)]
pub fn receive_unless_shunted(fd: c_int, call: impl FnOnce() -> isize) -> Option<isize> {
    call_unless_shunted(fd, RECEIVER, call)
}

/// The shunted connection that `fd` names, if a program can have such a buffer and that is neither empty nor longer than `most` bytes; else what the call
/// returns: [`Outcome::Kernel`] where `fd` is not shunted (the real call looks itself whether the thread is to end), `None`
/// otherwise.
#[inline(always)]
fn usual(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    most: size_t,
    test: Test,
) -> Result<Conn<'static>, Option<Outcome>> {
    let socket = Socket::of(fd).ok_or(Some(Outcome::Kernel))?;
    if socket.stage() != Stage::Attached {
        return Err(Some(Outcome::Kernel));
    }
    if test == Test::Due && cancel::is_noted() {
        return Err(None);
    }
    let conn = Conn::new(socket, fd).ok_or(None)?;
    if is_bad_or_long(buffer, length, most) {
        return Err(None);
    }
    Ok(conn)
}
