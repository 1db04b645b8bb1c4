//! What a script has done so far, as far as its author must know: which slots name what, how much is
//! unread, and what a call would wait for. It need not be exact. A call that sleeps for ever is
//! interrupted by the conductor, natively too; that only takes time.

/// A worker process.
pub(crate) type Worker = usize;
/// A place for a descriptor in a worker.
pub(crate) type Slot = usize;

pub(crate) const WORKERS: usize = 2;
pub(crate) const SLOTS: usize = 12;
pub(crate) const THREADS: usize = 3;

/// What a slot names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Nothing,
    /// One end of a connection.
    End(EndId),
    /// An epoll set, and how deep others lie in it.
    Set(usize),
    /// A socket that is not connected.
    Bare,
}

/// End `side` (0 or 1) of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndId {
    pub(crate) connection: usize,
    pub(crate) side: usize,
}

impl EndId {
    pub(crate) fn peer(self) -> Self {
        Self {
            side: 1 - self.side,
            ..self
        }
    }
}

/// One end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct End {
    /// What its peer has sent and it has not read.
    pub(crate) unread: usize,
    /// It sends no more; nor does it want to receive.
    pub(crate) has_shut: [bool; 2],
    pub(crate) is_nonblocking: bool,
    /// Receives end by themselves.
    pub(crate) has_timeout: bool,
    pub(crate) low_at: usize,
    /// Processes that keep a descriptor till the end.
    pub(crate) is_kept: bool,
    pub(crate) is_closed: bool,
    /// The connection has ended by a reset.
    pub(crate) is_reset: bool,
    /// A thread receives; a thread sends.
    pub(crate) is_receiving: bool,
    pub(crate) is_sending: bool,
}

/// What a thread has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) worker: Worker,
    pub(crate) thread: usize,
    pub(crate) what: Wait,
    /// What it waits for has happened.
    pub(crate) is_woken: bool,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// The least number of bytes for which it waits, and the most that it takes.
    Bytes(EndId, usize, usize),
    /// Room for what it sends.
    Room(EndId),
    /// Events of whatever it looks at.
    Events,
}

/// All of it.
#[derive(Default)]
pub(crate) struct Model {
    ends: Vec<[End; 2]>,
    slots: [Vec<Thing>; WORKERS],
    pub(crate) begun: Vec<Begun>,
    /// Registrations: worker, set, member.
    pub(crate) watched: Vec<(Worker, Slot, Slot)>,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            slots: [vec![Thing::Nothing; SLOTS], vec![Thing::Nothing; SLOTS]],
            ..Self::default()
        }
    }

    pub(crate) fn thing(&self, worker: Worker, slot: Slot) -> Thing {
        self.slots[worker][slot]
    }

    pub(crate) fn put(&mut self, worker: Worker, slot: Slot, thing: Thing) {
        self.slots[worker][slot] = thing;
    }

    pub(crate) fn end(&self, id: EndId) -> &End {
        &self.ends[id.connection][id.side]
    }

    pub(crate) fn end_mut(&mut self, id: EndId) -> &mut End {
        &mut self.ends[id.connection][id.side]
    }

    pub(crate) fn add_connection(&mut self) -> usize {
        self.ends.push([End::default(), End::default()]);
        self.ends.len() - 1
    }

    /// Slots whose things are such.
    pub(crate) fn all(&self, is_such: impl Fn(Thing) -> bool) -> Vec<(Worker, Slot)> {
        let of = |worker: Worker| (0..SLOTS).map(move |slot| (worker, slot));
        (0..WORKERS)
            .flat_map(of)
            .filter(|&(worker, slot)| is_such(self.thing(worker, slot)))
            .collect()
    }

    /// The slots that name this end.
    pub(crate) fn names(&self, id: EndId) -> Vec<(Worker, Slot)> {
        self.all(|thing| thing == Thing::End(id))
    }

    pub(crate) fn free(&self, worker: Worker, not: Option<Slot>) -> Option<Slot> {
        (0..SLOTS).find(|&slot| self.thing(worker, slot) == Thing::Nothing && Some(slot) != not)
    }

    pub(crate) fn open_connections(&self) -> usize {
        let is_open = |ends: &&[End; 2]| ends.iter().any(|end| !end.is_closed);
        self.ends.iter().filter(is_open).count()
    }

    /// Nothing more will come to this end.
    pub(crate) fn has_ended(&self, id: EndId) -> bool {
        let (end, peer) = (self.end(id), self.end(id.peer()));
        end.is_reset || end.has_shut[1] || peer.has_shut[0] || peer.is_closed
    }

    /// Whether a receive of at least `least` bytes would sleep.
    pub(crate) fn would_sleep(&self, id: EndId, least: usize) -> bool {
        let end = self.end(id);
        let least = least.max(end.low_at).max(1);
        end.unread < least && !self.has_ended(id) && !end.is_nonblocking && !end.has_timeout
    }

    pub(crate) fn sent(&mut self, from: EndId, n: usize) {
        let to = from.peer();
        let stops = self.end(from).has_shut[0] || self.end(from).is_reset || self.end(to).is_closed;
        if self.end(to).is_closed {
            self.end_mut(from).is_reset = true;
        }
        if !stops {
            self.end_mut(to).unread += n;
        }
        self.wake(to);
    }

    pub(crate) fn received(&mut self, at: EndId, n: usize) {
        let end = self.end_mut(at);
        end.unread -= n.min(end.unread);
    }

    /// Something has happened to this end.
    pub(crate) fn wake(&mut self, id: EndId) {
        let unread = self.end(id).unread;
        let has_ended = self.has_ended(id);
        for begun in &mut self.begun {
            match begun.what {
                Wait::Bytes(end, least, _) if end == id => {
                    begun.is_woken |= has_ended || unread >= least;
                }
                Wait::Events => begun.is_woken = true,
                _ => {}
            }
        }
    }

    /// A slot is closed; the last one of an end closes that.
    pub(crate) fn closed(&mut self, worker: Worker, slot: Slot, resets: bool) {
        let thing = std::mem::replace(&mut self.slots[worker][slot], Thing::Nothing);
        self.watched
            .retain(|&(w, set, member)| w != worker || (set != slot && member != slot));
        let Thing::End(id) = thing else { return };
        let is_waited_for = self.end(id).is_receiving || self.end(id).is_sending;
        if !self.names(id).is_empty() || self.end(id).is_kept || is_waited_for {
            return;
        }
        let unread = self.end(id).unread > 0;
        self.end_mut(id).is_closed = true;
        if resets || unread {
            self.end_mut(id.peer()).is_reset = true;
        }
        self.wake(id.peer());
    }

    /// A thread has been joined.
    pub(crate) fn joined(&mut self, index: usize) -> Begun {
        let begun = self.begun.remove(index);
        match begun.what {
            Wait::Bytes(end, _, most) => {
                self.end_mut(end).is_receiving = false;
                self.received(end, most);
            }
            Wait::Room(end) => self.end_mut(end).is_sending = false,
            Wait::Events => {}
        }
        begun
    }

    pub(crate) fn free_thread(&self, worker: Worker) -> Option<usize> {
        (0..THREADS).find(|&thread| {
            !self
                .begun
                .iter()
                .any(|b| b.worker == worker && b.thread == thread)
        })
    }
}
