//! The connection by which a queue pair sends, and the process at its other end.

use std::io::Write as _;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::descriptor::high;
use super::record::Record;
use super::{refused, refused_by};
use crate::transport::Refused;

pub(super) struct Outward {
    socket: UnixStream,
    /// Who listened there.
    pid: libc::pid_t,
}

impl Outward {
    /// To the queue pair of that number, of the NIC that listens there.
    pub(super) fn connect(path: &Path, number: u32) -> Result<Self, Refused> {
        let io = |error: std::io::Error| refused_by("a connection to another NIC", &error);
        let socket = high(UnixStream::connect(path).map_err(io)?)?;
        socket.set_nonblocking(true).map_err(io)?;
        let mut outward = Self {
            pid: listener(&socket)?,
            socket,
        };
        if outward.say(&Record::Hello(number)) {
            Ok(outward)
        } else {
            Err(refused("a greeting to another NIC"))
        }
    }

    /// `false`: the peer has gone, or has not taken more than a correct one leaves.
    pub(super) fn say(&mut self, record: &Record) -> bool {
        let bytes = record.to_bytes();
        matches!(self.socket.write(&bytes), Ok(n) if n == bytes.len())
    }

    /// Writes both parts to the peer's memory. `false`: that cannot be done.
    ///
    /// # Safety
    /// Both parts are mapped.
    pub(super) unsafe fn place(&self, parts: [(u64, usize); 2], address: u64) -> bool {
        let length = parts[0].1 + parts[1].1;
        if length == 0 {
            return true;
        }
        let part = |(at, bytes): (u64, usize)| libc::iovec {
            iov_base: at as *mut libc::c_void,
            iov_len: bytes,
        };
        let from = parts.map(part);
        let to = part((address, length));
        let to = &raw const to;
        // SAFETY: both lists are readable, of two entries and of one. This process's memory is only read: the caller promises that
        // both parts are mapped. The other process has registered its own for such writes, which `World::take` checks.
        let written = unsafe { libc::process_vm_writev(self.pid, from.as_ptr(), 2, to, 1, 0) };
        written == length as isize
    }
}

impl AsRawFd for Outward {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The process that listened for a connection.
fn listener(socket: &UnixStream) -> Result<libc::pid_t, Refused> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a place of that length is writable.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if done == 0 {
        Ok(credentials.pid)
    } else {
        Err(refused("the process of another NIC"))
    }
}
