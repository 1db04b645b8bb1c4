//! Pipes that keep writes apart (`O_DIRECT`, `pipe2(2)`): who reads a part of a packet loses the rest. `splice(2)` neither loses
//! anything nor makes packets. So the bytes of such a pipe take the way through one of our own, for which the kernel's `splice`
//! counts on the other side.

use libc::c_int;

use crate::config;
use crate::sys::{self, Errno};

/// The most that a packet can be, in bytes (`PIPE_BUF`).
const LONGEST: usize = libc::PIPE_BUF;
/// What a new pipe has room for, in bytes (`pipe(7)`).
const ROOM: usize = 1 << 16;

/// A pipe between another one and the ring, for one step.
struct Between {
    reader: c_int,
    writer: c_int,
}

impl Between {
    /// `EMFILE`: there can be none, also where the program may have forbidden itself to make one.
    fn new() -> Result<Self, Errno> {
        if config::is_confined() {
            return Err(libc::EMFILE);
        }
        let [reader, writer] = sys::pipe().map_err(|_| libc::EMFILE)?;
        Ok(Self { reader, writer })
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        sys::close(self.reader);
        sys::close(self.writer);
    }
}

/// Whether a read of so many bytes may cut a packet. (Nothing tells whether a pipe has packets.)
pub(super) fn may_cut(pipe: c_int, length: usize) -> bool {
    length < LONGEST && sys::ioctl_int(pipe, libc::FIONREAD).is_ok_and(|n| n as usize > length)
}

/// Reads up to `length` bytes from a pipe that may have packets, without blocking; 0 at the end. `EMFILE`: only the kernel's
/// `splice` can do it.
///
/// # Safety
/// There is room for them at `to`.
pub(super) unsafe fn read(pipe: c_int, to: *mut u8, length: usize) -> Result<usize, Errno> {
    let between = Between::new()?;
    let moved = sys::splice_now(pipe, between.writer, length.min(ROOM))?;
    let mut done = 0;
    while done < moved {
        // SAFETY: within what the caller has.
        match sys::read(between.reader, unsafe { to.add(done) }, moved - done)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Writes what fits into a pipe that would make packets of it, without blocking, as `splice` does: without any. `EMFILE`: only
/// the kernel can do it.
pub(super) fn write(pipe: c_int, from: *const u8, length: usize) -> Result<usize, Errno> {
    let between = Between::new()?;
    let written = sys::write(between.writer, from, length.min(ROOM))?;
    sys::splice_now(between.reader, pipe, written)
}

/// Whether there is a descriptor for a pipe of our own.
pub(super) fn may_join() -> bool {
    Between::new().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::ptr;

    /// A pipe of packets.
    fn of_packets() -> Between {
        let pipe = Between::new().unwrap();
        let flags = libc::O_DIRECT | libc::O_NONBLOCK;
        sys::fcntl(pipe.writer, libc::F_SETFL, flags as usize).unwrap();
        pipe
    }

    #[test]
    fn a_part_of_a_packet_leaves_the_rest() {
        let pipe = of_packets();
        for packet in [b"abcd", b"efgh"] {
            assert_eq!(sys::write(pipe.writer, packet.as_ptr(), 4), Ok(4));
        }
        let mut bytes = [0u8; 8];
        assert!(may_cut(pipe.reader, 7) && !may_cut(pipe.reader, 8));
        // SAFETY: there is room.
        let mut read = |n| unsafe { read(pipe.reader, bytes.as_mut_ptr(), n) };
        assert_eq!([read(3), read(3)], [Ok(3), Ok(3)]);
        assert_eq!(&bytes[..3], b"def");
        // SAFETY: no more than the array holds is asked for.
        let mut read = |n| unsafe { super::read(pipe.reader, bytes.as_mut_ptr(), n) };
        assert_eq!([read(8), read(8)], [Ok(2), Err(libc::EAGAIN)]);
        assert_eq!(&bytes[..2], b"gh");
    }

    #[test]
    fn what_is_written_makes_no_packet() {
        let pipe = of_packets();
        assert_eq!(write(pipe.writer, b"abcd".as_ptr(), 4), Ok(4));
        let mut bytes = [0u8; 4];
        let mut read = |n| sys::read(pipe.reader, bytes.as_mut_ptr(), n);
        assert_eq!(
            [read(3), read(3), read(3)],
            [Ok(3), Ok(1), Err(libc::EAGAIN)]
        );
        let much = [0u8; ROOM];
        while write(pipe.writer, much.as_ptr(), ROOM).is_ok() {}
        assert_eq!(write(pipe.writer, ptr::null(), 0), Ok(0));
        assert_eq!(write(pipe.writer, much.as_ptr(), 1), Err(libc::EAGAIN));
    }
}
