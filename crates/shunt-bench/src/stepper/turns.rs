//! Two who take turns: strictly one after the other.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use super::{Options, serve_timed};
use crate::{cores, sys};

/// The word that says whose turn it is, in memory of its own that processes share.
#[derive(Clone, Copy)]
pub(super) struct Turn(&'static AtomicU32);

/// Who takes turns.
pub(super) const FIRST: u32 = 0;
pub(super) const SECOND: u32 = 1;
/// Nobody: the second sleeps until the next step.
const REST: u32 = 2;

/// Turns of each until both are awake.
const WARM_UP: u64 = 20;

impl Turn {
    pub(super) fn new() -> Result<Self> {
        let at = sys::shared(4096)?.cast::<AtomicU32>();
        // SAFETY: zeroed memory of a word and more, which is never unmapped.
        let turn = Self(unsafe { &*at });
        turn.0.store(REST, Ordering::Relaxed);
        Ok(turn)
    }

    /// As `me`, `count` times: waits for the turn, does `work`, hands over.
    fn take(self, me: u32, count: u64, idle: impl Fn(), mut work: impl FnMut()) {
        for _ in 0..count {
            while self.0.load(Ordering::Acquire) != me {
                idle();
                std::hint::spin_loop();
            }
            work();
            self.0.store(1 - me, Ordering::Release);
        }
    }

    /// The first's step: `count` turns of each. Nanoseconds per turn, once both are awake.
    pub(super) fn lead(self, count: u64, idle: impl Fn(), mut work: impl FnMut()) -> f64 {
        self.begin();
        self.take(FIRST, WARM_UP, &idle, &mut work);
        let begin = Instant::now();
        self.take(FIRST, count - WARM_UP, &idle, &mut work);
        self.end(idle);
        begin.elapsed().as_nanos() as f64 / (2 * (count - WARM_UP)) as f64
    }

    /// Wakes the second.
    fn begin(self) {
        self.0.store(FIRST, Ordering::Release);
        futex(self.0, libc::FUTEX_WAKE, i32::MAX as u32);
    }

    /// Puts the second to rest, when it has had its last turn.
    fn end(self, idle: impl Fn()) {
        while self.0.load(Ordering::Acquire) != FIRST {
            idle();
            std::hint::spin_loop();
        }
        self.0.store(REST, Ordering::Release);
    }

    /// The second's life: steps of `count` turns.
    pub(super) fn follow(self, count: u64, idle: impl Fn(), mut work: impl FnMut()) {
        loop {
            while self.0.load(Ordering::Acquire) == REST {
                futex(self.0, libc::FUTEX_WAIT, REST);
            }
            self.take(SECOND, count, &idle, &mut work);
            // The first puts it to rest.
            while self.0.load(Ordering::Acquire) == FIRST {
                std::hint::spin_loop();
            }
        }
    }
}

/// Sleeps while the word has the value, or wakes who does.
fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word is never unmapped; no time limit.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, none) };
}

/// What the turns themselves cost.
pub(super) fn empty(options: &Options, other: Option<usize>) -> Result<()> {
    let (turn, count) = (Turn::new()?, options.count);
    thread::spawn(move || {
        let _ = other.map(cores::pin);
        turn.follow(count, || {}, || {});
    });
    serve_timed(|| Ok(turn.lead(count, || {}, || {})))
}
