//! Pipes that keep writes apart (`O_DIRECT`, `pipe2(2)`): who reads a part of a packet loses the rest. `splice(2)` neither loses
//! anything nor makes packets. So the bytes of such a pipe take the way through one of our own, for which the kernel's `splice`
//! counts on the other side. The process keeps one for that, which is empty between two uses.

use std::mem::MaybeUninit;

use libc::c_int;

use super::recv;
use crate::config;
use crate::kept::Kept;
use crate::sys::{self, Errno};
use crate::thread::{self, Lock};

/// The most that a packet can be, in bytes: a page.
const LONGEST: usize = if cfg!(target_arch = "x86_64") {
    4096
} else {
    1 << 16
};
/// What a new pipe has room for, in bytes (`pipe(7)`).
const ROOM: usize = 1 << 16;

/// The ends of our pipe.
static READER: Kept = Kept::nothing();
static WRITER: Kept = Kept::nothing();
/// Held while bytes are in it, and while it changes.
static LOCK: Lock = Lock::new();

/// The pipe between another one and the ring, for one step. This thread has the lock.
struct Between {
    reader: c_int,
    writer: c_int,
}

impl Between {
    /// `EMFILE`: there is none for this thread, also where the program may have forbidden itself to make one.
    fn take() -> Result<Self, Errno> {
        // The child of a `vfork` would make one of which its parent knows nothing.
        if config::is_confined() || !thread::owns_descriptors() || !LOCK.take() {
            return Err(libc::EMFILE);
        }
        let kept = || Some([READER.get()?, WRITER.get()?]);
        let Some([reader, writer]) = kept().or_else(make) else {
            LOCK.give();
            return Err(libc::EMFILE);
        };
        Ok(Self { reader, writer })
    }

    /// Takes out bytes that did not go on.
    fn drop_rest(&self, mut rest: usize) {
        let mut chunk = [MaybeUninit::<u8>::uninit(); recv::CHUNK];
        while rest > 0 {
            match sys::read(
                self.reader,
                chunk.as_mut_ptr().cast(),
                rest.min(recv::CHUNK),
            ) {
                Ok(n @ 1..) => rest -= n,
                // The program has closed it behind our back: the next use makes another one.
                Ok(0) | Err(_) => {
                    close();
                    break;
                }
            }
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        LOCK.give();
    }
}

/// Makes the pipe, in the place of one of which the program has closed an end behind our back. With the lock.
#[cold]
fn make() -> Option<[c_int; 2]> {
    close();
    let [reader, writer] = sys::pipe().ok()?.map(sys::move_high);
    let kept = [READER.keep(reader), WRITER.keep(writer)];
    (kept == [true; 2]).then_some([reader, writer])
}

/// `true`: there was something to close. With the lock.
fn close() -> bool {
    let ends = [READER.take(), WRITER.take()];
    ends.into_iter().flatten().for_each(sys::close);
    ends != [None; 2]
}

/// Closes the pipe, if there is one: its numbers are the program's. `true`: there was one.
pub(crate) fn give_up() -> bool {
    if !is_any() || !LOCK.take() {
        return false;
    }
    let closed = close();
    LOCK.give();
    closed
}

fn is_any() -> bool {
    READER.number() >= 0 || WRITER.number() >= 0
}

/// In a forked child: drops the pipe, which is the parent's. If both used it, each would find the other one's bytes.
pub(crate) fn after_fork_child() {
    LOCK.reset();
    if is_any() {
        close();
    }
}

/// Moves an end of the pipe to another number, if the program wants its number `fd`.
pub(crate) fn make_way(fd: c_int) {
    if READER.number() != fd && WRITER.number() != fd {
        return;
    }
    // In a signal handler that has interrupted a use it does not wait.
    let is_taken = LOCK.take();
    READER.make_way(fd);
    WRITER.make_way(fd);
    if is_taken {
        LOCK.give();
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
    let between = Between::take()?;
    let moved = sys::splice_now(pipe, between.writer, length.min(ROOM))?;
    let mut done = 0;
    while done < moved {
        // SAFETY: within what the caller has.
        match sys::read(between.reader, unsafe { to.add(done) }, moved - done) {
            Ok(n @ 1..) => done += n,
            end => {
                // As above.
                close();
                return if done > 0 { Ok(done) } else { end };
            }
        }
    }
    Ok(done)
}

/// Writes what fits into a pipe that would make packets of it, without blocking, as `splice` does: without any. `EMFILE`: only
/// the kernel can do it.
pub(super) fn write(pipe: c_int, from: *const u8, length: usize) -> Result<usize, Errno> {
    let between = Between::take()?;
    let written = sys::write(between.writer, from, length.min(ROOM))?;
    let moved = sys::splice_now(between.reader, pipe, written);
    between.drop_rest(written - moved.unwrap_or(0));
    moved
}

/// Whether there is a pipe of our own at this moment.
pub(super) fn may_join() -> bool {
    Between::take().is_ok()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use std::ptr;

    use crate::Outcome;
    use crate::both_ends::{BothEnds, in_child, one_at_a_time};
    use crate::stream::splice_out;

    /// A pipe of packets, by its reading end and its writing end.
    fn of_packets() -> [c_int; 2] {
        thread::learn_pid();
        let pipe = sys::pipe().unwrap();
        let flags = libc::O_DIRECT | libc::O_NONBLOCK;
        sys::fcntl(pipe[1], libc::F_SETFL, flags as usize).unwrap();
        pipe
    }

    #[test]
    fn a_part_of_a_packet_leaves_the_rest() {
        let _alone = one_at_a_time();
        let [reader, writer] = of_packets();
        for packet in [b"abcd", b"efgh"] {
            assert_eq!(sys::write(writer, packet.as_ptr(), 4), Ok(4));
        }
        let mut bytes = [0u8; 8];
        assert!(may_cut(reader, 7) && !may_cut(reader, 8));
        // SAFETY: there is room.
        let mut read = |n| unsafe { super::read(reader, bytes.as_mut_ptr(), n) };
        assert_eq!([read(3), read(3)], [Ok(3), Ok(3)]);
        assert_eq!(&bytes[..3], b"def");
        // SAFETY: as above.
        let mut read = |n| unsafe { super::read(reader, bytes.as_mut_ptr(), n) };
        assert_eq!([read(8), read(8)], [Ok(2), Err(libc::EAGAIN)]);
        assert_eq!(&bytes[..2], b"gh");
    }

    #[test]
    fn what_is_written_makes_no_packet() {
        let _alone = one_at_a_time();
        let [reader, writer] = of_packets();
        assert_eq!(write(writer, b"abcd".as_ptr(), 4), Ok(4));
        let mut bytes = [0u8; 4];
        let mut read = |n| sys::read(reader, bytes.as_mut_ptr(), n);
        assert_eq!(
            [read(3), read(3), read(3)],
            [Ok(3), Ok(1), Err(libc::EAGAIN)]
        );
        let much = [0u8; ROOM];
        while write(writer, much.as_ptr(), ROOM).is_ok() {}
        assert_eq!(write(writer, ptr::null(), 0), Ok(0));
        assert_eq!(write(writer, much.as_ptr(), 1), Err(libc::EAGAIN));
    }

    fn ends() -> [c_int; 2] {
        let between = Between::take().unwrap();
        [between.reader, between.writer]
    }

    #[test]
    fn the_program_may_have_the_numbers_of_the_pipe() {
        let _alone = one_at_a_time();
        thread::learn_pid();
        let first = ends();
        assert!(first.iter().all(|&fd| fd >= sys::first_of_ours()));
        assert_eq!(ends(), first);
        make_way(first[0]);
        make_way(first[1]);
        let moved = ends();
        assert!(first.iter().all(|fd| !moved.contains(fd)));
        first.into_iter().for_each(sys::close);
        // The program closes it behind our back.
        sys::close(moved[1]);
        let [reader, writer] = ends();
        let mut byte = 0u8;
        assert_eq!(sys::write(writer, b"x".as_ptr(), 1), Ok(1));
        assert_eq!(sys::read(reader, &raw mut byte, 1), Ok(1));
        assert!(give_up() && !give_up());
    }

    #[test]
    fn a_child_does_not_take_what_its_parent_has_in_the_pipe() {
        let _alone = one_at_a_time();
        thread::learn_pid();
        let [_, writer] = ends();
        assert_eq!(sys::write(writer, b"parent".as_ptr(), 6), Ok(6));
        let takes_nothing = || {
            thread::learn_pid();
            after_fork_child();
            let [reader, writer] = of_packets();
            let mut bytes = [0u8; 8];
            // SAFETY: there is room.
            let mut read = || unsafe { read(reader, bytes.as_mut_ptr(), 8) };
            sys::write(writer, b"child".as_ptr(), 5) == Ok(5) && read() == Ok(5)
        };
        assert!(in_child(takes_nothing));
        assert!(give_up());
    }

    #[test]
    fn without_the_pipe_no_byte_is_lost() {
        let ends = BothEnds::attached();
        let [reader, writer] = of_packets();
        // Here is no daemon, and its sender makes no call: TCP does not bring it.
        ends.send(b"unread");
        assert!(LOCK.take() && !may_join());
        let moved = splice_out(&ends.conns()[1], writer, 6, 0);
        LOCK.give();
        assert_eq!(moved, Outcome::Done(6));
        let mut bytes = [0u8; 6];
        assert_eq!(sys::read(reader, bytes.as_mut_ptr(), 6), Ok(6));
        assert_eq!(&bytes, b"unread");
    }
}
