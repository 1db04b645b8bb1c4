//! The end of a stream whose last bytes are still in the ring.
//!
//! Behind a FIN nobody can send by TCP. So a side that ends its stream sends by TCP what is unread in its ring: the reader may still give the
//! connection to a program that has no rings. But by TCP the reader takes each of a million small messages by a system call of its own. A
//! reader that empties the ring just now is done sooner than that, so it is waited for, as long as it keeps [pace](Pace).

use crate::socket::Tries;
use crate::stream::{Conn, owed, spin};
use crate::sys;

/// Fewer bytes go by TCP without a wait.
const FEW: u64 = 16 << 10;
/// How long this thread may look at a reader that reads nothing (ticks of the time stamp counter, about 0.1 ms).
const GRACE: u64 = 260_000;
/// … and at one that reads, until the ring is empty (about 2 ms). What it gives to others by yields does not count.
const WHOLE: u64 = 5_200_000;
/// The longest wait in all (about 8 ms).
const LONGEST: u64 = 21_000_000;

/// Where the readers are slow, fewer and fewer ends wait.
static TRIES: Tries = Tries::new();

/// How far a reader must have come to be waited for.
struct Pace {
    /// Bytes that were unread when the wait began.
    unread: u64,
}

impl Pace {
    /// Whether `left` bytes, `own` ticks of this thread's and `all` ticks after the wait began, are few enough to wait on.
    fn is_kept(&self, left: u64, own: u64, all: u64) -> bool {
        let read = self.unread.saturating_sub(left);
        let allowed = u128::from(WHOLE) * u128::from(read) / u128::from(self.unread.max(1));
        all < LONGEST && u128::from(own.saturating_sub(GRACE)) <= allowed
    }
}

/// Waits for a reader that is about to empty the ring. Without the sending token.
#[cold]
pub(super) fn await_reader(conn: &Conn) {
    let unread = conn.in_flight();
    if unread < FEW {
        return;
    }
    TRIES.note_passed();
    if !TRIES.is_due() {
        return;
    }
    TRIES.begin();
    if is_emptied(conn, &Pace { unread }) {
        TRIES.note_paid();
    } else {
        TRIES.note_vain();
    }
}

fn is_emptied(conn: &Conn, pace: &Pace) -> bool {
    let start = sys::ticks();
    let mut away = 0;
    loop {
        let left = conn.in_flight();
        if left == 0 {
            return true;
        }
        let all = sys::ticks().wrapping_sub(start);
        if !pace.is_kept(left, all.saturating_sub(away), all) || owed::is_due(conn) {
            return false;
        }
        match spin::yield_once() {
            Some(others) => away += others,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 2_600_000;

    #[test]
    fn a_reader_is_waited_for_as_long_as_it_keeps_pace() {
        let pace = Pace { unread: 1 << 20 };
        // Nothing read: 0.1 ms.
        assert!(pace.is_kept(1 << 20, MS / 20, MS / 20));
        assert!(!pace.is_kept(1 << 20, MS / 5, MS / 5));
        // Half of it read: one millisecond more, …
        assert!(pace.is_kept(1 << 19, MS, MS));
        assert!(!pace.is_kept(1 << 19, MS + MS / 5, MS + MS / 5));
        // … in which the time of others does not count, up to a bound.
        assert!(pace.is_kept(1 << 19, MS, 7 * MS));
        assert!(!pace.is_kept(1 << 19, MS, 9 * MS));
    }

    #[test]
    fn more_than_at_first_is_nothing_read() {
        let pace = Pace { unread: 0 };
        assert!(pace.is_kept(100, GRACE, GRACE) && !pace.is_kept(100, GRACE + 1, GRACE + 1));
    }
}
