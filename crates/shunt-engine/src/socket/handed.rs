//! A program may close a connection while calls of other threads sleep on it: like the kernel's own
//! calls, these continue. The `close` leaves them a copy of the descriptor and does not wait; the last
//! of the calls to end closes the copy. A call that a signal handler has interrupted rests: the
//! kernel's call has ended meanwhile, so it needs no descriptor, only the socket's object.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::sys;
use crate::table::{self, Word};

/// The calls that have slept and not ended, in the low 16 bits; those of them that rest, in the next;
/// in the high half 1 + the number of the copy, or [`OVER`]. In one word, so that no call ends between
/// a look at one half and a change of the other.
#[derive(Default)]
pub(crate) struct Handed(AtomicU64);

/// One call.
const CALL: u64 = 1;
const CALLS: u64 = u16::MAX as u64;
/// One call that rests.
const RESTING: u64 = 1 << 16;
const ALL: u64 = u32::MAX as u64;
/// The socket has ended: no call begins, and the last one to end frees its object.
const OVER: u64 = !ALL;

/// What is left to do when a call ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// It was the last one: the copy is to be closed.
    Copy(c_int),
    /// It was the last one on a socket that has ended.
    Over,
}

fn copy_in(word: u64) -> Option<c_int> {
    match word & OVER {
        0 | OVER => None,
        copy => Some((copy >> 32) as c_int - 1),
    }
}

fn with_copy(fd: c_int, word: u64) -> u64 {
    (fd as u64 + 1) << 32 | word & ALL
}

impl Handed {
    /// Makes the word ready for the next socket.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// A call is about to sleep, and must [leave](Self::leave). `false`: the socket has ended, or so
    /// many calls rest that were never ended that no more can be counted.
    pub(crate) fn enter(&self) -> bool {
        let may = |now: u64| now & OVER != OVER && (now & CALLS) + (now >> 16 & CALLS) < CALLS;
        self.change(|now| may(now).then(|| now + CALL)).is_some()
    }

    /// A call ends.
    pub(crate) fn leave(&self) -> Left {
        self.lose(CALL, 0)
    }

    /// A signal handler runs in the middle of a call.
    pub(crate) fn rest(&self) -> Left {
        self.lose(CALL, RESTING)
    }

    /// A call that rests ends.
    pub(crate) fn leave_resting(&self) -> Left {
        self.lose(RESTING, 0)
    }

    /// A call that rests continues. `false`: the socket has ended.
    pub(crate) fn go_on(&self) -> bool {
        self.change(|now| (now & OVER != OVER).then(|| now - RESTING + CALL))
            .is_some()
    }

    /// Takes one call of a kind out of the count, and perhaps adds one of another kind. The copy is for
    /// calls that do not rest.
    fn lose(&self, one: u64, other: u64) -> Left {
        let goes_without = |now: u64| (now - one + other) & CALLS == 0;
        let less = |now: u64| {
            let left = now - one + other;
            Some(match copy_in(now) {
                Some(_) if goes_without(now) => left & ALL,
                _ => left,
            })
        };
        let Some(before) = self.change(less) else {
            return Left::Nothing;
        };
        match copy_in(before) {
            Some(copy) if goes_without(before) => Left::Copy(copy),
            None if before & OVER == OVER && (before - one + other) & ALL == 0 => Left::Over,
            _ => Left::Nothing,
        }
    }

    /// Whether there are calls that have slept, have not ended, and do not rest.
    pub(crate) fn has_calls(&self) -> bool {
        self.0.load(Ordering::SeqCst) & CALLS != 0
    }

    /// Whether such calls would have to do without a descriptor if this one were closed.
    pub(crate) fn is_wanted(&self) -> bool {
        self.has_calls() && self.copy().is_none()
    }

    /// Leaves these calls a copy. `false`: there is none of them any more, or there is another copy.
    pub(crate) fn keep(&self, fd: c_int) -> bool {
        let kept = |now: u64| (now & OVER == 0 && now & CALLS != 0).then(|| with_copy(fd, now));
        self.change(kept).is_some()
    }

    /// The copy, if there is one; its number may name something else by now, if the program has
    /// closed it behind our back.
    #[inline]
    pub(crate) fn copy(&self) -> Option<c_int> {
        copy_in(self.0.load(Ordering::Acquire))
    }

    /// Gives the copy another number. `false`: its number was not `former`.
    pub(crate) fn exchange(&self, former: c_int, fd: c_int) -> bool {
        let moved = |now| (copy_in(now) == Some(former)).then(|| with_copy(fd, now));
        self.change(moved).is_some()
    }

    /// The socket ends. `false`: it does only with the last call.
    pub(crate) fn retire(&self) -> bool {
        self.change(|now| Some(now | OVER))
            .is_some_and(|before| before & ALL == 0)
    }

    /// In a forked child: the calls are its parent's.
    pub(crate) fn after_fork_child(&self) {
        if let Some(fd) = copy_in(self.0.swap(0, Ordering::Relaxed))
            && table::look(fd) == Word::OURS
        {
            table::enter(fd, Word::NOTHING);
            sys::close(fd);
        }
    }

    /// Returns what was there before.
    fn change(&self, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_to_end_gets_the_copy() {
        let handed = Handed::default();
        assert!(!handed.is_wanted() && !handed.keep(7));
        assert!(handed.enter() && handed.enter() && handed.is_wanted());
        assert!(handed.keep(0) && !handed.keep(8) && !handed.is_wanted());
        assert!(!handed.exchange(7, 9) && handed.exchange(0, 9));
        assert_eq!((handed.copy(), handed.leave()), (Some(9), Left::Nothing));
        assert!(handed.enter());
        assert_eq!(handed.leave(), Left::Nothing);
        assert_eq!(handed.leave(), Left::Copy(9));
        assert!(handed.copy().is_none() && !handed.has_calls());
        // And from the beginning.
        assert!(handed.enter());
        assert_eq!(handed.leave(), Left::Nothing);
        assert!(handed.retire() && !handed.enter());
    }

    #[test]
    fn a_socket_that_ends_under_a_call_ends_with_it() {
        let handed = Handed::default();
        assert!(handed.enter() && handed.enter());
        assert!(!handed.retire() && !handed.enter() && !handed.keep(7));
        assert_eq!(handed.copy(), None);
        assert_eq!(handed.leave(), Left::Nothing);
        assert_eq!(handed.leave(), Left::Over);
        handed.clear();
        assert!(handed.enter());
    }

    #[test]
    fn a_call_that_rests_keeps_the_object_and_no_copy() {
        let handed = Handed::default();
        assert!(handed.enter() && handed.enter() && handed.keep(7));
        assert_eq!(handed.rest(), Left::Nothing);
        assert_eq!(handed.rest(), Left::Copy(7));
        assert!(!handed.has_calls() && !handed.is_wanted() && !handed.keep(8));
        assert!(handed.go_on() && handed.is_wanted() && handed.keep(8));
        assert_eq!(handed.leave(), Left::Copy(8));
        assert!(!handed.retire() && !handed.go_on());
        assert_eq!(handed.leave_resting(), Left::Over);
    }
}
