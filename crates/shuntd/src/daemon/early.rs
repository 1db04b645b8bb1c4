//! Claims that may have come before the other end's handshake was done: the connector's is, as soon as
//! `connect` returns; the acceptor's by a segment that may be lost, or be put off until there is data
//! (`TCP_DEFER_ACCEPT`).
//!
//! Only a connection that leaves its network namespace is seen to here, where an answer has to be given to who claims an
//! end whose other one may be on another host: it comes after two seconds ([`HANDSHAKE`]). An acceptor that claims before
//! that is paired. Within one namespace a claim waits for the other end's as long as the connection lives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use shunt_identity::HANDSHAKE;

use super::Daemon;
use crate::end::{End, EndId, State};

/// The most connections that are waited for; of more, the first ones stay pending.
const MOST: usize = 1 << 16;

/// They, and when nothing can come any more.
#[derive(Debug, Default)]
pub(super) struct Early(VecDeque<(Instant, EndId)>);

impl Early {
    /// How long until there is one to be looked at.
    pub(super) fn left(&self) -> Option<Duration> {
        let (until, _) = self.0.front()?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    fn next(&mut self, now: Instant) -> Option<EndId> {
        self.0
            .pop_front_if(|(until, _)| *until <= now)
            .map(|it| it.1)
    }
}

impl Daemon {
    /// A connector's claim waits, although nobody seems to have the other end.
    pub(super) fn note_early(&mut self, id: EndId) {
        if self.early.0.len() == MOST {
            self.early.0.pop_front();
        }
        self.early.0.push_back((Instant::now() + HANDSHAKE, id));
    }

    /// Claims whose other ends have not come are answered.
    pub(super) fn settle_early(&mut self) {
        let now = Instant::now();
        while let Some(id) = self.early.next(now) {
            let end = self.ends.get(id);
            let waiting = end.filter(|end| end.state == State::Waiting);
            let tuple = waiting.and_then(End::tuple);
            let reason =
                tuple.and_then(|tuple| self.is_beyond(id, tuple).or_else(|| self.ask_host(id)));
            if let Some(reason) = reason {
                self.drop_claim(id, reason);
            }
        }
    }
}
