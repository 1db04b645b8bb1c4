//! Two ends that call each other and nobody else, on two cores that strangers want: one of them moves to the other's core.
//!
//! On two cores each call wakes a thread that shares its core with a stranger, and has to wait for that one. On one core the two take turns: a thread that goes to sleep makes
//! way for the one that it has just called, and the stranger has its share as before. The scheduler places them on one core or on two as it
//! happens (beside two busy loops 120,000 round trips a second on one core, 10,000 on two). So each end says from which core it calls
//! its peer, if it has lately called nobody else ([`partner`]), and an end that finds its peer on another core moves there before it calls. How often that is
//! tried depends on what the last one has given.
//!
//! Where a core may be idle nobody moves: two ends on two cores answer each other without a call there.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Conn, spin};
use crate::thread::partner::{self, Turns};
use crate::{config, sys};

/// A move is tried again after this time (ticks, about 10 ms), …
const FIRST: u64 = 26_000_000;
/// … after twice the time if it has not helped, and after this at most (about 1.3 s).
const LAST: u64 = FIRST << 7;

/// When threads of this process may move. Its words are hints: threads that change them at the same time may lose
/// what one of them has seen.
struct Moves {
    /// When one is due, …
    due: AtomicU64,
    /// … and how long after the last one that is.
    pause: AtomicU64,
}

static MOVES: Moves = Moves::new();

impl Moves {
    const fn new() -> Self {
        Self {
            due: AtomicU64::new(0),
            pause: AtomicU64::new(FIRST),
        }
    }

    fn are_due(&self, now: u64) -> bool {
        let left = self.due.load(Ordering::Relaxed).wrapping_sub(now);
        // A time that is too far away is none: the counter has begun anew.
        !(1..=LAST).contains(&left)
    }

    /// A thread moves now.
    fn begin(&self, now: u64) {
        let pause = self.pause.load(Ordering::Relaxed);
        self.due.store(now.wrapping_add(pause), Ordering::Relaxed);
    }

    /// The turns after a move took `took` ticks, those before it `before`. It has helped if they are a quarter shorter.
    fn judge(&self, took: u64, before: u64) {
        let helped = took < before - before / 4;
        let pause = self.pause.load(Ordering::Relaxed);
        let next = if helped { FIRST } else { (2 * pause).min(LAST) };
        let more = next.wrapping_sub(pause);
        self.pause.store(next, Ordering::Relaxed);
        self.due.fetch_add(more, Ordering::Relaxed);
    }
}

/// This thread is about to call the peer because of something to read. With the sending token.
pub(super) fn before_call(conn: &Conn) {
    let own = &conn.pair.own.face;
    let Turns { is_partner, took } = partner::note_call(own, sys::ticks);
    let here = if is_partner { sys::core() } else { 0 };
    // The peer has the line in its cache: written only where need be.
    if own.caller.load(Ordering::Relaxed) != here {
        own.caller.store(here, Ordering::Relaxed);
    }
    if let Some((took, before)) = took {
        consider(conn, here, took, before);
    }
}

/// Moves this thread to the core of its peer if that may help. The last turns took `took` ticks, those before a move `before`.
#[cold]
fn consider(conn: &Conn, here: u32, took: u64, before: u64) {
    if before != 0 {
        MOVES.judge(took, before);
    }
    let there = conn.pair.peer.face.caller.load(Ordering::Relaxed);
    let now = sys::ticks();
    let apart = here != 0 && there != 0 && here != there;
    if !apart || !spin::are_strangers_there(now) || !MOVES.are_due(now) || config::is_confined() {
        return;
    }
    MOVES.begin(now);
    if sys::move_to_core(there - 1) {
        conn.pair.own.face.caller.store(there, Ordering::Relaxed);
        partner::note_move(took);
    } else {
        // As one that has not helped.
        MOVES.judge(took, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_that_help_are_tried_again_soon_and_others_less_and_less_often() {
        let moves = Moves::new();
        let mut now = 1 << 40;
        let mut pause = |took: u64| {
            assert!(moves.are_due(now));
            moves.begin(now);
            moves.judge(took, 1000);
            let began = now;
            while !moves.are_due(now) {
                now += FIRST / 10;
            }
            (now - began) / FIRST
        };
        assert_eq!([700, 100, 740].map(&mut pause), [1, 1, 1]);
        assert_eq!([760, 1000, 9000].map(&mut pause), [2, 4, 8]);
        assert_eq!([1000; 6].map(&mut pause), [16, 32, 64, 128, 128, 128]);
        assert_eq!(pause(500), 1);
    }
}
