//! Passing descriptors over a Unix socket.

use super::shared::CONNECTIONS;
use crate::system::{checked, counted};
use std::io::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

const BYTES: u32 = (size_of::<RawFd>() * CONNECTIONS) as u32;

/// Room for the descriptors, aligned as a header must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Two ends of a socket pair.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the array lives through the call; the descriptors are owned by nobody else.
    unsafe {
        checked(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// A message of one part and room for descriptors, which must both outlive it.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: zeroes are a message of nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    message
}

pub(super) fn send(over: RawFd, fds: &[RawFd; CONNECTIONS]) -> Result<()> {
    let mut control = Control([0; 64]);
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: all that the message points to lives through the call, and
    // the control buffer has room for the header and the descriptors.
    unsafe {
        let mut message = message(&mut part, &mut control);
        message.msg_controllen = libc::CMSG_SPACE(BYTES) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(BYTES) as usize;
        std::ptr::copy_nonoverlapping(
            fds.as_ptr().cast::<u8>(),
            libc::CMSG_DATA(header),
            BYTES as usize,
        );
        counted(libc::sendmsg(over, &raw const message, libc::MSG_NOSIGNAL))?;
    }
    Ok(())
}

pub(super) fn receive(over: RawFd) -> Result<[RawFd; CONNECTIONS]> {
    let mut control = Control([0; 64]);
    let mut fds = [-1; CONNECTIONS];
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: all that the message points to lives through the call; the header
    // is looked at only where the kernel says that there is one.
    unsafe {
        let mut message = message(&mut part, &mut control);
        counted(libc::recvmsg(
            over,
            &raw mut message,
            libc::MSG_CMSG_CLOEXEC,
        ))?;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_len != libc::CMSG_LEN(BYTES) as usize {
            return Err(Error::other("none came"));
        }
        std::ptr::copy_nonoverlapping(
            libc::CMSG_DATA(header),
            fds.as_mut_ptr().cast::<u8>(),
            BYTES as usize,
        );
    }
    Ok(fds)
}
