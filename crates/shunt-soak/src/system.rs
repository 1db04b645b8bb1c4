//! The system calls of the workers, through libc as any program makes them.

use std::io::{Error, Result};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A libc result as a `Result`.
pub(crate) fn checked(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A byte count or an error.
pub(crate) fn counted(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.ip().octets()),
        },
        sin_zero: [0; 8],
    }
}

const ADDRESS_BYTES: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

/// A new TCP socket with the given `SOCK_` flags.
pub(crate) fn socket(flags: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = checked(unsafe {
        libc::socket(
            libc::AF_INET,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags,
            0,
        )
    })?;
    // SAFETY: just created, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects; `Ok(false)` when it is under way.
pub(crate) fn connect(fd: RawFd, to: SocketAddrV4) -> Result<bool> {
    let address = raw(to);
    loop {
        let to = (&raw const address).cast();
        // SAFETY: the address lives through the call and its size is right.
        let result = checked(unsafe { libc::connect(fd, to, ADDRESS_BYTES) });
        match result {
            Ok(_) => return Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINPROGRESS) => return Ok(false),
                Some(libc::EINTR) => {}
                _ => return Err(error),
            },
        }
    }
}

/// A listener on any port.
pub(crate) fn listener(flags: libc::c_int, at: Ipv4Addr) -> Result<(OwnedFd, u16)> {
    let socket = socket(flags)?;
    let mut address = raw(SocketAddrV4::new(at, 0));
    let mut size = ADDRESS_BYTES;
    // SAFETY: the address lives through the calls and its size is right.
    unsafe {
        checked(libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            ADDRESS_BYTES,
        ))?;
        checked(libc::listen(socket.as_raw_fd(), 1024))?;
        checked(libc::getsockname(
            socket.as_raw_fd(),
            (&raw mut address).cast(),
            &raw mut size,
        ))?;
    }
    Ok((socket, u16::from_be(address.sin_port)))
}

/// Accepts; `None` when nobody is there.
pub(crate) fn accept(listener: RawFd, flags: libc::c_int) -> Result<Option<OwnedFd>> {
    // SAFETY: null addresses are allowed.
    let result = checked(unsafe {
        libc::accept4(
            listener,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC | flags,
        )
    });
    match result {
        // SAFETY: just created, owned by nobody else.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Switches to non-blocking mode by one of the roads there.
pub(crate) fn set_non_blocking(fd: RawFd, by_ioctl: bool) -> Result<()> {
    let mut on: libc::c_int = 1;
    // SAFETY: FIONBIO reads one int; the fcntl calls take integers.
    unsafe {
        if by_ioctl {
            checked(libc::ioctl(fd, libc::FIONBIO, &raw mut on))?;
        } else {
            let flags = checked(libc::fcntl(fd, libc::F_GETFL))?;
            checked(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK))?;
        }
    }
    Ok(())
}

/// The socket's pending error.
pub(crate) fn take_error(fd: RawFd) -> Result<()> {
    let mut error: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers live through the call.
    checked(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut size,
        )
    })?;
    if error == 0 {
        Ok(())
    } else {
        Err(Error::from_raw_os_error(error))
    }
}

/// `shutdown`; its failure is found out by the next read or write.
pub(crate) fn shutdown(fd: RawFd, how: libc::c_int) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(fd, how) };
}

/// Writing to a closed connection is an error, not a signal.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// An anonymous file, for sendfile to read from.
pub(crate) fn scratch_file() -> Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let fd = checked(unsafe { libc::memfd_create(c"soak".as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: just created, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
