//! Which epoll sets a socket is in.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A socket's registrations: which sets it is in. Zero bytes are an empty list.
pub(crate) struct ItemList {
    /// Guarded by the socket's lock.
    places: UnsafeCell<Option<Box<Places>>>,
    /// The number of registrations, for readers without the lock.
    count: AtomicU32,
}

/// Where a socket's registrations are: set and item.
pub(crate) type Places = Vec<(u32, u32)>;

/// No registrations.
static NONE: Places = Vec::new();

impl ItemList {
    /// All registrations.
    ///
    /// # Safety
    /// The caller holds the socket's lock, and nobody [changes](Self::change) them meanwhile.
    pub(super) unsafe fn list(&self) -> &Places {
        // SAFETY: the caller's promise.
        unsafe { (*self.places.get()).as_deref().unwrap_or(&NONE) }
    }

    /// Changes the registrations.
    ///
    /// # Safety
    /// The caller holds the socket's lock, and nobody has the [list](Self::list).
    pub(super) unsafe fn change<R>(&self, change: impl FnOnce(&mut Places) -> R) -> R {
        // SAFETY: the caller's promise.
        let places = unsafe { (*self.places.get()).get_or_insert_default() };
        let result = change(places);
        self.count.store(places.len() as u32, Ordering::Release);
        result
    }

    /// How many there were when this looked; with the lock, how many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire) as usize
    }

    /// Whether it was in no set when this looked; with the lock, whether it is in none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }
}
