//! What tenants hold and say is charged to them; whose messages come faster than allowed is read later.
//!
//! How many may come in a second, `messages` in `[limits.user]`, `[limits.container]` and `[limits.host]` says (`quota.rs`); a second's worth may come at once. Without
//! that setting there is no bound.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Daemon;
use crate::client::Client;
use crate::quota::{Charge, Whom, counts_messages};

/// Clients that are not read before their turn. Those for whom one bound counts are read one after the other: if all were,
/// each message would cost as much as there are.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    /// When somebody's next client may be read.
    turns: BTreeSet<(Duration, Whom)>,
    /// In the order in which they came.
    waiting: HashMap<Whom, VecDeque<u64>>,
}

impl PutOff {
    /// How long until one may be read again.
    pub(super) fn left(&self) -> Option<Duration> {
        let (until, _) = self.turns.first()?;
        Some(until.saturating_sub(now()))
    }

    fn add(&mut self, until: Duration, whom: Whom, client: u64) {
        let waiting = self.waiting.entry(whom.clone()).or_default();
        if waiting.is_empty() {
            self.turns.insert((until, whom));
        }
        waiting.push_back(client);
    }

    /// The next client whose turn has come. `pause`: how long after that the next one's comes.
    fn next(&mut self, now: Duration, pause: impl FnOnce(&Whom) -> Duration) -> Option<u64> {
        self.turns.first().filter(|(until, _)| *until <= now)?;
        let (until, whom) = self.turns.pop_first()?;
        let waiting = self.waiting.get_mut(&whom)?;
        let client = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&whom);
        } else {
            self.turns.insert((until + pause(&whom), whom));
        }
        client
    }
}

/// On a clock that goes on always.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

impl Daemon {
    /// Whether two clients may each hold `more` in addition.
    pub(super) fn have_room(&self, clients: [u64; 2], more: Charge) -> bool {
        let limits = &self.config.limits;
        let [one, other] = clients.map(|id| self.clients.get(&id).map(|c| c.tenant(limits)));
        one.zip(other)
            .is_some_and(|(one, other)| self.quotas.have_room(limits, [one, other], more))
    }

    /// A client holds `more` in addition.
    pub(super) fn charge(&mut self, id: u64, more: Charge) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.charge = client.charge.plus(more);
            self.quotas.charge(client.tenant(&self.config.limits), more);
        }
    }

    /// A client has given `less` back.
    pub(super) fn refund(&mut self, id: u64, less: Charge) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.charge = client.charge.minus(less);
            self.quotas.refund(client.tenant(&self.config.limits), less);
        }
    }

    /// A client that has gone holds nothing any more.
    pub(super) fn forget_charge(&mut self, client: &Client) {
        if client.charge != Charge::default() {
            self.quotas
                .refund(client.tenant(&self.config.limits), client.charge);
        }
        self.quotas.leave(now());
    }

    /// Whether the next message of a client may be read now; if not, it is when its time comes.
    pub(super) fn may_hear(&mut self, id: u64) -> bool {
        let limits = &self.config.limits;
        let Some(client) = self
            .clients
            .get_mut(&id)
            .filter(|_| counts_messages(limits))
        else {
            return true;
        };
        if client.is_put_off {
            return false;
        }
        let (until, whom) = self.quotas.heard_at(limits, client.tenant(limits));
        if until <= now() {
            return true;
        }
        client.is_put_off = true;
        self.put_off.add(until, whom, id);
        self.watch(id);
        false
    }

    /// A message of a client has been read.
    pub(super) fn note_heard(&mut self, id: u64) {
        let limits = &self.config.limits;
        if let Some(client) = self.clients.get(&id).filter(|_| counts_messages(limits)) {
            self.quotas.hear(limits, client.tenant(limits), now());
        }
    }

    fn next_put_off(&mut self, now: Duration) -> Option<u64> {
        let limits = &self.config.limits;
        self.put_off.next(now, |whom| whom.pause(limits))
    }

    /// Those whose turn has come are read again.
    pub(super) fn hear_put_off(&mut self) {
        let now = now();
        while let Some(id) = self.next_put_off(now) {
            if let Some(client) = self.clients.get_mut(&id) {
                client.is_put_off = false;
            }
            self.watch(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_tenant_are_read_one_after_the_other() {
        let at = Duration::from_millis;
        let mut put_off = PutOff::default();
        for client in 1..4 {
            put_off.add(at(50), Whom::User(7), client);
        }
        put_off.add(at(60), Whom::User(8), 9);
        let mut next = |now| put_off.next(at(now), |_| at(10));
        assert_eq!((next(49), next(50), next(50)), (None, Some(1), None));
        assert_eq!((next(60), next(60), next(60)), (Some(2), Some(9), None));
        assert_eq!((next(70), next(1000)), (Some(3), None));
        assert!(put_off.waiting.is_empty() && put_off.left().is_none());
    }
}
