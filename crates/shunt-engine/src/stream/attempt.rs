//! A call that receives or sends makes several attempts. This is what it keeps from one attempt to the next.

use libc::c_int;
use shunt_shm::slot::Way;

use super::Conn;
use super::wait::{Stay, Waited, is_patient, wait};
use super::want::{Deadline, Want, is_ready, token};
use crate::Outcome;
use crate::sys::{self, Errno};
use crate::thread::signals::{self, Seen};

/// A flag of our own, which the kernel ignores: the call (`recvmmsg`, `sendmmsg`) has moved messages before this one. So any
/// signal handler ends it, as if it had moved a part.
pub(crate) const MSG_BEHIND: c_int = 0x1000_0000;

/// See the module.
pub(super) struct Attempts {
    pub(super) flags: c_int,
    /// Which signal handlers had run when the call began.
    pub(super) seen: Seen,
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
            seen: signals::now(),
            deadline: None,
            has_slept: false,
        }
    }

    /// Takes the token of the direction. `false`: a signal handler has interrupted its holder, or the call does not wait for
    /// a holder that is stopped.
    #[inline(always)]
    pub(super) fn take_token(&mut self, conn: &Conn, want: Want) -> bool {
        let Self {
            flags,
            seen,
            deadline,
            ..
        } = self;
        let patient = || is_patient(conn, want, conn.may_wait(*flags), deadline, *seen);
        conn.take_while(token(conn, want), patient)
    }

    /// Whether the call may sleep. A call that has slept may sleep again, whatever flags other threads set meanwhile, unless
    /// a signal handler has run.
    #[inline(always)]
    pub(super) fn may_wait(&self, conn: &Conn) -> bool {
        self.has_slept || conn.may_wait(self.flags)
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
            self.seen.with_part()
        } else {
            self.seen
        };
        let waited = wait(program, want, &mut self.deadline, stay, seen)?;
        if waited == Waited::Anew && has_part {
            return Err(libc::EINTR);
        }
        // The kernel hands out what has come before it looks at a signal: then the call has a part, and does not begin anew.
        if !has_part && seen.any_since() && !has_come(program, want) {
            self.seen = seen.begun_anew();
        }
        self.has_slept = waited == Waited::Enough;
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
