//! Do strangers want the cores? Told by how long yields take.
//!
//! A yield that does not come back soon has given the core to a thread that uses up a time slice: not to the peer,
//! nor to others that wait in turn. One may be an accident, such as a process that starts; where strangers take more
//! than their share of the time, the machine is *crowded*, and a wait sleeps at once: the scheduler prefers a thread
//! that has slept, one that has yielded must queue, and one that looks takes the core from the peer. After a while it
//! is tried again, less and less often.
//!
//! How many yields come back at once in between says nothing: the scheduler lets a thread
//! that has slept go on before one that is owed less time.
//!
//! Times are ticks of the time stamp counter (here about 2.6 per nanosecond).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cores::SLICE;

/// A yield that takes longer than this (about 1.6 ms) has made way for a stranger.
pub(super) const AWAY: u64 = 4_000_000;
/// Strangers may have one tick in this many: that is their share, and makes no crowd.
const SHARE: u64 = 4;
/// Once they have had more than this above their share (about 6 ms), the machine is crowded. A lone absence counts as no more, …
const ENOUGH: u64 = 15_000_000;
/// … at first for this long (about 10 ms). A last yield that took longer than [`ENOUGH`], since several strangers ran one
/// after the other, adds this many times the excess.
const SHORT: u64 = 26_000_000;
const TIMES: u64 = 16;
/// If the machine is as crowded after that, the next time is twice as long, up to this (about 1.3 s).
const LONG: u64 = SHORT << 7;

/// What is known of strangers. Its words are hints: threads that change them at the same time
/// may lose what one of them has seen.
pub(super) struct Crowd {
    /// The time that strangers have taken above their share, …
    taken: AtomicU64,
    /// … and when it was brought up to date.
    taken_at: AtomicU64,
    /// Until when the machine counts as crowded, …
    until: AtomicU64,
    /// … and for how long that was; 0: never yet.
    lasted: AtomicU64,
    /// Until when it counts as crowded since a peer says so. This is not passed on to other peers.
    heard: AtomicU64,
}

impl Crowd {
    pub(super) const fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            taken_at: AtomicU64::new(0),
            until: AtomicU64::new(0),
            lasted: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        }
    }

    /// Whether strangers want the cores.
    #[inline]
    pub(super) fn is_there(&self, now: u64) -> bool {
        lasts(&self.until, now) || lasts(&self.heard, now)
    }

    /// Whether this process has seen that itself.
    pub(super) fn is_known(&self, now: u64) -> bool {
        lasts(&self.until, now)
    }

    /// Takes over what another process says, which may be anything.
    #[inline]
    pub(super) fn learn(&self, until: u64, now: u64) {
        let heard = self.heard.load(Ordering::Relaxed);
        if until != heard && (1..=LONG).contains(&until.wrapping_sub(now)) {
            self.heard.store(until, Ordering::Relaxed);
        }
    }

    /// Says to others what is known.
    #[inline]
    pub(super) fn tell(&self, to: &AtomicU64) {
        let until = self.until.load(Ordering::Relaxed);
        // They have the line in their caches: written only where need be.
        if to.load(Ordering::Relaxed) != until {
            to.store(until, Ordering::Relaxed);
        }
    }

    /// Notes that a yield ended at `now` and took `took` ticks.
    #[inline]
    pub(super) fn note_yield(&self, took: u64, now: u64) {
        if took > AWAY && !self.is_there(now) {
            self.note_absence(took, now);
        }
    }

    #[cold]
    fn note_absence(&self, took: u64, now: u64) {
        let since = now.wrapping_sub(self.taken_at.load(Ordering::Relaxed));
        let before = self.taken.load(Ordering::Relaxed);
        let before = before.saturating_sub(since / SHARE);
        let until = self.until.load(Ordering::Relaxed);
        let lasted = self.lasted.load(Ordering::Relaxed);
        let is_lone = before == 0 && !is_again(now, until, lasted);
        let taken = before.saturating_add(if is_lone { took.min(ENOUGH) } else { took });
        self.taken_at.store(now, Ordering::Relaxed);
        if taken <= ENOUGH {
            self.taken.store(taken, Ordering::Relaxed);
            return;
        }
        self.taken.store(0, Ordering::Relaxed);
        let longer = once_more(now, until, lasted)
            .max(SHORT + TIMES * took.min(LONG).saturating_sub(ENOUGH))
            .min(LONG);
        self.lasted.store(longer, Ordering::Relaxed);
        self.until
            .store(now.wrapping_add(longer), Ordering::Relaxed);
    }
}

/// Whether that time is still to come.
#[inline]
fn lasts(until: &AtomicU64, now: u64) -> bool {
    // A time that is too far away is none: the counter has begun anew.
    (1..=LONG).contains(&until.load(Ordering::Relaxed).wrapping_sub(now))
}

/// A thread that yields to a peer on another core gives its own to a stranger, if there is one: a slice each time
/// (1.4 ms on two cores, Linux 6.18, which is no crowd yet), and it queues behind that one when it is woken next.
pub(super) struct Stranger {
    /// Until when such a yield is not tried again, …
    until: AtomicU64,
    /// … and for how long that was; 0: never yet.
    lasted: AtomicU64,
}

impl Stranger {
    pub(super) const fn new() -> Self {
        Self {
            until: AtomicU64::new(0),
            lasted: AtomicU64::new(0),
        }
    }

    /// Whether a stranger had such a yield not long ago.
    #[inline]
    pub(super) fn is_there(&self, now: u64) -> bool {
        lasts(&self.until, now)
    }

    /// Notes that a yield to a peer which may be on another core ended at `now`, after other
    /// processes have had this core for `absent` ticks.
    #[inline]
    pub(super) fn note_yield(&self, absent: u64, now: u64) {
        if absent > SLICE {
            self.note_slice(now);
        }
    }

    #[cold]
    fn note_slice(&self, now: u64) {
        let until = self.until.load(Ordering::Relaxed);
        let longer = once_more(now, until, self.lasted.load(Ordering::Relaxed));
        self.lasted.store(longer, Ordering::Relaxed);
        self.until
            .store(now.wrapping_add(longer), Ordering::Relaxed);
    }
}

/// For how long something that has failed now is not tried again. The last pause took `lasted`, and
/// ended at `until`: if that is not long ago, the next one is twice as long.
fn once_more(now: u64, until: u64, lasted: u64) -> u64 {
    let again = is_again(now, until, lasted);
    if again { 2 * lasted } else { 0 }.clamp(SHORT, LONG)
}

/// Whether a pause that took `lasted` ended not long ago, at `until`.
fn is_again(now: u64, until: u64, lasted: u64) -> bool {
    now.wrapping_sub(until) <= 4 * lasted
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 2_600_000;

    /// Yields that take `took` each, with `between` after each. Returns after how many it got crowded.
    fn crowded_after(
        crowd: &Crowd,
        start: u64,
        took: u64,
        between: u64,
        yields: u32,
    ) -> Option<u32> {
        let mut now = start;
        for n in 1..=yields {
            now += took;
            crowd.note_yield(took, now);
            if crowd.is_there(now) {
                return Some(n);
            }
            now += between;
        }
        None
    }

    /// How many slices a loop gets in this time (ms).
    fn slices(stranger: &Stranger, from: u64, lasts: u64) -> u32 {
        let (mut now, mut slices) = (from, 0);
        while now < from + lasts * MS {
            if stranger.is_there(now) {
                now += MS / 10; // Asleep.
            } else {
                now += 7 * MS / 5;
                slices += 1;
                stranger.note_yield(7 * MS / 5, now);
            }
        }
        slices
    }

    #[test]
    fn a_stranger_that_stays_is_given_a_slice_less_and_less_often() {
        let stranger = Stranger::new();
        assert_eq!(slices(&stranger, MS, 10 + 20 + 40 + 80 + 160), 5);
        let later = 10_000 * MS;
        assert!(slices(&stranger, later, 13_000) < 20);
        assert_eq!(slices(&stranger, later + 13_000 * MS, 13_000), 10);
    }

    #[test]
    fn one_accident_stops_no_yield_for_long() {
        let stranger = Stranger::new();
        stranger.note_yield(7 * MS / 5, 100 * MS);
        assert!(stranger.is_there(105 * MS));
        assert!(!stranger.is_there(111 * MS));
    }

    #[test]
    fn peers_that_answer_in_their_turns_are_no_strangers() {
        let stranger = Stranger::new();
        for n in 1..1000 {
            stranger.note_yield(MS, n * MS);
            assert!(!stranger.is_there(n * MS));
        }
    }

    #[test]
    fn loops_on_the_core_are_seen_after_a_few_slices() {
        let crowd = Crowd::new();
        assert_eq!(crowded_after(&crowd, MS, 4 * MS, MS / 100, 10), Some(2));
        let crowd = Crowd::new();
        assert_eq!(crowded_after(&crowd, MS, 2 * MS, MS / 100, 10), Some(4));
    }

    #[test]
    fn yields_that_come_back_at_once_hide_no_loop() {
        let crowd = Crowd::new();
        let mut now = MS;
        let mut absences = 0;
        while !crowd.is_there(now) {
            for _ in 0..100 {
                now += MS / 1000;
                crowd.note_yield(MS / 1000, now);
            }
            now += 3 * MS;
            absences += 1;
            crowd.note_yield(3 * MS, now);
        }
        assert_eq!(absences, 3);
    }

    #[test]
    fn accidents_are_no_crowd() {
        let crowd = Crowd::new();
        assert_eq!(crowded_after(&crowd, MS, 5 * MS, 50 * MS, 1000), None);
    }

    #[test]
    fn others_that_wait_in_turn_are_no_crowd() {
        let crowd = Crowd::new();
        assert_eq!(crowded_after(&crowd, MS, MS, 0, 100_000), None);
    }

    #[test]
    fn the_more_strangers_the_longer() {
        let crowd = Crowd::new();
        crowd.note_yield(4 * MS, 5 * MS);
        crowd.note_yield(12 * MS, 20 * MS);
        assert!(crowd.is_there(100 * MS) && !crowd.is_there(150 * MS));
    }

    #[test]
    fn a_lone_absence_is_no_crowd_however_long_it_takes() {
        let crowd = Crowd::new();
        for n in 1..100 {
            crowd.note_yield(30 * MS, n * 60 * MS);
            assert!(!crowd.is_there(n * 60 * MS), "{n}");
        }
        // The next one soon after it tells, …
        crowd.note_yield(2 * MS, 99 * 60 * MS + 3 * MS);
        let now = 99 * 60 * MS + 3 * MS;
        assert!(crowd.is_there(now) && !crowd.is_there(now + 11 * MS));
        // … and where it was crowded not long ago, one is enough.
        crowd.note_yield(8 * MS, now + 30 * MS);
        assert!(crowd.is_there(now + 30 * MS));
    }

    #[test]
    fn what_others_say_is_believed_within_bounds() {
        let (crowd, word) = (Crowd::new(), AtomicU64::new(0));
        crowd.learn(0, MS);
        crowd.learn(MS, 2 * MS);
        crowd.learn(u64::MAX / 2, 2 * MS);
        assert!(!crowd.is_there(2 * MS));
        crowd.note_yield(4 * MS, 5 * MS);
        crowd.note_yield(8 * MS, 20 * MS);
        crowd.tell(&word);
        let other = Crowd::new();
        other.learn(word.load(Ordering::Relaxed), 21 * MS);
        assert!(other.is_there(21 * MS) && !other.is_there(100 * MS));
        // Nor does nonsense take its place.
        other.learn(u64::MAX / 2, 21 * MS);
        assert!(other.is_there(21 * MS));
        // It is not said on.
        other.tell(&word);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_crowd_that_stays_is_asked_less_and_less_often() {
        let crowd = Crowd::new();
        let mut now = MS;
        let mut lengths = Vec::new();
        for _ in 0..10 {
            while !crowd.is_there(now) {
                now += 4 * MS;
                crowd.note_yield(4 * MS, now);
            }
            let start = now;
            while crowd.is_there(now) {
                now += MS / 10;
            }
            lengths.push((now - start).div_ceil(10 * MS));
        }
        assert_eq!(lengths[..5], [1, 2, 4, 8, 16]);
        assert_eq!(lengths[7..], [128; 3]);
        // Later it begins anew.
        now += 5 * LONG;
        assert_eq!(crowded_after(&crowd, now, 4 * MS, 0, 10), Some(2));
        assert!(!crowd.is_there(now + 20 * MS));
    }
}
