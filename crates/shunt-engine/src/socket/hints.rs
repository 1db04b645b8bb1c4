//! What the last call that looked at a connection saw there. Threads write this without a lock and with relaxed order: if two look
//! at once, one of them may look once more than necessary, or a little later.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// When the kernel was last asked about this socket (ticks).
    pub(crate) looked_at: AtomicU64,
    /// When a `poll` for this socket and others that were ready last asked the kernel about all of them (ticks).
    pub(crate) polled_at: AtomicU64,
    /// `rx.ring_bytes` when a `poll` last told of input.
    polled_read: AtomicU64,
    /// Bytes that TCP has brought in all, taken or not, when the kernel was last asked for them ([`crate::stream`]'s `brought`).
    pub(crate) brought: AtomicU64,
    /// `rx.ring_bytes` when the ring was last found empty.
    pub(crate) read_at: AtomicU64,
    /// Bytes written to the ring when it was last asked whether the peer is behind.
    pub(crate) looked_ahead: AtomicU64,
    /// Waits for data that ended without sleep, since the last one that slept.
    pub(crate) awake: AtomicU32,
    /// `rx.user_calls` at the last wait that slept.
    pub(crate) slept_at: AtomicU64,
    /// What the base socket said last (`POLLRDHUP`, `POLLHUP`, `POLLERR`), [`LEFT`], [`IN_VAIN`] and [`BETWEEN_HOSTS`].
    pub(crate) kernel_state: AtomicU32,
    /// Bytes that were readable in the ring were not resent over TCP in time, so no further call waits for them.
    pub(crate) late: AtomicBool,
    /// Set when a wait for a peer in the middle of a change of way came to nothing: for a withdrawal, 1 + the bytes that had been
    /// read of the ring; for a recall, the bit [`RECALL`]. [`IN_VAIN`] is set with it.
    in_vain: AtomicU64,
    /// 1 + how far the peer had read of the ring when that was last found full for the first time; and when that was, in nanoseconds.
    full: [AtomicU64; 2],
    /// Proposals to enter the ring, since the ring was entered last ([`crate::reach::propose`]).
    pub(crate) proposals: AtomicU32,
    /// 1 + the number that the last one has named.
    pub(crate) proposed: AtomicU64,
}

/// In [`Hints::in_vain`]: a wait for the peer's recall came to nothing.
const RECALL: u64 = 1 << 63;

/// In [`Hints::kernel_state`]: a wait has come to nothing ([`Hints::in_vain`]). It stands in this word since a look whether the
/// connection is as usual reads that anyway.
pub(crate) const IN_VAIN: u32 = 1 << 30;

/// In [`Hints::kernel_state`]: the other end is on another host. So each look at an empty ring asks the NIC, too, and no short way
/// is taken to find events.
pub(crate) const BETWEEN_HOSTS: u32 = 1 << 29;

/// In [`Hints::kernel_state`]: an error is left for the next call, also if it sends. It stands in this word since a look
/// whether the connection is as usual reads that anyway.
pub(crate) const LEFT: u32 = 1 << 31;

impl Hints {
    /// Whether a wait of a call has come to nothing, and what it waited for may not be over.
    #[inline(always)]
    pub(crate) fn is_any_in_vain(&self) -> bool {
        self.kernel_state.load(Ordering::Relaxed) & IN_VAIN != 0
    }

    /// If a wait for the end of a withdrawal has come to nothing: 1 + the bytes that had been read of the ring then. 0: none has.
    pub(crate) fn withdrawal_in_vain(&self) -> u64 {
        self.in_vain.load(Ordering::Relaxed) & !RECALL
    }

    /// Notes that a wait for the end of a withdrawal has come to nothing (`mark`: as above), or, by 0, forgets that.
    pub(crate) fn note_withdrawal(&self, mark: u64) {
        let recall = self.in_vain.load(Ordering::Relaxed) & RECALL;
        self.note(mark & !RECALL | recall);
    }

    /// Whether a wait for the end of a recall has come to nothing.
    pub(crate) fn recall_in_vain(&self) -> bool {
        self.in_vain.load(Ordering::Relaxed) & RECALL != 0
    }

    /// Notes whether a wait for the end of a recall has come to nothing.
    pub(crate) fn note_recall(&self, in_vain: bool) {
        self.note(self.withdrawal_in_vain() | if in_vain { RECALL } else { 0 });
    }

    fn note(&self, in_vain: u64) {
        self.in_vain.store(in_vain, Ordering::Relaxed);
        if in_vain != 0 {
            self.kernel_state.fetch_or(IN_VAIN, Ordering::Relaxed);
        } else if self.is_any_in_vain() {
            self.kernel_state.fetch_and(!IN_VAIN, Ordering::Relaxed);
        }
    }

    /// Notes what the base socket says of an end. `before`: the word as it was before the look. Bits that other threads have set
    /// since are kept; a bit that they have cleared may come back until the next look.
    #[inline]
    pub(crate) fn note_ends(&self, before: u32, ends: u32) {
        let now = before & (LEFT | IN_VAIN | BETWEEN_HOSTS) | ends;
        let o = Ordering::Relaxed;
        let state = &self.kernel_state;
        if now != before && state.compare_exchange(before, now, o, o).is_err() {
            state.fetch_or(ends, o);
        }
    }

    /// The ring is full, of which the peer has read `read` bytes. Returns for how long that peer has read nothing, in nanoseconds.
    pub(crate) fn note_full(&self, read: u64, now: u64) -> u64 {
        let [at, since] = &self.full;
        if at.swap(read.wrapping_add(1), Ordering::Relaxed) != read.wrapping_add(1) {
            since.store(now, Ordering::Relaxed);
        }
        now.saturating_sub(since.load(Ordering::Relaxed))
    }

    /// A `poll` tells of input, and this process has read `read` bytes of the ring. Returns whether some of them since the last `poll` that did.
    pub(crate) fn note_told(&self, read: u64) -> bool {
        let has_read = self.polled_read.load(Ordering::Relaxed) != read;
        if has_read {
            self.polled_read.store(read, Ordering::Relaxed);
        }
        has_read
    }

    /// For the next socket.
    pub(super) fn clear(&self) {
        let o = Ordering::Relaxed;
        self.looked_at.store(0, o);
        self.polled_at.store(0, o);
        self.polled_read.store(0, o);
        self.brought.store(0, o);
        self.read_at.store(0, o);
        self.looked_ahead.store(0, o);
        self.awake.store(0, o);
        self.slept_at.store(0, o);
        self.kernel_state.store(0, o);
        self.late.store(false, o);
        self.in_vain.store(0, o);
        self.full.iter().for_each(|word| word.store(0, o));
        self.proposals.store(0, o);
        self.proposed.store(0, o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_full_for_as_long_as_nothing_is_read_of_it() {
        let hints = Hints::default();
        assert_eq!(hints.note_full(0, 1000), 0);
        assert_eq!(hints.note_full(0, 1300), 300);
        assert_eq!(hints.note_full(7, 1400), 0);
        assert_eq!(hints.note_full(7, 1450), 50);
        hints.clear();
        assert_eq!(hints.note_full(7, 1500), 0);
    }

    #[test]
    fn what_is_waited_for_in_vain_is_forgotten_one_by_one() {
        let hints = Hints::default();
        hints.kernel_state.store(LEFT, Ordering::Relaxed);
        hints.note_recall(true);
        hints.note_withdrawal(7);
        hints.note_recall(false);
        assert!(hints.withdrawal_in_vain() == 7 && !hints.recall_in_vain());
        assert!(hints.is_any_in_vain());
        hints.note_withdrawal(0);
        assert_eq!(hints.kernel_state.load(Ordering::Relaxed), LEFT);
    }

    #[test]
    fn a_look_forgets_an_end_that_is_over_and_nothing_that_others_note_meanwhile() {
        const ENDS: [u32; 2] = [libc::POLLRDHUP as u32, libc::POLLERR as u32];
        let hints = Hints::default();
        let state = || hints.kernel_state.load(Ordering::Relaxed);
        let before = state();
        hints.kernel_state.fetch_or(LEFT, Ordering::Relaxed);
        hints.note_withdrawal(7);
        hints.note_ends(before, ENDS[1]);
        assert_eq!(state(), LEFT | IN_VAIN | ENDS[1]);
        let before = state();
        hints.kernel_state.fetch_or(ENDS[0], Ordering::Relaxed);
        hints.note_ends(before, ENDS[1]);
        assert_eq!(state(), LEFT | IN_VAIN | ENDS[0] | ENDS[1]);
        hints.note_ends(state(), ENDS[0]);
        assert_eq!(state(), LEFT | IN_VAIN | ENDS[0]);
    }

    #[test]
    fn the_next_socket_is_not_one_that_was_waited_for_in_vain() {
        let hints = Hints::default();
        hints.note_withdrawal(7);
        hints.late.store(true, Ordering::Relaxed);
        hints.note_recall(true);
        assert!(hints.is_any_in_vain());
        assert!(hints.withdrawal_in_vain() == 7 && hints.recall_in_vain());
        hints.clear();
        assert!(!hints.is_any_in_vain());
        assert!(hints.withdrawal_in_vain() == 0 && !hints.recall_in_vain());
        assert!(!hints.late.load(Ordering::Relaxed));
    }
}
