//! How one call is made: by a datagram to an abstract name, which contains the secret word.

use std::mem::offset_of;

use libc::{c_int, sock_filter, sockaddr_un};

use crate::region::count;
use crate::sys::{self, Errno};

/// The kernel drops what does not begin with this word, before it wakes anybody
/// (`socket(7)`, `SO_ATTACH_FILTER`).
pub(super) fn listen_for(fd: c_int, secret: u64) -> Result<usize, Errno> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        step(LOAD, 0, 0),
        step(IS_EQUAL, 3, (secret >> 32) as u32),
        step(LOAD, 0, 4),
        step(IS_EQUAL, 1, secret as u32),
        step(RETURN, 0, u32::MAX),
        step(RETURN, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Takes a call out. `MSG_TRUNC` with no buffer removes a datagram and returns its length. If the number names a
/// stream by now, nothing is taken from that.
pub(super) fn take(fd: c_int) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let called = sys::recv(fd, std::ptr::null_mut(), 0, flags).is_ok_and(|n| n > 0);
    if called {
        count::called();
    }
    called
}

/// Sends a call by a datagram socket.
pub(super) fn send(fd: c_int, name: u64, secret: u64) -> Result<(), Errno> {
    let (address, length) = address(name);
    sys::send_to(fd, &secret.to_be_bytes(), &address, length).map(|_| ())
}

/// The abstract address (`unix(7)`) of a channel.
pub(super) fn address(name: u64) -> (sockaddr_un, usize) {
    const PREFIX: &[u8] = b"\0shunt/call/";
    const DIGITS: usize = 16;
    // SAFETY: all-zero is a valid address.
    let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // The name is text, as tools that list such sockets expect.
    let digit = |i| b"0123456789abcdef"[(name >> (4 * i)) as usize & 15];
    let bytes = PREFIX.iter().copied().chain((0..DIGITS).map(digit));
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as _;
    }
    let length = offset_of!(sockaddr_un, sun_path) + PREFIX.len() + DIGITS;
    (address, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channels_name_is_text_that_tells_it_from_others() {
        let text = |name| {
            let (address, length) = address(name);
            let text: Vec<u8> = address.sun_path[1..length - 2]
                .iter()
                .map(|&c| c as u8)
                .collect();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(text(0x0123_4567_89ab_cdef), "shunt/call/fedcba9876543210");
        assert_ne!(text(1), text(2));
    }
}
