//! What the daemon is still to be told of a socket ([`crate::control`] tells it).

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// It listens.
pub(crate) const LISTENS: u8 = 1;
/// What has become of the connection.
pub(crate) const STATUS: u8 = 2;
/// It listens no more.
pub(crate) const LISTENED: u8 = 4;
/// It is closed, or has not become a connection.
pub(crate) const RELEASED: u8 = 8;
/// Not a message: once everything else has been said, the object is free.
pub(crate) const BURIED: u8 = 16;

/// What is due of one socket. Zero: nothing.
#[derive(Debug, Default)]
pub(crate) struct Due {
    what: AtomicU8,
    /// With [`STATUS`]: 0, or a reason.
    status: AtomicU8,
    /// With [`RELEASED`]: both ends had been attached.
    used: AtomicBool,
}

impl Due {
    /// What is due: some of the bits above.
    pub(crate) fn what(&self) -> u8 {
        self.what.load(Ordering::Acquire)
    }

    /// Nothing any more.
    pub(crate) fn clear(&self) {
        self.used.store(false, Ordering::Relaxed);
        self.what.store(0, Ordering::Release);
    }

    /// The connection that is about to be released had been attached at both ends.
    pub(crate) fn note_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Whether it had been.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Adds to what is due. The caller sees to it that it is said.
    pub(crate) fn add(&self, what: u8) {
        self.what.fetch_or(what, Ordering::AcqRel);
    }

    /// Adds the state of the connection ([`STATUS`]) to what is due. The caller sees to it that it
    /// is said.
    pub(crate) fn add_status(&self, status: u8) {
        self.status.store(status, Ordering::Relaxed);
        self.add(STATUS);
    }

    /// What has become of the connection.
    pub(crate) fn status(&self) -> u8 {
        self.status.load(Ordering::Relaxed)
    }

    /// This has been said.
    pub(crate) fn said(&self, what: u8) {
        self.what.fetch_and(!what, Ordering::AcqRel);
    }

    /// Nothing is due any more, as nobody can be told. Returns what was due.
    pub(crate) fn forget(&self) -> u8 {
        self.what.swap(0, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_stays_so_until_it_is_said() {
        let due = Due::default();
        due.add(LISTENS);
        due.add_status(7);
        assert_eq!((due.what(), due.status()), (LISTENS | STATUS, 7));
        due.said(LISTENS);
        assert_eq!(due.what(), STATUS);
        due.add(BURIED);
        assert_eq!((due.forget(), due.what()), (STATUS | BURIED, 0));
    }

    #[test]
    fn that_a_connection_was_used_is_known_until_the_object_is_free() {
        let due = Due::default();
        due.note_used();
        due.add(RELEASED);
        due.said(RELEASED);
        assert!(due.is_used());
        due.clear();
        assert!(!due.is_used() && due.what() == 0);
    }
}
