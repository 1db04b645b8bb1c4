//! A send buffer that is larger than its program has made it, as long as this lives: what was in shared memory
//! had room there, however small the program has made the buffer since.

use std::os::fd::{AsFd, BorrowedFd};

use crate::sys;

/// Which buffers keep the size that the program has set (Linux 5.15).
const SO_BUF_LOCK: libc::c_int = 72;
/// Of [`SO_BUF_LOCK`]: the send buffer.
const SNDBUF_LOCK: libc::c_int = 1;
/// How much a socket may have unsent and still take more; 0: any amount.
const TCP_NOTSENT_LOWAT: libc::c_int = 25;

#[derive(Debug)]
pub(crate) struct Stretched<'a> {
    socket: BorrowedFd<'a>,
    /// What it was, if it was small.
    size: Option<i32>,
    locks: i32,
    least_unsent: i32,
}

impl<'a> Stretched<'a> {
    /// `None`: it is as large as it gets.
    pub(crate) fn new(socket: BorrowedFd<'a>) -> Option<Self> {
        /// As much as the kernel may give; it keeps to its own limit (`net.core.wmem_max`), …
        const MOST: i32 = 4 << 20;
        /// … which is half of this or more, if nobody has lowered it: the kernel doubles what it
        /// grants.
        const SMALL: i32 = 2 * 212_992;
        let size = get(socket, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        let locks = get(socket, libc::SOL_SOCKET, SO_BUF_LOCK)?;
        let least_unsent = get(socket, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT)?;
        let is_small = size < SMALL;
        if !is_small && least_unsent == 0 {
            return None;
        }
        if is_small {
            set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, MOST);
            // Beyond that it grows by itself.
            set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, locks & !SNDBUF_LOCK);
        }
        set(socket, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);
        Some(Self {
            socket,
            size: is_small.then_some(size),
            locks,
            least_unsent,
        })
    }
}

impl Drop for Stretched<'_> {
    fn drop(&mut self) {
        let socket = self.socket;
        if let Some(size) = self.size {
            // The kernel doubles what it is told (`socket(7)`).
            set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, size / 2);
            set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, self.locks);
        }
        let least = self.least_unsent;
        set(socket, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, least);
    }
}

fn get(socket: impl AsFd, level: libc::c_int, name: libc::c_int) -> Option<i32> {
    sys::integer(socket, level, name).ok()
}

/// What the kernel refuses stays as it is.
fn set(socket: impl AsFd, level: libc::c_int, name: libc::c_int, value: i32) {
    let _ = sys::set_integer(socket, level, name, value);
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_small_buffer_is_large_for_a_while_and_then_as_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let size = || get(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap();
        let least = || get(&socket, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT).unwrap();
        set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 8192);
        set(&socket, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096);
        let before = (size(), least());
        let stretched = Stretched::new(socket.as_fd()).unwrap();
        assert!(size() > 2 * 8192 && least() == 0);
        drop(stretched);
        assert_eq!((size(), least()), before);
    }
}
