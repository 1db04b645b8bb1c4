//! One call that receives: what it asks for, how far it has come, and what follows an attempt.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::slot::{self, Way};

use super::arrival::{Patience, await_count, await_some};
use super::back::at_mark;
use super::step::Step;
use super::unread::unread;
use crate::iov::Cursor;
use crate::stream::attempt::{Attempts, Next};
use crate::stream::errors::{abort, keep_error};
use crate::stream::wait::{Stay, timeout};
use crate::stream::want::Want;
use crate::stream::{Conn, downgrade, owed, small};
use crate::sys;
use crate::thread::signals;
use crate::{Outcome, real};

/// See the module.
pub(super) struct Call<'a> {
    parts: &'a [iovec],
    pub(super) cursor: Cursor<'a>,
    /// Bytes in all buffers.
    pub(super) total: usize,
    /// The call waits until it has this many bytes, if it may wait.
    least: usize,
    pub(super) attempts: Attempts,
    /// For bytes that could be read in the ring before it went back to TCP.
    patience: Patience,
}

impl<'a> Call<'a> {
    #[inline(always)]
    pub(super) fn new(parts: &'a [iovec], flags: c_int) -> Self {
        let cursor = Cursor::new(parts);
        let total = cursor.remaining();
        let wants_all = flags & libc::MSG_WAITALL != 0;
        Self {
            parts,
            cursor,
            total,
            least: if wants_all { total } else { total.min(1) },
            attempts: Attempts::begin(flags),
            patience: Patience::default(),
        }
    }

    #[inline(always)]
    pub(super) fn peeks(&self) -> bool {
        self.attempts.flags & libc::MSG_PEEK != 0
    }

    #[inline(always)]
    fn has_enough(&self) -> bool {
        self.cursor.done() >= self.least
    }

    /// The call ends with the bytes that it has.
    #[inline(always)]
    fn done(&self) -> Outcome {
        Outcome::Done(self.cursor.done() as isize)
    }

    /// Answers what the peer has asked for, before the call sleeps, perhaps in the kernel's own call. `true`: the kernel has
    /// reported an error during that, which it reports only once: the call must not sleep, but look for that error.
    #[inline(always)]
    pub(super) fn answers_peer(&self, conn: &Conn) -> bool {
        if !owed::is_due(conn) {
            return false;
        }
        let pending = || conn.error().load(Ordering::Relaxed);
        let before = pending();
        owed::answer(conn);
        self.cursor.done() == 0 && pending() != before
    }

    /// What follows an attempt that came to `step`. `program` is the connection by the program's number, `conn` by one
    /// that names it now; `there` bytes could be received before.
    #[inline(always)]
    pub(super) fn next(
        &mut self,
        step: Step,
        (program, conn): (&Conn, &Conn),
        there: u64,
        stay: &Stay,
    ) -> Next {
        match step {
            Step::Bytes if self.peeks() => self.after_peek((program, conn), there, stay),
            Step::Bytes => self.after_bytes(conn),
            Step::Brings | Step::Asked if self.awaits_rest(conn) => Next::Attempt,
            Step::Empty | Step::Brings | Step::Asked | Step::Withdrawn | Step::Moved => {
                self.after_nothing(conn)
            }
            Step::Stray if !self.has_enough() => after_stray(conn),
            Step::Stray | Step::End => Next::End(self.done()),
            Step::Failed(errno) => Next::End(self.after_error(conn, errno)),
            Step::BadBuffer => Next::End(self.cursor.done_or(libc::EFAULT)),
            // The descriptor was closed while the call slept: its number may name anything by now.
            Step::Kernel if conn.base().is_none() => Next::End(Outcome::Fail(libc::EBADF)),
            Step::Kernel => Next::End(Outcome::Kernel),
        }
    }

    #[inline(always)]
    fn after_bytes(&self, conn: &Conn) -> Next {
        conn.tell_room();
        // A short count tells the program that it has everything: go on where the stream
        // changes its way.
        if self.cursor.done() < self.total && goes_on(conn) {
            return Next::Attempt;
        }
        // A call that has a part does not wait at urgent data (`tcp_recvmsg` of Linux).
        if self.has_enough() || conn.way_in() != Way::Ring && at_mark(conn) {
            Next::End(self.done())
        } else {
            Next::Wait
        }
    }

    fn after_peek(&mut self, (program, conn): (&Conn, &Conn), there: u64, stay: &Stay) -> Next {
        let had = there.min(self.total as u64);
        let lacks = had > self.cursor.done() as u64;
        if lacks && conn.way_in() == Way::TcpAgain && await_count(conn, &mut self.patience) {
            self.cursor = Cursor::new(self.parts);
            return Next::Attempt;
        }
        let has_enough = self.has_enough() || there >= self.least as u64;
        let waits = !has_enough && conn.may_wait(self.attempts.flags);
        if !waits || !stay.enter(program) || !wait_for_more(conn, there, stay.seen.get()) {
            return Next::End(self.done());
        }
        // A peek sees the same bytes again, so that attempts do not add up.
        self.cursor = Cursor::new(self.parts);
        Next::Attempt
    }

    /// Waits for what could be read before it went to TCP, unless the call sleeps for it anyway. `true`: some may have come.
    #[cold]
    fn awaits_rest(&mut self, conn: &Conn) -> bool {
        let sleeps = !self.has_enough() && self.attempts.may_wait(conn);
        !sleeps && await_some(conn, &mut self.patience)
    }

    #[inline(always)]
    fn after_nothing(&self, conn: &Conn) -> Next {
        // The process that has taken the last byte may have been killed before it told of the room.
        if conn.pair.own.options.forked.load(Ordering::Relaxed) == slot::SHARED {
            conn.tell_room();
        }
        // The stream continues elsewhere, and nothing has come there yet.
        if self.has_enough() {
            Next::End(self.done())
        } else {
            Next::Wait
        }
    }

    fn after_error(&self, conn: &Conn, errno: c_int) -> Outcome {
        if self.cursor.done() > 0 {
            // The next call reports it.
            keep_error(conn, errno);
            return self.done();
        }
        let noted = conn.error();
        let _ = noted.compare_exchange(errno, 0, Ordering::Relaxed, Ordering::Relaxed);
        Outcome::Fail(errno)
    }

    /// Waits until something may have come. An outcome: the call ends.
    ///
    /// # Safety
    /// The buffers are writable.
    #[inline(always)]
    pub(super) unsafe fn wait(&mut self, program: &Conn, stay: &Stay) -> Option<Outcome> {
        if !self.attempts.may_wait(program) {
            return Some(self.cursor.done_or(libc::EAGAIN));
        }
        let done = self.cursor.done();
        if let Err(errno) = self.attempts.wait(program, Want::Data, done, stay) {
            return Some(self.cursor.done_or(errno));
        }
        // Mostly one message has come.
        let (target, length) = self.cursor.single()?;
        // SAFETY: the caller's promise.
        unsafe { small::receive(*program, target, length, self.attempts.flags) }
    }
}

/// Bytes have come by TCP from another process that has a copy of the peer's socket: from here on TCP carries the direction.
#[cold]
fn after_stray(conn: &Conn) -> Next {
    downgrade(conn, Reason::Held);
    if conn.way_in() == Way::Ring {
        // The direction has not gone back: the peer breaks the protocol, which a copy of its socket would not explain.
        abort(conn);
        return Next::End(Outcome::Fail(libc::ECONNRESET));
    }
    Next::Attempt
}

/// Whether there is more to receive after a change of way.
#[inline]
fn goes_on(conn: &Conn) -> bool {
    match conn.way_in() {
        Way::Ring => conn.consumer().is_ready(),
        Way::Tcp => conn.receiver().switch_offset().is_some() && conn.consumer().is_ready(),
        Way::TcpAgain | Way::Owing => true,
    }
}

/// Waits for more than the `there` bytes that a peek has seen; `false` if none will come. The peer
/// does not call a sleeper while bytes lie unread, so this looks from time to time.
#[cold]
fn wait_for_more(conn: &Conn, there: u64, seen: signals::Seen) -> bool {
    let mut pause = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let until = timeout(conn, Want::Data).map(|ns| sys::now() + ns);
    while unread(conn) <= there {
        const OVER: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let is_over = |base| sys::ready(base, libc::POLLRDHUP) & OVER != 0;
        let over = conn.base().is_none_or(is_over);
        if over
            || conn.keeps_peer_waiting()
            || until.is_some_and(|until| sys::now() >= until)
            // Also by a signal after which the kernel restarts calls that have nothing yet.
            || seen.any_since()
        {
            return unread(conn) > there;
        }
        // SAFETY: no descriptors.
        let _ = real::quietly(|| unsafe {
            real::ppoll()(std::ptr::null_mut(), 0, &raw const pause, std::ptr::null()) as isize
        });
        pause.tv_nsec = (pause.tv_nsec * 2).min(16_000_000);
    }
    true
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    /// Receives a byte at this descriptor.
    fn receive(fd: c_int, flags: c_int) -> Outcome {
        let mut byte = 0u8;
        let parts = [iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        }];
        // SAFETY: the part covers `byte`.
        unsafe { crate::stream::receive(&Conn::of(fd).unwrap(), &parts, flags) }
    }

    #[test]
    fn a_receive_that_waits_is_counted_once_and_one_that_finds_nothing_too() {
        let ends = BothEnds::attached();
        let (fd, counts) = (ends.fds[1], &ends.sockets[1].rx);
        ends.send(b"x");
        assert_eq!(receive(fd, 0), Outcome::Done(1));
        let before = counts.user_calls.load(Ordering::Relaxed);
        let calls = || counts.user_calls.load(Ordering::Relaxed) - before;
        for n in 1..=20 {
            assert_eq!(receive(fd, libc::MSG_DONTWAIT), Outcome::Fail(libc::EAGAIN));
            assert_eq!(calls(), 2 * n - 1);
            let receiver = std::thread::spawn(move || receive(fd, 0));
            while counts.sleeps.load(Ordering::Relaxed) < n {
                std::hint::spin_loop();
            }
            ends.send(b"x");
            assert_eq!(receiver.join().unwrap(), Outcome::Done(1));
            assert_eq!(calls(), 2 * n);
        }
    }

    #[test]
    fn an_error_behind_bytes_is_told_by_the_next_call() {
        let ends = BothEnds::attached();
        let conn = &ends.conns()[0];
        let pending = || conn.error().load(Ordering::Relaxed);
        let mut bytes = [0u8; 4];
        let parts = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        let mut call = Call::new(&parts, 0);
        let reset = libc::ECONNRESET;
        assert_eq!(call.after_error(conn, reset), Outcome::Fail(reset));
        assert_eq!(pending(), 0);
        call.cursor.advance(3);
        assert_eq!(call.after_error(conn, reset), Outcome::Done(3));
        assert_eq!(pending(), reset);
        let next = Call::new(&parts, 0);
        assert_eq!(next.after_error(conn, reset), Outcome::Fail(reset));
        assert_eq!(pending(), 0);
    }
}
