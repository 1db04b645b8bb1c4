//! Spinning before sleeping: bounded, adaptive, and polite.
//!
//! Where the peer waits on another core, or nobody knows where, a wait looks for as long as an
//! answer takes from there, and then yields the processor between two looks: a yield that comes
//! back at once says that nobody else wants this core. Where the peer waits on this core, which
//! each end says beside its wait word, it can do nothing before this thread makes way, so that the
//! wait yields at once. After 50 µs the thread sleeps.
//!
//! Three things make that shorter:
//! * spins that failed, of this process: the next one is half as long, down to none, until one
//!   pays; every so many waits a whole one is tried;
//! * strangers that want the cores ([`Crowd`]): the wait sleeps at once;
//! * a [`Stranger`] that had what was meant for a peer elsewhere: the wait does not yield.
//!
//! `docs/decisions/0005-waiting-on-crowded-cores.md` has what each of them is good for, and what
//! was left out because it made no difference.

use std::sync::atomic::{AtomicU32, Ordering};

use super::crowd::{Crowd, Stranger};
use crate::link::Link;
use crate::sys;

/// The longest spin, in ticks (about 50 µs).
const LONGEST: u64 = 130_000;
/// Looking without yielding, in ticks (about 4 µs).
const LOOK: u64 = 10_000;
/// A spin of less (ticks, about 0.8 µs) is not begun.
const LEAST: u64 = LONGEST >> 6;
/// Every so many waits a full spin is tried although the last ones failed.
const PROBE: u32 = 64;
/// What a yield costs by itself (ticks, about 1 µs): the rest of it is another's time.
const YIELD: u64 = 3_000;
/// Looks between two looks at the clock.
const LOOKS: u32 = 8;

/// What the waits of this process have shown. Its words are hints: threads that change them at
/// the same time may lose what one of them has seen.
struct Lessons {
    /// Failed spins in a row.
    failed: AtomicU32,
    /// Whether strangers want this process's cores.
    crowd: Crowd,
    /// Whether one has had what was meant for a peer.
    stranger: Stranger,
}

static LESSONS: Lessons = Lessons::new();

impl Lessons {
    const fn new() -> Self {
        Self {
            failed: AtomicU32::new(0),
            crowd: Crowd::new(),
            stranger: Stranger::new(),
        }
    }

    /// How long a wait that begins now may spin (ticks).
    fn budget(&self, now: u64) -> u64 {
        let failed = self.failed.load(Ordering::Relaxed);
        match failed {
            _ if self.crowd.is_there(now) => 0,
            failed if failed.is_multiple_of(PROBE) => LONGEST,
            failed => LONGEST >> failed.min(16),
        }
    }

    /// A spin was in vain, or not begun; `false`.
    fn note_failure(&self) -> bool {
        let failed = self.failed.load(Ordering::Relaxed);
        self.failed.store(failed.wrapping_add(1), Ordering::Relaxed);
        false
    }
}

/// What a spin does beside looking.
trait Processor {
    /// The time (ticks).
    fn now(&mut self) -> u64;
    /// Lets others have it.
    fn give_way(&mut self);
}

/// The one that this thread runs on.
struct This;

impl Processor for This {
    #[inline(always)]
    fn now(&mut self) -> u64 {
        sys::ticks()
    }

    fn give_way(&mut self) {
        sys::sched_yield();
    }
}

/// Yields the processor; when that began and ended (ticks).
fn give_way(processor: &mut impl Processor, lessons: &Lessons, now: u64) -> u64 {
    processor.give_way();
    let took = processor.now().wrapping_sub(now);
    lessons.crowd.note_yield(took, now.wrapping_add(took));
    took
}

/// Lets others have the processor for a turn, unless strangers want it.
#[cold]
pub(super) fn make_way() {
    let now = sys::ticks();
    if !LESSONS.crowd.is_there(now) {
        give_way(&mut This, &LESSONS, now);
    }
}

/// Yields once to a peer on this core, unless that has been in vain or strangers want it.
pub(super) fn give_turn() -> bool {
    let now = sys::ticks();
    let may = LESSONS.failed.load(Ordering::Relaxed) == 0 && !LESSONS.crowd.is_there(now);
    if may {
        give_way(&mut This, &LESSONS, now);
    }
    may
}

/// A process that finds the cores crowded says so to its peers: they need not find out for
/// themselves, which takes time slices.
pub(crate) fn share_crowd(link: &Link) {
    LESSONS.crowd.learn(
        link.peer().crowded_until().load(Ordering::Relaxed),
        sys::ticks(),
    );
    LESSONS.crowd.tell(link.own().crowded_until());
}

/// Where the peer was when it last waited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// On this thread's core: it can do nothing before this thread makes way.
    Here,
    /// On another, or nobody knows where.
    Elsewhere,
}

impl Peer {
    /// Of what two ends say of their cores, each 1 + its number, or 0.
    #[inline]
    pub(crate) fn new(own: u32, peer: u32) -> Self {
        if own == peer && own != 0 {
            Self::Here
        } else {
            Self::Elsewhere
        }
    }
}

/// One wait's spin.
pub(crate) struct Spin {
    start: u64,
    budget: u64,
    /// How long it looks without yielding (ticks).
    look: u64,
    turns: u32,
    peer: Peer,
}

impl Spin {
    #[inline(always)]
    pub(crate) fn new(peer: Peer) -> Self {
        let start = sys::ticks();
        Self::begin(peer, LESSONS.budget(start), start)
    }

    #[inline(always)]
    fn begin(peer: Peer, budget: u64, start: u64) -> Self {
        Self {
            start,
            budget,
            look: if peer == Peer::Here { 0 } else { LOOK },
            turns: 0,
            peer,
        }
    }

    /// When the wait began (ticks).
    #[inline]
    pub(crate) fn began(&self) -> u64 {
        self.start
    }

    /// Whether it is worth beginning: a look or two cost nothing beside it.
    #[inline]
    pub(crate) fn is_hopeful(&self) -> bool {
        self.budget >= LEAST
    }

    /// Passes a moment. `false`: the budget is spent.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        self.turn_on(&mut This, &LESSONS)
    }

    #[inline(always)]
    fn turn_on(&mut self, processor: &mut impl Processor, lessons: &Lessons) -> bool {
        self.turns += 1;
        if !self.is_hopeful() {
            return lessons.note_failure();
        }
        if self.look > 0 && !self.turns.is_multiple_of(LOOKS) {
            std::hint::spin_loop();
            return true;
        }
        let now = processor.now();
        let spent = now.wrapping_sub(self.start);
        if spent > self.budget {
            return lessons.note_failure();
        }
        if spent < self.look {
            return true;
        }
        if self.peer == Peer::Elsewhere && lessons.stranger.is_there(now) {
            return lessons.note_failure();
        }
        let took = give_way(processor, lessons, now);
        // Each look at the clock is followed by a yield from here on.
        self.turns |= LOOKS - 1;
        if self.peer == Peer::Elsewhere {
            lessons.stranger.note_yield(took, now.wrapping_add(took));
        } else if took <= YIELD {
            // Nobody else is here: neither is the peer.
            self.look = spent + LOOK;
        }
        true
    }

    /// What was waited for has come; had it been there at once, that would say
    /// nothing of spinning.
    #[inline]
    pub(crate) fn paid(&self) {
        if self.turns > 0 && LESSONS.failed.load(Ordering::Relaxed) != 0 {
            LESSONS.failed.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A processor on which eight looks take 100 ns, and each yield so long.
    struct Scripted {
        now: u64,
        yield_takes: u64,
        yields: u32,
    }

    impl Scripted {
        fn new(yield_takes: u64) -> Self {
            Self {
                now: 1 << 40,
                yield_takes,
                yields: 0,
            }
        }

        /// A wait in vain; when it yielded first, and when it ended (ticks since it began).
        fn wait(&mut self, lessons: &Lessons, peer: Peer) -> (Option<u64>, u64) {
            let (start, yields) = (self.now, self.yields);
            let mut spin = Spin::begin(peer, lessons.budget(start), start);
            let mut first = None;
            loop {
                let before = self.now;
                let goes_on = spin.turn_on(self, lessons);
                if self.yields > yields {
                    first = first.or(Some(before - start));
                }
                if !goes_on {
                    return (first, self.now - start);
                }
            }
        }
    }

    impl Processor for Scripted {
        fn now(&mut self) -> u64 {
            self.now += 260;
            self.now
        }

        fn give_way(&mut self) {
            self.yields += 1;
            self.now += self.yield_takes;
        }
    }

    #[test]
    fn only_two_equal_numbers_say_that_the_peer_is_here() {
        assert!(Peer::new(3, 3) == Peer::Here);
        for (own, peer) in [(3, 4), (0, 0), (3, 0), (0, 3)] {
            assert!(Peer::new(own, peer) == Peer::Elsewhere);
        }
    }

    #[test]
    fn a_peer_elsewhere_is_looked_for_before_the_first_yield() {
        let (first, end) = Scripted::new(1000).wait(&Lessons::new(), Peer::Elsewhere);
        let first = first.unwrap();
        assert!((LOOK - 300..LOOK + 300).contains(&first), "{first}");
        assert!((LONGEST..LONGEST + 2000).contains(&end), "{end}");
    }

    #[test]
    fn a_peer_here_gets_the_core_at_once() {
        // It has something else to do first.
        let mut processor = Scripted::new(30_000);
        let (first, _) = processor.wait(&Lessons::new(), Peer::Here);
        assert_eq!((first, processor.yields), (Some(0), 5));
    }

    #[test]
    fn where_nobody_takes_the_core_a_peer_that_was_here_is_looked_for() {
        let mut processor = Scripted::new(1000);
        let lessons = Lessons::new();
        let mut spin = Spin::begin(Peer::Here, lessons.budget(processor.now), processor.now);
        assert!(spin.turn_on(&mut processor, &lessons));
        for _ in 0..LOOKS * 30 {
            assert!(spin.turn_on(&mut processor, &lessons));
        }
        assert_eq!(processor.yields, 1);
    }

    #[test]
    fn spins_that_fail_get_shorter_and_are_left_out_but_for_one_in_64() {
        let (mut processor, lessons) = (Scripted::new(1000), Lessons::new());
        let waits: Vec<_> = (0..3 * PROBE)
            .map(|_| processor.wait(&lessons, Peer::Elsewhere).1)
            .collect();
        let is_whole = |took: &&u64| **took >= LONGEST;
        assert_eq!(waits.iter().filter(is_whole).count(), 3);
        assert!((LONGEST / 2..LONGEST).contains(&waits[1]));
        assert_eq!(waits[7..64], [0; 57]);
    }

    #[test]
    fn a_stranger_gets_one_slice_and_no_other_for_a_second() {
        const SLICE: u64 = 3_640_000; // 1.4 ms
        let (mut processor, lessons) = (Scripted::new(SLICE), Lessons::new());
        for _ in 0..50 {
            lessons.failed.store(0, Ordering::Relaxed);
            processor.wait(&lessons, Peer::Elsewhere);
        }
        assert_eq!(processor.yields, 1);
        // A peer that is here is made way for: it may be the one who takes long.
        lessons.failed.store(0, Ordering::Relaxed);
        processor.wait(&lessons, Peer::Here);
        assert_eq!(processor.yields, 2);
    }

    #[test]
    fn where_strangers_crowd_the_cores_a_wait_sleeps_at_once() {
        const SLICE: u64 = 7_800_000; // 3 ms
        let (mut processor, lessons) = (Scripted::new(SLICE), Lessons::new());
        for _ in 0..3 {
            lessons.failed.store(0, Ordering::Relaxed);
            processor.wait(&lessons, Peer::Here);
        }
        lessons.failed.store(0, Ordering::Relaxed);
        assert_eq!(processor.wait(&lessons, Peer::Here), (None, 0));
        assert_eq!(processor.yields, 3);
    }
}
