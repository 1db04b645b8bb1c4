//! A slot's lives: how each begins, and by which number its peer knows it.

use super::{FENCED, READY, Recall, Slot};
use crate::atomic::Ordering;
use crate::publish;
use crate::wake::Address;

/// Lives that a connection may have in its slot.
const LIVES: u32 = 256;

/// The first life of a pairing.
#[must_use]
pub const fn first_life(generation: u32) -> u32 {
    generation.wrapping_mul(LIVES)
}

/// The life after this one; `None`: there is none.
#[must_use]
pub const fn next_life(life: u32) -> Option<u32> {
    if life % LIVES == LIVES - 1 {
        None
    } else {
        Some(life + 1)
    }
}

/// The life of the next connection that uses the slot again ([`crate::recycle`]); the last one of a pairing is followed by
/// the first, since both sides have ended each before they begin another.
#[must_use]
pub const fn recycled_life(life: u32) -> u32 {
    match next_life(life) {
        Some(next) => next,
        None => life - (LIVES - 1),
    }
}

impl Slot {
    /// Starts a new life for a slot that this side owns. The peer believes
    /// nothing of it before it sees `generation`.
    pub fn begin(&self, generation: u32, ring: crate::ring::Memory) {
        let o = Ordering::Relaxed;
        self.face.generation.store(0, Ordering::Release);
        self.face.state.store(0, o);
        self.face.wait.store(0, o);
        self.face.again.store(0, o);
        self.face.epoch.store(0, o);
        self.face.core.store(0, o);
        self.face.caller.store(0, o);
        self.face.data.say(Address::NOWHERE, 0);
        self.face.room.say(Address::NOWHERE, 0);
        self.sending.token.reset();
        self.sending.in_kernel.store(0, o);
        self.receiving.token.reset();
        self.receiving.sleepers.store(0, o);
        self.options.most.store(0, o);
        self.options.forked.store(0, o);
        self.options.error.store(0, o);
        self.options.reset_told.store(0, o);
        self.options.turn.store(0, o);
        self.options.offered_at.store(0, o);
        self.begin_streams();
        // No relative has had a slot that is handed out, so this side's own word is believed.
        if self.sending.allocated.load(o) == 0 {
            crate::ring::begin_untouched(ring, &self.sending);
        } else {
            crate::ring::begin(ring, &self.sending);
        }
        publish::half(&self.face.generation, generation);
    }

    /// Starts the next life of a slot whose connection goes on, with both tokens of it; both sides
    /// have said that they are ready for it. `taken`: bytes taken from the base socket so far.
    /// Threads that sleep on the connection sleep on, and tokens, options and counts of sleepers
    /// stay.
    pub fn begin_again(&self, life: u32, taken: u64, ring: crate::ring::Memory) {
        let o = Ordering::Relaxed;
        // A peer that is still in the life before has no more use for any of this.
        self.face.state.store(0, Ordering::Release);
        self.begin_streams();
        self.receiving.kernel_bytes.store(taken, o);
        crate::ring::begin(ring, &self.sending);
        self.face.state.store(READY, o);
        publish::half(&self.face.generation, life);
    }

    /// Starts the life of the next connection in a slot that both sides have put aside: its streams go on where those of the
    /// former one have ended, in both rings. A peer that passes a full barrier with each publication ([`FENCED`]) goes on to do so.
    pub fn begin_recycled(&self, life: u32) {
        let o = Ordering::Relaxed;
        self.face.state.store(READY, o);
        self.face.wait.store(self.face.wait.load(o) & FENCED, o);
        self.face.core.store(0, o);
        self.face.caller.store(0, o);
        self.options.most.store(0, o);
        self.options.error.store(0, o);
        self.options.reset_told.store(0, o);
        publish::half(&self.face.generation, life);
    }

    /// Both directions as they are before the first byte.
    fn begin_streams(&self) {
        let o = Ordering::Relaxed;
        self.progress.read.store(0, o);
        self.progress.bytes.store(0, o);
        self.output.switch_at.store(0, o);
        self.output.back_at.store(0, o);
        self.output.bytes.store(0, o);
        self.output.room_at.store(0, o);
        let s = &self.sending;
        s.write.store(0, o);
        s.credit.store(0, o);
        s.total.store(0, o);
        s.way.store(0, o);
        s.check.store(crate::ring::SMALL, o);
        s.clear.store(0, o);
        s.called.store(0, o);
        s.called_for_room.store(0, o);
        for segment in &s.segments {
            segment.store(0, o);
        }
        let r = &self.receiving;
        r.read.store(0, o);
        r.kernel_bytes.store(0, o);
        r.awaits.store(0, o);
        r.left.store(0, o);
        r.way.store(0, o);
        r.unsure.store(0, o);
        r.mark.store(0, o);
        r.total.store(0, o);
        let k = &self.recall;
        k.stage.store(Recall::NONE, o);
        k.answered.store(0, o);
        k.owed_left.store(0, o);
        k.owed_read.store(0, o);
        k.owed_from.store(0, o);
        k.brought_until.store(0, o);
        k.owed_bytes.store(0, o);
        k.resumed_at.store(0, o);
        k.resumed_from.store(0, o);
    }

    /// The state bits, if the slot is in this generation.
    #[inline(always)]
    #[must_use]
    pub fn state(&self, generation: u32) -> Option<u32> {
        // Generation first (acquire, pairs with `begin`): its state is not older.
        (self.face.generation.load(Ordering::Acquire) == generation)
            .then(|| self.face.state.load(Ordering::Acquire))
    }
}
