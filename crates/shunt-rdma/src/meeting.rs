//! How two processes get a queue pair to each other, and the next one when it has failed: by [words](crate::word), which come in order
//! or not at all. It posts nothing and waits for nothing.
//!
//! ```text
//!            offers, or hears an offer of a later round
//!  Apart ───────────────────────────────────────────────> Offered
//!    ^                                                       │ hears the peer's offer of this round: connects, takes the link in,
//!    │ hears that the peer has none                          v  says `Linked`
//!    └────────────────────────────────────────────────── Connected
//!                                                            │ hears the peer's `Linked`
//!                                                            v
//!                                                           Met: sends
//! ```
//!
//! Either side may begin, both at once, too; and either begins the next round when the queue pair fails, whatever the other knows by
//! then: an offer of a later round ends all earlier ones. So no word of one round is ever taken for one of another.
//!
//! `Linked` is said only once the link is in its [port](crate::port): what the peer sends after that finds it there.

use crate::endpoint::Endpoint;
use crate::transport::{Refused, Transport};
use crate::word::Word;

/// See the module. One for each peer process and device.
pub struct Meeting<T: Transport> {
    /// The last round; 0: none yet.
    round: u32,
    stage: Stage<T::Queue>,
}

enum Stage<Q> {
    /// This side has no queue pair that is to be connected.
    Apart,
    /// It has told of this one.
    Offered(Q, Endpoint),
    /// The queue pair is connected, and the caller has it.
    Connected,
    /// The peer's is, too.
    Met,
}

/// A queue pair that is connected to the peer's.
pub struct Connected<Q> {
    /// It receives; it sends once [`Heard::Met`] is said.
    pub queue: Q,
    /// Its two ends: of this side, of the peer.
    pub ends: [Endpoint; 2],
    /// What is to be said in this order, once the link is in its port.
    words: [Option<Word>; 2],
}

impl<Q> Connected<Q> {
    /// What is to be said, in this order, once the link is in its port.
    pub fn words(&self) -> impl Iterator<Item = Word> + use<Q> {
        self.words.into_iter().flatten()
    }
}

/// What came of a word.
pub enum Heard<Q> {
    /// Nothing: it is of a round that is over.
    Nothing,
    /// A queue pair is connected. A link that the caller has to this peer is over, and is to be abandoned. The new one goes into its port,
    /// then the [words](Connected::words) are said.
    Connected(Connected<Q>),
    /// Both sides receive: this one may send.
    Met,
    /// The peer has no queue pair, and makes none. A link that the caller has to this peer is over.
    Gone,
    /// This side cannot have one; the word says so to the peer. A link that the caller has to this peer is over.
    Refused(Refused, Word),
}

/// The peer has said what no correct one says now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

impl<T: Transport> Default for Meeting<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Transport> Meeting<T> {
    /// With a peer of whom nothing has been heard.
    #[must_use]
    pub fn new() -> Self {
        Self {
            round: 0,
            stage: Stage::Apart,
        }
    }

    /// Begins a round, whatever has become of the last one: a link of that one is over. The word is to be said.
    ///
    /// # Errors
    /// [`Refused`]: this side can have no queue pair; nothing has changed.
    pub fn begin(&mut self, transport: &T) -> Result<Word, Refused> {
        let round = self.round.checked_add(1).ok_or(Refused {
            what: "a round after the last one",
            errno: libc::EOVERFLOW,
        })?;
        let queue = transport.queue()?;
        let own = transport.endpoint(&queue);
        self.round = round;
        self.stage = Stage::Offered(queue, own);
        Ok(Word::Offer(round, own))
    }

    /// The peer has said this.
    ///
    /// # Errors
    /// [`Nonsense`].
    pub fn heard(&mut self, transport: &T, word: &Word) -> Result<Heard<T::Queue>, Nonsense> {
        if word.round() < self.round {
            return Ok(Heard::Nothing);
        }
        let is_later = word.round() > self.round;
        match (*word, std::mem::replace(&mut self.stage, Stage::Apart)) {
            (Word::Offer(round, peer), _) if is_later => {
                self.round = round;
                Ok(self.answer(transport, peer))
            }
            (Word::Offer(_, peer), Stage::Offered(queue, own)) => {
                Ok(self.connect(transport, queue, [own, peer], None))
            }
            (Word::Linked(_), Stage::Connected) if !is_later => {
                self.stage = Stage::Met;
                Ok(Heard::Met)
            }
            // This side has said that it has none, or has been told that the peer has none: both may have failed at once.
            (Word::Linked(_) | Word::Gone(_), Stage::Apart) if !is_later => Ok(Heard::Nothing),
            (Word::Gone(_), _) if !is_later => Ok(Heard::Gone),
            (_, stage) => {
                self.stage = stage;
                Err(Nonsense)
            }
        }
    }

    /// To an offer of a round that the peer has begun.
    fn answer(&mut self, transport: &T, peer: Endpoint) -> Heard<T::Queue> {
        match transport.queue() {
            Ok(queue) => {
                let own = transport.endpoint(&queue);
                let offer = Word::Offer(self.round, own);
                self.connect(transport, queue, [own, peer], Some(offer))
            }
            Err(refused) => Heard::Refused(refused, Word::Gone(self.round)),
        }
    }

    fn connect(
        &mut self,
        transport: &T,
        queue: T::Queue,
        ends: [Endpoint; 2],
        offer: Option<Word>,
    ) -> Heard<T::Queue> {
        if let Err(refused) = transport.connect(&queue, &ends[1]) {
            return Heard::Refused(refused, Word::Gone(self.round));
        }
        self.stage = Stage::Connected;
        Heard::Connected(Connected {
            queue,
            ends,
            words: [offer, Some(Word::Linked(self.round))],
        })
    }
}
