//! Locks of this process.

use shunt_shm::token::Token;

use super::token::{Got, give, take, try_take};

/// A lock for rare operations, held for short and never asleep. Taking it in a
/// signal handler that interrupted its holder fails instead of deadlocking.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lock(Token);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(Token::FREE)
    }

    /// Takes it, waiting for another thread; `false` if this thread has it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        take(&self.0) != Got::Nothing
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        try_take(&self.0)
    }

    pub(crate) fn give(&self) {
        give(&self.0);
    }

    /// Frees it in a forked child, whose other threads do not exist.
    pub(crate) fn reset(&self) {
        self.0.reset();
    }
}

/// Held by who changes the table of signal handlers. Each forked child frees it, so it lies with what that
/// writes anyway ([`super::identity`]).
#[unsafe(link_section = ".data")]
static SIGNALS: Lock = Lock::new();

/// Held by who changes the table of signal handlers.
#[inline]
pub(crate) fn signals_lock() -> &'static Lock {
    &SIGNALS
}
