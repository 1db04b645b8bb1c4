//! An emulated NIC for tests whose peers may be in other processes of this machine, also in other network namespaces.
//!
//! A post writes into the peer's memory at once (`process_vm_writev(2)`), whatever the peer does just then, as a NIC would; then it says so by a Unix
//! socket, from which the peer takes completions. So a peer that is stopped, or computes, gets its bytes; one that is killed breaks its
//! queue pairs. Where the [other emulated NIC](crate::fabric) does what a good NIC seldom does, this one does what a good NIC does.
//!
//! ```text
//! DIRECTORY/NAME     where a NIC listens; its endpoints name it, in the place of a GID
//! queue pair         two connections: each side makes the one by which it sends, at `connect`
//! ```
//!
//! Both processes may write each other's memory: they run as the same user, and nothing (Yama, seccomp) forbids `ptrace` between them.

use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::endpoint::Endpoint;
use crate::immediate;
use crate::transport::{
    Access, BATCH, Completion, Post, QueueId, RECEIVES, Refused, Region, Target, Transport,
};
use events::Events;
use record::Record;
use world::{Memory, World};

mod descriptor;
mod events;
mod outward;
mod record;
mod world;

/// An emulated NIC of this process.
pub struct Wire {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    name: [u8; 16],
    events: Events,
    world: Mutex<World>,
    /// This process is a child of that which has opened it.
    is_copy: AtomicBool,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        // A test that has panicked with it has failed anyhow.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.is_copy.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(place(&self.directory, &self.name));
        }
    }
}

/// Where a NIC listens.
fn place(directory: &Path, name: &[u8; 16]) -> PathBuf {
    // Half of it is random enough; a socket's path is short.
    let name = name[..8].iter().map(|byte| format!("{byte:02x}"));
    directory.join(name.collect::<String>())
}

impl Wire {
    /// Among those of a directory.
    ///
    /// # Errors
    /// [`Refused`]: it cannot listen there, or no descriptor is left.
    pub fn open(directory: &Path) -> Result<Self, Refused> {
        let name = random()?;
        let events = Events::new()?;
        let world = World::new(&place(directory, &name))?;
        events.watch(world.listener())?;
        Ok(Self {
            shared: Arc::new(Shared {
                directory: directory.to_owned(),
                name,
                events,
                world: Mutex::new(world),
                is_copy: AtomicBool::new(false),
            }),
        })
    }

    /// In a forked child, whose parent goes on with it: what the child drops of it, it drops here alone.
    pub fn note_fork(&self) {
        self.shared.is_copy.store(true, Ordering::Relaxed);
    }
}

fn random() -> Result<[u8; 16], Refused> {
    let mut bytes = [0; 16];
    // SAFETY: `bytes` has `bytes.len()` writable bytes. (The kernel gives as few as these at once, or none.)
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        Ok(bytes)
    } else {
        Err(refused("a random number"))
    }
}

/// By `errno`.
fn refused(what: &'static str) -> Refused {
    refused_by(what, &std::io::Error::last_os_error())
}

fn refused_by(what: &'static str, error: &std::io::Error) -> Refused {
    Refused {
        what,
        errno: error.raw_os_error().unwrap_or(0),
    }
}

/// Memory that an emulated NIC knows.
pub struct Registered {
    shared: Arc<Shared>,
    key: u32,
    memory: Memory,
}

impl Region for Registered {
    fn target(&self) -> Target {
        Target {
            key: self.key,
            address: self.memory.address,
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
    secret: [u8; 16],
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.world().remove(self.number);
    }
}

impl Transport for Wire {
    type Region = Registered;
    type Queue = Queue;

    unsafe fn register(
        &self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registered, Refused> {
        let memory = Memory {
            address: at as u64,
            bytes: bytes as u64,
            access,
        };
        Ok(Registered {
            key: self.shared.world().register(memory),
            memory,
            shared: Arc::clone(&self.shared),
        })
    }

    fn queue(&self) -> Result<Queue, Refused> {
        Ok(Queue {
            secret: random()?,
            number: self.shared.world().add(),
            shared: Arc::clone(&self.shared),
        })
    }

    fn id(&self, queue: &Queue) -> QueueId {
        QueueId(queue.number)
    }

    fn endpoint(&self, queue: &Queue) -> Endpoint {
        Endpoint {
            gid: self.shared.name,
            mtu: 3,
            number: queue.number,
            receives: RECEIVES,
            slots: immediate::SLOTS as u16,
            secret: queue.secret,
            ..Endpoint::default()
        }
    }

    fn connect(&self, queue: &Queue, peer: &Endpoint) -> Result<(), Refused> {
        let path = place(&self.shared.directory, &peer.gid);
        let outward = outward::Outward::connect(&path, peer.number)?;
        // It says when the peer has gone.
        self.shared.events.watch(outward.as_raw_fd())?;
        self.shared.world().connect(queue.number, outward);
        Ok(())
    }

    fn end(&self, queue: &Queue) {
        self.shared.world().fail(queue.number);
        self.shared.events.ring();
    }

    fn post(
        &self,
        queue: &Queue,
        post: &Post<'_, Registered>,
        tag: Option<u64>,
    ) -> Result<(), Refused> {
        let mut world = self.shared.world();
        let outward = world.outward(queue.number).ok_or(Refused {
            what: "a post on a queue pair that has failed, or is not connected",
            errno: libc::EINVAL,
        })?;
        let (placed, record) = match post {
            Post::Note(note) => (true, Record::note(note)),
            Post::Write(write) => {
                let memory = write.region.memory;
                let part = |offset: u32, length: u32| {
                    // A bug here would send memory that is none of the ring.
                    assert!(u64::from(offset) + u64::from(length) <= memory.bytes);
                    (memory.address + u64::from(offset), length as usize)
                };
                let trailer = write.trailer.map_or((0, 0), |at| part(at, 8));
                let parts = [part(write.offset, write.length), trailer];
                // SAFETY: both parts lie in memory that stays mapped until its region is dropped.
                let placed = unsafe { outward.place(parts, write.target.address) };
                (placed, Record::written(write, parts[0].1 + parts[1].1))
            }
        };
        if !(placed && outward.say(&record)) {
            // As a NIC's: the post was taken, and what became of it a completion says.
            world.fail(queue.number);
            self.shared.events.ring();
        } else if let Some(tag) = tag {
            let queue = QueueId(queue.number);
            world.complete(Completion::Sent { queue, tag });
            self.shared.events.ring();
        }
        Ok(())
    }

    fn poll(&self, into: &mut [Completion; BATCH]) -> Result<usize, Refused> {
        self.shared.events.take();
        let mut world = self.shared.world();
        world.take(&self.shared.events)?;
        let n = world.give(into);
        if world.is_any_left() {
            self.shared.events.ring();
        }
        Ok(n)
    }

    /// What has come and was not taken keeps [`Self::events`] readable anyhow.
    fn arm(&self) -> Result<(), Refused> {
        Ok(())
    }

    fn events(&self) -> RawFd {
        self.shared.events.number()
    }

    /// Nothing: that is over when the completions have been taken.
    fn take_events(&self) {}
}

#[cfg(test)]
mod tests;
