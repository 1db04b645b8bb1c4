//! What tenants hold and say is charged to them; whose messages come faster than allowed is read later.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Daemon;
use crate::client::Client;
use crate::quota::{Charge, counts_messages};

/// Clients that are not read before their time, by that.
#[derive(Debug, Default)]
pub(super) struct PutOff(BTreeSet<(Duration, u64)>);

impl PutOff {
    /// How long until one may be read again.
    pub(super) fn left(&self) -> Option<Duration> {
        let (until, _) = self.0.first()?;
        Some(until.saturating_sub(now()))
    }

    fn next(&mut self, now: Duration) -> Option<u64> {
        let first = *self.0.first().filter(|(until, _)| *until <= now)?;
        self.0.remove(&first);
        Some(first.1)
    }
}

/// On a clock that goes on always.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

impl Daemon {
    /// Whether two clients may each hold so much more.
    pub(super) fn have_room(&self, clients: [u64; 2], more: Charge) -> bool {
        let limits = &self.config.limits;
        let [one, other] = clients.map(|id| self.clients.get(&id).map(|c| c.tenant(limits)));
        one.zip(other)
            .is_some_and(|(one, other)| self.quotas.have_room(limits, [one, other], more))
    }

    /// A client holds so much more.
    pub(super) fn charge(&mut self, id: u64, more: Charge) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.charge = client.charge.plus(more);
            self.quotas.charge(client.tenant(&self.config.limits), more);
        }
    }

    /// It holds so much less.
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
        let until = self.quotas.heard_at(limits, client.tenant(limits));
        if until <= now() {
            return true;
        }
        client.is_put_off = true;
        self.put_off.0.insert((until, id));
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

    /// Those whose time has come are read again.
    pub(super) fn hear_put_off(&mut self) {
        let now = now();
        while let Some(id) = self.put_off.next(now) {
            if let Some(client) = self.clients.get_mut(&id) {
                client.is_put_off = false;
            }
            self.watch(id);
        }
    }
}
