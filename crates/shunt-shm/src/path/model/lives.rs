//! What a thread does that goes back to the rings, or dies.

use super::{End, RELATIVE};
use crate::atomic::{AtomicU64, Ordering};
use crate::ring::Memory;
use crate::slot::next_life;

impl End<'_> {
    /// Goes back to the rings, if both sides wish that: says that it is ready, or begins.
    pub(super) fn return_to_rings(&self) {
        let slot = &self.own.slot;
        if self.receiver().is_skipped() {
            self.take(&slot.receiving.token);
            if self.receiver().is_skipped() {
                self.receiver().skip();
            }
            slot.receiving.token.give();
        }
        if !self.receiver().may_begin_again() {
            return;
        }
        self.take(&slot.sending.token);
        self.take(&slot.receiving.token);
        let path = self.receiver();
        if path.may_begin_again() && !path.is_ready() {
            path.say_ready();
        }
        let idle = slot.sending.in_kernel.load(Ordering::Acquire) == 0;
        if path.may_begin_again() && path.is_ready() && path.is_peer_ready() && idle {
            self.own.ring.lock().unwrap().clear();
            let next = next_life(path.life).unwrap();
            let taken = path
                .taken()
                .max(self.peer.stream.lock().unwrap().taken as u64);
            let nobodys = [AtomicU64::new(0), AtomicU64::new(0)];
            // SAFETY: it is used within this call, and nobody looks at it.
            let memory = unsafe { Memory::new(nobodys.as_ptr(), 16) };
            slot.begin_again(next, taken, memory);
        }
        slot.receiving.token.give();
        slot.sending.token.give();
    }

    /// This thread has died, perhaps in the middle of [`Self::bury_peer`].
    pub(super) fn die(&self) {
        self.own.dead.fetch_or(1 << self.me.0, Ordering::AcqRel);
        let relative = 1 << (self.me.0 + RELATIVE);
        self.peer.dead.fetch_or(relative, Ordering::AcqRel);
    }
}
