//! What keeps an object alive: the descriptors that name it, and the calls on it that are under way, which may
//! outlast a `close` by another thread.
//!
//! In a forked child there are no such calls. The other threads are gone, and a call that the
//! forking signal handler has interrupted continues without a hold, like any call of a process with
//! a single thread. So each call notes how many forks led to the process in which it began, and the
//! child counts anew what its descriptors hold.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::table::{self, Object};
use crate::thread;

/// When a call took its hold, counted in forks of this process and its parents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken(u32);

impl Taken {
    /// A hold that is taken now.
    #[inline(always)]
    pub(crate) fn now() -> Self {
        Self(thread::forks())
    }

    /// Whether it is to be given back: not in a child that was forked since.
    #[inline(always)]
    pub(crate) fn lasts(self) -> bool {
        self == Self::now()
    }
}

/// An object whose holders are counted.
pub(crate) trait Held: Object {
    /// The count of descriptors and calls; see [`lasting`].
    fn count(&self) -> &AtomicU64;

    /// Gives a hold back that was counted as `hold`; the last one ends the object's life.
    fn unhold_by(&'static self, hold: u64);

    /// One holder more.
    fn hold(&self) {
        self.count().fetch_add(1, Ordering::Relaxed);
    }

    /// One holder less.
    fn unhold(&'static self) {
        self.unhold_by(1);
    }
}

/// The object that `fd` names, held until it is given back with [`Held::unhold`].
pub(crate) fn get<T: Held>(fd: c_int) -> Option<&'static T> {
    loop {
        let found = table::get::<T>(fd)?;
        if raise_by(found.count(), 1) {
            // The object's life may have ended, and another one begun, before it was held.
            if table::look(fd).is(found) {
                return Some(found);
            }
            found.unhold();
        }
    }
}

/// Does work of the library's own on an object that another thread may close meanwhile. The `close` does not wait for this
/// work, and does not count it among the program's calls that are still under way; but the object is not used again before
/// the work has ended.
pub(crate) fn beside_close<T: Held>(object: &'static T, work: impl FnOnce()) {
    let began = Taken::now();
    let held = raise_by(object.count(), BESIDE);
    work();
    if held && began.lasts() {
        object.unhold_by(BESIDE);
    }
}

/// [`beside_close`] for work that has a result. `None`: the object's life had ended, and nothing was done.
pub(crate) fn while_held<T: Held, R>(object: &'static T, work: impl FnOnce() -> R) -> Option<R> {
    let began = Taken::now();
    if !raise_by(object.count(), BESIDE) {
        return None;
    }
    let result = work();
    if began.lasts() {
        object.unhold_by(BESIDE);
    }
    Some(result)
}

/// Whether such work is under way.
pub(crate) fn is_any_beside(object: &impl Held) -> bool {
    object.count().load(Ordering::Acquire) >> 32 != 0
}

/// A hold of [`beside_close`] counts twice: among all holds in the low half, and in the high half.
const BESIDE: u64 = 1 << 32 | 1;

/// How many holders of a count concern a `close`: all but those of [`beside_close`].
pub(crate) fn lasting(holds: u64) -> u32 {
    (holds as u32).saturating_sub((holds >> 32) as u32)
}

/// Raises a count of holders that is not zero.
fn raise_by(holds: &AtomicU64, hold: u64) -> bool {
    holds
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
            (n != 0).then_some(n + hold)
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::socket::{Socket, Stage};
    use crate::table::Word;

    #[test]
    fn an_object_without_a_holder_is_not_held() {
        let holds = AtomicU64::new(0);
        assert!(!raise_by(&holds, 1) && holds.load(Ordering::Relaxed) == 0);
        holds.store(1, Ordering::Relaxed);
        assert!(raise_by(&holds, 1) && holds.load(Ordering::Relaxed) == 2);
    }

    #[test]
    fn work_beside_a_close_is_not_what_a_close_reckons_with() {
        assert_eq!(
            (lasting(2), lasting(1 + BESIDE), lasting(BESIDE)),
            (2, 1, 0)
        );
    }

    #[test]
    fn what_a_number_names_is_held_until_it_is_given_back() {
        const FD: c_int = 301_000;
        assert!(get::<Socket>(FD).is_none());
        let socket = Socket::enter(FD, Stage::Fresh).unwrap();
        let held = get::<Socket>(FD).unwrap();
        assert!(std::ptr::eq(held, socket) && socket.holds() == 2);
        let mut within = 0;
        beside_close(socket, || {
            within = socket.count().load(Ordering::Relaxed) as u32;
            assert!(is_any_beside(socket) && socket.holds() == 2);
        });
        assert!(within == 3 && !is_any_beside(socket));
        held.unhold();
        assert_eq!(socket.holds(), 1);
        let beside = || while_held(socket, || is_any_beside(socket) && socket.holds() == 1);
        assert_eq!(beside(), Some(true));
        crate::table::enter(FD, Word::NOTHING);
        socket.unhold();
        assert_eq!(beside(), None);
    }
}
