//! For how long strangers had a core while a thread yielded it.
//!
//! Each thread notes when it begins and ends a wait, and on which core. Where nobody did for longer than a [`SLICE`], somebody
//! else had the core. The notes lie in a page that all processes of a user write ([`shunt_abi::cores`]), since these take turns,
//! too: fifty servers that work for a moment each are no strangers to each other. Until shuntd has passed the page, a process
//! has one of its own. Nor are peers in other containers strangers: each thread notes itself in the pages of those, too.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::cores::{BESIDE, CORES, LINE, SIZE};

use crate::{config, sys};

/// A time in which nobody was seen (ticks, about 1.15 ms) that is mostly no short turn any more: a stranger has had a time slice
/// (1.4 ms on two cores, and more where there are more).
pub(crate) const SLICE: u64 = 3_000_000;

/// What is noted of a core. Threads that write it at the same time may lose what one of them has seen.
#[repr(C, align(64))]
struct Core {
    seen: AtomicU64,
    strangers: AtomicU64,
}

const _: () = assert!(size_of::<Core>() == LINE);

impl Core {
    const fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
        }
    }

    /// A thread runs here now, and was last seen `beside` this page then. Returns for how long strangers had the core just before
    /// that, and in all, from any beginning.
    #[inline]
    fn note(&self, beside: u64, now: u64) -> (u64, u64) {
        let before = self.seen.load(Ordering::Relaxed).max(beside);
        let strangers = self.strangers.load(Ordering::Relaxed);
        self.seen.store(now, Ordering::Relaxed);
        // The counters of two cores may differ a little, and another process may write anything.
        let absent = now.saturating_sub(before);
        if absent <= SLICE {
            return (0, strangers);
        }
        let strangers = strangers.wrapping_add(absent);
        self.strangers.store(strangers, Ordering::Relaxed);
        (absent, strangers)
    }
}

/// All cores: a page of the process's own, or the user's.
static OWN: [Core; CORES] = [const { Core::new() }; CORES];
static PAGE: AtomicPtr<Core> = AtomicPtr::new(std::ptr::null_mut());
/// The pages that this user shares with peers of other users, or in other namespaces; one after the other.
static PEERS: [AtomicPtr<Core>; BESIDE] = [const { AtomicPtr::new(std::ptr::null_mut()) }; BESIDE];
/// How much of the strangers' time this process has counted, for each core: each slice is counted once, however many of its
/// threads yield.
static COUNTED: [AtomicU64; CORES] = [const { AtomicU64::new(0) }; CORES];

#[inline]
fn core(number: usize) -> &'static Core {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return &OWN[number];
    }
    // SAFETY: a page has `CORES` places, and stays mapped.
    unsafe { &*page.add(number) }
}

#[inline]
fn here() -> usize {
    sys::core() as usize % CORES
}

/// A thread runs on this core now, as all pages say from then on ([`Core::note`]).
#[inline]
fn note_on(number: usize, now: u64) -> (u64, u64) {
    let beside = match PEERS[0].load(Ordering::Acquire).is_null() {
        true => 0,
        false => note_beside(number, now),
    };
    core(number).note(beside, now)
}

/// Notes it in the pages beside this user's own. Returns when a peer was seen there last.
#[inline(never)]
fn note_beside(number: usize, now: u64) -> u64 {
    let pages = PEERS.iter().map(|page| page.load(Ordering::Acquire));
    let seen = pages.filter(|page| !page.is_null()).map(|page| {
        // SAFETY: as in `core`.
        let core = unsafe { &*page.add(number) };
        let before = core.seen.load(Ordering::Relaxed);
        core.seen.store(now, Ordering::Relaxed);
        before
    });
    seen.max().unwrap_or(0)
}

/// This thread has slept, and has a core now (ticks).
#[inline]
pub(crate) fn note(now: u64) {
    note_on(here(), now);
}

/// This thread begins to wait now (ticks). Until then it has worked, also if that took long.
#[inline]
pub(crate) fn note_work(now: u64) {
    worked(here(), now);
}

/// Returns for how long strangers had the core in all. What this thread has had of it is no stranger's time to its own process.
#[inline]
fn worked(number: usize, now: u64) -> u64 {
    let (last, strangers) = note_on(number, now);
    if last > 0 && COUNTED[number].load(Ordering::Relaxed) == strangers.wrapping_sub(last) {
        COUNTED[number].store(strangers, Ordering::Relaxed);
    }
    strangers
}

/// A thread that yields its core.
pub(crate) struct Yielding {
    core: usize,
    began: u64,
    strangers: u64,
}

impl Yielding {
    /// It begins now (ticks).
    #[inline]
    pub(crate) fn begin(now: u64) -> Self {
        Self::begin_on(here(), now)
    }

    #[inline]
    fn begin_on(number: usize, now: u64) -> Self {
        Self {
            core: number,
            began: now,
            strangers: worked(number, now),
        }
    }

    /// It has ended now (ticks). Returns for how long strangers had the core meanwhile, but for what this process has counted before.
    #[inline]
    pub(crate) fn end(self, now: u64) -> u64 {
        self.end_on(here(), now)
    }

    #[inline]
    fn end_on(self, number: usize, now: u64) -> u64 {
        let took = now.wrapping_sub(self.began);
        let (last, strangers) = note_on(number, now);
        let counted = COUNTED[number].load(Ordering::Relaxed);
        if strangers == counted {
            return 0;
        }
        COUNTED[number].store(strangers, Ordering::Relaxed);
        let uncounted = strangers.wrapping_sub(counted);
        let meanwhile = strangers.wrapping_sub(self.strangers);
        let most = if number == self.core { meanwhile } else { last };
        most.min(uncounted).min(took)
    }
}

/// Uses the page that shuntd has passed from now on, if it is one: the user's own (`place` 0), or one with peers.
pub(crate) fn adopt(fd: c_int, place: usize) {
    let mut all = [&PAGE].into_iter().chain(&PEERS);
    let Some(at) = all.nth(place) else {
        return;
    };
    if config::is_confined() || !sys::is_sealed(fd, SIZE) {
        return;
    }
    // In the place of an older one, at which another thread may be looking.
    let page = sys::map_file(at.load(Ordering::Acquire).cast(), fd, SIZE, 0);
    if !page.is_null() {
        at.store(page.cast(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 2_600_000;

    /// Fifty threads on a core that yield to one another, each after a twentieth of a millisecond.
    #[test]
    fn who_works_in_turn_is_no_stranger() {
        let core = 3;
        let mut now = MS;
        let mut yields: Vec<_> = (0..50)
            .map(|_| Some(Yielding::begin_on(core, now)))
            .collect();
        for turn in 0..500 {
            let thread = turn % 50;
            now += MS / 20;
            let began = yields[thread].take().unwrap();
            assert_eq!(began.end_on(core, now), 0, "{turn}");
            yields[thread] = Some(Yielding::begin_on(core, now));
        }
    }

    #[test]
    fn a_peer_elsewhere_is_no_stranger_and_sees_who_was_here() {
        let number = 60; // Threads of other tests note where they are.
        let page: &'static [Core; CORES] = Box::leak(Box::new([const { Core::new() }; CORES]));
        PEERS[0].store(page.as_ptr().cast_mut(), Ordering::Release);
        let yields = Yielding::begin_on(number, MS);
        assert_eq!(page[number].seen.load(Ordering::Relaxed), MS);
        page[number].seen.store(4 * MS, Ordering::Relaxed);
        assert_eq!(yields.end_on(number, 4 * MS + 9), 0);
        PEERS[0].store(std::ptr::null_mut(), Ordering::Release);
        let yields = Yielding::begin_on(number, 5 * MS);
        assert_eq!(yields.end_on(number, 8 * MS), 3 * MS);
    }

    #[test]
    fn a_stranger_is_seen_once_and_by_who_yielded_meanwhile() {
        let core = 4;
        let [first, second] = [MS, 2 * MS].map(|now| Yielding::begin_on(core, now));
        assert_eq!(first.end_on(core, 5 * MS), 3 * MS);
        assert_eq!(second.end_on(core, 5 * MS), 0);
        // Who begins after it has not met it.
        assert_eq!(
            Yielding::begin_on(core, 10 * MS).end_on(core, 10 * MS + 9),
            0
        );
    }

    #[test]
    fn a_thread_that_works_for_long_is_no_stranger_to_its_own_process() {
        let core = 6;
        let yields = Yielding::begin_on(core, MS);
        worked(core, 5 * MS);
        assert_eq!(yields.end_on(core, 5 * MS + 9), 0);
        let yields = Yielding::begin_on(core, 6 * MS);
        assert_eq!(yields.end_on(core, 9 * MS), 3 * MS);
    }

    #[test]
    fn whatever_others_write_no_stranger_had_longer_than_the_yield_took() {
        let number = 5;
        for seen in [0, MS, 99 * MS, u64::MAX / 2, u64::MAX] {
            for strangers in [0, 1, MS, u64::MAX / 2, u64::MAX] {
                let yields = Yielding::begin_on(number, 100 * MS);
                core(number).seen.store(seen, Ordering::Relaxed);
                core(number).strangers.store(strangers, Ordering::Relaxed);
                assert!(yields.end_on(number, 102 * MS) <= 2 * MS);
            }
        }
    }
}
