//! Lists of connections are made in turn. One takes as long as its user has sockets that are to be looked at, and nobody
//! else is served meanwhile; so who asks again at once waits, and the others come first.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::Daemon;

/// After a list no other one is made for the same user for this many times as long as it has taken.
const REST: u32 = 4;

/// A list that was asked for, and is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) client: u64,
    pub(super) user: u32,
    /// With the counters of each connection.
    pub(super) details: bool,
}

/// Who waits, and for whom none is made before when.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: VecDeque<Asked>,
    rest: HashMap<u32, Instant>,
}

impl Turns {
    /// Whether a list may be made for a user.
    fn may_begin(&self, user: u32, now: Instant) -> bool {
        self.rest.get(&user).is_none_or(|until| *until <= now)
    }

    /// One was made for a user since then.
    fn note(&mut self, user: u32, began: Instant, now: Instant) {
        self.rest.retain(|_, until| *until > now);
        self.rest.insert(user, now + (now - began) * REST);
    }

    /// The next one that may be made.
    fn next(&mut self, now: Instant) -> Option<Asked> {
        let may = |asked: &Asked| self.may_begin(asked.user, now);
        let at = self.waiting.iter().position(may)?;
        self.waiting.remove(at)
    }

    /// How long until there is one.
    pub(super) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let until = |asked: &Asked| self.rest.get(&asked.user).copied().unwrap_or(now);
        let next = self.waiting.iter().map(until).min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Whether a client's waits.
    pub(super) fn has_list_of(&self, client: u64) -> bool {
        self.waiting.iter().any(|asked| asked.client == client)
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, client: u64) {
        self.waiting.retain(|asked| asked.client != client);
    }
}

impl Daemon {
    /// Makes a list, or has it wait for its turn.
    pub(super) fn list_in_turn(&mut self, asked: Asked) {
        let began = Instant::now();
        if !self.turns.may_begin(asked.user, began) {
            self.turns.waiting.push_back(asked);
            return self.watch(asked.client);
        }
        self.make_list(asked);
        self.turns.note(asked.user, began, Instant::now());
    }

    /// Makes the lists whose turn has come.
    pub(super) fn list_waiting(&mut self) {
        while let Some(asked) = self.turns.next(Instant::now()) {
            self.list_in_turn(asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_a_list_rests_and_the_others_do_not() {
        let asked = |client, user| Asked {
            client,
            user,
            details: false,
        };
        let mut turns = Turns::default();
        let began = Instant::now();
        assert!(turns.may_begin(1, began));
        let now = began + Duration::from_millis(100);
        turns.note(1, began, now);
        turns
            .waiting
            .extend([asked(10, 1), asked(11, 1), asked(20, 2)]);
        assert!(turns.has_list_of(11) && !turns.has_list_of(12));
        assert_eq!(turns.next(now), Some(asked(20, 2)));
        assert_eq!(turns.next(now + Duration::from_millis(399)), None);
        turns.forget(10);
        let later = now + Duration::from_millis(400);
        assert_eq!(turns.next(later), Some(asked(11, 1)));
        assert_eq!((turns.next(later), turns.left()), (None, None));
    }
}
