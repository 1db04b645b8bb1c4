//! Byte input and output. Every function answers [`Outcome::Kernel`] for a
//! descriptor that is not shunted, at the cost of one table look-up.
//!
//! # Safety
//! Pointers are the program's own, valid as the man page of the call demands.
#![allow(clippy::missing_safety_doc)]

use std::sync::atomic::Ordering;

use libc::{
    c_int, c_uint, c_void, iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t,
    timespec,
};

use shunt_abi::Reason;

use crate::socket::{RECEIVER, SENDER, Socket, Stage};
use crate::stream::{self, Conn};
use crate::{Outcome, life, real, stats, table, upgrade};

const RWF_NOWAIT: c_int = 8;
const SPLICE_F_ALL: c_uint = 15;
/// `UIO_MAXIOV`: the kernel takes no more buffers in one call.
const IOV_MAX: usize = 1024;

/// What to do for a call on a descriptor.
enum Target {
    /// Leave it to the real function.
    Kernel,
    /// Serve it from shared memory.
    Shunted(Conn<'static>),
    /// The kernel serves it, but the engine must know who is inside: an upgrade
    /// is on its way.
    Counted(&'static Socket),
}

#[inline(always)]
fn target(fd: c_int, who: u32) -> Target {
    let Some(socket) = table::socket(fd) else {
        return Target::Kernel;
    };
    if socket.stage() == Stage::Attached
        && let Some(conn) = Conn::new(socket, fd)
    {
        return Target::Shunted(conn);
    }
    not_attached(socket, fd, who)
}

#[cold]
fn not_attached(socket: &'static Socket, fd: c_int, who: u32) -> Target {
    stats::kernel_call(socket);
    while matches!(
        socket.stage(),
        Stage::Candidate | Stage::Claimed | Stage::Paired
    ) {
        upgrade::progress(socket, fd, false);
        if socket.stage() == Stage::Attached || !socket.inside.enter(who) {
            break;
        }
        // Nobody changes the stage to attached while we are in.
        if socket.stage() != Stage::Attached {
            return Target::Counted(socket);
        }
        socket.inside.leave(who);
    }
    match Conn::new(socket, fd) {
        Some(conn) if socket.stage() == Stage::Attached => Target::Shunted(conn),
        _ if socket.stage() == Stage::Paired => not_attached(socket, fd, who),
        _ => Target::Kernel,
    }
}

/// A real call, with the socket knowing that a thread is inside. The thread may
/// be cancelled there; then the socket stays on TCP.
unsafe fn counted(socket: &'static Socket, who: u32, call: impl FnOnce() -> isize) -> Outcome {
    let n = call();
    socket.inside.leave(who);
    // A connection that moves much in few calls lives too.
    socket.calls.fetch_add(
        (n.max(0) >> 15) as u32,
        std::sync::atomic::Ordering::Relaxed,
    );
    if n < 0 {
        Outcome::Fail(real::errno())
    } else {
        Outcome::Done(n)
    }
}

/// The end of what a program can address.
const USER_END: usize = (1 << 47) - 4096;

/// An address that no program can have data at: the kernel says `EFAULT` where
/// a copy of ours would be a crash.
#[inline(always)]
fn is_bad(base: *const c_void, length: usize) -> bool {
    length > 0 && ((base as usize) < 4096 || (base as usize).saturating_add(length) > USER_END)
}

fn has_bad(parts: &[iovec]) -> bool {
    parts.iter().any(|p| is_bad(p.iov_base, p.iov_len))
}

/// The program's list of buffers, if the kernel would take it.
unsafe fn list<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec], Outcome> {
    if count > IOV_MAX {
        return Err(Outcome::Fail(libc::EINVAL));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if is_bad(iov.cast(), 1) {
        return Err(Outcome::Fail(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(iov, count) };
    if parts.iter().any(|p| p.iov_len > isize::MAX as usize) {
        return Err(Outcome::Fail(libc::EINVAL));
    }
    Ok(parts)
}

#[inline(always)]
unsafe fn receive(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    match target(fd, RECEIVER) {
        Target::Kernel => Outcome::Kernel,
        // SAFETY: the caller's promise.
        Target::Shunted(conn) => unsafe { stream::receive(&conn, parts, flags) },
        Target::Counted(socket) => {
            // SAFETY: all-zero is a valid header.
            let mut message: msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_ptr().cast_mut();
            message.msg_iovlen = parts.len();
            // SAFETY: the caller's promise.
            unsafe {
                counted(socket, RECEIVER, || {
                    real::recvmsg()(fd, &raw mut message, flags)
                })
            }
        }
    }
}

#[inline(always)]
unsafe fn transmit(fd: c_int, parts: &[iovec], flags: c_int) -> Outcome {
    match target(fd, SENDER) {
        Target::Kernel => Outcome::Kernel,
        // SAFETY: the caller's promise.
        Target::Shunted(conn) => unsafe { stream::send(&conn, parts, flags) },
        Target::Counted(socket) => {
            if flags & libc::MSG_OOB != 0 {
                // The receiver may skip that byte, and then counts wrong.
                upgrade::refuse(socket, Reason::Urgent);
            }
            // SAFETY: all-zero is a valid header.
            let mut message: msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_ptr().cast_mut();
            message.msg_iovlen = parts.len();
            // SAFETY: the caller's promise.
            unsafe { counted(socket, SENDER, || real::sendmsg()(fd, &message, flags)) }
        }
    }
}

/// Whether `fd` is a socket that is (or may be about to be) shunted.
#[inline(always)]
fn is_candidate(fd: c_int) -> bool {
    table::socket(fd)
        .is_some_and(|s| !matches!(s.stage(), Stage::Plain | Stage::Fresh | Stage::Listener))
}

/// `read(2)`.
#[inline]
pub unsafe fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> Outcome {
    if length == 0 {
        // Zero at once, unlike recv (socket.c: "Match SYS5 behaviour"); the real
        // call says so too, and knows bad descriptors.
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    unsafe { recv(fd, buffer, length, 0) }
}

/// `write(2)`.
#[inline]
pub unsafe fn write(fd: c_int, buffer: *const c_void, length: size_t) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { send(fd, buffer, length, 0) }
}

/// `readv(2)`.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, |fd, parts| receive(fd, parts, 0)) }
}

/// `writev(2)`.
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, |fd, parts| transmit(fd, parts, 0)) }
}

unsafe fn vectored(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    then: impl Fn(c_int, &[iovec]) -> Outcome,
) -> Outcome {
    if !is_candidate(fd) {
        return Outcome::Kernel;
    }
    // A negative count is out of range too.
    // SAFETY: the caller's promise.
    match unsafe { list(iov, count as u32 as usize) } {
        Ok(parts) if crate::iov::total(parts) == 0 => Outcome::Kernel,
        Ok(parts) if has_bad(parts) => Outcome::Fail(libc::EFAULT),
        Ok(parts) => then(fd, parts),
        Err(outcome) => outcome,
    }
}

/// `preadv2(2)` with offset −1; any other offset is the kernel's (`ESPIPE`).
pub unsafe fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> Outcome {
    if offset != -1 || flags & !RWF_NOWAIT != 0 {
        return Outcome::Kernel;
    }
    let flags = if flags & RWF_NOWAIT != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    };
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, |fd, parts| receive(fd, parts, flags)) }
}

/// `pwritev2(2)` with offset −1.
pub unsafe fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> Outcome {
    if offset != -1 || flags & !RWF_NOWAIT != 0 {
        return Outcome::Kernel;
    }
    let flags = if flags & RWF_NOWAIT != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    };
    // SAFETY: the caller's promise.
    unsafe { vectored(fd, iov, count, |fd, parts| transmit(fd, parts, flags)) }
}

/// `recv(2)`.
#[inline]
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> Outcome {
    if table::socket(fd).is_none() {
        return Outcome::Kernel;
    }
    // With MSG_TRUNC the bytes are thrown away, so the buffer does not matter (tcp(7)).
    if is_bad(buffer, length) && flags & libc::MSG_TRUNC == 0 {
        return receive_nowhere(fd, flags);
    }
    let part = iovec {
        iov_base: buffer,
        iov_len: length.min(MOST),
    };
    // SAFETY: the caller's promise.
    unsafe { receive(fd, &[part], flags) }
}

/// `send(2)`.
#[inline]
pub unsafe fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> Outcome {
    if table::socket(fd).is_none() {
        return Outcome::Kernel;
    }
    if is_bad(buffer, length) {
        // The kernel finds out while it copies, after it has looked at the
        // connection: a send of nothing does the same.
        // SAFETY: no bytes.
        return match unsafe { transmit(fd, &[], flags) } {
            Outcome::Done(_) => Outcome::Fail(libc::EFAULT),
            other => other,
        };
    }
    let part = iovec {
        iov_base: buffer.cast_mut(),
        iov_len: length.min(MOST),
    };
    // SAFETY: the caller's promise.
    unsafe { transmit(fd, &[part], flags) }
}

/// A receive into a bad buffer: `EFAULT` once there is something to receive, and
/// nothing is lost.
fn receive_nowhere(fd: c_int, flags: c_int) -> Outcome {
    match target(fd, RECEIVER) {
        Target::Counted(socket) => {
            // It takes nothing, so it need not be counted.
            socket.inside.leave(RECEIVER);
            Outcome::Kernel
        }
        Target::Shunted(conn) => {
            let mut byte = 0u8;
            let part = iovec {
                iov_base: (&raw mut byte).cast(),
                iov_len: 1,
            };
            // SAFETY: a byte of our own.
            match unsafe {
                stream::receive(&conn, &[part], flags & !libc::MSG_WAITALL | libc::MSG_PEEK)
            } {
                Outcome::Done(n) if n > 0 => Outcome::Fail(libc::EFAULT),
                other => other,
            }
        }
        Target::Kernel => Outcome::Kernel,
    }
}

/// `MAX_RW_COUNT`: the kernel moves no more in one call (`read(2)`, NOTES).
const MOST: usize = 0x7fff_f000;

/// `recvfrom(2)`. On a connected stream the address is not filled and its
/// length becomes 0, as the kernel does it.
pub unsafe fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> Outcome {
    if address.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { recv(fd, buffer, length, flags) };
    }
    match target(fd, RECEIVER) {
        Target::Shunted(_) => {}
        Target::Kernel => return Outcome::Kernel,
        Target::Counted(socket) => {
            // SAFETY: the caller's promise.
            return unsafe {
                counted(socket, RECEIVER, || {
                    real::recvfrom()(fd, buffer, length, flags, address, address_length)
                })
            };
        }
    }
    // SAFETY: the caller's promise.
    let outcome = unsafe { recv(fd, buffer, length, flags) };
    if !matches!(outcome, Outcome::Done(_)) {
        return outcome;
    }
    // The kernel copies the address out last: the data is gone by then.
    if is_bad(address_length.cast(), 4) {
        return Outcome::Fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    if unsafe { *address_length } as i32 <= -1 {
        return Outcome::Fail(libc::EINVAL);
    }
    // SAFETY: as above.
    unsafe { *address_length = 0 };
    outcome
}

/// `sendto(2)`. On a connected stream the address is ignored.
pub unsafe fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> Outcome {
    let odd = address_length as usize > size_of::<libc::sockaddr_storage>()
        || is_bad(address.cast(), address_length as usize);
    if !address.is_null() && odd {
        // The kernel refuses the address before it looks at the socket.
        return Outcome::Kernel;
    }
    // An address on a connected stream is ignored; on any other socket the
    // kernel must see it (TCP fast open connects with it).
    if !address.is_null() && !is_candidate(fd) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    unsafe { send(fd, buffer, length, flags) }
}

/// `recvmsg(2)`.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    if is_bad(message.cast(), 1) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let header = unsafe { &mut *message };
    if !is_candidate(fd) {
        if header.msg_controllen == 0 || header.msg_control.is_null() {
            return Outcome::Kernel;
        }
        // SAFETY: the caller's promise; the kernel has filled the control data.
        return unsafe {
            match real::quietly(|| real::recvmsg()(fd, message, flags)) {
                Ok(n) => {
                    life::passed(message);
                    Outcome::Done(n)
                }
                Err(errno) => Outcome::Fail(errno),
            }
        };
    }
    // SAFETY: the caller's promise.
    let parts = match unsafe { list(header.msg_iov, header.msg_iovlen) } {
        Ok(parts) => parts,
        // The kernel says EMSGSIZE here, not EINVAL.
        Err(_) => return Outcome::Kernel,
    };
    match target(fd, RECEIVER) {
        Target::Kernel => Outcome::Kernel,
        Target::Counted(socket) => {
            // SAFETY: the caller's promise.
            unsafe { counted(socket, RECEIVER, || real::recvmsg()(fd, message, flags)) }
        }
        Target::Shunted(_) if has_bad(parts) => receive_nowhere(fd, flags),
        Target::Shunted(conn) => {
            // SAFETY: the caller's promise.
            let outcome = unsafe { stream::receive(&conn, parts, flags) };
            if let Outcome::Done(_) = outcome {
                header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
                if conn.socket.tells_left.load(Ordering::Relaxed) {
                    // SAFETY: the caller's promise.
                    unsafe { put_left(&conn, header) };
                } else {
                    header.msg_controllen = 0;
                }
                if !header.msg_name.is_null() {
                    header.msg_namelen = 0;
                }
            }
            outcome
        }
    }
}

/// The ancillary message of `TCP_INQ`: how much can still be received, or 1 when
/// only the end of file is left.
///
/// # Safety
/// The header's control buffer is writable.
#[cold]
unsafe fn put_left(conn: &Conn, header: &mut msghdr) {
    const TCP_CM_INQ: c_int = libc::TCP_INQ;
    let left = match stream::unread(conn) {
        0 => c_int::from(crate::sys::ready(conn.fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0),
        n => n.min(c_int::MAX as u64) as c_int,
    };
    let room = if header.msg_control.is_null() {
        0
    } else {
        header.msg_controllen
    };
    // SAFETY: the caller's promise; nothing is written beyond the room.
    unsafe {
        if room < libc::CMSG_LEN(size_of::<c_int>() as u32) as usize {
            header.msg_flags |= libc::MSG_CTRUNC;
            header.msg_controllen = 0;
            return;
        }
        let at = header.msg_control.cast::<libc::cmsghdr>();
        at.write_unaligned(libc::cmsghdr {
            cmsg_len: libc::CMSG_LEN(size_of::<c_int>() as u32) as _,
            cmsg_level: libc::IPPROTO_TCP,
            cmsg_type: TCP_CM_INQ,
        });
        libc::CMSG_DATA(at).cast::<c_int>().write_unaligned(left);
        header.msg_controllen = room.min(libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize);
    }
}

/// `sendmsg(2)`. Also looks for descriptors being passed, on any socket.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
    if is_bad(message.cast(), 1) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    let header = unsafe { &*message };
    if header.msg_controllen > 0 && !header.msg_control.is_null() {
        // SAFETY: the caller's promise.
        unsafe { life::passing(message) };
        if table::socket(fd).is_some_and(|s| s.stage() != Stage::Attached) {
            return Outcome::Kernel;
        }
    }
    if !is_candidate(fd) {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    match unsafe { list(header.msg_iov, header.msg_iovlen) } {
        Ok(parts) if has_bad(parts) => Outcome::Fail(libc::EFAULT),
        // SAFETY: the caller's promise.
        Ok(parts) => unsafe { transmit(fd, parts, flags) },
        Err(_) => Outcome::Kernel,
    }
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
    const MSG_WAITFORONE: c_int = 0x10000;
    if is_bad(messages.cast(), 1) {
        return Outcome::Kernel;
    }
    match target(fd, RECEIVER) {
        Target::Shunted(_) => {}
        Target::Kernel => return Outcome::Kernel,
        Target::Counted(socket) => {
            // SAFETY: the caller's promise.
            return unsafe {
                counted(socket, RECEIVER, || {
                    real::recvmmsg()(fd, messages, count, flags, timeout) as isize
                })
            };
        }
    }
    let end = if timeout.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        let t = unsafe { *timeout };
        if t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec) {
            return Outcome::Fail(libc::EINVAL);
        }
        Some(
            crate::sys::now()
                .saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000) + t.tv_nsec as u64),
        )
    };
    let mut flags = flags;
    for i in 0..count.min(IOV_MAX as c_uint) as usize {
        // SAFETY: the caller's promise.
        let one = unsafe { &mut *messages.add(i) };
        // SAFETY: as above.
        match unsafe { recvmsg(fd, &raw mut one.msg_hdr, flags & !MSG_WAITFORONE) } {
            Outcome::Done(n) => one.msg_len = n as c_uint,
            Outcome::Kernel if i == 0 => return Outcome::Kernel,
            other if i == 0 => return other,
            _ => return Outcome::Done(i as isize),
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let late = end.is_some_and(|end| {
            let left = end.saturating_sub(crate::sys::now());
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
    Outcome::Done(count.min(IOV_MAX as c_uint) as isize)
}

/// `sendmmsg(2)`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Outcome {
    if is_bad(messages.cast(), 1) {
        return Outcome::Kernel;
    }
    match target(fd, SENDER) {
        Target::Shunted(_) => {}
        Target::Kernel => return Outcome::Kernel,
        Target::Counted(socket) => {
            // SAFETY: the caller's promise.
            return unsafe {
                counted(socket, SENDER, || {
                    real::sendmmsg()(fd, messages, count, flags) as isize
                })
            };
        }
    }
    let count = count.min(IOV_MAX as c_uint);
    for i in 0..count as usize {
        // SAFETY: the caller's promise.
        let one = unsafe { &mut *messages.add(i) };
        // SAFETY: as above.
        match unsafe { sendmsg(fd, &raw const one.msg_hdr, flags) } {
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

/// `sendfile(2)`.
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> Outcome {
    match target(out, SENDER) {
        // Only a regular file can be read at an offset; the rest is the kernel's to refuse.
        Target::Shunted(conn)
            if crate::sys::is_file(input)
                && (offset.is_null() || crate::sys::is_readable(offset)) =>
        {
            // SAFETY: the caller's promise.
            unsafe { stream::sendfile(&conn, input, offset, count.min(MOST)) }
        }
        Target::Counted(socket) => {
            // SAFETY: the caller's promise.
            unsafe {
                counted(socket, SENDER, || {
                    real::sendfile()(out, input, offset, count)
                })
            }
        }
        _ => Outcome::Kernel,
    }
}

/// `splice(2)` between a pipe and a shunted socket. Everything else that names
/// such a socket is the kernel's to refuse.
pub unsafe fn splice(
    input: c_int,
    input_offset: *mut loff_t,
    out: c_int,
    out_offset: *mut loff_t,
    length: size_t,
    flags: c_uint,
) -> Outcome {
    // SAFETY: the caller's promise.
    let real = || unsafe { real::splice()(input, input_offset, out, out_offset, length, flags) };
    let into = is_candidate(out);
    if !into && !is_candidate(input) {
        return Outcome::Kernel;
    }
    let (socket, who, pipe) = if into {
        (out, SENDER, input)
    } else {
        (input, RECEIVER, out)
    };
    match target(socket, who) {
        Target::Kernel => Outcome::Kernel,
        // SAFETY: the caller's promise.
        Target::Counted(socket) => unsafe { counted(socket, who, real) },
        Target::Shunted(conn) => {
            let offsets = !input_offset.is_null() || !out_offset.is_null();
            if length == 0 || offsets || flags & !SPLICE_F_ALL != 0 || !crate::sys::is_pipe(pipe) {
                return Outcome::Kernel;
            }
            let length = length.min(MOST);
            if into {
                stream::splice_in(&conn, pipe, length, flags, real)
            } else {
                stream::splice_out(&conn, pipe, length, flags)
            }
        }
    }
}
