//! Spinning before sleeping: bounded, adaptive, and polite.
//!
//! A wait begins with a few microseconds of looking, goes on by yielding the
//! processor between looks, and ends in sleep. How long depends on how the last
//! waits of this process ended: when spinning did not pay, it is tried less. (A wait that sleeps at once for the sake of others
//! says nothing of that.)
//!
//! A wait that ends soon after the spin may mean two things: a longer spin would
//! have paid, or the peer needed the processor on which this thread was spinning.
//! The longest spin tells which: where it fails, short ones stay short for a while.
//!
//! What others do while this thread yields is not time that it spins: with several pairs on a core each yield lets
//! all of them have a turn, and to sleep instead would cost this thread, and the one that must wake it, far more than
//! the yields do.
//!
//! Ends that take turns on one core for long sleep now and then, so that they may part ([`Together`]).
//!
//! While strangers want the cores ([`Crowd`]) a wait sleeps at once. And where nobody knows that the
//! peer is on this core, a yield is a try: if a [`Stranger`] has it, there is no other for a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::crowd::{AWAY, Crowd, Stranger};
use super::together::Together;
use crate::cores::{self, SLICE, Yielding};
use crate::link::Link;
use crate::sys;
use crate::thread::partner;

/// The longest spin, in ticks (about 50 µs).
const LONGEST: u64 = 130_000;
/// Looking without yielding, in ticks (about 4 µs).
const GREEDY: u64 = 10_000;
/// A spin of less (ticks, about 0.8 µs) is not begun.
const LEAST: u64 = LONGEST >> 6;
/// Once in this many waits a full spin is tried although the last ones failed, …
const PROBE: u32 = 64;
/// … and less and less often, down to this.
const SELDOM: u32 = 16 * PROBE;
/// This many sleeps, nearly in a row, that a spin would have spared are no accident.
const SHORT: u32 = 4;

/// Failed spins in a row, process-wide: a hint, so races do not matter.
static FAILED: AtomicU32 = AtomicU32::new(0);
/// Sleeps in a row, or nearly, that ended within the longest spin.
static SPARED: AtomicU32 = AtomicU32::new(0);
/// Spins that ended only after yielding, in a row or nearly: both ends share a core.
static YIELDED: AtomicU32 = AtomicU32::new(0);
/// After this many of them it is believed that both ends share a core: a wait yields at once. …
const SHARING: u32 = 4;
/// … But once in this many waits it looks at the ring first, since only such waits show that the ends share a core no more, …
const LOOK_FIRST: u32 = 64;
/// … for as long as an answer takes from another core, by a peer that yields, too (ticks,
/// about 1.5 µs).
const ANSWER: u64 = 4_000;
/// [`YIELDED`] counts no further than this, so that a few answers without a yield refute it.
const MOST_YIELDED: u32 = 16;
/// Whether other threads ran while this process yielded last: then others want its cores.
static OTHERS: AtomicBool = AtomicBool::new(false);
/// When this process yielded last (ticks).
static YIELDED_AT: AtomicU64 = AtomicU64::new(0);
/// While others want the cores, a wait for a peer that waits on another core looks for this time (ticks, about 0.8 µs).
const GLANCE: u64 = 2_000;
/// While others want the cores, two ends that run at the same time keep two cores for no longer than this (ticks, about 10 µs).
const BURST: u64 = 26_000;
/// Waits since it is believed that both ends share a core.
static AT_ONCE: AtomicU32 = AtomicU32::new(0);
/// Waits during which a short sleep is no reason to spin longer.
static REFUTED: AtomicU32 = AtomicU32::new(0);

/// What a yield costs by itself (ticks, about 1 µs): if it takes longer, another thread has run.
const YIELD: u64 = 3_000;
/// The most of others' time that is not counted as spinning in one wait (ticks, about 2 ms).
const PATIENCE: u64 = 5_000_000;
/// Whether strangers want this process's cores.
static CROWD: Crowd = Crowd::new();
/// Whether a stranger has had a yield that was meant for a peer.
static STRANGER: Stranger = Stranger::new();
/// For how long this process and its peers have taken turns on a core.
static TOGETHER: Together = Together::new();

/// Whether a full spin is tried after `failed` spins in a row that failed.
fn is_probe(failed: u32) -> bool {
    let every = if failed < SELDOM {
        // 64, 128, 256, …
        failed.next_power_of_two().max(PROBE)
    } else {
        SELDOM
    };
    failed.is_multiple_of(every)
}

/// What a yield has given to others (ticks).
struct Yielded {
    /// How long the yield took.
    took: u64,
    /// How long strangers had the core.
    absent: u64,
}

/// Yields the processor.
fn yield_now(now: u64) -> Yielded {
    let yielding = Yielding::begin(now);
    sys::sched_yield();
    let back = sys::ticks();
    let took = back.wrapping_sub(now);
    YIELDED_AT.store(back, Ordering::Relaxed);
    let others = took > YIELD;
    if OTHERS.load(Ordering::Relaxed) != others {
        OTHERS.store(others, Ordering::Relaxed);
    }
    let absent = yielding.end(back);
    CROWD.note_yield(absent, back);
    Yielded { took, absent }
}

/// Lets others have the processor for a turn, unless strangers want it.
#[cold]
pub(super) fn make_way() {
    yield_once();
}

/// What others had of a processor that was yielded.
pub(super) struct Turn {
    /// For how long they had it (ticks).
    pub(super) others: u64,
    /// Whether a stranger had it for a time slice.
    pub(super) is_slice: bool,
}

/// Lets others have the processor for a turn; `None`: strangers want it, so it was not given.
#[cold]
pub(super) fn yield_once() -> Option<Turn> {
    let now = sys::ticks();
    if CROWD.is_there(now) {
        return None;
    }
    let Yielded { took, absent } = yield_now(now);
    Some(Turn {
        others: took.saturating_sub(YIELD),
        is_slice: absent > SLICE,
    })
}

/// Notes that a spin has not paid, or was not begun. Returns `false`.
fn failed() -> bool {
    let failed = FAILED.load(Ordering::Relaxed);
    FAILED.store(failed.wrapping_add(1), Ordering::Relaxed);
    false
}

/// Whether both ends seem to share a core: an answer comes after a yield, not before.
#[inline]
pub(crate) fn shares_core() -> bool {
    YIELDED.load(Ordering::Relaxed) >= SHARING
}

/// A wait goes to sleep, so that the scheduler may move this process and its peers to different cores. The next wait whose peer's core
/// is not known looks at the ring before it yields, which shows whether they have parted.
#[cold]
fn part(together: &Together, now: u64) {
    let has_slept = together.tries(now);
    partner::wish_away(!has_slept);
    let yielded = YIELDED.load(Ordering::Relaxed);
    YIELDED.store(yielded.min(SHARING - 1), Ordering::Relaxed);
}

/// This thread has moved away from its peer (ticks).
pub(super) fn note_parted(now: u64) {
    TOGETHER.has_parted(now);
}

/// Whether to yield before the first look at ends that share a core.
fn is_at_once() -> bool {
    let waits = AT_ONCE.load(Ordering::Relaxed).wrapping_add(1);
    AT_ONCE.store(waits, Ordering::Relaxed);
    !waits.is_multiple_of(LOOK_FIRST)
}

/// A process that finds the cores crowded says so to its peers: they need not find out for
/// themselves, which takes time slices.
pub(crate) fn share_crowd(link: &Link) {
    CROWD.learn(
        link.peer().crowded_until().load(Ordering::Relaxed),
        sys::ticks(),
    );
    CROWD.tell(link.own().crowded_until());
}

/// Where the peer was when it last waited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// On this thread's core: it can do nothing before this thread makes way.
    Here,
    /// On another core.
    Elsewhere,
    /// Not known.
    Somewhere,
}

/// Where the peer is, from what both ends say of their cores: 1 + the core's number, or 0 for unknown.
#[inline]
pub(super) fn compare(own: u32, peer: u32) -> Peer {
    match (own, peer) {
        (0, _) | (_, 0) => Peer::Somewhere,
        (own, peer) if own == peer => Peer::Here,
        _ => Peer::Elsewhere,
    }
}

/// Whether other threads want this process's cores.
#[inline]
pub(super) fn is_wanted() -> bool {
    OTHERS.load(Ordering::Relaxed)
}

/// Whether strangers have had time slices of this process's own lately.
pub(super) fn knows_strangers(now: u64) -> bool {
    CROWD.is_known(now) || STRANGER.is_there(now)
}

/// Whether a burst of short waits has gone on for long enough.
#[inline]
pub(super) fn is_burst_over(now: u64) -> bool {
    now.wrapping_sub(YIELDED_AT.load(Ordering::Relaxed)) > BURST
}

/// Yields once to a peer on this core. It does not where yields have not paid lately, where strangers want the core, or where the
/// two ends should part.
pub(super) fn give_turn() -> bool {
    let now = sys::ticks();
    let parts = is_wanted() && TOGETHER.is_for_long(now);
    let may = FAILED.load(Ordering::Relaxed) == 0 && !CROWD.is_there(now) && !parts;
    if may {
        let took = yield_now(now).took;
        TOGETHER.note_turn(now.wrapping_add(took));
    }
    may
}

/// One wait's spin.
pub(crate) struct Spin {
    start: u64,
    budget: u64,
    greedy: u64,
    /// Time that others have used while this thread yielded (ticks).
    away: u64,
    turns: u32,
    peer: Peer,
    yielded: bool,
    at_once: bool,
}

impl Spin {
    /// For a wait for any of several peers.
    #[inline]
    pub(crate) fn new() -> Self {
        Self::for_peer(Peer::Somewhere)
    }

    /// For a wait for one peer.
    #[inline(always)]
    pub(crate) fn for_peer(peer: Peer) -> Self {
        let start = sys::ticks();
        cores::note_work(start);
        Self::begun(start, peer, CROWD.is_there(start), is_wanted(), &TOGETHER)
    }

    /// `wanted`: whether another thread has had the core at the last yield. If none has, the ends have parted, though a wait may believe
    /// for some milliseconds longer that they share it.
    #[inline(always)]
    fn begun(start: u64, peer: Peer, crowded: bool, wanted: bool, together: &Together) -> Self {
        let failed = FAILED.load(Ordering::Relaxed);
        // The first without a division.
        let budget = if failed == 0 || is_probe(failed) {
            LONGEST
        } else {
            LONGEST >> failed.min(16)
        };
        let (at_once, look) = match peer {
            Peer::Here => (true, 0),
            Peer::Elsewhere if wanted => (is_burst_over(start), GLANCE),
            Peer::Somewhere if shares_core() => (!crowded && is_at_once(), ANSWER),
            _ => (false, GREEDY),
        };
        let at_once = at_once && !crowded;
        let parts = at_once && peer != Peer::Elsewhere && wanted && together.is_for_long(start);
        let greedy = if at_once { 0 } else { look };
        Self {
            start,
            budget: if crowded || parts { 0 } else { budget },
            greedy,
            away: 0,
            turns: 0,
            peer,
            yielded: false,
            at_once,
        }
    }

    /// When the wait began (ticks).
    #[inline]
    pub(crate) fn began(&self) -> u64 {
        self.start
    }

    /// Whether the budget is large enough to begin: beside it a look or two cost nothing.
    #[inline]
    pub(crate) fn is_hopeful(&self) -> bool {
        self.budget >= LEAST
    }

    /// Spends one moment of the budget: a pause, or a yield. `false`: the budget is spent.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        self.turns += 1;
        if !self.is_hopeful() {
            return self.give_up();
        }
        if !self.turns.is_multiple_of(8) && !self.at_once {
            std::hint::spin_loop();
            return true;
        }
        let now = sys::ticks();
        let spent = now.wrapping_sub(self.start + self.away);
        if spent > self.budget {
            return failed();
        }
        if spent > self.greedy {
            let is_known = self.peer == Peer::Here || shares_core();
            if !is_known && STRANGER.is_there(now) {
                return failed();
            }
            self.yielded = true;
            self.turns |= 7;
            let Yielded { took, absent } = yield_now(now);
            if self.peer == Peer::Here {
                TOGETHER.note_turn(now.wrapping_add(took));
            }
            if !is_known {
                STRANGER.note_yield(absent, now.wrapping_add(took));
            }
            if self.peer == Peer::Here && took <= YIELD {
                // No other thread runs on this core, so neither does the peer.
                self.at_once = false;
                self.greedy = spent + GREEDY;
            }
            if took > YIELD && took <= AWAY && self.away < PATIENCE {
                self.away += took - YIELD;
            }
        }
        true
    }

    /// Ends the spin: the wait sleeps.
    #[cold]
    fn give_up(&mut self) -> bool {
        if self.is_to_part() {
            self.at_once = false;
            part(&TOGETHER, self.start);
        }
        self.tells_of_spinning() && failed()
    }

    /// Whether it was the last spins that let this one not begin: a wait that sleeps since strangers want the cores, or so that two
    /// ends may part, says nothing of whether spinning pays.
    fn tells_of_spinning(&self) -> bool {
        self.budget > 0
    }

    /// Whether the wait sleeps, where it has to wait, only so that the two ends may part; it would yield otherwise.
    fn is_to_part(&self) -> bool {
        self.at_once && self.budget == 0
    }

    /// A sleep has ended. If the whole wait was no longer than a spin may be, a
    /// longer spin would have paid, unless the longest has just been seen to fail.
    /// One such sleep may be an accident where others are long.
    #[inline]
    pub(crate) fn woke(&self) {
        let now = sys::ticks();
        cores::note(now);
        let waited = now.wrapping_sub(self.start + self.away);
        let refuted = REFUTED.load(Ordering::Relaxed);
        if self.budget >= LONGEST {
            if waited < 2 * LONGEST {
                REFUTED.store(PROBE, Ordering::Relaxed);
            }
        } else if refuted > 0 {
            REFUTED.store(refuted - 1, Ordering::Relaxed);
        } else if waited >= LONGEST {
            SPARED.store(SPARED.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        } else if SPARED.fetch_add(1, Ordering::Relaxed) + 1 >= SHORT {
            SPARED.store(0, Ordering::Relaxed);
            FAILED.store(0, Ordering::Relaxed);
        }
    }

    /// The event has come during the spin. (If it was there at the first look, that says nothing of
    /// whether spinning pays.)
    #[inline]
    pub(crate) fn paid(&self) {
        if self.turns == 0 {
            return;
        }
        if FAILED.load(Ordering::Relaxed) != 0 {
            FAILED.store(0, Ordering::Relaxed);
        }
        if REFUTED.load(Ordering::Relaxed) != 0 {
            REFUTED.store(0, Ordering::Relaxed);
        }
        let yielded = YIELDED.load(Ordering::Relaxed);
        if self.at_once || self.peer != Peer::Somewhere {
            // A yield at once does not say what a look would have shown.
        } else if self.yielded {
            YIELDED.store((yielded + 1).min(MOST_YIELDED), Ordering::Relaxed);
        } else if yielded != 0 {
            YIELDED.store(yielded / 2, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::partner::Wish;

    #[test]
    fn only_two_numbers_say_where_the_peer_is() {
        assert!(compare(3, 3) == Peer::Here);
        assert!(compare(3, 4) == Peer::Elsewhere);
        for unknown in [compare(0, 0), compare(3, 0), compare(0, 3)] {
            assert!(unknown == Peer::Somewhere);
        }
    }

    #[test]
    fn ends_try_to_part_with_a_wait_that_sleeps_and_not_with_one_that_finds_something_at_once() {
        const TURN: u64 = 5_000;
        let together = Together::new();
        let mut now = 1 << 40;
        let wait_where = |now: &mut u64, wanted| {
            *now += TURN;
            Spin::begun(*now, Peer::Here, false, wanted, &together)
        };
        let wait = |now: &mut u64| wait_where(now, true);
        for _ in 0..1000 {
            assert!(!wait_where(&mut now, false).is_to_part());
        }
        while !wait(&mut now).is_to_part() {}
        for _ in 0..100 {
            let found_at_once = wait(&mut now);
            assert!(found_at_once.is_to_part());
            found_at_once.paid();
        }
        let mut sleeps = wait(&mut now);
        assert!(!sleeps.turn() && !sleeps.is_to_part());
        together.tries(now);
        assert!(!wait(&mut now).is_to_part());
    }

    #[test]
    fn a_thread_that_has_a_choice_of_cores_sleeps_first_and_moves_the_next_time() {
        let together = Together::new();
        let mut wish_at = |now| {
            together.is_for_long(now);
            part(&together, now);
            partner::take_wish()
        };
        assert_eq!(
            [1 << 40, (1 << 40) + 1_000_000].map(&mut wish_at),
            [true, false].map(|without_choice| Some(Wish::Away { without_choice }))
        );
    }

    #[test]
    fn a_wait_that_sleeps_for_the_sake_of_others_says_nothing_of_spinning() {
        let wait =
            |crowded| Spin::begun(1 << 40, Peer::Somewhere, crowded, false, &Together::new());
        assert!(!wait(true).is_hopeful() && !wait(true).tells_of_spinning());
        assert!(wait(false).tells_of_spinning());
    }

    /// Both ends on one processor: whatever the spin, the answer comes after it.
    #[test]
    fn a_spin_that_delays_the_peer_is_given_up() {
        let mut longest = 0;
        for _ in 0..8 * PROBE {
            let mut spin = Spin::new();
            longest += u32::from(spin.budget >= LONGEST / 8);
            while spin.turn() {}
            spin.woke();
        }
        assert!(longest <= 8 * 4, "{longest} long spins");
        // It pays again as soon as one has paid.
        let mut spin = Spin::new();
        spin.turn();
        spin.paid();
        assert_eq!(FAILED.load(Ordering::Relaxed), 0);
    }
}
