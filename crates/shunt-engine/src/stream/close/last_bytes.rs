//! The end of a stream whose last bytes are still in the ring.
//!
//! Behind a FIN nobody can send by TCP. So a side that ends its stream sends by TCP what is unread in its ring: the reader may still give the
//! connection to a program that has no rings. But by TCP the reader takes each of a million small messages by a system call of its own. A
//! reader that empties the ring just now is done sooner than that, so it is waited for, as long as it keeps [pace](Pace).

use std::sync::atomic::Ordering;

use shunt_shm::slot;

use crate::socket::Tries;
use crate::stream::{Conn, owed, spin};
use crate::sys;

/// Fewer bytes go by TCP without a wait.
const FEW: u64 = 16 << 10;
/// How long this thread may look at a reader that reads nothing (ticks of the time stamp counter, about 0.1 ms).
const GRACE: u64 = 260_000;
/// … for each mebibyte that is read meanwhile (about 4 ms), …
const MEBIBYTE: u64 = 10_400_000;
/// … and for each message of these: about as long as the reader would take for it by TCP (0.4 µs). What this thread gives to others by
/// yields does not count.
const MESSAGE: u64 = 1_000;
/// No look and no yield is begun after this time, in nanoseconds. (The last yield may take longer, as others have their turns.)
const LONGEST: u64 = 8_000_000;
/// A reader on another core reads something within this time (about 10 µs). If it does not this thread makes way.
const LOOK: u64 = 26_000;

/// Where the readers are slow, fewer and fewer ends wait.
static TRIES: Tries = Tries::new();

/// How far a reader must have come to be waited for.
struct Pace {
    /// Bytes that were unread when the wait began.
    unread: u64,
    /// Bytes in one message of this side's, on average.
    message: u64,
}

impl Pace {
    fn begin(conn: &Conn, unread: u64) -> Self {
        let sent = &conn.socket.tx;
        let calls = sent.user_calls.load(Ordering::Relaxed).max(1);
        let message = (sent.ring_bytes.load(Ordering::Relaxed) / calls).max(1);
        Self { unread, message }
    }

    /// Whether `left` bytes, `own` ticks of this thread's and `all` nanoseconds after the wait began, are few enough to wait on.
    fn is_kept(&self, left: u64, own: u64, all: u64) -> bool {
        let read = self.unread.saturating_sub(left);
        let bytes = (u128::from(MEBIBYTE) * u128::from(read)) >> 20;
        let allowed = bytes + u128::from(MESSAGE) * u128::from(read / self.message);
        all < LONGEST && u128::from(own.saturating_sub(GRACE)) <= allowed
    }
}

/// Waits for a reader that is about to empty the ring. Without the sending token.
#[cold]
pub(super) fn await_reader(conn: &Conn) {
    let unread = conn.in_flight();
    if unread < FEW || conn.is_shut() || !reads(conn) {
        return;
    }
    TRIES.note_passed();
    if !TRIES.is_due() {
        return;
    }
    if let Some(is_emptied) = is_emptied(conn, &Pace::begin(conn, unread)) {
        TRIES.begin();
        if is_emptied {
            TRIES.note_paid();
        } else {
            TRIES.note_vain();
        }
    }
}

/// Whether the peer may still read in the ring.
fn reads(conn: &Conn) -> bool {
    conn.is_on_ring()
        && conn.pair.peer_state() & (slot::SHUT_RD | slot::CLOSED) == 0
        && !owed::is_due(conn)
}

/// Whether the ring is emptied in time. `None`: that was not waited for.
fn is_emptied(conn: &Conn, pace: &Pace) -> Option<bool> {
    /// So many slices of strangers' in a row, in which nothing is read, are the last ones.
    const SLICES: u32 = 2;
    let (start, began) = (sys::ticks(), sys::now());
    let (mut away, mut read_at, mut before, mut slices) = (0u64, start, pace.unread, 0);
    loop {
        let left = conn.in_flight();
        if left == 0 {
            return Some(true);
        }
        let now = sys::ticks();
        let own = now.wrapping_sub(start).saturating_sub(away);
        if !reads(conn) {
            return None;
        }
        if !pace.is_kept(left, own, sys::now().saturating_sub(began)) {
            return Some(false);
        }
        if left < before {
            (before, read_at, slices) = (left, now, 0);
        }
        if slices >= SLICES {
            return Some(false);
        }
        let others_wait = spin::is_wanted() && spin::is_burst_over(now);
        if now.wrapping_sub(read_at) < LOOK && !others_wait {
            std::hint::spin_loop();
            continue;
        }
        let turn = spin::yield_once()?;
        away = away.saturating_add(turn.others);
        slices += u32::from(turn.is_slice);
        read_at = sys::ticks();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::BothEnds;

    /// A millisecond of ticks, and of nanoseconds.
    const MS: u64 = 2_600_000;
    const MILLI: u64 = 1_000_000;

    #[test]
    fn a_reader_is_waited_for_as_long_as_it_keeps_pace() {
        let pace = Pace {
            unread: 1 << 20,
            message: 1 << 20,
        };
        // Nothing read: 0.1 ms.
        assert!(pace.is_kept(1 << 20, MS / 20, MILLI / 20));
        assert!(!pace.is_kept(1 << 20, MS / 5, MILLI / 5));
        // Half a mebibyte read: two milliseconds more, …
        assert!(pace.is_kept(1 << 19, 2 * MS, 2 * MILLI));
        assert!(!pace.is_kept(1 << 19, 2 * MS + MS / 5, 3 * MILLI));
        // … in which the time of others does not count, up to a bound.
        assert!(pace.is_kept(1 << 19, 2 * MS, 7 * MILLI));
        assert!(!pace.is_kept(1 << 19, 2 * MS, 9 * MILLI));
    }

    #[test]
    fn a_reader_of_little_is_waited_for_shortly() {
        let pace = Pace {
            unread: FEW,
            message: FEW,
        };
        assert!(pace.is_kept(1, GRACE + MS / 20, MILLI));
        assert!(!pace.is_kept(1, GRACE + MS / 10, MILLI));
    }

    #[test]
    fn a_reader_of_small_messages_is_waited_for_longer() {
        let pace = |message| Pace {
            unread: 1 << 20,
            message,
        };
        // An eighth of a mebibyte read: half a millisecond for its bytes, and 6.5 more where these are 16,384 messages.
        let is_kept = |message, ms| pace(message).is_kept(7 << 17, ms * MS, ms * MILLI);
        assert!(is_kept(8, 6) && !is_kept(8, 8));
        assert!(!is_kept(4096, 1));
    }

    #[test]
    fn more_than_at_first_is_nothing_read() {
        let pace = Pace {
            unread: 0,
            message: 1,
        };
        assert!(pace.is_kept(100, GRACE, GRACE) && !pace.is_kept(100, GRACE + 1, GRACE + 1));
    }

    #[test]
    fn only_a_peer_that_may_read_is_waited_for() {
        let ends = BothEnds::attached();
        let [conn, peer] = ends.conns();
        ends.send(b"in the ring");
        assert!(reads(&conn));
        let pace = Pace::begin(&conn, conn.in_flight());
        assert_eq!((pace.unread, pace.message), (11, 11));
        // Nobody reads. (`None` where other tests want the cores.)
        assert_ne!(is_emptied(&conn, &pace), Some(true));
        for gone in [slot::SHUT_RD, slot::CLOSED] {
            let state = &peer.pair.own.face.state;
            let before = state.fetch_or(gone, Ordering::Relaxed);
            assert_eq!(is_emptied(&conn, &pace), None);
            state.store(before, Ordering::Relaxed);
        }
        ends.receive::<32>();
        assert_eq!(is_emptied(&conn, &pace), Some(true));
    }
}
