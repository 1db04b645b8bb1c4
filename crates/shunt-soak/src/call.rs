//! The families of calls that move bytes.

use crate::random::Random;
use crate::system::{counted, scratch_file};
use std::io::{IoSlice, IoSliceMut, Result};
use std::os::fd::{AsRawFd, RawFd};

/// Sends some of `bytes` by a family chosen at random.
pub(crate) fn send(fd: RawFd, bytes: &[u8], random: &mut Random) -> Result<usize> {
    let (data, size) = (bytes.as_ptr().cast(), bytes.len());
    match random.below(7) {
        // SAFETY: the pointers cover `bytes`, which outlives the call.
        0 => counted(unsafe { libc::write(fd, data, size) }),
        // SAFETY: the pointers cover `bytes`, which outlives the call.
        1 => counted(unsafe { libc::send(fd, data, size, 0) }),
        // SAFETY: the pointers cover `bytes`, which outlives the call.
        2 => counted(unsafe { libc::send(fd, data, size, libc::MSG_NOSIGNAL) }),
        // SAFETY: the pointers cover `bytes`, which outlives the call.
        3 => counted(unsafe { libc::sendto(fd, data, size, 0, std::ptr::null(), 0) }),
        4 => {
            let parts: Vec<IoSlice<'_>> = pieces(size, random)
                .map(|(a, b)| IoSlice::new(&bytes[a..b]))
                .collect();
            // SAFETY: IoSlice is layout-compatible with iovec.
            counted(unsafe { libc::writev(fd, parts.as_ptr().cast(), count(parts.len())) })
        }
        5 => {
            let parts: Vec<IoSlice<'_>> = pieces(size, random)
                .map(|(a, b)| IoSlice::new(&bytes[a..b]))
                .collect();
            // SAFETY: a zeroed msghdr is valid; IoSlice is layout-compatible with iovec.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_ptr().cast_mut().cast();
            message.msg_iovlen = parts.len();
            // SAFETY: everything that the message points to outlives the call.
            counted(unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) })
        }
        _ => send_file(fd, bytes),
    }
}

fn send_file(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    // A file of its own for each call: the kernel sends pages, not copies, and
    // whoever overwrites them changes what is under way.
    let file = scratch_file()?;
    let file = file.as_raw_fd();
    let mut offset = 0;
    // SAFETY: the pointers cover `bytes` and `offset`, which outlive the calls.
    unsafe {
        let size = counted(libc::pwrite(file, bytes.as_ptr().cast(), bytes.len(), 0))?;
        counted(libc::sendfile(fd, file, &raw mut offset, size))
    }
}

/// Receives into `buffer` by a family chosen at random. `all` says that as many
/// bytes will come and that the caller may wait for them.
pub(crate) fn receive(
    fd: RawFd,
    buffer: &mut [u8],
    all: bool,
    random: &mut Random,
) -> Result<usize> {
    let (data, size) = (buffer.as_mut_ptr().cast(), buffer.len());
    match random.below(if all { 8 } else { 7 }) {
        // SAFETY: the pointers cover `buffer`, which outlives the call.
        0 => counted(unsafe { libc::read(fd, data, size) }),
        // SAFETY: the pointers cover `buffer`, which outlives the call.
        1 | 2 => counted(unsafe { libc::recv(fd, data, size, 0) }),
        // SAFETY: the pointers cover `buffer`, which outlives the call.
        3 => counted(unsafe {
            libc::recvfrom(
                fd,
                data,
                size,
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        }),
        4 => {
            let mut parts = split(buffer, random);
            // SAFETY: IoSliceMut is layout-compatible with iovec.
            counted(unsafe { libc::readv(fd, parts.as_mut_ptr().cast(), count(parts.len())) })
        }
        5 => {
            let mut parts = split(buffer, random);
            // SAFETY: a zeroed msghdr is valid; IoSliceMut is layout-compatible with iovec.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_mut_ptr().cast();
            message.msg_iovlen = parts.len();
            // SAFETY: everything that the message points to outlives the call.
            counted(unsafe { libc::recvmsg(fd, &raw mut message, 0) })
        }
        6 => {
            // What was peeked must come again: the second call overwrites it
            // only if it brings other bytes, which the check then finds.
            // SAFETY: as above.
            let peeked = counted(unsafe { libc::recv(fd, data, size, libc::MSG_PEEK) })?;
            if peeked == 0 {
                return Ok(0);
            }
            let before = buffer[..peeked].to_vec();
            // SAFETY: as above; `peeked` is at most `size`.
            let got = counted(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), peeked, 0) })?;
            if buffer[..got] != before[..got] {
                return Err(std::io::Error::other(
                    "MSG_PEEK showed other bytes than the next recv",
                ));
            }
            Ok(got)
        }
        // SAFETY: as above.
        _ => counted(unsafe { libc::recv(fd, data, size, libc::MSG_WAITALL) }),
    }
}

fn count(parts: usize) -> libc::c_int {
    libc::c_int::try_from(parts).unwrap_or(libc::c_int::MAX)
}

/// One to eight ranges that cover `0..size`; some may be empty.
fn pieces(size: usize, random: &mut Random) -> impl Iterator<Item = (usize, usize)> {
    let mut cuts = vec![0, size];
    for _ in 0..random.below(8) {
        cuts.push(random.below(size + 1));
    }
    cuts.sort_unstable();
    (1..cuts.len()).map(move |i| (cuts[i - 1], cuts[i]))
}

fn split<'a>(mut buffer: &'a mut [u8], random: &mut Random) -> Vec<IoSliceMut<'a>> {
    let mut parts = Vec::new();
    for (from, to) in pieces(buffer.len(), random) {
        let (now, later) = buffer.split_at_mut(to - from);
        parts.push(IoSliceMut::new(now));
        buffer = later;
    }
    parts
}
