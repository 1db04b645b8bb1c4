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

#[cfg(test)]
mod tests {
    use super::*;

    use shunt_abi::message::Kind;

    fn ends() -> [c_int; 2] {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0);
        ends
    }

    fn close([one, other]: [c_int; 2]) {
        sys::close(one);
        sys::close(other);
    }

    #[test]
    fn a_message_comes_as_it_was_sent() {
        let [one, other] = ends();
        let mut m = Message::new(Kind::Claim);
        (m.cookie, m.fd) = (7, 3);
        assert_eq!(transmit(one, &m, None), Sent::Done);
        let (got, passed) = receive(other).unwrap().unwrap();
        assert_eq!((got.kind(), got.cookie, got.fd), (Some(Kind::Claim), 7, 3));
        assert_eq!((passed, receive(other).unwrap().is_none()), (None, true));
        close([one, other]);
    }

    #[test]
    fn a_descriptor_comes_with_it_as_one_that_no_program_inherits() {
        let [one, other] = ends();
        assert_eq!(
            transmit(one, &Message::new(Kind::Counters), Some(one)),
            Sent::Done
        );
        let passed = receive(other).unwrap().unwrap().1.unwrap();
        assert_eq!(sys::file(passed), sys::file(one));
        let flags = sys::fcntl(passed, libc::F_GETFD, 0).unwrap();
        assert_ne!(flags & libc::FD_CLOEXEC as usize, 0);
        sys::close(passed);
        close([one, other]);
    }

    #[test]
    fn nonsense_and_an_end_are_told_from_nothing() {
        let [one, other] = ends();
        sys::write(one, [1u8; 9].as_ptr(), 9).unwrap();
        assert!(receive(other).is_err());
        assert!(receive(other).unwrap().is_none());
        sys::close(one);
        assert!(receive(other).is_err());
        assert_eq!(
            transmit(other, &Message::new(Kind::Claim), None),
            Sent::Lost
        );
        sys::close(other);
    }

    #[test]
    fn a_full_queue_is_told_from_a_lost_connection() {
        let [one, other] = ends();
        let m = Message::new(Kind::Claim);
        let last = (0..1_000_000)
            .map(|_| transmit(one, &m, None))
            .find(|sent| *sent != Sent::Done);
        assert_eq!(last, Some(Sent::Full));
        close([one, other]);
    }
}
