//! The memory that a socket has been given: one pair of slots, or one after the
//! other if its peer has become another process. Earlier ones stay its own until
//! its end, since a call that began before may still look at them.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::link::Pair;

/// Pairs that one socket can have in its life.
const MOST: usize = 4;

/// See the module.
pub(crate) struct Pairs {
    now: AtomicPtr<Pair>,
    given: AtomicU32,
    places: [UnsafeCell<MaybeUninit<Pair>>; MOST],
}

// SAFETY: a place is written once per life of its socket, before the pointer to it
// is published; the rest is atomic.
unsafe impl Sync for Pairs {}

impl Pairs {
    /// The pair in use.
    #[inline(always)]
    pub(crate) fn now(&self) -> Option<&Pair> {
        // SAFETY: null, or a place that was written before it was published here.
        unsafe { self.now.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn has_room(&self) -> bool {
        (self.given.load(Ordering::Relaxed) as usize) < MOST
    }

    /// Makes this the pair in use. `false`: there is no room. One thread at a time.
    pub(crate) fn add(&self, pair: Pair) -> bool {
        let given = self.given.load(Ordering::Relaxed);
        let Some(place) = self.places.get(given as usize) else {
            return false;
        };
        // SAFETY: nobody reads this place before it is published.
        unsafe { (*place.get()).write(pair) };
        self.given.store(given + 1, Ordering::Release);
        self.now.store(place.get().cast(), Ordering::Release);
        true
    }

    /// All that were given.
    pub(crate) fn each(&self, mut visit: impl FnMut(Pair)) {
        let given = self.given.load(Ordering::Acquire) as usize;
        for place in &self.places[..given] {
            // SAFETY: written before it was counted.
            visit(unsafe { (*place.get()).assume_init() });
        }
    }

    /// Forgets all pairs, as the socket's life is over: nobody reads them any more. A thread that
    /// lost a race sees another stage before it would.
    pub(crate) fn clear(&self) {
        self.now.store(ptr::null_mut(), Ordering::Release);
        self.given.store(0, Ordering::Release);
    }
}
