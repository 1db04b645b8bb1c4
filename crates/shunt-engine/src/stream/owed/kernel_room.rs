//! Room in the kernel's socket for what is sent again.

use libc::c_int;

use crate::stream::Conn;
use crate::sys;

/// Whether the kernel's socket takes `bytes` bytes at once. Bytes in the ring outlive this side;
/// what it would still owe to TCP does not.
pub(in crate::stream) fn has_room(conn: &Conn, bytes: u64) -> bool {
    conn.base().is_some_and(|base| takes(base, bytes))
}

fn takes(base: c_int, bytes: u64) -> bool {
    // Its buffers' headers need some, too.
    sys::send_room(base).is_some_and(|room| bytes + bytes / 8 <= room)
}

/// Makes a send buffer larger than the program has made it, as long as this object lives. What is
/// sent again had room in the ring, however small the program has made the buffer since.
pub(super) struct Stretched {
    fd: c_int,
    /// The size that it had, if that was small.
    size: Option<c_int>,
    locks: c_int,
    least_unsent: c_int,
}

/// Which buffers keep the size that the program has set (Linux 5.15).
const SO_BUF_LOCK: c_int = 72;
/// Of [`SO_BUF_LOCK`]: the send buffer.
const SNDBUF_LOCK: c_int = 1;
/// How much a socket may have unsent and still take more; 0: any amount.
const TCP_NOTSENT_LOWAT: c_int = 25;

impl Stretched {
    /// `None`: the buffer is as large as it gets.
    pub(super) fn new(fd: c_int) -> Option<Self> {
        /// As much as the kernel may give; it keeps to its own limit (`net.core.wmem_max`), …
        const MOST: c_int = 4 << 20;
        /// … which is half of this or more, if nobody has lowered it: the kernel doubles what it
        /// grants.
        const SMALL: c_int = 2 * 212_992;
        let size = get(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        let locks = get(fd, libc::SOL_SOCKET, SO_BUF_LOCK)?;
        let least_unsent = get(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT)?;
        let is_small = size < SMALL;
        if !is_small && least_unsent == 0 {
            return None;
        }
        if is_small {
            set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, MOST);
            // Beyond that size the kernel lets it grow by itself.
            set(fd, libc::SOL_SOCKET, SO_BUF_LOCK, locks & !SNDBUF_LOCK);
        }
        set(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0);
        Some(Self {
            fd,
            size: is_small.then_some(size),
            locks,
            least_unsent,
        })
    }

    /// Makes room for `bytes` bytes, if there is not enough (`None`: there is). `Err`: the kernel
    /// does not give that much.
    pub(super) fn for_bytes(fd: c_int, bytes: u64) -> Result<Option<Self>, ()> {
        if takes(fd, bytes) {
            return Ok(None);
        }
        let stretched = Self::new(fd).ok_or(())?;
        takes(fd, bytes).then_some(Some(stretched)).ok_or(())
    }
}

impl Drop for Stretched {
    fn drop(&mut self) {
        if let Some(size) = self.size {
            // The kernel doubles what it is told (`socket(7)`).
            set(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size / 2);
            set(self.fd, libc::SOL_SOCKET, SO_BUF_LOCK, self.locks);
        }
        let least = self.least_unsent;
        set(self.fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, least);
    }
}

/// Makes a receive buffer larger than the program has made it, as long as this object lives: its size tells the
/// other end how much it may send.
pub(in crate::stream) struct Roomy {
    fd: c_int,
    /// The size that it had, if that was small and fixed.
    size: Option<c_int>,
    locks: c_int,
}

/// Of [`SO_BUF_LOCK`]: the receive buffer.
const RCVBUF_LOCK: c_int = 2;

impl Roomy {
    /// To be made before the connection is.
    pub(in crate::stream) fn new(fd: c_int) -> Self {
        /// What the kernel doubles to a socket's first buffer (`tcp_rmem`).
        const USUAL: c_int = 65_536;
        let locks = get(fd, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
        let size = get(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)
            .filter(|&size| locks & RCVBUF_LOCK != 0 && size < 2 * USUAL);
        if size.is_some() {
            set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, USUAL);
            set(fd, libc::SOL_SOCKET, SO_BUF_LOCK, locks & !RCVBUF_LOCK);
        }
        Self { fd, size, locks }
    }
}

impl Drop for Roomy {
    fn drop(&mut self) {
        if let Some(size) = self.size {
            set(self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, size / 2);
            set(self.fd, libc::SOL_SOCKET, SO_BUF_LOCK, self.locks);
        }
    }
}

fn get(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    sys::getsockopt(fd, level, name).ok()
}

fn set(fd: c_int, level: c_int, name: c_int, value: c_int) {
    let _ = sys::setsockopt(fd, level, name, &value);
}
