//! Whom a thread calls: always the same peer, or several?

use super::words;

/// This many calls in a row for one connection, and none for another one, make its other end the thread's partner; and for so many calls
/// time is taken together.
const CALLS: u64 = 16;

/// What is known at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    /// Whether the thread has called this peer alone lately.
    pub(crate) is_partner: bool,
    /// If that many calls more have been made now: how long they took, and how long as many took before the thread was moved
    /// to its peer (0: it was not) (ticks).
    pub(crate) took: Option<(u64, u64)>,
}

/// Notes that this thread is about to call the other end of that connection. `now`: the time, in ticks, asked for if need be.
pub(crate) fn note_call<T>(connection: &T, now: impl FnOnce() -> u64) -> Turns {
    // SAFETY: only computes where the field of this thread's own words is.
    let partner = unsafe { &raw mut (*words::here()).partner };
    let connection = std::ptr::from_ref(connection).cast();
    // SAFETY: this thread's own words. The caller holds a token, so no handler runs meanwhile.
    let partner = unsafe { &mut *partner };
    if partner.connection != connection {
        *partner = words::Partner {
            connection,
            calls: 0,
            since: 0,
            before: 0,
        };
    }
    partner.calls += 1;
    let mut turns = Turns {
        is_partner: partner.calls >= CALLS,
        took: None,
    };
    if partner.calls.is_multiple_of(CALLS) {
        let now = now();
        if partner.calls > CALLS {
            turns.took = Some((now.wrapping_sub(partner.since), partner.before));
        }
        partner.since = now;
        partner.before = 0;
    }
    turns
}

/// Notes that this thread has been moved to the core of its partner. `took`: how long the last turns took.
pub(crate) fn note_move(took: u64) {
    // SAFETY: this thread's own words.
    unsafe { (*words::here()).partner.before = took }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_called_again_and_again_is_a_partner_until_another_one_is() {
        let (one, another) = (1, 2);
        for n in 1..CALLS {
            let turns = note_call(&one, || n);
            assert!(!turns.is_partner && turns.took.is_none(), "call {n}");
        }
        assert_eq!(
            note_call(&one, || 100),
            Turns {
                is_partner: true,
                took: None
            }
        );
        assert!(!note_call(&another, || 0).is_partner);
        assert!(!note_call(&one, || 0).is_partner);
    }

    #[test]
    fn every_so_often_the_time_of_the_last_calls_is_told_and_of_those_before_a_move() {
        let one = 1;
        let mut told = Vec::new();
        for n in 1..=4 * CALLS {
            let turns = note_call(&one, || 10 * n);
            if let Some(took) = turns.took {
                told.push(took);
                if told.len() == 1 {
                    note_move(took.0);
                }
            }
        }
        let each = 10 * CALLS;
        assert_eq!(told, [(each, 0), (each, each), (each, 0)]);
    }
}
