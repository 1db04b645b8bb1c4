//! What has come goes on to a pipe: a look, a write and a receive of what was written, with the receiving token held all
//! the while. So no other reader takes these bytes in between, and the peer does not withdraw them.

use std::mem::MaybeUninit;

use libc::{c_int, iovec};
use shunt_shm::slot::Way;

use super::attempt_in;
use super::back::from_kernel;
use super::step::Step;
use crate::iov::Cursor;
use crate::socket::bump;
use crate::stream::errors::keep_error;
use crate::stream::wait::Stay;
use crate::stream::{Conn, owed};
use crate::sys::Errno;
use crate::thread::give;

/// Bytes that go by way of a buffer, at a time.
pub(in crate::stream) const CHUNK: usize = 1 << 10;

/// Bytes that the kernel takes from the ring, at a time.
const STEP: usize = 32 << 10;

/// Lets `write`, which does not block, take up to `most` bytes from where they lie in the ring. 0: there are none.
pub(in crate::stream) fn drain(
    conn: &Conn,
    most: usize,
    write: &impl Fn(*const u8, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    pass(conn, || from_ring(conn, most, write))
}

/// Like [`drain`], for bytes that lie anywhere. 0: there are none, or only a real call receives them.
pub(in crate::stream) fn pass_on(
    conn: &Conn,
    most: usize,
    write: &impl Fn(*const u8, usize) -> Result<usize, Errno>,
    stay: &Stay,
) -> Result<usize, Errno> {
    pass(conn, || from_anywhere(&stay.at(conn), most, write, stay))
}

fn pass(conn: &Conn, some: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let token = &conn.pair.own.receiving.token;
    if !conn.take(token) {
        return Ok(0);
    }
    let passed = some();
    give(token);
    if passed.is_ok_and(|n| n > 0) {
        conn.tell_room();
    }
    passed
}

/// With the receiving token.
fn from_ring(
    conn: &Conn,
    most: usize,
    write: &impl Fn(*const u8, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let is_on_ring = || conn.way_in() == Way::Ring;
    let may_read = || !owed::is_withdrawn(conn) || owed::follow_withdrawal(conn) && is_on_ring();
    if !is_on_ring() || !may_read() {
        return Ok(0);
    }
    // A receive will say what is wrong with the ring.
    let passed = conn
        .consumer()
        .drain(most.min(STEP), write)
        .unwrap_or(Ok(0));
    bump(&conn.socket.rx.ring_bytes, passed.unwrap_or(0) as u64);
    passed
}

/// With the receiving token.
fn from_anywhere(
    conn: &Conn,
    most: usize,
    write: &impl Fn(*const u8, usize) -> Result<usize, Errno>,
    stay: &Stay,
) -> Result<usize, Errno> {
    let mut chunk = [MaybeUninit::<u8>::uninit(); CHUNK];
    let place = chunk.as_mut_ptr().cast::<u8>();
    let attempt = |most: usize, flags: c_int| {
        let part = [iovec {
            iov_base: place.cast(),
            iov_len: most,
        }];
        let mut cursor = Cursor::new(&part);
        // SAFETY: our own buffer.
        let step = unsafe {
            match attempt_in(stay, conn, &mut cursor, flags) {
                // TCP has brought what lay in the ring. Other readers learn that with the token.
                Step::Kernel if flags == 0 => from_kernel(conn, &mut cursor, flags),
                step => step,
            }
        };
        (step, cursor.done())
    };
    let seen = match attempt(most.min(CHUNK), libc::MSG_PEEK) {
        (Step::Bytes, seen) => seen,
        (Step::Failed(errno), _) => {
            // The next receive reports it.
            keep_error(conn, errno);
            return Ok(0);
        }
        _ => return Ok(0),
    };
    let offered = match conn.way_in() {
        Way::Ring => return from_ring(conn, most, write),
        // The look may have seen what follows in the ring, which the peer may still withdraw.
        Way::Tcp => conn.receiver().before_ring(seen as u64) as usize,
        Way::TcpAgain | Way::Owing => seen,
    };
    let written = write(place, offered)?;
    let mut left = written;
    while left > 0 {
        // They are still there.
        match attempt(left, 0) {
            (Step::Bytes, n) => left -= n,
            _ => break,
        }
    }
    Ok(written)
}
