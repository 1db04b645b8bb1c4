//! Messages: buffers with an address and ancillary data.

use std::sync::atomic::Ordering;

use libc::{c_int, c_uint, iovec, mmsghdr, msghdr, timespec};

use super::buffer::{self, IOV_MAX, has_bad, is_bad, list};
use super::recv::receive_nowhere;
use super::send::{send_nowhere, transmit};
use super::target::{is_candidate, serve};
use crate::socket::{RECEIVER, SENDER};
use crate::stream::{self, Conn, Stay};
use crate::thread::is_alone;
use crate::{Outcome, entry, life, real, signal, sys};

/// `recvmsg(2)`.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    if !is_candidate(fd) {
        // SAFETY: the caller's promise.
        return unsafe { recvmsg_elsewhere(fd, message, flags) };
    }
    if is_bad(message.cast(), 1) || !signal::may_read(message, 1) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let header = unsafe { &mut *message };
    // SAFETY: the caller's promise.
    let parts = match unsafe { list(header.msg_iov, header.msg_iovlen) } {
        Ok(parts) => parts,
        // The kernel says EMSGSIZE here, not EINVAL.
        Err(_) => return Outcome::Kernel,
    };
    if has_control(header) {
        life::before_control_data(fd);
    }
    serve(
        fd,
        RECEIVER,
        |conn| {
            // Bytes that are thrown away need no buffer (tcp(7)).
            let outcome = if flags & libc::MSG_TRUNC == 0 && has_bad(parts) {
                receive_nowhere(fd, flags)
            } else {
                // SAFETY: the caller's promise.
                unsafe { stream::receive(&conn, parts, flags) }
            };
            // SAFETY: the caller's promise.
            unsafe { fill_in(&conn, header, flags, outcome) }
        },
        // SAFETY: the caller's promise.
        || unsafe { real::recvmsg()(fd, message, flags) },
    )
}

/// The real call, on what is no connection: descriptors may come with it.
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

/// Fills in what the header says of a message that was received.
///
/// # Safety
/// The header's control buffer is writable.
#[inline]
unsafe fn fill_in(conn: &Conn, header: &mut msghdr, flags: c_int, outcome: Outcome) -> Outcome {
    if let Outcome::Done(n) = outcome {
        header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the caller's promise.
        unsafe { tell(conn, header, n > 0) };
        if !header.msg_name.is_null() {
            header.msg_namelen = 0;
        }
    }
    outcome
}

/// Whether there is a buffer for control data.
fn has_control(header: &msghdr) -> bool {
    header.msg_controllen > 0 && !header.msg_control.is_null()
}

/// The ancillary messages that the program has asked for, in the kernel's order; `any`: bytes were
/// received.
///
/// # Safety
/// The header's control buffer is writable.
#[inline]
unsafe fn tell(conn: &Conn, header: &mut msghdr, any: bool) {
    let time = conn.socket.settings.tells_time.load(Ordering::Relaxed);
    let left = conn.socket.settings.tells_left.load(Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let mut control = unsafe { Control::new(header) };
    if time != 0 && any {
        // When these bytes came nobody knows: before the kernel was asked to tell of all.
        control.put(libc::SOL_SOCKET, time, sys::wall_clock(time));
    }
    if left {
        control.put(libc::IPPROTO_TCP, libc::TCP_INQ, how_much_is_left(conn));
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

/// A control buffer that is filled.
struct Control<'a> {
    header: &'a mut msghdr,
    used: usize,
}

impl<'a> Control<'a> {
    /// # Safety
    /// The header's control buffer is writable.
    unsafe fn new(header: &'a mut msghdr) -> Self {
        Self { header, used: 0 }
    }

    fn put<T>(&mut self, level: c_int, kind: c_int, value: T) {
        let size = size_of::<T>() as u32;
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
        // SAFETY: the promise of `new`; nothing is written beyond the room.
        unsafe {
            let at = self.header.msg_control.byte_add(self.used);
            let at = at.cast::<libc::cmsghdr>();
            at.write_unaligned(libc::cmsghdr {
                cmsg_len: length as _,
                cmsg_level: level,
                cmsg_type: kind,
            });
            libc::CMSG_DATA(at).cast::<T>().write_unaligned(value);
        }
        self.used += room.min(space as usize);
    }

    fn end(self) {
        self.header.msg_controllen = self.used;
    }
}

/// `sendmsg(2)`. Also looks for descriptors being passed, on any socket.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
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
    if !is_candidate(fd) {
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
            |conn| unsafe { send_with_control(&conn, header, parts, flags) },
            // SAFETY: the caller's promise.
            || unsafe { real::sendmsg()(fd, message, flags) },
        );
    }
    if has_bad(parts) {
        return send_nowhere(fd, flags);
    }
    // SAFETY: the caller's promise.
    unsafe { transmit(fd, parts, flags) }
}

/// The kernel judges the ancillary data, which changes nothing for bytes in a ring.
///
/// # Safety
/// The header's control data and the parts are readable.
#[cold]
unsafe fn send_with_control(
    conn: &Conn,
    header: &msghdr,
    parts: &[iovec],
    flags: c_int,
) -> Outcome {
    let mut empty = buffer::header(&[]);
    empty.msg_control = header.msg_control;
    empty.msg_controllen = header.msg_controllen;
    match sys::sendmsg(conn.fd, &empty, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        // What is wrong with the connection comes later.
        Ok(_) | Err(libc::EPIPE | libc::EAGAIN) => {}
        Err(errno @ (libc::ECONNRESET | libc::ETIMEDOUT)) => {
            let pending = conn.error();
            pending.store(errno, Ordering::Relaxed);
        }
        Err(errno) => return Outcome::Fail(errno),
    }
    if has_bad(parts) {
        return Outcome::Fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { stream::send(conn, parts, flags) }
}

/// `recvmmsg(2)`. The timeout is looked at after each message, as the kernel
/// does it (`recvmmsg(2)`, BUGS).
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome {
    if is_bad(messages.cast(), 1) {
        return Outcome::Kernel;
    }
    if !is_candidate(fd) && entry::is_any() {
        // SAFETY: the caller's promise; the kernel has filled as many messages as it says.
        return unsafe {
            match real::quietly(|| real::recvmmsg()(fd, messages, count, flags, timeout) as isize) {
                Ok(received) => {
                    (0..received as usize)
                        .map(|i| &raw const (*messages.add(i)).msg_hdr)
                        .filter(|&header| has_control(&*header))
                        .for_each(|header| life::passed(header));
                    Outcome::Done(received)
                }
                Err(errno) => Outcome::Fail(errno),
            }
        };
    }
    serve(
        fd,
        RECEIVER,
        // SAFETY: the caller's promise.
        |conn| unsafe {
            match error_before(&conn) {
                Some(outcome) => outcome,
                None => staying(&conn, |stay| {
                    receive_each(&conn, stay, messages, count, flags, timeout)
                }),
            }
        },
        // SAFETY: the caller's promise.
        || unsafe { real::recvmmsg()(fd, messages, count, flags, timeout) as isize },
    )
}

/// An error of the connection, which `recvmmsg` tells before what can be received
/// (`do_recvmmsg` in the kernel's `net/socket.c`).
fn error_before(conn: &Conn) -> Option<Outcome> {
    if stream::is_as_usual(conn) {
        return None;
    }
    match stream::socket_error(conn) {
        0 => None,
        errno => Some(Outcome::Fail(errno)),
    }
}

/// Makes a call on a connection that another thread may close meanwhile: the kernel looks the number up once,
/// whatever the call is made of.
fn staying(conn: &Conn, call: impl FnOnce(&Stay) -> Outcome) -> Outcome {
    Stay::during(|stay| {
        let is_there = is_alone() || stay.enter(conn) && conn.is_by_number();
        if is_there {
            call(stay)
        } else {
            Outcome::Fail(libc::EBADF)
        }
    })
}

/// Receives one of several messages, by the program's number or, if that was closed since the call began,
/// by what the call stays on.
///
/// # Safety
/// As for `recvmsg`.
unsafe fn receive_one(conn: &Conn, stay: &Stay, header: &mut msghdr, flags: c_int) -> Outcome {
    if !stay.goes_on(&stay.at(conn)) {
        // SAFETY: the caller's promise.
        return unsafe { recvmsg(conn.fd, header, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match list(header.msg_iov, header.msg_iovlen) {
            Ok(parts) if flags & libc::MSG_TRUNC == 0 && has_bad(parts) => {
                Outcome::Fail(libc::EFAULT)
            }
            Ok(parts) => {
                let outcome = stream::receive_in(conn, parts, flags, stay);
                fill_in(&stay.at(conn), header, flags, outcome)
            }
            Err(_) => Outcome::Fail(libc::EMSGSIZE),
        }
    }
}

/// # Safety
/// There are `count` messages, with buffers to write to; `timeout` is null or a `timespec`.
unsafe fn receive_each(
    conn: &Conn,
    stay: &Stay,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome {
    const MSG_WAITFORONE: c_int = 0x10000;
    let end = if timeout.is_null() {
        None
    } else if !signal::may_read(timeout, 1) {
        return Outcome::Kernel;
    } else {
        // SAFETY: the caller's promise.
        let t = unsafe { *timeout };
        if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
            return Outcome::Fail(libc::EINVAL);
        }
        Some(
            sys::now()
                .saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000) + t.tv_nsec as u64),
        )
    };
    let mut flags = flags;
    for i in 0..count as usize {
        // SAFETY: the caller's promise.
        let one = match unsafe { message_at(messages, i) } {
            Ok(one) => one,
            Err(outcome) => return outcome,
        };
        // SAFETY: as above.
        match unsafe { receive_one(conn, stay, &mut one.msg_hdr, flags & !MSG_WAITFORONE) } {
            Outcome::Done(n) => one.msg_len = n as c_uint,
            Outcome::Kernel if i == 0 => return Outcome::Kernel,
            other if i == 0 => return other,
            _ => return Outcome::Done(i as isize),
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let late = end.is_some_and(|end| {
            let left = end.saturating_sub(sys::now());
            // SAFETY: not null: `end` was read from it.
            unsafe {
                *timeout = timespec {
                    tv_sec: (left / 1_000_000_000) as i64,
                    tv_nsec: (left % 1_000_000_000) as i64,
                };
            }
            left == 0
        });
        if late {
            return Outcome::Done(i as isize + 1);
        }
    }
    Outcome::Done(count as isize)
}

/// One of many messages, or how the call ends where there is none.
///
/// # Safety
/// Nobody else uses the message meanwhile.
unsafe fn message_at<'a>(messages: *mut mmsghdr, i: usize) -> Result<&'a mut mmsghdr, Outcome> {
    let one = messages.wrapping_add(i);
    match i {
        // SAFETY: as far as can be told it is there.
        _ if signal::may_read(one, 1) => Ok(unsafe { &mut *one }),
        0 => Err(Outcome::Kernel),
        done => Err(Outcome::Done(done as isize)),
    }
}

/// `sendmmsg(2)`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Outcome {
    if is_bad(messages.cast(), 1) {
        return Outcome::Kernel;
    }
    if !is_candidate(fd) && entry::is_any() {
        for i in 0..count.min(IOV_MAX as c_uint) as usize {
            // SAFETY: the caller's promise.
            let Ok(one) = (unsafe { message_at(messages, i) }) else {
                break;
            };
            if has_control(&one.msg_hdr) {
                // SAFETY: as above.
                unsafe { life::passing(&raw const one.msg_hdr) };
            }
        }
        return Outcome::Kernel;
    }
    serve(
        fd,
        SENDER,
        // SAFETY: the caller's promise.
        |conn| unsafe { staying(&conn, |stay| send_each(&conn, stay, messages, count, flags)) },
        // SAFETY: the caller's promise.
        || unsafe { real::sendmmsg()(fd, messages, count, flags) as isize },
    )
}

/// Sends one of several messages, as [`receive_one`] receives one.
///
/// # Safety
/// As for `sendmsg`.
unsafe fn send_one(conn: &Conn, stay: &Stay, header: &msghdr, flags: c_int) -> Outcome {
    if !stay.goes_on(&stay.at(conn)) {
        // SAFETY: the caller's promise.
        return unsafe { sendmsg(conn.fd, header, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match list(header.msg_iov, header.msg_iovlen) {
            Ok(parts) if has_bad(parts) => Outcome::Fail(libc::EFAULT),
            Ok(parts) => stream::send_in(conn, parts, flags, stay),
            Err(_) => Outcome::Fail(libc::EMSGSIZE),
        }
    }
}

/// # Safety
/// There are `count` messages, with buffers to read.
unsafe fn send_each(
    conn: &Conn,
    stay: &Stay,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Outcome {
    let count = count.min(IOV_MAX as c_uint);
    for i in 0..count as usize {
        // SAFETY: the caller's promise.
        let one = match unsafe { message_at(messages, i) } {
            Ok(one) => one,
            Err(outcome) => return outcome,
        };
        // SAFETY: as above.
        match unsafe { send_one(conn, stay, &one.msg_hdr, flags) } {
            Outcome::Done(n) => {
                one.msg_len = n as c_uint;
                // SAFETY: as above.
                let whole = unsafe { list(one.msg_hdr.msg_iov, one.msg_hdr.msg_iovlen) }
                    .map_or(0, crate::iov::total);
                if (n as usize) < whole {
                    return Outcome::Done(i as isize + 1);
                }
            }
            Outcome::Kernel if i == 0 => return Outcome::Kernel,
            other if i == 0 => return other,
            _ => return Outcome::Done(i as isize),
        }
    }
    Outcome::Done(count as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts two numbers into a buffer for control data of so many bytes: what of it is used, how long the first message is said
    /// to be, and whether something was cut off.
    fn told(room: usize) -> (usize, usize, bool) {
        let mut buffer = [0u64; 16];
        let mut header = buffer::header(&[]);
        header.msg_control = buffer.as_mut_ptr().cast();
        header.msg_controllen = room;
        // SAFETY: the buffer is longer.
        let mut control = unsafe { Control::new(&mut header) };
        control.put(libc::IPPROTO_TCP, libc::TCP_INQ, 5i32);
        control.put(libc::SOL_SOCKET, libc::SO_TIMESTAMP, [1i64, 2]);
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
