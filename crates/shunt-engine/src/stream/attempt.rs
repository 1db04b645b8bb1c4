//! A receive or a send goes by attempts: what both know of the call from one to the next.

use libc::c_int;

use super::Conn;
use super::wait::{Stay, Waited, is_patient, wait};
use super::want::{Deadline, Want, token};
use crate::Outcome;
use crate::sys::Errno;
use crate::thread::signals::{self, Seen};

/// A flag of our own, which says nothing to the kernel: the call has received messages before this one, and ends by any signal
/// handler, as one that has received a part.
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

    /// Takes the token of the direction; `false`: it cannot be had.
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

    /// Whether the call may sleep. One that has slept goes on so, whatever other threads set, unless a handler has run.
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
        // The kernel's own call, which has moved something, is in it already.
        if done > 0 && !stay.enter(program) {
            return Err(libc::EBADF);
        }
        let waited = wait(program, want, &mut self.deadline, stay, self.seen)?;
        if waited == Waited::Anew && (done > 0 || self.flags & MSG_BEHIND != 0) {
            return Err(libc::EINTR);
        }
        self.has_slept = waited == Waited::Enough;
        Ok(())
    }

    /// The deadline of waits that do not go by [`wait`](Self::wait).
    pub(super) fn deadline(&mut self) -> &mut Deadline {
        &mut self.deadline
    }
}
