//! Messages: buffers with an address and ancillary data.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use libc::{c_int, iovec, msghdr, socklen_t};

use super::buffer::{self, has_bad, is_bad, list, sendable};
use super::recv::receive_before_bad;
use super::send::{note_urgent, send_before_bad, transmit_list_by};
use super::target::{is_candidate, serve};
use crate::socket::{RECEIVER, SENDER};
use crate::stream::{self, Conn};
use crate::{Outcome, entry, life, real, signal, sys};

/// `recvmsg(2)`.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let receive = |conn: &Conn, parts: &[iovec]| unsafe { stream::receive(conn, parts, flags) };
    // SAFETY: the caller's promise.
    unsafe { recvmsg_by(fd, message, flags, receive) }
}

/// [`recvmsg`]: on a connection by `receive`, if all buffers are good.
///
/// # Safety
/// As for [`recvmsg`].
#[inline(always)]
pub(super) unsafe fn recvmsg_by(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
    receive: impl Fn(&Conn, &[iovec]) -> Outcome,
) -> Outcome {
    if !is_candidate(fd) {
        // SAFETY: the caller's promise.
        return unsafe { recvmsg_elsewhere(fd, message, flags) };
    }
    if is_bad(message.cast(), 1) || !signal::may_read(message, 1) {
        return Outcome::Kernel;
    }
    // SAFETY: it can be read; alignment is the program's choice.
    let header = unsafe { message.read_unaligned() };
    if has_negative_name(&header) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let parts = match unsafe { list(header.msg_iov, header.msg_iovlen) } {
        Ok(parts) => parts,
        // The kernel says EMSGSIZE here, not EINVAL.
        Err(_) => return Outcome::Kernel,
    };
    if has_control(&header) {
        life::before_control_data(fd);
    }
    serve(
        fd,
        RECEIVER,
        |conn| {
            // Bytes that are thrown away need no buffer (tcp(7)).
            let outcome = if flags & libc::MSG_TRUNC == 0 && has_bad(parts) {
                // SAFETY: the caller's promise.
                unsafe { receive_before_bad(fd, parts, flags) }
            } else {
                receive(&conn, parts)
            };
            // SAFETY: the caller's promise.
            unsafe { fill_in(&conn, message, header, flags, outcome) }
        },
        // SAFETY: the caller's promise.
        || unsafe { real::recvmsg()(fd, message, flags) },
    )
}

/// The real call, on anything but a connection: descriptors may come with the message.
///
/// # Safety
/// As for `recvmsg(2)`.
unsafe fn recvmsg_elsewhere(fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    // SAFETY: the caller's promise; the kernel, which has judged the header, has filled the
    // control data.
    unsafe {
        let n = match real::quietly(|| real::recvmsg()(fd, message, flags)) {
            Ok(n) => n,
            Err(errno) => return Outcome::Fail(errno),
        };
        if has_control(&*message) {
            life::passed(message);
        }
        Outcome::Done(n)
    }
}

/// Fills in, in the program's header, of which this is a copy, what is said of a received message. If that cannot
/// be stored the bytes are lost, as in the kernel.
///
/// # Safety
/// What is mapped of the header and of its control buffer may be written.
#[inline]
pub(super) unsafe fn fill_in(
    conn: &Conn,
    message: *mut msghdr,
    mut header: msghdr,
    flags: c_int,
    outcome: Outcome,
) -> Outcome {
    let Outcome::Done(n) = outcome else {
        return outcome;
    };
    header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the caller's promise.
    let is_told = unsafe {
        tell(conn, &mut header, n > 0);
        store(message, &header)
    };
    if is_told {
        outcome
    } else {
        Outcome::Fail(libc::EFAULT)
    }
}

/// Stores what a receive changes of a header: no name, the flags, and how much control data there is.
///
/// # Safety
/// What is mapped of the program's header may be written.
unsafe fn store(message: *mut msghdr, header: &msghdr) -> bool {
    const LENGTH: usize = offset_of!(msghdr, msg_controllen);
    const FLAGS: usize = offset_of!(msghdr, msg_flags);
    const { assert!(FLAGS == LENGTH + size_of::<u64>()) };
    let mut both = [0; size_of::<u64>() + size_of::<c_int>()];
    both[..8].copy_from_slice(&(header.msg_controllen as u64).to_ne_bytes());
    both[8..].copy_from_slice(&header.msg_flags.to_ne_bytes());
    let no_name = [0; size_of::<socklen_t>()];
    let place = |at| message.wrapping_byte_add(at).cast();
    // SAFETY: the caller's promise.
    unsafe {
        let names = header.msg_name.is_null()
            || signal::put(place(offset_of!(msghdr, msg_namelen)), &no_name);
        names && signal::put(place(LENGTH), &both)
    }
}

/// Whether there is a buffer for control data.
pub(super) fn has_control(header: &msghdr) -> bool {
    header.msg_controllen > 0 && !header.msg_control.is_null()
}

/// Stores the ancillary messages that the program has asked for, in the kernel's order. `any`:
/// bytes were received.
///
/// # Safety
/// What is mapped of the header's control buffer may be written.
#[inline]
unsafe fn tell(conn: &Conn, header: &mut msghdr, any: bool) {
    let time = conn.socket.settings.tells_time.load(Ordering::Relaxed);
    let left = conn.socket.settings.tells_left.load(Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let mut control = unsafe { Control::new(header) };
    if time != 0 && any {
        // Nobody knows when these bytes came. The kernel, too, gives the present time for bytes that came before it was
        // asked to note times.
        let clock = sys::wall_clock(time).map(i64::to_ne_bytes);
        control.put(libc::SOL_SOCKET, time, clock.as_flattened());
    }
    if left {
        let left = how_much_is_left(conn).to_ne_bytes();
        control.put(libc::IPPROTO_TCP, libc::TCP_INQ, &left);
    }
    control.end();
}

/// How much can still be received, or 1 when only the end of file is left (`TCP_INQ`).
#[cold]
fn how_much_is_left(conn: &Conn) -> c_int {
    match stream::unread(conn) {
        0 => c_int::from(sys::ready(conn.fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0),
        n => n.min(c_int::MAX as u64) as c_int,
    }
}

/// A control buffer that is being filled.
struct Control<'a> {
    header: &'a mut msghdr,
    used: usize,
}

impl<'a> Control<'a> {
    /// # Safety
    /// What is mapped of the header's control buffer may be written.
    unsafe fn new(header: &'a mut msghdr) -> Self {
        Self { header, used: 0 }
    }

    /// Adds a message. If it cannot be stored it is left out silently, as in the kernel (`put_cmsg`).
    fn put(&mut self, level: c_int, kind: c_int, value: &[u8]) {
        let size = value.len() as u32;
        // SAFETY: only computes.
        let (length, space) = unsafe { (libc::CMSG_LEN(size), libc::CMSG_SPACE(size)) };
        let room = if self.header.msg_control.is_null() {
            0
        } else {
            self.header.msg_controllen - self.used
        };
        if room < length as usize {
            self.header.msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        let at = self.header.msg_control.wrapping_byte_add(self.used);
        let begin = (length as usize).to_ne_bytes();
        let kinds = [level.to_ne_bytes(), kind.to_ne_bytes()];
        // SAFETY: the promise of `new`; nothing is written beyond the room.
        let is_there = unsafe {
            let data = libc::CMSG_DATA(at.cast());
            signal::put(at.cast(), &begin)
                && signal::put(
                    at.cast::<u8>().wrapping_add(begin.len()),
                    kinds.as_flattened(),
                )
                && signal::put(data, value)
        };
        if is_there {
            self.used += room.min(space as usize);
        }
    }

    fn end(self) {
        self.header.msg_controllen = self.used;
    }
}

/// `sendmsg(2)`. Also looks for descriptors being passed, on any socket.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let send = |conn: &Conn, parts: &[iovec]| unsafe { stream::send(conn, parts, flags) };
    // SAFETY: the caller's promise.
    unsafe { sendmsg_by(fd, message, flags, send) }
}

/// [`sendmsg`]: on a connection by `send`, if all buffers are good.
///
/// # Safety
/// As for [`sendmsg`].
#[inline(always)]
pub(super) unsafe fn sendmsg_by(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    send: impl Fn(&Conn, &[iovec]) -> Outcome,
) -> Outcome {
    if !entry::is_any() || is_bad(message.cast(), 1) || !signal::may_read(message, 1) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let header = unsafe { &*message };
    let control = header.msg_controllen > 0;
    if has_control(header) {
        // SAFETY: the caller's promise.
        unsafe { life::passing(message) };
    }
    if !is_candidate(fd) || has_bad_name(header) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let parts = match unsafe { list(header.msg_iov, header.msg_iovlen) } {
        Ok(parts) => parts,
        Err(_) => return Outcome::Kernel,
    };
    if control {
        return serve(
            fd,
            SENDER,
            // SAFETY: the caller's promise.
            |conn| unsafe { send_with_control(&conn, header, parts, &send) },
            || {
                note_urgent(fd, flags);
                // SAFETY: the caller's promise.
                unsafe { real::sendmsg()(fd, message, flags) }
            },
        );
    }
    // SAFETY: the caller's promise.
    unsafe {
        if has_bad(parts) {
            send_before_bad(fd, parts, flags)
        } else {
            transmit_list_by(fd, parts, flags, send)
        }
    }
}

/// Whether the kernel refuses the name that a message is sent to, and otherwise ignores it on a connection
/// (`copy_msghdr_from_user`).
fn has_bad_name(header: &msghdr) -> bool {
    let length = header.msg_namelen as usize;
    let read = length.min(size_of::<libc::sockaddr_storage>());
    has_negative_name(header)
        || !header.msg_name.is_null()
            && (is_bad(header.msg_name, read)
                || !signal::may_read(header.msg_name.cast::<u8>(), read))
}

/// Whether the kernel refuses the room for a name, whether the call sends or receives. Without a name its length is nothing.
pub(super) fn has_negative_name(header: &msghdr) -> bool {
    !header.msg_name.is_null() && (header.msg_namelen as c_int) < 0
}

/// Sends with ancillary data, which the kernel checks, and which changes nothing for bytes in a ring.
///
/// # Safety
/// The header's control data and the parts are readable.
#[cold]
unsafe fn send_with_control(
    conn: &Conn,
    header: &msghdr,
    parts: &[iovec],
    send: impl Fn(&Conn, &[iovec]) -> Outcome,
) -> Outcome {
    let mut empty = buffer::header(&[]);
    empty.msg_control = header.msg_control;
    empty.msg_controllen = header.msg_controllen;
    match sys::sendmsg(conn.fd, &empty, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        // Errors of the connection are found later.
        Ok(_) | Err(libc::EPIPE | libc::EAGAIN) => {}
        Err(errno @ (libc::ECONNRESET | libc::ETIMEDOUT)) => {
            let pending = conn.error();
            pending.store(errno, Ordering::Relaxed);
        }
        Err(errno) => return Outcome::Fail(errno),
    }
    match sendable(parts) {
        [] if has_bad(parts) => Outcome::Fail(libc::EFAULT),
        some => send(conn, some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts two numbers into a buffer for control data of `room` bytes. Returns how much of it is used, how long the first
    /// message is said to be, and whether something was cut off.
    fn told(room: usize) -> (usize, usize, bool) {
        let mut buffer = [0u64; 16];
        let mut header = buffer::header(&[]);
        header.msg_control = buffer.as_mut_ptr().cast();
        header.msg_controllen = room;
        // SAFETY: the buffer is longer.
        let mut control = unsafe { Control::new(&mut header) };
        control.put(libc::IPPROTO_TCP, libc::TCP_INQ, &5i32.to_ne_bytes());
        control.put(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &[1; 16]);
        control.end();
        let is_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
        (header.msg_controllen, buffer[0] as usize, is_cut)
    }

    #[test]
    fn control_data_that_has_no_room_is_said_to_be_cut_off() {
        // SAFETY: only computes.
        let [first, both, length] = unsafe {
            let first = libc::CMSG_SPACE(4);
            [first, first + libc::CMSG_SPACE(16), libc::CMSG_LEN(4)].map(|n| n as usize)
        };
        assert_eq!(told(both), (both, length, false));
        assert_eq!(told(both - 1), (first, length, true));
        assert_eq!(told(length - 1), (0, 0, true));
    }

    #[test]
    fn the_last_message_may_go_without_its_padding() {
        // SAFETY: only computes.
        let length = unsafe { libc::CMSG_LEN(4) } as usize;
        assert_eq!(told(length), (length, length, true));
    }
}
