//! Which epoll sets a socket is in.

use std::cell::UnsafeCell;

/// A socket's registrations: which sets it is in.
pub(crate) struct ItemList(UnsafeCell<Option<Box<Places>>>);

/// Where a socket's registrations are: set and item.
type Places = Vec<(u32, u32)>;

impl ItemList {
    /// With the socket's lock.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn list(&self) -> &mut Places {
        // SAFETY: the caller holds the socket's lock.
        unsafe { (*self.0.get()).get_or_insert_default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: a look that loses a race is repeated with the lock.
        unsafe { (*self.0.get()).as_ref().is_none_or(|l| l.is_empty()) }
    }
}
