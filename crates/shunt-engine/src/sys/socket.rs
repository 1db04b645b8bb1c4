//! What is asked of one socket.

use std::mem::size_of;

use libc::{c_int, msghdr};

use super::Errno;

pub(crate) fn socket(domain: c_int, kind: c_int) -> Result<c_int, Errno> {
    call!(socket, domain, kind, 0).map(|fd| fd as c_int)
}

pub(crate) fn connect(
    fd: c_int,
    address: &libc::sockaddr_un,
    length: usize,
) -> Result<usize, Errno> {
    call!(connect, fd, std::ptr::from_ref(address), length)
}

/// A datagram socket between processes that never blocks.
pub(crate) fn datagram_socket() -> Result<c_int, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    socket(libc::AF_UNIX, kind)
}

pub(crate) fn bind(fd: c_int, name: &libc::sockaddr_un, length: usize) -> Result<usize, Errno> {
    call!(bind, fd, std::ptr::from_ref(name), length)
}

/// Sends a datagram to `name` without blocking. Not by an established connection of TCP, should `fd` name
/// one: that takes no bytes with `MSG_FASTOPEN` (tcp(7)), of which datagrams know nothing. (One
/// that is just being made would.)
pub(crate) fn send_to(
    fd: c_int,
    bytes: &[u8],
    name: &libc::sockaddr_un,
    length: usize,
) -> Result<usize, Errno> {
    call!(
        sendto,
        fd,
        bytes.as_ptr(),
        bytes.len(),
        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_FASTOPEN,
        std::ptr::from_ref(name),
        length
    )
}

/// Takes up to `length` bytes without blocking.
pub(crate) fn recv(
    fd: c_int,
    buffer: *mut u8,
    length: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    call!(recvfrom, fd, buffer, length, flags, 0, 0)
}

/// Sends without blocking or raising `SIGPIPE`.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    call!(
        sendto,
        fd,
        bytes.as_ptr(),
        bytes.len(),
        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        0,
        0
    )
}

/// Sends without blocking or raising `SIGPIPE`, from any address, and says that more follows: so
/// small pieces leave together.
pub(crate) fn send_more(fd: c_int, from: *const u8, length: usize) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
    call!(sendto, fd, from, length, flags, 0, 0)
}

pub(crate) fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    call!(recvmsg, fd, message, flags)
}

pub(crate) fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Result<usize, Errno> {
    call!(sendmsg, fd, message, flags)
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> Result<usize, Errno> {
    call!(shutdown, fd, how)
}

/// Resets a connection: `connect` to no address (`connect(2)`, `AF_UNSPEC`).
pub(crate) fn reset(fd: c_int) {
    let none = [0u8; 16];
    let _ = call!(connect, fd, none.as_ptr(), none.len());
}

/// What the kernel may fill with any bytes.
///
/// # Safety
/// Each pattern of bits is a value of the type, and it has no padding that matters.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: an array of integers.
unsafe impl<const N: usize> Plain for [u32; N] {}
// SAFETY: a C struct of integers.
unsafe impl Plain for libc::linger {}
// SAFETY: as above.
unsafe impl Plain for libc::timeval {}
// SAFETY: as above.
unsafe impl Plain for libc::ucred {}

/// A socket option of plain data.
pub(crate) fn getsockopt<T: Plain>(fd: c_int, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as u32;
    call!(
        getsockopt,
        fd,
        level,
        name,
        value.as_mut_ptr(),
        &raw mut length
    )?;
    // SAFETY: zeroed, then perhaps partly filled by the kernel; any bytes are a value.
    Ok(unsafe { value.assume_init() })
}

pub(crate) fn setsockopt<T>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<usize, Errno> {
    call!(
        setsockopt,
        fd,
        level,
        name,
        std::ptr::from_ref(value),
        size_of::<T>()
    )
}

/// Has the kernel send what waits for more (`TCP_NODELAY` in `tcp(7)`).
pub(crate) fn push(fd: c_int) {
    let set = |on: i32| setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
    let was = getsockopt::<i32>(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let _ = set(1);
    if was == Ok(0) {
        let _ = set(0);
    }
}

/// Has the kernel acknowledge now what it has received, if it has not yet, and no sooner than before what comes later
/// (`TCP_QUICKACK` with an even number: `__tcp_sock_set_quickack` of Linux).
pub(crate) fn acknowledge(fd: c_int) {
    let _ = setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &2i32);
}

/// Bytes that a TCP socket's send buffer has room for, headers included.
pub(crate) fn send_room(fd: c_int) -> Option<u64> {
    const SO_MEMINFO: c_int = 55;
    const SK_MEMINFO_SNDBUF: usize = 3;
    const SK_MEMINFO_WMEM_QUEUED: usize = 5;
    const TCP_NOTSENT_LOWAT: c_int = 25;
    let memory = getsockopt::<[u32; 9]>(fd, libc::SOL_SOCKET, SO_MEMINFO).ok()?;
    let room = memory[SK_MEMINFO_SNDBUF].saturating_sub(memory[SK_MEMINFO_WMEM_QUEUED]);
    let most = match getsockopt::<u32>(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) {
        Ok(0) | Err(_) => u32::MAX,
        Ok(most) => most,
    };
    Some(u64::from(room.min(most)))
}

/// `getpeername`, to where the program wants it.
///
/// # Safety
/// As the manual page wants it. Where nothing can be stored the kernel says so, and this does not.
pub(crate) unsafe fn put_name(fd: c_int, address: *mut libc::sockaddr, length: *mut u32) {
    let _ = call!(getpeername, fd, address, length);
}

/// `getsockname` or `getpeername`.
pub(crate) fn name(fd: c_int, peer: bool) -> Result<libc::sockaddr_storage, Errno> {
    let mut address = std::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as u32;
    if peer {
        call!(getpeername, fd, address.as_mut_ptr(), &raw mut length)?;
    } else {
        call!(getsockname, fd, address.as_mut_ptr(), &raw mut length)?;
    }
    // SAFETY: a C struct of integers, zeroed, then filled by the kernel.
    Ok(unsafe { address.assume_init() })
}
