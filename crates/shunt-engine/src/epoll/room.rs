//! Where a wait puts its events: memory of the program's, which may not be there.
//!
//! Nobody asks beforehand: as in the kernel (`ep_send_events` in its `fs/eventpoll.c`) that shows when an event is
//! stored, and the event stays where it was. Copies are guarded by then: a socket of the set is shunted.

use libc::{c_int, epoll_event};

use crate::sys::{self, Errno};

/// See the module.
pub(crate) struct Room {
    at: *mut epoll_event,
    length: usize,
    is_missing: bool,
}

impl Room {
    /// # Safety
    /// What is mapped of `length` events at `at` may be written, and nobody else uses it as long as this is there.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *mut epoll_event, length: usize) -> Self {
        Self {
            at,
            length,
            is_missing: false,
        }
    }

    /// How many events fit.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The address of the first event, for the kernel's calls.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut epoll_event {
        self.at
    }

    /// Whether an event could not be stored.
    #[inline(always)]
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// Takes note if a call of the kernel's could not store its events here.
    pub(crate) fn note<T>(&mut self, told: Result<T, Errno>) -> Result<T, Errno> {
        self.is_missing |= matches!(told, Err(libc::EFAULT));
        told
    }

    /// Stores an event at a place, which is in the room; `false`: it cannot be stored there.
    #[inline(always)]
    pub(super) fn put(&mut self, place: usize, event: epoll_event) -> bool {
        debug_assert!(place < self.length);
        let at = self.at.wrapping_add(place);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the promise of `new`, and a place in the room.
        let is_there = unsafe { shunt_shm::copy::put_pair(at.cast(), event.events, event.u64) };
        #[cfg(not(target_arch = "x86_64"))]
        let is_there = {
            // SAFETY: as above; where copies are not guarded the room must be there.
            unsafe { at.write(event) };
            true
        };
        self.is_missing |= !is_there;
        is_there
    }

    /// Asks for what the kernel's set has, for no more than `most` events; how many there are now.
    pub(crate) fn ask(&mut self, set: c_int, most: usize) -> Result<usize, Errno> {
        let told = sys::epoll_now(set, self.at, most.min(self.length));
        self.note(told)
    }

    /// The first `n` events.
    ///
    /// # Safety
    /// They have been stored.
    pub(crate) unsafe fn stored(&mut self, n: usize) -> &mut [epoll_event] {
        debug_assert!(n <= self.length);
        // SAFETY: the caller's promise, and that of `new`.
        unsafe { std::slice::from_raw_parts_mut(self.at, n) }
    }

    /// Runs `work` with the room behind the first `n` events.
    pub(super) fn behind<R>(&mut self, n: usize, work: impl FnOnce(&mut Self) -> R) -> R {
        debug_assert!(n <= self.length);
        let mut rest = Self {
            at: self.at.wrapping_add(n),
            length: self.length - n,
            is_missing: false,
        };
        let result = work(&mut rest);
        self.is_missing |= rest.is_missing;
        result
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    const EVENT: epoll_event = epoll_event { events: 1, u64: 7 };

    /// A page of memory with nothing behind it; and its end.
    fn edge() -> *mut epoll_event {
        const PAGE: usize = 4096;
        let at = sys::map(2 * PAGE);
        assert!(!at.is_null());
        let end = at.wrapping_add(PAGE);
        // SAFETY: this test's own memory.
        let protected = unsafe { libc::mprotect(end.cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(protected, 0);
        end.cast()
    }

    #[test]
    fn events_are_stored_in_turn() {
        // SAFETY: what is mapped there is this test's.
        let mut room = unsafe { Room::new(edge().wrapping_sub(2), 2) };
        assert!(room.put(0, EVENT));
        room.behind(1, |rest| assert!(rest.len() == 1 && rest.put(0, EVENT)));
        // SAFETY: they have just been stored.
        for told in unsafe { room.stored(2) } {
            assert_eq!((told.events, { told.u64 }), (1, 7));
        }
        assert!(!room.is_missing());
    }

    #[test]
    fn what_the_kernel_cannot_store_is_missing() {
        let (set, event) = (sys::epoll_create().unwrap(), sys::eventfd().unwrap());
        let mut wanted = epoll_event {
            events: libc::EPOLLOUT as u32,
            u64: 9,
        };
        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, event, &raw mut wanted).unwrap();
        let end = edge();
        // SAFETY: what is mapped there is this test's.
        let [mut one, mut none] = [1, 0].map(|n| unsafe { Room::new(end.wrapping_sub(n), 4) });
        assert_eq!(one.ask(set, 4), Ok(1));
        assert!(!one.is_missing());
        assert_eq!(none.behind(0, |rest| rest.ask(set, 4)), Err(libc::EFAULT));
        assert!(none.is_missing());
        [set, event].into_iter().for_each(sys::close);
    }
}
