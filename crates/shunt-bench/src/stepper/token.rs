//! Three ways to pass the right to send from one thread to another
//! (docs/decisions/0003).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use shunt_shm::atomic::{heavy, light, register};
use shunt_shm::token::{Holder, Token};

use super::turns::{FIRST, SECOND, Turn};
use super::{Options, serve, serve_timed};
use crate::cores;

/// A token for two.
pub(super) trait Pass: Send + Sync + 'static {
    fn take(&self, me: u32);
    fn give(&self, me: u32);
    /// What a holder does now and then that wants nothing itself.
    fn idle(&self, _me: u32) {}
}

/// Taken and given back by the same thread.
pub(super) fn free(options: &Options, token: &impl Pass) -> Result<()> {
    serve(options.count, || {
        for _ in 0..options.count {
            token.take(FIRST);
            token.give(FIRST);
        }
        Ok(())
    })
}

/// By two threads in turn.
pub(super) fn turns(options: &Options, other: Option<usize>, token: impl Pass) -> Result<()> {
    let (turn, count, token) = (Turn::new()?, options.count, Arc::new(token));
    let mine = Arc::clone(&token);
    let both = |token: &dyn Pass, me| {
        token.take(me);
        token.give(me);
    };
    thread::spawn(move || {
        let _ = other.map(cores::pin);
        turn.follow(count, || token.idle(SECOND), || both(&*token, SECOND));
    });
    serve_timed(|| Ok(turn.lead(count, || mine.idle(FIRST), || both(&*mine, FIRST))))
}

/// Shunt's.
#[derive(Default)]
pub(super) struct Cas(Token);

impl Pass for Cas {
    #[inline]
    fn take(&self, me: u32) {
        while self.0.try_take(Holder(u64::from(me) + 1)).is_err() {
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn give(&self, _: u32) {
        self.0.give();
    }
}

/// A word names the owner, who says in a line of its own when it works, without a fence
/// or an atomic read-modify-write. Who wants to be the owner writes its name, makes all
/// processors pass a barrier, and waits until the one before has finished.
#[derive(Default)]
pub(super) struct Biased {
    owner: AtomicU64,
    works: [Line; 2],
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Biased {
    pub(super) fn new() -> Self {
        // Without it the barrier reaches nobody, and costs less than it does.
        assert!(register(), "membarrier is refused");
        Self::default()
    }

    #[cold]
    fn take_over(&self, me: u32) {
        let works = &self.works[me as usize].0;
        loop {
            works.store(0, Ordering::Release);
            let before = self.owner.swap(u64::from(me), Ordering::AcqRel);
            heavy();
            while before != u64::from(me)
                && self.works[before as usize].0.load(Ordering::Acquire) != 0
            {
                std::hint::spin_loop();
            }
            works.store(1, Ordering::Relaxed);
            light();
            if self.owner.load(Ordering::Acquire) == u64::from(me) {
                return;
            }
        }
    }
}

impl Pass for Biased {
    #[inline]
    fn take(&self, me: u32) {
        self.works[me as usize].0.store(1, Ordering::Relaxed);
        light();
        if self.owner.load(Ordering::Acquire) != u64::from(me) {
            self.take_over(me);
        }
    }

    #[inline]
    fn give(&self, me: u32) {
        self.works[me as usize].0.store(0, Ordering::Release);
    }
}

/// The paper's: who wants the token sends the monitor a message; that asks the holder,
/// who looks for such wishes between its operations; the holder answers the
/// monitor, which grants. A monitor that sleeps, as shuntd does, hears of it by a
/// socket; the holder by a word in memory, so that no signal is needed.
pub(super) struct Monitored {
    /// Whether a member has it: its own affair.
    has: [Line; 2],
    /// The monitor's wish that it gave it back.
    asked: Arc<[Line; 2]>,
    lines: [UnixStream; 2],
}

impl Monitored {
    pub(super) fn new() -> Result<Self> {
        let [(first, one), (second, two)] = [UnixStream::pair()?, UnixStream::pair()?];
        let asked = Arc::<[Line; 2]>::default();
        let monitor = (Arc::clone(&asked), [one, two]);
        let free = AtomicU32::new(FIRST);
        thread::spawn(move || {
            let (asked, lines) = monitor;
            loop {
                // The one that has it not speaks next.
                let holder = free.load(Ordering::Relaxed) as usize;
                let wants = 1 - holder;
                if (&lines[wants]).read_exact(&mut [0]).is_err() {
                    return;
                }
                asked[holder].0.store(1, Ordering::Release);
                let done = (&lines[holder]).read_exact(&mut [0]);
                if done.is_err() || (&lines[wants]).write_all(b"g").is_err() {
                    return;
                }
                free.store(wants as u32, Ordering::Relaxed);
            }
        });
        let this = Self {
            has: Default::default(),
            asked,
            lines: [first, second],
        };
        this.has[FIRST as usize].0.store(1, Ordering::Relaxed);
        Ok(this)
    }
}

impl Pass for Monitored {
    #[inline]
    fn take(&self, me: u32) {
        let me = me as usize;
        if self.has[me].0.load(Ordering::Relaxed) == 0 {
            let mut line = &self.lines[me];
            let granted = line
                .write_all(b"w")
                .and_then(|()| line.read_exact(&mut [0]));
            granted.expect("the monitor lives");
            self.has[me].0.store(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn give(&self, me: u32) {
        self.idle(me);
    }

    #[inline]
    fn idle(&self, me: u32) {
        let me = me as usize;
        if self.asked[me].0.load(Ordering::Relaxed) != 0 {
            self.asked[me].0.store(0, Ordering::Relaxed);
            self.has[me].0.store(0, Ordering::Relaxed);
            (&self.lines[me])
                .write_all(b"d")
                .expect("the monitor lives");
        }
    }
}
