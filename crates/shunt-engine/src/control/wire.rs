//! One message on the control socket, and what it may carry.

use std::mem::size_of;

use libc::c_int;
use shunt_abi::message::{MESSAGE_BYTES, Message};
use zerocopy::IntoBytes;

use crate::sys;

/// Room for one passed descriptor, aligned as `cmsghdr` wants.
#[repr(C)]
struct Passed {
    header: libc::cmsghdr,
    fd: c_int,
    padding: c_int,
}

/// What has become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The daemon will read it.
    Done,
    /// There is no room for it now.
    Full,
    /// There is no daemon.
    Lost,
}

pub(super) fn transmit(fd: c_int, m: &Message, passed: Option<c_int>) -> Sent {
    let bytes = m.as_bytes();
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr() as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: a C struct of integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut control: Passed = unsafe { std::mem::zeroed() };
    if let Some(passed) = passed {
        control.header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<c_int>();
        control.header.cmsg_level = libc::SOL_SOCKET;
        control.header.cmsg_type = libc::SCM_RIGHTS;
        control.fd = passed;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Passed>();
    }
    match sys::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Ok(_) => Sent::Done,
        // The last: descriptors of this user that nobody has received yet (`unix(7)`).
        Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS) => Sent::Full,
        Err(_) => Sent::Lost,
    }
}

/// `Ok(None)`: nothing there; `Err`: the daemon is gone or talks nonsense.
pub(super) fn receive(fd: c_int) -> Result<Option<(Message, Option<c_int>)>, ()> {
    let mut bytes = [0u8; MESSAGE_BYTES + 1];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: a C struct of integers, for which zero is a value.
    let mut control: Passed = unsafe { std::mem::zeroed() };
    // SAFETY: a C struct of integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Passed>();
    let n = match sys::recvmsg(
        fd,
        &raw mut header,
        libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
    ) {
        Ok(0) => return Err(()),
        Ok(n) => n,
        Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
        Err(_) => return Err(()),
    };
    let carries = header.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<c_int>()
        && control.header.cmsg_type == libc::SCM_RIGHTS;
    let passed = carries.then_some(control.fd);
    match Message::parse(&bytes[..n]) {
        Some(m) => Ok(Some((m, passed))),
        None => {
            if let Some(passed) = passed {
                sys::close(passed);
            }
            Err(())
        }
    }
}
