//! A call that receives or sends makes several attempts. This is what it keeps from one attempt to the next.

use libc::c_int;
use shunt_shm::slot::Way;

use super::Conn;
use super::wait::{Stay, Waited, is_patient, wait};
use super::want::{Deadline, Want, is_ready, token};
use crate::Outcome;
use crate::sys::{self, Errno};

/// A flag of our own, which the kernel ignores: the call (`recvmmsg`, `sendmmsg`) has moved messages before this one. So any
/// signal handler ends it, as if it had moved a part.
pub(crate) const MSG_BEHIND: c_int = 0x1000_0000;

/// See the module.
pub(super) struct Attempts {
    pub(super) flags: c_int,
    deadline: Deadline,
    has_slept: bool,
}

/// What follows an attempt.
pub(super) enum Next {
    /// The call ends.
    End(Outcome),
    /// Another attempt, at once.
    Attempt,
    /// Another attempt, when what the call waits for may have come.
    Wait,
}

impl Attempts {
    /// A call begins; `flags` as for `recv` and `send`.
    #[inline(always)]
    pub(super) fn begin(flags: c_int) -> Self {
        Self {
            flags,
            deadline: None,
            has_slept: false,
        }
    }

    /// Takes the token of the direction. `false`: a signal handler has interrupted its holder, or the call does not wait for
    /// a holder that is stopped.
    #[inline(always)]
    pub(super) fn take_token(&mut self, conn: &Conn, want: Want, stay: &Stay) -> bool {
        let Self {
            flags, deadline, ..
        } = self;
        let patient = || is_patient(conn, want, conn.may_wait(*flags), deadline, stay.seen.get());
        conn.take_while(token(conn, want), patient)
    }

    /// Whether the call may sleep. A call that has slept may sleep again, whatever flags other threads set meanwhile, unless
    /// a signal handler has run.
    #[inline(always)]
    pub(super) fn may_wait(&self, conn: &Conn) -> bool {
        self.has_slept || conn.may_wait(self.flags)
    }

    /// Whether the real call would not wait although this one goes on to: it has slept, and another thread has made the descriptor
    /// non-blocking since.
    #[inline(always)]
    pub(super) fn waits_on(&self, conn: &Conn) -> bool {
        self.has_slept && !conn.may_wait(self.flags)
    }

    /// Waits until the call can go on. `done`: how many bytes it has moved before. `program` is the connection by the
    /// program's number.
    ///
    /// # Errors
    /// As for [`wait`]; once the call has moved something, `EBADF` if the connection was closed, and `EINTR` after any signal
    /// handler.
    #[inline]
    pub(super) fn wait(
        &mut self,
        program: &Conn,
        want: Want,
        done: usize,
        stay: &Stay,
    ) -> Result<(), Errno> {
        // A kernel's call that has moved something would already hold the connection, and go on with it.
        if done > 0 && !stay.enter(program) {
            return Err(libc::EBADF);
        }
        let has_part = done > 0 || self.flags & MSG_BEHIND != 0;
        let seen = if has_part {
            stay.seen.get().with_part()
        } else {
            stay.seen.get()
        };
        // From here on no handler goes unnoticed until the call sleeps.
        let looked = seen.before_sleep();
        // The attempt has found nothing, so that what is received later comes after the handler.
        if !has_part && seen.any_since() {
            stay.seen.set(seen.begun_anew());
        }
        // A handler that has run before ends a wait that has a time limit.
        let waited = wait(program, want, &mut self.deadline, stay, (seen, looked))?;
        if waited == Waited::Anew && has_part {
            return Err(libc::EINTR);
        }
        // The kernel hands out what has ended a sleep before it looks at a signal that has come meanwhile: then the call has a
        // part, and does not begin anew.
        let came_first = || waited == Waited::Woken && has_come(program, want);
        if !has_part && seen.any_since() && !came_first() {
            stay.seen.set(seen.begun_anew());
        }
        self.has_slept = waited != Waited::Anew;
        Ok(())
    }

    /// The deadline of waits that do not go by [`wait`](Self::wait).
    pub(super) fn deadline(&mut self) -> &mut Deadline {
        &mut self.deadline
    }
}

/// Whether there is something to move for a call that has just waited, by whatever way.
#[cold]
fn has_come(conn: &Conn, want: Want) -> bool {
    match want {
        Want::Data if conn.way_in() == Way::Ring => is_ready(conn, want),
        Want::Data => {
            conn.consumer().is_ready() || sys::ready(conn.fd, libc::POLLIN) & libc::POLLIN != 0
        }
        Want::Room => conn.way_out() == Way::Ring && is_ready(conn, want),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use libc::{SO_RCVTIMEO, SOL_SOCKET, iovec, timeval};

    use std::thread::JoinHandle;

    use super::*;
    use crate::both_ends::BothEnds;
    use crate::config::meanwhile;
    use crate::stream::{receive_in, send};
    use crate::thread::signals;

    /// A part of a call receives a byte at the connecting end.
    fn receive_one(ends: &BothEnds, stay: &Stay, flags: c_int) -> Outcome {
        let mut byte = 0u8;
        let parts = [iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        }];
        // SAFETY: the part covers the byte.
        unsafe { receive_in(&ends.conns()[1], &parts, flags, stay) }
    }

    /// The bytes that have not come yet never come: a receive that sleeps for one says `EAGAIN`.
    fn impatient() -> BothEnds {
        const TIME: timeval = timeval {
            tv_sec: 2,
            tv_usec: 0,
        };
        let ends = BothEnds::attached();
        sys::setsockopt(ends.fds[1], SOL_SOCKET, SO_RCVTIMEO, &TIME).unwrap();
        ends
    }

    #[test]
    fn a_handler_between_two_messages_ends_the_call_behind_the_first() {
        let ends = impatient();
        ends.send(b"x");
        Stay::during(|stay| {
            assert_eq!(receive_one(&ends, stay, 0), Outcome::Done(1));
            signals::count_one(true);
            let next = receive_one(&ends, stay, MSG_BEHIND);
            assert_eq!(next, Outcome::Fail(libc::EINTR));
            // What has come is received all the same.
            ends.send(b"y");
            assert_eq!(receive_one(&ends, stay, MSG_BEHIND), Outcome::Done(1));
        });
    }

    /// Another thread sends two bytes to the connecting end, each after a pause.
    fn send_two_late(ends: &BothEnds) -> JoinHandle<()> {
        let fd = ends.fds[0];
        std::thread::spawn(move || {
            for _ in 0..2 {
                std::thread::sleep(std::time::Duration::from_millis(50));
                let (conn, byte) = (Conn::of(fd).unwrap(), b"x");
                let parts = [iovec {
                    iov_base: byte.as_ptr().cast_mut().cast(),
                    iov_len: 1,
                }];
                // SAFETY: the byte is there.
                assert_eq!(unsafe { send(&conn, &parts, 0) }, Outcome::Done(1));
            }
        })
    }

    #[test]
    fn a_handler_after_which_the_call_begins_anew_does_not_end_it_behind_the_first_message() {
        let ends = BothEnds::attached();
        let peer = send_two_late(&ends);
        Stay::during(|stay| {
            signals::count_one(true);
            assert_eq!(receive_one(&ends, stay, 0), Outcome::Done(1));
            assert_eq!(receive_one(&ends, stay, MSG_BEHIND), Outcome::Done(1));
        });
        peer.join().unwrap();
    }

    #[test]
    fn nor_does_one_that_runs_when_the_call_has_looked_and_is_about_to_sleep() {
        let ends = BothEnds::attached();
        // On the ring: TCP has such a step before each look, too.
        ends.send(b"x");
        ends.receive::<1>();
        let peer = send_two_late(&ends);
        Stay::during(|stay| {
            meanwhile::set(|| signals::count_one(true));
            assert_eq!(receive_one(&ends, stay, 0), Outcome::Done(1));
            assert!(meanwhile::is_over());
            assert_eq!(receive_one(&ends, stay, MSG_BEHIND), Outcome::Done(1));
        });
        peer.join().unwrap();
    }

    #[test]
    fn one_without_restart_ends_a_call_that_is_about_to_sleep() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        ends.receive::<1>();
        Stay::during(|stay| {
            meanwhile::set(|| signals::count_one(false));
            assert_eq!(receive_one(&ends, stay, 0), Outcome::Fail(libc::EINTR));
            assert!(meanwhile::is_over());
        });
    }
}
