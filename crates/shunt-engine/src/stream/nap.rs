//! A light sleep before the deep one: of a blocking receive, or of a `poll` of one
//! connection, for a moment, on a word that the peer writes.
//!
//! Who sleeps in the kernel's own call is woken by a byte through TCP, and has to take
//! it, which costs both sides together as much as the kernel's own transfer. A futex
//! costs half of that; but it does not hear what the kernel alone knows: the end
//! of a peer that was killed, or a reset. So this sleep is short: such news come late
//! by [`LONGEST_NAP`] at most. A signal ends it, and whoever ends the stream by a call of
//! ours does so too.
//!
//! ```text
//! sleeper                              waker
//!   another nap (`Face::naps`)           publish data
//!   NAPPING in the wait word             barrier as for the deep sleep
//!   barrier, look at the ring            NAPPING: `Sending::woken` = naps
//!   futex: sleep while that is old       futex: wake
//! ```

use std::sync::atomic::{AtomicU32, Ordering};

use shunt_shm::publish;
use shunt_shm::slot::{self, Way};

use super::wait::{Want, is_ready};
use super::{Conn, owed};
use crate::sys;
use crate::thread::{give, signals::Seen};

/// Nanoseconds.
pub(crate) const LONGEST_NAP: i64 = 1_000_000;
/// As many waits as go without after naps that nothing ended.
const MOST_WITHOUT: u32 = 63;

/// How a connection sleeps: a nap that nothing ends is one timer too many, and so the
/// next wait goes without, after another one the next three, …
#[derive(Default)]
pub(crate) struct Rest {
    /// Waits to come that go without.
    left: AtomicU32,
    /// How many those were last.
    last: AtomicU32,
}

impl Rest {
    pub(crate) fn clear(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.last.store(0, Ordering::Relaxed);
    }

    fn may_nap(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn note(&self, woken: bool) {
        let last = self.last.load(Ordering::Relaxed);
        let next = if woken {
            last / 2
        } else {
            (2 * last + 1).min(MOST_WITHOUT)
        };
        self.last.store(next, Ordering::Relaxed);
        self.left
            .store(if woken { 0 } else { next }, Ordering::Relaxed);
    }
}

/// Sleeps lightly. `true`: what the caller waits for may have come; otherwise it is to
/// sleep deeply.
#[cold]
pub(crate) fn nap(conn: &Conn, seen: Seen) -> bool {
    let own = conn.pair.own;
    if conn.way_in() != Way::Ring || !conn.socket.rest.may_nap() {
        return false;
    }
    if !conn.take(&own.receiving.token) {
        return false;
    }
    // One thread at a time: there is one bit.
    let first = own.face.wait.load(Ordering::Relaxed) & slot::NAPPING == 0;
    let mut come = false;
    if first {
        conn.socket.awake.store(0, Ordering::Relaxed);
        own.face.naps.fetch_add(1, Ordering::AcqRel);
        own.face.say_asleep(slot::NAPPING);
        come = may_go_on(conn);
    }
    give(&own.receiving.token);
    if !first {
        return false;
    }
    if !come {
        conn.socket.rx.sleeps.fetch_add(1, Ordering::Relaxed);
        conn.socket.hold();
        come = sleep(conn, seen);
        publish::clear_bits(&own.face.wait, slot::NAPPING);
        conn.socket.unhold();
        return come;
    }
    publish::clear_bits(&own.face.wait, slot::NAPPING);
    true
}

/// `true`: something may have come.
fn sleep(conn: &Conn, seen: Seen) -> bool {
    let naps = conn.pair.own.face.naps.load(Ordering::Relaxed);
    let woken = &conn.pair.peer.sending.woken;
    loop {
        let before = woken.load(Ordering::Acquire);
        if before != naps && !seen.any_since() {
            let slept = sys::shared_futex_wait(woken, before, LONGEST_NAP);
            conn.socket.rest.note(slept != Err(libc::ETIMEDOUT));
            if slept == Err(libc::ETIMEDOUT) {
                return false;
            }
        }
        if may_go_on(conn) {
            return true;
        }
        // The peer's last words, or a signal: the deep sleep knows what to do.
        if woken.load(Ordering::Relaxed) == naps || seen.any_since() {
            return false;
        }
    }
}

fn may_go_on(conn: &Conn) -> bool {
    is_ready(conn, Want::Data) || owed::is_asked(conn)
}
