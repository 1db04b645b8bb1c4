//! One call that sends: how far it has come, and what follows an attempt.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};
use shunt_abi::Reason;

use super::ask::ask_for_room;
use super::kernel::{enter_kernel, error_before_kernel, through_kernel};
use crate::Outcome;
use crate::config::hesitate;
use crate::iov::Cursor;
use crate::stream::attempt::{Attempts, MSG_BEHIND, Next};
use crate::stream::errors::is_over;
use crate::stream::leave::leave_ring;
use crate::stream::owed::{self, Debt};
use crate::stream::proposal::await_answer;
use crate::stream::wait::{Stay, wait_for_kernel};
use crate::stream::want::Want;
use crate::stream::{Conn, spin};
use crate::thread::give;

/// The outcome of one attempt that did not need the kernel.
pub(super) enum Step {
    /// All is written.
    Done,
    /// The ring is full. A call that may not wait asks for room, and says `EAGAIN`; another one spins and then sleeps
    /// ([`crate::stream::wait`]), until the receiver has read enough and wakes it (`tell_room`).
    Full,
    /// The ring has space, but the system no memory for it.
    NoMemory,
    /// There is room, but the peer already has much to read. `done`: all is written.
    Ahead { done: bool },
    /// The peer sleeps, and cannot be called.
    Unheard,
    /// The program's buffer is bad.
    BadBuffer,
}

/// See the module.
pub(super) struct Call<'a> {
    pub(super) cursor: Cursor<'a>,
    pub(super) attempts: Attempts,
}

impl<'a> Call<'a> {
    #[inline]
    pub(super) fn new(parts: &'a [iovec], flags: c_int) -> Self {
        Self {
            cursor: Cursor::new(parts),
            attempts: Attempts::begin(flags),
        }
    }

    /// The call ends with the bytes that it has sent.
    fn done(&self) -> Next {
        Next::End(Outcome::Done(self.cursor.done() as isize))
    }

    fn done_or(&self, errno: c_int) -> Next {
        Next::End(self.cursor.done_or(errno))
    }

    /// What follows an attempt that needed no kernel.
    #[inline]
    pub(super) fn after(&self, step: &Step, conn: &Conn) -> Next {
        match *step {
            Step::Done => self.done(),
            Step::BadBuffer => self.done_or(libc::EFAULT),
            Step::Ahead { done } => {
                spin::make_way();
                if done { self.done() } else { Next::Attempt }
            }
            Step::NoMemory => {
                leave_ring(conn, Reason::NoResources);
                Next::Attempt
            }
            Step::Unheard => {
                conn.reach();
                if self.cursor.remaining() == 0 {
                    self.done()
                } else {
                    Next::Attempt
                }
            }
            Step::Full => Next::Wait,
        }
    }

    /// With the token, which it gives back: the kernel must send. `program` is the connection by the program's number,
    /// `conn` by one that names it now.
    ///
    /// # Safety
    /// The cursor's parts are readable.
    pub(super) unsafe fn by_kernel(
        &mut self,
        (program, conn): (&Conn, &Conn),
        stay: &Stay,
    ) -> Next {
        let token = &conn.pair.own.sending.token;
        hesitate();
        let debt = if owed::is_due(conn) {
            owed::pay(conn)
        } else {
            Debt::Paid
        };
        if debt.is_open() {
            give(token);
            return if debt == Debt::Unsaid {
                Next::Wait
            } else {
                self.await_kernel(program, stay)
            };
        }
        hesitate();
        if let Some(next) = self.without_kernel(conn) {
            give(token);
            return next;
        }
        let flags = self.attempts.flags;
        if conn.is_mirrored() && conn.may_wait(flags) && await_answer(conn) {
            give(token);
            return Next::Attempt;
        }
        let waits_on = self.attempts.waits_on(conn);
        enter_kernel(conn);
        hesitate();
        give(token);
        // SAFETY: the caller's promise.
        let sent = unsafe { through_kernel(conn, &mut self.cursor, flags, &stay.seen) };
        let lacks_room = matches!(sent, Outcome::Done(_) | Outcome::Fail(libc::EAGAIN));
        if waits_on && lacks_room && self.cursor.remaining() > 0 {
            return self.await_kernel(program, stay);
        }
        Next::End(sent)
    }

    /// The kernel has no room, for bytes before this call's that must be sent again first, or for the rest of a call that goes on to wait:
    /// waits for room.
    fn await_kernel(&mut self, program: &Conn, stay: &Stay) -> Next {
        let (flags, seen) = (self.attempts.flags, stay.seen.get());
        // Then also a handler ends it after which the kernel would restart a call that has moved nothing.
        let is_behind = self.cursor.done() > 0 || flags & MSG_BEHIND != 0;
        let waited = if self.attempts.may_wait(program) {
            let seen = if is_behind { seen.with_part() } else { seen };
            wait_for_kernel(program, self.attempts.deadline(), stay, seen)
        } else {
            Err(libc::EAGAIN)
        };
        match waited {
            Ok(()) if is_behind && seen.any_since() => self.done_or(libc::EINTR),
            Ok(()) => {
                if !is_behind {
                    stay.seen.set(seen.begun_anew());
                }
                Next::Attempt
            }
            Err(errno) => self.done_or(errno),
        }
    }

    /// What follows if the kernel need not be called after all. With the token.
    fn without_kernel(&self, conn: &Conn) -> Option<Next> {
        if conn.is_on_ring() && !is_over(conn) {
            // The peer has taken its recall back, so this call continues in the ring. A call whose descriptor was
            // closed could not send by TCP, and leaves it to a relative to answer the recall.
            let goes_on = conn.base().is_some();
            return Some(if goes_on {
                Next::Attempt
            } else {
                self.done_or(libc::EBADF)
            });
        }
        // The direction was shut down in the middle of the call, which reports what it has sent.
        if self.cursor.done() > 0 && conn.is_shut() {
            return Some(self.done());
        }
        let errno = error_before_kernel(conn)?;
        if self.cursor.done() > 0 {
            // The next call reports it.
            conn.error().store(errno, Ordering::Relaxed);
        }
        Some(self.done_or(errno))
    }

    /// Waits until there may be room. An outcome: the call ends.
    pub(super) fn wait(&mut self, (program, conn): (&Conn, &Conn), stay: &Stay) -> Option<Outcome> {
        if !self.attempts.may_wait(conn) {
            let has_room = ask_for_room(conn);
            return (!has_room).then(|| self.cursor.done_or(libc::EAGAIN));
        }
        let waited = self
            .attempts
            .wait(program, Want::Room, self.cursor.done(), stay);
        waited.err().map(|errno| self.cursor.done_or(errno))
    }
}
