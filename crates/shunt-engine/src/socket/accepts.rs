//! Who accepts at a listener: whether one thread of this process alone does, as far as calls that wait have shown.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Tries;

/// See the module; zero: no thread has waited there yet.
#[derive(Debug, Default)]
pub(crate) struct Accepts {
    by: AtomicU64,
    backlog: AtomicU32,
    /// Whether connections that were accepted there are kept when they are closed.
    pub(crate) keeps: Tries,
}

const NOBODY: u64 = 0;
/// More than one thread, or one that cannot be called.
const SEVERAL: u64 = u64::MAX;
/// One connection may be in memory, beside the kernel's queue, for so many that this queue may hold: about as many wait as the
/// program has asked for.
const SHARE: u32 = 8;

impl Accepts {
    /// Nothing is known.
    pub(super) fn clear(&self) {
        self.by.store(NOBODY, Ordering::Relaxed);
        self.backlog.store(0, Ordering::Relaxed);
        self.keeps.wait(0);
    }

    /// The kernel's queue holds so many.
    pub(crate) fn note_backlog(&self, most: u32) {
        self.backlog.store(most, Ordering::Relaxed);
    }

    /// How many connections may be in memory at a time that wait to be accepted.
    pub(crate) fn room(&self) -> usize {
        (self.backlog.load(Ordering::Relaxed) / SHARE) as usize
    }

    /// This thread ([`thread::here`](crate::thread::here)) waits for what comes to the listener.
    pub(crate) fn note_wait(&self, thread: u64) {
        let o = Ordering::Relaxed;
        if let Err(before) = self.by.compare_exchange(NOBODY, thread, o, o)
            && before != thread
        {
            self.note_others();
        }
    }

    /// Some thread waits there, or may, that cannot be called where connections wait in memory.
    pub(crate) fn note_others(&self) {
        self.by.store(SEVERAL, Ordering::Relaxed);
    }

    /// Whether only one thread has waited there.
    pub(crate) fn is_one(&self) -> bool {
        !matches!(self.by.load(Ordering::Relaxed), NOBODY | SEVERAL)
    }

    /// Whether that is this thread.
    pub(crate) fn is_by(&self, thread: u64) -> bool {
        self.by.load(Ordering::Relaxed) == thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_alone_accepts_until_another_one_waits() {
        let accepts = Accepts::default();
        assert!(!accepts.is_one());
        accepts.note_wait(7);
        accepts.note_wait(7);
        assert!(accepts.is_one() && accepts.is_by(7) && !accepts.is_by(8));
        accepts.note_wait(8);
        accepts.note_wait(7);
        assert!(!accepts.is_one() && !accepts.is_by(7));
    }

    #[test]
    fn a_short_queue_has_no_room_beside_it() {
        let accepts = Accepts::default();
        accepts.note_backlog(SHARE - 1);
        assert_eq!(accepts.room(), 0);
        accepts.note_backlog(128);
        assert_eq!(accepts.room(), 16);
    }
}
