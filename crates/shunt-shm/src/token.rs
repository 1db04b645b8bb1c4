//! A token: the thread that holds it may send (or receive) on a connection.
//!
//! It lives in the slot, so threads and forked processes of one side share it.
//! It is taken for one operation and never held asleep. Taking a free token is
//! one uncontended compare-and-swap. Whoever finds it taken waits for its holder, as the engine does in
//! `thread/token.rs`: so two sends come one after the other.

use crate::atomic::{AtomicU64, Ordering, light};

/// Names a thread of a process; never zero. Threads that could meet at one
/// token have different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(pub u64);

/// The token's word: zero when free, otherwise its holder.
#[derive(Debug)]
#[repr(transparent)]
pub struct Token(AtomicU64);

/// Why a token could not be taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Another thread is in an operation; it ends soon.
    ByOther(Holder),
    /// This thread holds it: we run in a signal handler that interrupted it.
    ByUs,
}

impl Token {
    /// A free token.
    #[cfg(not(model))]
    #[allow(clippy::declare_interior_mutable_const)]
    pub const FREE: Self = Self(AtomicU64::new(0));

    /// A free token.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes the token if it is free.
    ///
    /// # Errors
    /// [`Taken`] names the holder.
    #[inline]
    pub fn try_take(&self, me: Holder) -> Result<(), Taken> {
        match self
            .0
            .compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(()),
            Err(holder) if holder == me.0 => Err(Taken::ByUs),
            Err(holder) => Err(Taken::ByOther(Holder(holder))),
        }
    }

    /// [`Self::try_take`] where no other thread can be at the token: without a locked
    /// instruction, which would wait until all that this thread has stored is in
    /// memory. `false` if somebody holds it.
    ///
    /// What is done under the token is not ordered before looks at it by other
    /// processes, unless these pass [`heavy`](crate::atomic::heavy) first.
    #[inline(always)]
    pub fn try_take_alone(&self, me: Holder) -> bool {
        let free = self.0.load(Ordering::Acquire) == 0;
        if free {
            self.0.store(me.0, Ordering::Relaxed);
            light();
        }
        free
    }

    /// Gives the token back; only its holder may. Pairs with the acquire of the
    /// next `try_take`.
    #[inline]
    pub fn give(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether somebody holds it. Acquire: if not, what was done under it is seen.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Who holds it.
    #[must_use]
    pub fn holder(&self) -> Option<Holder> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            holder => Some(Holder(holder)),
        }
    }

    /// Takes it from a holder that is known to be dead; `false` if somebody else
    /// was faster.
    #[must_use]
    pub fn take_over(&self, from: Holder, me: Holder) -> bool {
        self.0
            .compare_exchange(from.0, me.0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Frees it, whatever thread holds it; for a slot that starts a new life.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}
