//! Whether a connection that this process has made by the kernel may still be in its listener's queue.
//!
//! An `accept` returns what was offered in memory ([`crate::recycle`]) before what the kernel has for it. So that the
//! acceptor gets first what was connected first, a process offers nothing at a port while the youngest connection that the
//! kernel has made for it there may be in the queue. One that is paired is not: its acceptor has claimed it.

use std::sync::atomic::{AtomicU32, Ordering};

/// For each port: the number of the youngest connection there, and [`MAY_BE_THERE`].
static PORTS: [AtomicU32; 1 << 16] = [const { AtomicU32::new(0) }; 1 << 16];

/// In a port's word: the youngest may be in the queue.
const MAY_BE_THERE: u32 = 1 << 31;

/// Whether the youngest connection to a port may be in the listener's queue.
pub(crate) fn is_any_queued(port: u16) -> bool {
    PORTS[usize::from(port)].load(Ordering::Relaxed) & MAY_BE_THERE != 0
}

/// For a socket that the kernel connects: the value that its port's word has while this socket is the youngest and may be
/// in the queue.
#[derive(Debug, Default)]
pub(crate) struct Queued(AtomicU32);

impl Queued {
    /// Notes that it has never been in a queue.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The kernel is about to connect it.
    pub(crate) fn note_connect(&self, port: u16) {
        let o = Ordering::Relaxed;
        let next = |word: u32| Some(word.wrapping_add(1) | MAY_BE_THERE);
        if let Ok(before) = PORTS[usize::from(port)].fetch_update(o, o, next) {
            self.0.store(before.wrapping_add(1) | MAY_BE_THERE, o);
        }
    }

    /// Whether it may be in the queue, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// It was accepted, or refused.
    pub(crate) fn note_end(&self, port: u16) {
        let o = Ordering::Relaxed;
        let word = self.0.swap(0, o);
        if word != 0 {
            // If another connection is the youngest by now, its end counts instead.
            let _ = PORTS[usize::from(port)].compare_exchange(word, word & !MAY_BE_THERE, o, o);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_tells_of_those_before_it() {
        const PORT: u16 = 1;
        let [first, second] = [Queued::default(), Queued::default()];
        first.note_connect(PORT);
        second.note_connect(PORT);
        assert!(is_any_queued(PORT) && !is_any_queued(PORT + 1));
        first.note_end(PORT);
        assert!(is_any_queued(PORT));
        second.note_end(PORT);
        assert!(!is_any_queued(PORT));
    }

    #[test]
    fn who_is_accepted_tells_once() {
        const PORT: u16 = 3;
        let [first, second] = [Queued::default(), Queued::default()];
        first.note_connect(PORT);
        first.note_end(PORT);
        second.note_connect(PORT);
        first.note_end(PORT);
        assert!(is_any_queued(PORT));
    }
}
