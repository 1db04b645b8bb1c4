//! An emulated NIC for tests: several of them in one process, memory for memory.
//!
//! It does what a NIC is allowed to do and a good one seldom does: bytes of a write are placed in random order, some of them long
//! before its completion ([`Manners::placement`]); queue pairs overtake each other ([`Manners::order`]); memory is read when the
//! write goes out, not when it is posted; a queue pair fails before, within or after a placement ([`Failure`]). And it checks what
//! a real one answers by an error: keys, bounds, receives, places in the send queue.
//!
//! Whoever polls a NIC carries out what has come for it: there is no thread. Time is real, or moved on by the test.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::endpoint::Endpoint;
use crate::transport::{
    Access, BATCH, Completion, NOTE_BYTES, Post, QueueId, RECEIVES, Refused, Region, Target,
    Transport, Write,
};
use clock::Clock;
use request::{Body, INLINE, Request, Source};
use world::World;

mod clock;
mod event;
mod memory;
mod request;
mod world;

/// How the emulated NICs behave.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// For all that is random.
    pub seed: u64,
    /// Nanoseconds from a post to its completion at the peer.
    pub delay: u64,
    /// Bytes of a write are placed in random order, and some before their time.
    pub placement: bool,
    /// Queue pairs take turns at random.
    pub order: bool,
    /// Time moves only by [`Fabric::advance`].
    pub manual: bool,
}

impl Manners {
    /// The best: in order, at once, in real time.
    pub const GOOD: Self = Self {
        seed: 1,
        delay: 0,
        placement: false,
        order: false,
        manual: false,
    };

    /// The worst, in time that the test moves.
    #[must_use]
    pub const fn bad(seed: u64) -> Self {
        Self {
            seed,
            delay: 1000,
            placement: true,
            order: true,
            manual: true,
        }
    }
}

/// When a queue pair fails, seen from its next post on. The sender hears of it in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Before anything has been placed.
    Before,
    /// Some bytes have been placed.
    Within,
    /// All bytes have been placed, and the receiver has not been told.
    Unannounced,
    /// The receiver has been told; only the acknowledgement is lost.
    Unacknowledged,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Before,
        Self::Within,
        Self::Unannounced,
        Self::Unacknowledged,
    ];
}

/// What a NIC has been asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Posts, each with a doorbell.
    pub posts: u64,
    /// Those of them that were writes.
    pub writes: u64,
    /// Payload and notes, without headers.
    pub bytes: u64,
    /// Those that were read as they were posted.
    pub inline: u64,
    /// Completions that it has handed out, of both kinds.
    pub completions: u64,
}

/// The wire between all its NICs.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

struct Shared {
    world: Mutex<World>,
    clock: Clock,
    delay: u64,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        // A test that has panicked with it has failed anyhow.
        self.world
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Fabric {
    /// A wire.
    #[must_use]
    pub fn new(manners: Manners) -> Self {
        Self {
            shared: Arc::new(Shared {
                world: Mutex::new(World::new(&manners)),
                clock: Clock::new(manners.manual),
                delay: manners.delay,
            }),
        }
    }

    /// A NIC on it.
    ///
    /// # Errors
    /// [`Refused`]: no descriptor is left.
    pub fn nic(&self) -> Result<Nic, Refused> {
        let index = self.shared.world().add_nic()?;
        Ok(Nic {
            shared: Arc::clone(&self.shared),
            index,
        })
    }

    /// Moves time on by `by` nanoseconds, where it does not move by itself.
    pub fn advance(&self, by: u64) {
        self.shared.clock.advance(by);
    }

    /// The peer of the queue pair of this name has no receive left, against all rules (RNR).
    pub fn starve(&self, queue: QueueId) {
        self.shared.world().starve(queue.0);
    }

    /// A NIC's device is removed, and put back: in between whatever is asked of it is refused, and its queue pairs are gone for good.
    pub fn plug(&self, nic: &Nic, is_there: bool) {
        self.shared.world().plug(nic.index, is_there);
    }

    /// From now on `more` regions may be registered, of all NICs together.
    pub fn limit_regions(&self, more: usize) {
        self.shared.world().limit_regions(more);
    }

    /// How many are.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.shared.world().regions()
    }

    /// The queue pair of this name is gone without a word, as with its device.
    pub fn lose(&self, queue: QueueId) {
        self.shared.world().end(queue.0);
    }

    /// The queue pair of this name fails with its next post, or with the one that is on its way.
    pub fn fail(&self, queue: QueueId, how: Failure) {
        self.shared.world().fail_next(queue, how);
    }
}

/// One emulated NIC.
pub struct Nic {
    shared: Arc<Shared>,
    index: usize,
}

impl Nic {
    /// What it was asked for so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.world().counts(self.index)
    }
}

/// Memory that an emulated NIC knows.
pub struct Registered {
    shared: Arc<Shared>,
    key: u32,
    address: u64,
}

impl Region for Registered {
    fn target(&self) -> Target {
        Target {
            key: self.key,
            address: self.address,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.world().forget(self.key);
    }
}

/// An emulated queue pair.
pub struct Queue {
    shared: Arc<Shared>,
    number: u32,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.world().end(self.number);
    }
}

impl Transport for Nic {
    type Region = Registered;
    type Queue = Queue;

    unsafe fn register(
        &self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registered, Refused> {
        // SAFETY: the caller's promise.
        let memory = unsafe { memory::Memory::new(at, bytes) };
        Ok(Registered {
            key: self.shared.world().register(self.index, memory, access)?,
            address: at as u64,
            shared: Arc::clone(&self.shared),
        })
    }

    fn queue(&self) -> Result<Queue, Refused> {
        Ok(Queue {
            number: self.shared.world().add_queue(self.index)?,
            shared: Arc::clone(&self.shared),
        })
    }

    fn id(&self, queue: &Queue) -> QueueId {
        QueueId(queue.number)
    }

    fn endpoint(&self, queue: &Queue) -> Endpoint {
        let mut secret = [0; 16];
        secret[..4].copy_from_slice(&queue.number.to_le_bytes());
        Endpoint {
            mtu: 3,
            number: queue.number,
            receives: RECEIVES,
            slots: 16,
            secret,
            ..Endpoint::default()
        }
    }

    fn connect(&self, queue: &Queue, peer: &Endpoint) -> Result<(), Refused> {
        self.shared.world().connect(queue.number, peer.number)
    }

    fn end(&self, queue: &Queue) {
        self.shared.world().give_up(queue.number);
    }

    fn post(
        &self,
        queue: &Queue,
        post: &Post<'_, Registered>,
        tag: Option<u64>,
    ) -> Result<(), Refused> {
        let mut world = self.shared.world();
        let body = match post {
            Post::Note(note) => {
                let mut bytes = [0; NOTE_BYTES];
                bytes[..note.len()].copy_from_slice(note);
                Body::Note {
                    bytes,
                    length: note.len(),
                }
            }
            Post::Write(write) => Body::Write {
                source: world.source(write)?,
                bytes: total(write),
                target: write.target,
                immediate: write.immediate,
            },
        };
        let due = self.shared.clock.now() + self.shared.delay;
        let left = self.shared.clock.is_real().then_some(self.shared.delay);
        world.post(queue.number, Request::new(body, due, tag), left)
    }

    fn poll(&self, into: &mut [Completion; BATCH]) -> Result<usize, Refused> {
        let now = self.shared.clock.now();
        self.shared.world().poll(self.index, now, into)
    }

    fn arm(&self) -> Result<(), Refused> {
        let now = self.shared.clock.now();
        self.shared.world().arm(self.index, now)
    }

    fn events(&self) -> RawFd {
        self.shared.world().events(self.index)
    }

    fn take_events(&self) {
        self.shared.world().take_events(self.index);
    }
}

/// Bytes of a write, its trailer's included.
fn total(write: &Write<'_, Registered>) -> usize {
    write.length as usize + if write.trailer.is_some() { 8 } else { 0 }
}

impl World {
    /// Where the bytes of a write come from: short ones are read now.
    fn source(&self, write: &Write<'_, Registered>) -> Result<Source, Refused> {
        let source = Source::Memory {
            key: write.region.key,
            offset: write.offset as usize,
            length: write.length as usize,
            trailer: write.trailer.map(|at| at as usize),
        };
        let bytes = total(write);
        if bytes > INLINE {
            return Ok(source);
        }
        let mut inline = [0; INLINE / 8];
        for (i, word) in inline.iter_mut().enumerate().take(bytes.div_ceil(8)) {
            *word = self.word(&source, i).ok_or(Refused {
                what: "a write from memory that is not registered",
                errno: libc::EFAULT,
            })?;
        }
        Ok(Source::Inline(inline))
    }
}
