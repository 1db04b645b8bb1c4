//! What the daemon knows of a socket, and what it has said of it. Written with the lock of the connection to the
//! daemon ([`crate::control`]). Without the lock, a call that has something to report also writes `told` and what is
//! [due](Due), and the thread that carries out a wish takes it back.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use super::untold::Due;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Dealings {
    /// This process has told the daemon of it.
    pub(crate) told: AtomicBool,
    /// The daemon has answered that nobody claims the other end.
    pub(super) answered: AtomicBool,
    /// The daemon has been asked where its other end is.
    pub(crate) inquired: AtomicBool,
    /// It was given a slot whose memory a relative has, too, and needs another one.
    pub(crate) passed_over: AtomicBool,
    /// The reason for which it should go back to TCP (`shunt downgrade`, a changed policy), or 0.
    pub(crate) wished: AtomicU8,
    /// Generation of the pair whose other end was let go before it was used, or 0.
    pub(crate) left: AtomicU32,
    /// What the daemon must still be told of it.
    pub(crate) due: Due,
}

impl Dealings {
    /// Takes a wish back: the socket need not go back to TCP.
    pub(crate) fn forget_wish(&self) {
        self.wished.store(0, Ordering::Relaxed);
    }

    /// For the next socket; what is due is cleared where the former one ends.
    pub(super) fn clear(&self) {
        let o = Ordering::Relaxed;
        self.told.store(false, o);
        self.answered.store(false, o);
        self.inquired.store(false, o);
        self.passed_over.store(false, o);
        self.wished.store(0, o);
        self.left.store(0, o);
    }
}
