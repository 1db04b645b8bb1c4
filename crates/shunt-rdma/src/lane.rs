//! A queue pair with all that is counted about it: what the peer can receive, what the send queue can hold, what has arrived.

use crate::endpoint::Endpoint;
use crate::grants::{Grants, Overdrawn, Rank};
use crate::note::Note;
use crate::transport::{Post, QueueId, RECEIVES, SENDS, SIGNALLED, Transport, Write};

/// What has been posted and what has come, for `shunt stats` and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes with immediate.
    pub writes: u64,
    /// Their bytes.
    pub written: u64,
    /// Notes that say something.
    pub notes: u64,
    /// Notes that only grant.
    pub grants: u64,
    /// Posts whose completion was asked for.
    pub signalled: u64,
    /// Completions of the peer's writes.
    pub arrivals: u64,
}

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unposted {
    /// There is no receive or no place for it just now.
    Full,
    /// The queue pair has failed.
    Failed,
}

pub(crate) struct Lane<T: Transport> {
    queue: T::Queue,
    id: QueueId,
    grants: Grants,
    /// Posts so far.
    posted: u64,
    /// How many of them are known to have arrived.
    arrived: u64,
    unsignalled: u32,
    failed: bool,
    counts: Counts,
}

impl<T: Transport> Lane<T> {
    /// Over a queue pair that is connected to that peer's.
    pub(crate) fn new(transport: &T, queue: T::Queue, peer: &Endpoint) -> Self {
        Self {
            id: transport.id(&queue),
            queue,
            grants: Grants::new(peer.receives, RECEIVES),
            posted: 0,
            arrived: 0,
            unsignalled: 0,
            failed: false,
            counts: Counts::default(),
        }
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Nothing comes or goes by it any more.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// Ends the queue pair.
    pub(crate) fn end(&mut self, transport: &T) {
        self.failed = true;
        transport.end(&self.queue);
    }

    /// How many posts of that rank may go out now.
    pub(crate) fn room(&self, rank: Rank) -> u32 {
        if self.failed {
            return 0;
        }
        let places = u64::from(SENDS) - (self.posted - self.arrived);
        self.grants.room(rank).min(places as u32)
    }

    /// Whether a post of that number (counted from 1) has arrived.
    pub(crate) fn has_arrived(&self, number: u64) -> bool {
        self.arrived >= number
    }

    /// The number of the last post.
    pub(crate) fn last(&self) -> u64 {
        self.posted
    }

    pub(crate) fn write(
        &mut self,
        transport: &T,
        write: Write<'_, T::Region>,
    ) -> Result<(), Unposted> {
        let bytes = u64::from(write.length) + if write.trailer.is_some() { 8 } else { 0 };
        self.post(transport, &Post::Write(write), Rank::Data, false)?;
        self.counts.writes += 1;
        self.counts.written += bytes;
        Ok(())
    }

    /// `signalled`: it matters when it has arrived.
    pub(crate) fn note(
        &mut self,
        transport: &T,
        note: Note,
        signalled: bool,
    ) -> Result<(), Unposted> {
        let is_grant = note == Note::Grant;
        let rank = if is_grant { Rank::Grant } else { Rank::Note };
        if self.room(rank) == 0 {
            return Err(self.why_not());
        }
        let packed = note.pack(self.grants.take_owed());
        self.post(transport, &Post::Note(packed.bytes()), rank, signalled)?;
        *if is_grant {
            &mut self.counts.grants
        } else {
            &mut self.counts.notes
        } += 1;
        Ok(())
    }

    fn why_not(&self) -> Unposted {
        if self.failed {
            Unposted::Failed
        } else {
            Unposted::Full
        }
    }

    fn post(
        &mut self,
        transport: &T,
        post: &Post<'_, T::Region>,
        rank: Rank,
        signalled: bool,
    ) -> Result<(), Unposted> {
        if self.room(rank) == 0 {
            return Err(self.why_not());
        }
        let signalled = signalled || self.unsignalled + 1 >= SIGNALLED;
        let number = self.posted + 1;
        let posted = transport.post(&self.queue, post, signalled.then_some(number));
        if posted.is_err() {
            // There is a place for it, so it is not that.
            self.failed = true;
            return Err(Unposted::Failed);
        }
        self.grants.sent();
        self.posted = number;
        if signalled {
            self.unsignalled = 0;
            self.counts.signalled += 1;
        } else {
            self.unsignalled += 1;
        }
        Ok(())
    }

    /// That post, and all before it, have arrived.
    pub(crate) fn sent(&mut self, number: u64) {
        self.arrived = self.arrived.max(number.min(self.posted));
    }

    /// A write of the peer's has come.
    pub(crate) fn arrival(&mut self) -> Result<(), Overdrawn> {
        self.counts.arrivals += 1;
        self.grants.received()
    }

    /// A note of the peer's has come, which grants this many receives.
    pub(crate) fn noted(&mut self, granted: u16) -> Result<(), Overdrawn> {
        self.grants.received()?;
        self.grants.granted(granted)
    }

    /// Says how many receives have been posted anew, where that is due and nothing else will.
    pub(crate) fn grant(&mut self, transport: &T) {
        if self.grants.is_due() && !self.failed {
            // If there is no place for it, what makes one is a completion, after which this is called again.
            let _ = self.note(transport, Note::Grant, false);
        }
    }
}
