//! What the last look at a connection saw, by whichever call looked. Written without a lock and relaxed: where two threads look
//! at once, one may look once more than need be, or a little later.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// What the base socket said last (`POLLRDHUP`, `POLLHUP`, `POLLERR`).
    pub(crate) kernel_state: AtomicU32,
}

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
    }
}
