//! Sleeping without losing a wake-up.
//!
//! ```text
//! sleeper                         waker
//!   say so (wait word or door)      publish data (or credit)
//!   heavy barrier                   light barrier
//!   look at the ring once more      look at the wait word
//!   sleep in the kernel             set: call the sleeper, by its address
//! ```
//!
//! The barriers make one of the two looks see the other's store. The heavy one interrupts every processor that runs
//! one of our processes, so that the waker needs no fence: the bargain while sleep is rare. A side that does sleep
//! says so ([`FENCED`](crate::slot::FENCED)) with a last heavy barrier; from then on both pass a full one. At a door
//! both always pass one: a sender that comes there has written a log.
//!
//! For epoll sets of thousands of connections a waker *logs* what it touched in
//! the log of the set's group, so that the sleeper finds it without looking at
//! every connection.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::publish;

/// "A thread sleeps on this group": counts sleepers, so that several threads
/// may sleep on one group. Alone on its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Door {
    /// Number of threads asleep (or about to be).
    pub sleepers: AtomicU32,
    /// Counts changes of the sleepers: a waker calls once for each.
    pub epoch: AtomicU32,
    /// Where they are called, and so whose door it is: one set's of one process. Written before
    /// they are counted.
    pub address: Address,
}

/// Where a datagram wakes a sleeper: the channel beside the stream.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Address {
    name: AtomicU64,
    secret: AtomicU64,
}

impl Address {
    /// Nobody sleeps there.
    pub const NOWHERE: u64 = 0;

    /// Says the name of a channel, and the word that each call there must say to be heard. Published before the
    /// sleeper says that it sleeps.
    pub fn say(&self, name: u64, secret: u64) {
        publish::word(&self.secret, secret);
        publish::word(&self.name, name);
    }

    /// Takes the address over, if the name there is `former` until now: [`Self::NOWHERE`], or a
    /// dead holder's. Who does so is not asleep yet.
    ///
    /// A holder writes the secret after it has the name and before it gives that up by [`Self::leave`], and nobody
    /// else writes it: so the secret of the set that has the name is the last.
    #[must_use]
    pub fn take(&self, former: u64, name: u64, secret: u64) -> bool {
        let exchanged =
            self.name
                .compare_exchange(former, name, Ordering::AcqRel, Ordering::Relaxed);
        if exchanged.is_ok() {
            publish::word(&self.secret, secret);
        }
        exchanged.is_ok()
    }

    /// Its holder of that name gives it up; the next one may have it at once. The secret stays: it
    /// may be the next holder's by now, and without the name nobody is called by it.
    pub fn leave(&self, name: u64) {
        // Release: the next holder writes its secret after this one's.
        let _ =
            self.name
                .compare_exchange(name, Self::NOWHERE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether that is the name there.
    #[must_use]
    pub fn says(&self, name: u64) -> bool {
        self.name.load(Ordering::Relaxed) == name
    }

    /// The name and the word, after a look whether anybody sleeps (acquire). The peer's words: not trusted.
    #[must_use]
    pub fn look(&self) -> (u64, u64) {
        let name = self.name.load(Ordering::Acquire);
        (name, self.secret.load(Ordering::Relaxed))
    }
}

/// How far a log is written. Alone on its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Tail {
    /// Entries ever reserved.
    pub next: AtomicU64,
    /// The peer door's `epoch` for which this side has called.
    pub called: AtomicU32,
}

/// The log of one group: which slots its writer has published to, in order.
/// Several threads (and forked processes) of the writer append; any number of
/// readers follow with a head of their own.
#[derive(Clone, Copy, Debug)]
pub struct Log<'a> {
    tail: &'a Tail,
    entries: &'a [AtomicU64],
}

/// What a reader finds at its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The writer touched this slot.
    Slot(u32),
    /// Nothing new.
    Empty,
    /// The reader fell behind, or a writer died half-way: look at every slot.
    Lost,
}

impl<'a> Log<'a> {
    /// A log over `entries`, whose number is a power of two.
    #[must_use]
    pub fn new(tail: &'a Tail, entries: &'a [AtomicU64]) -> Self {
        debug_assert!(entries.len().is_power_of_two());
        Self { tail, entries }
    }

    /// Appends a slot. An entry carries its own number, so a reader knows
    /// whether it is there yet.
    #[inline]
    pub fn append(&self, slot: u32) {
        let n = self.tail.next.fetch_add(1, Ordering::Relaxed);
        let entry = (n.wrapping_add(1) << 32) | u64::from(slot);
        publish::word(&self.entries[n as usize & (self.entries.len() - 1)], entry);
    }

    /// Reads at `head` and moves it on. Acquire: pairs with `append`, so what
    /// the writer published before is visible.
    ///
    /// An entry ahead of its place counts only if its writer has reserved past `head`, and then the reader goes on
    /// from there: a log that is nonsense tells of nothing until a thread works at it.
    #[inline]
    pub fn next(&self, head: &mut u64) -> Entry {
        let entry = self.entries[*head as usize & (self.entries.len() - 1)].load(Ordering::Acquire);
        let expected = (*head).wrapping_add(1) as u32;
        let found = (entry >> 32) as u32;
        if found == expected {
            *head = head.wrapping_add(1);
            return Entry::Slot(entry as u32);
        }
        if found.wrapping_sub(expected) as i32 > 0 {
            // Reserved before it was written, so the end is not behind it.
            let end = self.tail.next.load(Ordering::Acquire);
            if end.wrapping_sub(*head) as i64 > 0 {
                *head = end;
                return Entry::Lost;
            }
        }
        Entry::Empty
    }

    /// Where a reader that knows the present state starts.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.tail.next.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    fn entries() -> [AtomicU64; 8] {
        [const { AtomicU64::new(0) }; 8]
    }

    #[test]
    fn a_reader_left_behind_goes_on_at_the_end() {
        let (tail, entries) = (Tail::default(), entries());
        let log = Log::new(&tail, &entries);
        let mut head = 0;
        (0..20).for_each(|slot| log.append(slot));
        assert_eq!(log.next(&mut head), Entry::Lost);
        assert_eq!((head, log.next(&mut head)), (20, Entry::Empty));
        log.append(7);
        assert_eq!(log.next(&mut head), Entry::Slot(7));
    }

    #[test]
    fn nonsense_is_news_once_at_most() {
        let (tail, entries) = (Tail::default(), entries());
        let log = Log::new(&tail, &entries);
        for entry in &entries {
            entry.store(0x4000_0000 << 32, Ordering::Relaxed);
        }
        for (end, news) in [(0, 0), (2, 0), (3, 1), (u64::MAX, 0), (1 << 40, 1)] {
            tail.next.store(end, Ordering::Relaxed);
            let mut head = 2;
            let found = (0..100).filter(|_| log.next(&mut head) != Entry::Empty);
            assert_eq!(found.count(), news, "end {end}");
        }
    }
}
