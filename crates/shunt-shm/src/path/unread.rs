//! What a receiver has not read of a ring.

use crate::atomic::Ordering;
use crate::ring::{Consumer, Found, Memory, Position};
use crate::slot::{Progress, Recall, Receiving, Slot};

/// Bytes looked at in one step.
const STEP: usize = 256 << 10;

/// The place up to which a side has read its peer's ring: what lies behind it is unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    read: u64,
    left: u32,
}

impl Unread {
    /// The place that this side's own words tell.
    #[must_use]
    pub fn of(side: &Slot) -> Self {
        Self {
            read: side.receiving.read.load(Ordering::Acquire),
            left: side.receiving.left.load(Ordering::Acquire),
        }
    }

    /// The place that the sender has noted for its own ring, with [`Self::note`].
    #[must_use]
    pub fn noted(recall: &Recall) -> Self {
        Self {
            read: recall.owed_read.load(Ordering::Relaxed),
            left: recall.owed_left.load(Ordering::Relaxed),
        }
    }

    /// Notes the place.
    pub fn note(&self, recall: &Recall) {
        recall.owed_read.store(self.read, Ordering::Relaxed);
        recall.owed_left.store(self.left, Ordering::Relaxed);
    }

    /// Whether anything is unread in this ring.
    #[must_use]
    pub fn is_any(&self, ring: Memory) -> bool {
        let there = |consumer: &Consumer| consumer.is_ready() && !consumer.has_ended();
        self.read_by(ring, there).unwrap_or(false)
    }

    /// How many bytes are unread; `None`: the ring is broken.
    #[must_use]
    pub fn length(&self, ring: Memory) -> Option<u64> {
        self.read_by(ring, |consumer| length(consumer, u64::from(ring.size())))?
    }

    /// Reads what is unread, by a copy of the words that say how far a side has read, so that those
    /// do not change. `None`: the words name no place in this ring.
    pub fn read_by<T>(&self, ring: Memory, work: impl FnOnce(&Consumer) -> T) -> Option<T> {
        if !self.lies_in(ring) {
            return None;
        }
        let receiving = Receiving::default();
        receiving.read.store(self.read, Ordering::Relaxed);
        receiving.left.store(self.left, Ordering::Relaxed);
        Some(work(&Consumer {
            memory: ring,
            receiving: &receiving,
            progress: &Progress::default(),
        }))
    }

    /// Whether the place lies in this ring.
    fn lies_in(&self, ring: Memory) -> bool {
        let at = Position::unpack(self.read).offset;
        if self.left == 0 {
            at.is_multiple_of(8) && at < ring.size()
        } else {
            // The next header follows it.
            at.checked_add(self.left)
                .is_some_and(|end| end <= ring.size() - 8)
        }
    }
}

/// How many bytes a consumer has to read, `most` at most; `None`: the ring is broken.
fn length(consumer: &Consumer, most: u64) -> Option<u64> {
    let mut length = 0;
    loop {
        // SAFETY: to nowhere.
        match unsafe { consumer.read(std::ptr::null_mut(), STEP, false) } {
            Ok(Found::Bytes(n)) if length + n as u64 <= most => length += n as u64,
            Ok(Found::Empty | Found::Back(_)) => return Some(length),
            _ => return None,
        }
    }
}
