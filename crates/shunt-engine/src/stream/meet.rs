//! Two ends that call each other and nobody else, on two cores that strangers want: one of them moves to the other's core.
//!
//! On two cores each call wakes a thread that shares its core with a stranger, and has to wait for that one. On one core the two take turns: a
//! thread that goes to sleep makes way for the one that it has just called, and the stranger has its share as before. The scheduler places them
//! on one core or on two as it happens (beside two busy loops 120,000 round trips a second on one core, 10,000 on two).
//!
//! So each end says from which core it calls its peer, if it has lately called nobody else ([`partner`]) and has itself given time slices to strangers. An end
//! that finds such a peer on another core moves there, as the last thing before it sleeps: it may have to wait for its turn there, and holds nothing then. How
//! often that is tried depends on what the last move has given. An end that knows of no strangers, as one that has a core for itself, neither moves nor is moved to.
//!
//! The same move parts two ends that share a core while the others are idle ([`super::together`] decides when).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Conn, running, spin};
use crate::thread::partner::{self, Turns, Wish};
use crate::thread::{self, undisturbed};
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
    /// Whether the program says itself where its threads run, so that none is moved.
    are_over: AtomicBool,
}

static MOVES: Moves = Moves::new();

impl Moves {
    const fn new() -> Self {
        Self {
            due: AtomicU64::new(0),
            pause: AtomicU64::new(FIRST),
            are_over: AtomicBool::new(false),
        }
    }

    fn are_due(&self, now: u64) -> bool {
        let left = self.due.load(Ordering::Relaxed).wrapping_sub(now);
        // A time that is too far away is none: the counter has begun anew.
        !(1..=LAST).contains(&left) && !self.are_over()
    }

    fn are_over(&self) -> bool {
        self.are_over.load(Ordering::Relaxed)
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

/// The program says itself where a thread runs: none of this process's is moved from now on.
pub(crate) fn leave_alone() {
    MOVES.are_over.store(true, Ordering::Relaxed);
}

/// This thread is about to call the peer because of something to read. With the sending token.
pub(super) fn before_call(conn: &Conn) {
    note_call(conn, &MOVES, spin::knows_strangers);
}

/// Says from which core this thread calls, if it calls nobody else and `knows_strangers` at this time (ticks), and decides now and then whether it moves.
fn note_call(conn: &Conn, moves: &Moves, knows_strangers: impl FnOnce(u64) -> bool) {
    let own = &conn.pair.own.face;
    let Turns { is_partner, took } = partner::note_call(own, sys::ticks);
    let here = if is_partner && knows_strangers(sys::ticks()) {
        sys::core()
    } else {
        0
    };
    // The peer has the line in its cache: written only where need be.
    if own.caller.load(Ordering::Relaxed) != here {
        own.caller.store(here, Ordering::Relaxed);
    }
    let Some((took, before)) = took else {
        return;
    };
    if before != 0 {
        moves.judge(took, before);
    }
    let there = conn.pair.peer.face.caller.load(Ordering::Relaxed);
    let now = sys::ticks();
    if here != 0 && there != 0 && here != there && moves.are_due(now) {
        moves.begin(now);
        partner::wish(there, took);
    }
}

/// This thread is about to sleep, and holds nothing: it moves to the core of its peer, or away from it, if that was decided.
#[inline]
pub(crate) fn meet_or_part() {
    if let Some(wish) = partner::take_wish() {
        move_as(wish);
    }
}

#[cold]
fn move_as(wish: Wish) {
    let may = thread::owns_memory() && !config::is_confined() && !MOVES.are_over();
    let moved = may
        && undisturbed::all_of(|| match wish {
            Wish::To(core) => sys::move_to_core(core - 1),
            // However old the wish is: that it is of use is seen now.
            Wish::Away { without_choice } => {
                sys::leave_core(without_choice, running::are_two_alone)
            }
        });
    let now = sys::ticks();
    partner::note_move(moved, now);
    let is_away = matches!(wish, Wish::Away { .. });
    if moved && is_away {
        spin::note_parted(now);
    } else if !moved && !is_away {
        // As one that has not helped.
        MOVES.judge(1, 1);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::{BothEnds, one_at_a_time};

    #[test]
    fn a_thread_that_knows_strangers_and_has_called_one_peer_alone_is_to_move_to_its_core() {
        const THERE: u32 = 1000;
        let (ends, moves) = (BothEnds::attached(), Moves::new());
        let [conn, peer] = ends.conns();
        peer.pair.own.face.caller.store(THERE, Ordering::Relaxed);
        // Whether the thread says where it is, and where it is to go, after this many calls.
        let call = |calls, knows_strangers| {
            moves.due.store(0, Ordering::Relaxed);
            for _ in 0..calls {
                note_call(&conn, &moves, |_| knows_strangers);
            }
            let says = conn.pair.own.face.caller.load(Ordering::Relaxed);
            (says != 0, partner::take_wish())
        };
        assert_eq!(call(15, true), (false, None), "too few calls");
        assert_eq!(call(17, true), (true, Some(Wish::To(THERE))));
        assert_eq!(call(16, true), (true, Some(Wish::To(THERE))));
        assert_eq!(call(32, false), (false, None), "no stranger is known");
        note_call(&peer, &moves, |_| true);
        assert_eq!(call(15, true), (false, None), "another one was called");
        peer.pair.own.face.caller.store(0, Ordering::Relaxed);
        assert_eq!(call(33, true), (true, None), "the peer has several peers");
        peer.pair.own.face.caller.store(THERE, Ordering::Relaxed);
        assert_eq!(call(16, true), (true, Some(Wish::To(THERE))));
        moves.are_over.store(true, Ordering::Relaxed);
        assert_eq!(call(32, true), (true, None), "the program says where");
    }

    #[test]
    fn a_thread_that_cannot_move_tries_once_and_the_next_one_is_later() {
        let _alone = one_at_a_time();
        let pause = || MOVES.pause.load(Ordering::Relaxed);
        MOVES.pause.store(FIRST, Ordering::Relaxed);
        partner::wish(1_000_000, 1000);
        meet_or_part();
        assert_eq!((partner::take_wish(), pause()), (None, 2 * FIRST));
        MOVES.pause.store(FIRST, Ordering::Relaxed);
    }

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
