//! All NICs of a fabric, their queue pairs and their memory.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use super::event::Event;
use super::memory::Memory;
use super::request::{Body, Request, Source};
use super::{Counts, Failure, Manners};
use crate::transport::{Access, BATCH, Completion, QueueId, RECEIVES, Refused, SENDS};

/// `IBV_WC_*`, as a NIC says them.
const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const RETRY_EXCEEDED: u32 = 12;
const NO_RECEIVE: u32 = 13;

mod deliver;

pub(super) struct World {
    nics: Vec<Nic>,
    queues: Vec<Queue>,
    memory: Vec<Option<(Memory, Access)>>,
    /// How many more regions may be registered.
    regions_left: usize,
    random: u64,
    placement: bool,
    order: bool,
}

struct Nic {
    event: Event,
    is_there: bool,
    armed: bool,
    /// The event is set for what is on its way.
    scheduled: bool,
    /// Queue pairs whose requests come here.
    incoming: Vec<u32>,
    done: VecDeque<Done>,
    counts: Counts,
}

/// A completion that has not been taken.
struct Done {
    completion: Completion,
    /// Posts up to this one of the queue have their places again.
    frees: Option<u64>,
    /// A receive of the queue is posted anew.
    receives: bool,
    queue: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fresh,
    Connected,
    Failed,
}

struct Queue {
    nic: usize,
    peer: u32,
    state: State,
    receives: u32,
    /// As if it had none.
    is_starved: bool,
    requests: VecDeque<Request>,
    posted: u64,
    freed: u64,
    failure: Option<Failure>,
}

impl World {
    pub(super) fn new(manners: &Manners) -> Self {
        Self {
            nics: Vec::new(),
            queues: Vec::new(),
            memory: Vec::new(),
            regions_left: usize::MAX,
            random: manners.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            placement: manners.placement,
            order: manners.order,
        }
    }

    pub(super) fn add_nic(&mut self) -> Result<usize, Refused> {
        self.nics.push(Nic {
            event: Event::new()?,
            is_there: true,
            armed: false,
            scheduled: false,
            incoming: Vec::new(),
            done: VecDeque::new(),
            counts: Counts::default(),
        });
        Ok(self.nics.len() - 1)
    }

    pub(super) fn counts(&self, nic: usize) -> Counts {
        self.nics[nic].counts
    }

    pub(super) fn register(
        &mut self,
        nic: usize,
        memory: Memory,
        access: Access,
    ) -> Result<u32, Refused> {
        self.look_for(nic)?;
        self.regions_left = self.regions_left.checked_sub(1).ok_or(Refused {
            what: "pinned memory",
            errno: libc::ENOMEM,
        })?;
        self.memory.push(Some((memory, access)));
        Ok(self.memory.len() as u32)
    }

    pub(super) fn limit_regions(&mut self, more: usize) {
        self.regions_left = more;
    }

    pub(super) fn regions(&self) -> usize {
        self.memory.iter().flatten().count()
    }

    /// Whether a NIC's device is there.
    fn look_for(&self, nic: usize) -> Result<(), Refused> {
        self.nics[nic].is_there.then_some(()).ok_or(Refused {
            what: "a device that has been removed",
            errno: libc::ENODEV,
        })
    }

    pub(super) fn plug(&mut self, nic: usize, is_there: bool) {
        self.nics[nic].is_there = is_there;
        self.nics[nic].done.clear();
        for queue in self.queues.iter_mut().filter(|queue| queue.nic == nic) {
            queue.state = State::Failed;
            queue.requests.clear();
        }
    }

    /// The peer of a queue pair has no receive left, and gets none.
    pub(super) fn starve(&mut self, number: u32) {
        let peer = self.queue(number).peer;
        self.queue(peer).is_starved = true;
    }

    pub(super) fn forget(&mut self, key: u32) {
        self.memory[key as usize - 1] = None;
    }

    fn memory(&self, key: u32, access: Access) -> Option<Memory> {
        let (memory, allowed) = (*self.memory.get((key as usize).checked_sub(1)?)?)?;
        (allowed == access).then_some(memory)
    }

    /// Numbers begin with 1.
    pub(super) fn add_queue(&mut self, nic: usize) -> Result<u32, Refused> {
        self.look_for(nic)?;
        self.queues.push(Queue {
            nic,
            peer: 0,
            state: State::Fresh,
            receives: u32::from(RECEIVES),
            is_starved: false,
            requests: VecDeque::new(),
            posted: 0,
            freed: 0,
            failure: None,
        });
        Ok(self.queues.len() as u32)
    }

    fn queue(&mut self, number: u32) -> &mut Queue {
        &mut self.queues[number as usize - 1]
    }

    pub(super) fn connect(&mut self, number: u32, peer: u32) -> Result<(), Refused> {
        let is_there = peer >= 1 && peer as usize <= self.queues.len();
        if !is_there || self.queue(number).state != State::Fresh {
            return Err(Refused {
                what: "a connection to this queue pair",
                errno: libc::EINVAL,
            });
        }
        let queue = self.queue(number);
        queue.peer = peer;
        queue.state = State::Connected;
        let nic = self.queue(peer).nic;
        self.nics[nic].incoming.push(number);
        Ok(())
    }

    /// Its owner ends it, and hears of that.
    pub(super) fn give_up(&mut self, number: u32) {
        self.fail(number, FLUSHED);
    }

    /// It is gone.
    pub(super) fn end(&mut self, number: u32) {
        let queue = self.queue(number);
        queue.state = State::Failed;
        queue.requests.clear();
    }

    pub(super) fn fail_next(&mut self, queue: QueueId, how: Failure) {
        self.queue(queue.0).failure = Some(how);
    }

    /// `left`: real nanoseconds until it has come.
    pub(super) fn post(
        &mut self,
        number: u32,
        mut request: Request,
        left: Option<u64>,
    ) -> Result<(), Refused> {
        let queue = self.queue(number);
        let refused = |errno| {
            Err(Refused {
                what: "a post",
                errno,
            })
        };
        if queue.state != State::Connected {
            return refused(libc::EINVAL);
        }
        if queue.posted - queue.freed >= u64::from(SENDS) {
            return refused(libc::ENOMEM);
        }
        queue.posted += 1;
        request.number = queue.posted;
        let (nic, peer) = (queue.nic, queue.peer);
        count(&mut self.nics[nic].counts, &request);
        self.queue(number).requests.push_back(request);
        let to = self.queue(peer).nic;
        let to = &mut self.nics[to];
        if to.armed && !to.scheduled {
            to.scheduled = true;
            to.event.fire_after(left.unwrap_or(0));
        }
        Ok(())
    }

    pub(super) fn arm(&mut self, nic: usize, now: u64) -> Result<(), Refused> {
        self.look_for(nic)?;
        let heads = self.nics[nic].incoming.iter().filter_map(|&number| {
            let head = self.queues[number as usize - 1].requests.front()?;
            Some(head.due)
        });
        let first = heads.min();
        let nic = &mut self.nics[nic];
        nic.armed = true;
        nic.scheduled = first.is_some();
        if let Some(due) = first {
            nic.event.fire_after(due.saturating_sub(now));
        }
        Ok(())
    }

    pub(super) fn events(&self, nic: usize) -> RawFd {
        self.nics[nic].event.number()
    }

    pub(super) fn take_events(&mut self, nic: usize) {
        let nic = &mut self.nics[nic];
        nic.event.take();
        nic.scheduled = false;
    }

    /// Carries out what has come for a NIC, and hands out what is done.
    pub(super) fn poll(
        &mut self,
        nic: usize,
        now: u64,
        into: &mut [Completion; BATCH],
    ) -> Result<usize, Refused> {
        // Also where its device has been removed: who has sent there hears that nobody answers.
        self.deliver(nic, now);
        self.look_for(nic)?;
        let mut n = 0;
        while n < BATCH
            && let Some(done) = self.nics[nic].done.pop_front()
        {
            into[n] = done.completion;
            n += 1;
            let queue = self.queue(done.queue);
            queue.receives += u32::from(done.receives);
            queue.freed = queue.freed.max(done.frees.unwrap_or(0));
        }
        self.nics[nic].counts.completions += n as u64;
        Ok(n)
    }

    fn fail(&mut self, number: u32, status: u32) {
        let queue = self.queue(number);
        if queue.state == State::Failed {
            return;
        }
        queue.state = State::Failed;
        queue.requests.clear();
        let queue = QueueId(number);
        self.push(number, Completion::Failed { queue, status }, None, false);
    }

    fn push(&mut self, queue: u32, completion: Completion, frees: Option<u64>, receives: bool) {
        let nic = self.queue(queue).nic;
        let nic = &mut self.nics[nic];
        nic.done.push_back(Done {
            completion,
            frees,
            receives,
            queue,
        });
        if nic.armed {
            nic.armed = false;
            nic.event.fire_after(0);
        }
    }

    fn random(&mut self) -> u64 {
        // Xorshift (Marsaglia, 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 8
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random().is_multiple_of(n)
    }
}

fn count(counts: &mut Counts, request: &Request) {
    counts.posts += 1;
    let (bytes, is_inline) = match &request.body {
        Body::Write { source, bytes, .. } => {
            counts.writes += 1;
            (*bytes, matches!(source, Source::Inline(_)))
        }
        Body::Note { length, .. } => (*length, true),
    };
    counts.bytes += bytes as u64;
    counts.inline += u64::from(is_inline);
}
