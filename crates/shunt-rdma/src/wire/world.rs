//! What one emulated NIC has: memory, queue pairs, and completions that have not been taken.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::descriptor::high;
use super::events::Events;
use super::outward::Outward;
use super::record::{self, Record};
use super::refused_by;
use crate::transport::{Access, BATCH, Completion, NOTE_BYTES, QueueId, Refused, Target};

/// As real NICs say of what they give back of a queue pair that has failed (`IBV_WC_WR_FLUSH_ERR`).
const FLUSHED: u32 = 5;

#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) access: Access,
}

#[derive(Default)]
struct Pair {
    outward: Option<Outward>,
    inward: Option<UnixStream>,
    has_failed: bool,
}

pub(super) struct World {
    listener: UnixListener,
    /// Connections that have not said to which queue pair they are.
    strangers: Vec<UnixStream>,
    pairs: BTreeMap<u32, Pair>,
    memory: BTreeMap<u32, Memory>,
    done: VecDeque<Completion>,
    last: u32,
}

/// What a connection has to say.
enum Said {
    Nothing,
    This(Record),
    /// It has ended, or says nonsense.
    End,
}

impl World {
    pub(super) fn new(path: &Path) -> Result<Self, Refused> {
        let io = |error: std::io::Error| refused_by("a place to listen at", &error);
        let listener = high(UnixListener::bind(path).map_err(io)?)?;
        listener.set_nonblocking(true).map_err(io)?;
        Ok(Self {
            listener,
            strangers: Vec::new(),
            pairs: BTreeMap::new(),
            memory: BTreeMap::new(),
            done: VecDeque::new(),
            last: 0,
        })
    }

    pub(super) fn listener(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    pub(super) fn register(&mut self, memory: Memory) -> u32 {
        let key = self.next();
        self.memory.insert(key, memory);
        key
    }

    pub(super) fn forget(&mut self, key: u32) {
        self.memory.remove(&key);
    }

    pub(super) fn add(&mut self) -> u32 {
        let number = self.next();
        self.pairs.insert(number, Pair::default());
        number
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.pairs.remove(&number);
    }

    pub(super) fn connect(&mut self, number: u32, outward: Outward) {
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.outward = Some(outward);
        }
    }

    pub(super) fn outward(&mut self, number: u32) -> Option<&mut Outward> {
        self.pairs.get_mut(&number)?.outward.as_mut()
    }

    /// Ends a queue pair; said once, behind what has come by then: it is in this side's memory. The other side finds both connections
    /// closed.
    pub(super) fn fail(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        if std::mem::replace(&mut pair.has_failed, true) {
            return;
        }
        pair.outward = None;
        let inward = pair.inward.take();
        let said = |mut inward: UnixStream| {
            std::iter::from_fn(move || match hear(&mut inward) {
                Said::This(record) => Some(record),
                Said::Nothing | Said::End => None,
            })
        };
        let last = inward.into_iter().flat_map(said);
        let last: Vec<_> = last
            .map_while(|record| self.completion(number, record))
            .collect();
        self.done.extend(last);
        let queue = QueueId(number);
        self.done.push_back(Completion::Failed {
            queue,
            status: FLUSHED,
        });
    }

    pub(super) fn complete(&mut self, completion: Completion) {
        self.done.push_back(completion);
    }

    /// Takes what has come by all connections.
    pub(super) fn take(&mut self, events: &Events) -> Result<(), Refused> {
        // Looked at first: what such a peer has said has come by now.
        let gone: Vec<_> = self.gone().collect();
        while let Ok((stranger, _)) = self.listener.accept() {
            let stranger = high(stranger)?;
            let set = stranger.set_nonblocking(true);
            set.map_err(|error| refused_by("a connection of another NIC's", &error))?;
            events.watch(stranger.as_raw_fd())?;
            self.strangers.push(stranger);
        }
        for mut stranger in std::mem::take(&mut self.strangers) {
            match hear(&mut stranger) {
                Said::Nothing => self.strangers.push(stranger),
                Said::This(Record::Hello(number)) => self.admit(number, stranger),
                Said::This(_) | Said::End => {}
            }
        }
        let numbers: Vec<_> = self.pairs.keys().copied().collect();
        for number in numbers {
            self.take_of(number);
        }
        // One whose connection is there says its end by that.
        for number in gone {
            if self.inward(number).is_none() {
                self.fail(number);
            }
        }
        Ok(())
    }

    /// Queue pairs whose peers have gone.
    fn gone(&self) -> impl Iterator<Item = u32> {
        let is_gone = |pair: &Pair| {
            let outward = pair.outward.as_ref();
            outward.is_some_and(|outward| is_ended(outward.as_raw_fd()))
        };
        let gone = self.pairs.iter().filter(move |(_, pair)| is_gone(pair));
        gone.map(|(number, _)| *number)
    }

    fn inward(&mut self, number: u32) -> Option<&mut UnixStream> {
        self.pairs.get_mut(&number)?.inward.as_mut()
    }

    fn admit(&mut self, number: u32, stranger: UnixStream) {
        let pair = self.pairs.get_mut(&number);
        if let Some(pair) = pair.filter(|pair| !pair.has_failed && pair.inward.is_none()) {
            pair.inward = Some(stranger);
        }
    }

    fn take_of(&mut self, number: u32) {
        while self.done.len() < BATCH {
            let Some(inward) = self.inward(number) else {
                break;
            };
            match hear(inward) {
                Said::Nothing => break,
                Said::This(record) => match self.completion(number, record) {
                    Some(completion) => self.done.push_back(completion),
                    None => self.fail(number),
                },
                Said::End => self.fail(number),
            }
        }
    }

    /// `None`: the peer must not have done that.
    fn completion(&self, number: u32, record: Record) -> Option<Completion> {
        let queue = QueueId(number);
        match record {
            Record::Hello(_) => None,
            Record::Written {
                immediate,
                length,
                target,
            } => (length == 0 || self.is_target(target, length)).then_some(Completion::Written {
                queue,
                immediate,
                length,
            }),
            Record::Note(bytes, length) => {
                (length as usize <= NOTE_BYTES).then_some(Completion::Note {
                    queue,
                    bytes,
                    length,
                })
            }
        }
    }

    fn is_target(&self, target: Target, length: u32) -> bool {
        self.memory.get(&target.key).is_some_and(|memory| {
            let offset = target.address.checked_sub(memory.address);
            let end = offset.and_then(|offset| offset.checked_add(length.into()));
            memory.access == Access::Target && end.is_some_and(|end| end <= memory.bytes)
        })
    }

    pub(super) fn give(&mut self, into: &mut [Completion; BATCH]) -> usize {
        let n = self.done.len().min(BATCH);
        for (place, completion) in into.iter_mut().zip(self.done.drain(..n)) {
            *place = completion;
        }
        n
    }

    pub(super) fn is_any_left(&self) -> bool {
        !self.done.is_empty()
    }
}

/// The next record of a connection.
fn hear(connection: &mut UnixStream) -> Said {
    let mut bytes = [0; record::BYTES];
    match connection.read(&mut bytes) {
        Ok(n) if n == bytes.len() => Record::parse(&bytes).map_or(Said::End, Said::This),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Said::Nothing,
        Ok(_) | Err(_) => Said::End,
    }
}

/// Whether nobody is at the other end of a connection any more.
fn is_ended(connection: RawFd) -> bool {
    let mut look = libc::pollfd {
        fd: connection,
        events: 0,
        revents: 0,
    };
    // SAFETY: one writable entry.
    let ready = unsafe { libc::poll(&raw mut look, 1, 0) };
    ready > 0 && look.revents & (libc::POLLHUP | libc::POLLERR) != 0
}
