//! The NIC by which a process reaches other hosts: a real one, or for tests an emulated one whose peers are in other processes.

use std::os::fd::RawFd;

use crate::endpoint::Endpoint;
use crate::transport::{
    Access, BATCH, Completion, Post, QueueId, Refused, Region, Target, Transport, Write,
};
use crate::verbs::{self, Verbs};
use crate::wire::{self, Wire};

/// See the module.
pub enum Nic {
    /// For tests.
    Emulated(Wire),
    /// By libibverbs.
    Real(Verbs),
}

/// Memory that a [`Nic`] knows.
pub enum Registered {
    /// Of an emulated NIC.
    Emulated(wire::Registered),
    /// Of a real one.
    Real(verbs::Pinned),
}

/// A queue pair of a [`Nic`].
pub enum Queue {
    /// Of an emulated NIC.
    Emulated(wire::Queue),
    /// Of a real one.
    Real(verbs::Queue),
}

const ANOTHER: Refused = Refused {
    what: "an object of another NIC",
    errno: libc::EINVAL,
};

impl Nic {
    /// In a forked child, whose parent goes on with it. `true`: what the child drops of it, it drops here alone. Otherwise the child closes
    /// its copies of the [descriptors](Self::descriptors), and leaves the rest as it is.
    pub fn note_fork(&self) -> bool {
        match self {
            Self::Emulated(wire) => {
                wire.note_fork();
                true
            }
            Self::Real(_) => false,
        }
    }

    /// Its descriptors, which the program must not close.
    #[must_use]
    pub fn descriptors(&self) -> Option<[RawFd; 3]> {
        match self {
            Self::Emulated(_) => None,
            Self::Real(verbs) => Some(verbs.descriptors()),
        }
    }

    /// Gives up the number `wanted`, if that is one of its [descriptors](Self::descriptors). Returns the number that this one has instead.
    pub fn make_way(&mut self, wanted: RawFd) -> Option<RawFd> {
        match self {
            Self::Emulated(_) => None,
            Self::Real(verbs) => verbs.make_way(wanted),
        }
    }
}

impl Region for Registered {
    fn target(&self) -> Target {
        match self {
            Self::Emulated(region) => region.target(),
            Self::Real(region) => region.target(),
        }
    }
}

impl Registered {
    fn emulated(&self) -> Option<&wire::Registered> {
        match self {
            Self::Emulated(region) => Some(region),
            Self::Real(_) => None,
        }
    }

    fn real(&self) -> Option<&verbs::Pinned> {
        match self {
            Self::Emulated(_) => None,
            Self::Real(region) => Some(region),
        }
    }
}

/// The same post, with the region as its NIC knows it.
fn of<'a, R>(
    post: &Post<'a, Registered>,
    region: fn(&'a Registered) -> Option<&'a R>,
) -> Result<Post<'a, R>, Refused> {
    Ok(match *post {
        Post::Note(note) => Post::Note(note),
        Post::Write(ref write) => Post::Write(Write {
            region: region(write.region).ok_or(ANOTHER)?,
            offset: write.offset,
            length: write.length,
            trailer: write.trailer,
            target: write.target,
            immediate: write.immediate,
        }),
    })
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
        unsafe {
            match self {
                Self::Emulated(wire) => wire.register(at, bytes, access).map(Registered::Emulated),
                Self::Real(verbs) => verbs.register(at, bytes, access).map(Registered::Real),
            }
        }
    }

    fn queue(&self) -> Result<Queue, Refused> {
        match self {
            Self::Emulated(wire) => wire.queue().map(Queue::Emulated),
            Self::Real(verbs) => verbs.queue().map(Queue::Real),
        }
    }

    fn id(&self, queue: &Queue) -> QueueId {
        match (self, queue) {
            (Self::Emulated(wire), Queue::Emulated(queue)) => wire.id(queue),
            (Self::Real(verbs), Queue::Real(queue)) => verbs.id(queue),
            _ => unreachable!("{ANOTHER}"),
        }
    }

    fn endpoint(&self, queue: &Queue) -> Endpoint {
        match (self, queue) {
            (Self::Emulated(wire), Queue::Emulated(queue)) => wire.endpoint(queue),
            (Self::Real(verbs), Queue::Real(queue)) => verbs.endpoint(queue),
            _ => unreachable!("{ANOTHER}"),
        }
    }

    fn connect(&self, queue: &Queue, peer: &Endpoint) -> Result<(), Refused> {
        match (self, queue) {
            (Self::Emulated(wire), Queue::Emulated(queue)) => wire.connect(queue, peer),
            (Self::Real(verbs), Queue::Real(queue)) => verbs.connect(queue, peer),
            _ => Err(ANOTHER),
        }
    }

    fn end(&self, queue: &Queue) {
        match (self, queue) {
            (Self::Emulated(wire), Queue::Emulated(queue)) => wire.end(queue),
            (Self::Real(verbs), Queue::Real(queue)) => verbs.end(queue),
            _ => {}
        }
    }

    fn post(
        &self,
        queue: &Queue,
        post: &Post<'_, Registered>,
        tag: Option<u64>,
    ) -> Result<(), Refused> {
        match (self, queue) {
            (Self::Emulated(wire), Queue::Emulated(queue)) => {
                wire.post(queue, &of(post, Registered::emulated)?, tag)
            }
            (Self::Real(verbs), Queue::Real(queue)) => {
                verbs.post(queue, &of(post, Registered::real)?, tag)
            }
            _ => Err(ANOTHER),
        }
    }

    fn poll(&self, into: &mut [Completion; BATCH]) -> Result<usize, Refused> {
        match self {
            Self::Emulated(wire) => wire.poll(into),
            Self::Real(verbs) => verbs.poll(into),
        }
    }

    fn arm(&self) -> Result<(), Refused> {
        match self {
            Self::Emulated(wire) => wire.arm(),
            Self::Real(verbs) => verbs.arm(),
        }
    }

    fn events(&self) -> RawFd {
        match self {
            Self::Emulated(wire) => wire.events(),
            Self::Real(verbs) => verbs.events(),
        }
    }

    fn take_events(&self) {
        match self {
            Self::Emulated(wire) => wire.take_events(),
            Self::Real(verbs) => verbs.take_events(),
        }
    }
}
