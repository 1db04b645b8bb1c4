//! What the last call that looked at a connection saw there. Threads write it without a lock and with relaxed order: if two look at
//! once, one of them may look once more than necessary, or a little later.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// When the kernel was last asked about this socket (ticks).
    pub(crate) looked_at: AtomicU64,
    /// `rx.ring_bytes` when the ring was last found empty.
    pub(crate) read_at: AtomicU64,
    /// Bytes written to the ring when it was last asked whether the peer is behind.
    pub(crate) looked_ahead: AtomicU64,
    /// Waits for data that ended without sleep since the last that did.
    pub(crate) awake: AtomicU32,
    /// `rx.user_calls` at that one.
    pub(crate) slept_at: AtomicU64,
    /// What the base socket said last (`POLLRDHUP`, `POLLHUP`, `POLLERR`), and [`LEFT`].
    pub(crate) kernel_state: AtomicU32,
    /// Bytes that were readable in the ring were not resent over TCP in time, so no further call waits for them.
    pub(crate) late: AtomicBool,
    /// 1 + bytes read of the ring when a call waited in vain for a peer in the middle of a withdrawal.
    pub(crate) held_up: AtomicU64,
    /// A call has waited in vain for a peer in the middle of its recall.
    pub(crate) unheard: AtomicBool,
}

/// In [`Hints::kernel_state`]: an error is left for the next call, also for a send. Whoever looks whether the connection is
/// as usual looks there anyway.
pub(crate) const LEFT: u32 = 1 << 31;

impl Hints {
    /// For the next socket.
    pub(super) fn clear(&self) {
        let o = Ordering::Relaxed;
        self.looked_at.store(0, o);
        self.read_at.store(0, o);
        self.looked_ahead.store(0, o);
        self.awake.store(0, o);
        self.slept_at.store(0, o);
        self.kernel_state.store(0, o);
        self.late.store(false, o);
        self.held_up.store(0, o);
        self.unheard.store(false, o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_socket_is_not_one_that_was_waited_for_in_vain() {
        let hints = Hints::default();
        hints.held_up.store(7, Ordering::Relaxed);
        hints.late.store(true, Ordering::Relaxed);
        hints.unheard.store(true, Ordering::Relaxed);
        hints.clear();
        assert_eq!(hints.held_up.load(Ordering::Relaxed), 0);
        assert!(!hints.late.load(Ordering::Relaxed));
        assert!(!hints.unheard.load(Ordering::Relaxed));
    }
}
