//! One connection on a link: its rings, its regions, and what both sides have said of it.

use shunt_shm::atomic::{Ordering, full};
use shunt_shm::publish;
use shunt_shm::ring::mirror::{Arrivals, Run, Runs};
use shunt_shm::ring::{Consumer, Fault, Memory, Position, Producer};
use shunt_shm::slot::{self, Recall, Slot, Way};

use crate::immediate::{Immediate, Kind};
use crate::lane::{Lane, Unposted};
use crate::note::Note;
use crate::transport::{Region, Target, Transport, Write};

/// The memory of one connection: this side's slot, and the view of the peer's.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// This side's control lines.
    pub own: &'a Slot,
    /// The peer's, as this side knows them from notes. Nobody else writes them.
    pub view: &'a Slot,
    /// The ring that this side writes, and its NIC reads.
    pub out: Memory,
    /// The view of the peer's ring, where the peer's NIC writes payload.
    pub inward: Memory,
}

/// What the peer has said of a slot, whether or not it is open here. Everything is of the life `begun`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    /// The life that the peer has begun; 0: none.
    pub(crate) begun: u32,
    /// Where it wants the ring of which life.
    pub(crate) ready: Option<(u32, Target)>,
}

/// Notes that are to go out, in the order of their bits.
pub(crate) mod due {
    pub(crate) const BEGIN: u32 = 1;
    pub(crate) const READY: u32 = 2;
    pub(crate) const SWITCH: u32 = 4;
    pub(crate) const SWITCHED: u32 = 8;
    pub(crate) const CREDIT: u32 = 16;
    pub(crate) const ROOM: u32 = 32;
    pub(crate) const RECALL: u32 = 64;
    pub(crate) const END: u32 = 128;
}

/// How far a sender is with its ring, in one life of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The stream is on TCP.
    Tcp,
    /// The same, and the peer has been asked whether the ring may carry it from that byte of TCP on.
    Proposed(u64),
    /// The peer has answered that.
    Agreed(u64),
    /// It is in the ring.
    Ring,
    /// It has left the ring, for this life.
    Left,
}

pub(crate) struct Bond<'a, T: Transport> {
    slot: u32,
    pub(crate) life: u32,
    pub(crate) lines: Lines<'a>,
    /// Of the own ring.
    source: T::Region,
    /// Of the view.
    sink: T::Region,
    runs: Runs,
    /// Since the peer has begun this life.
    arrivals: Option<Arrivals>,
    /// How far this side is with its ring.
    pub(crate) stage: Stage,
    /// How far this side has read, as a credit says it.
    read: Reading,
    /// What the peer has been told of that.
    told: Position,
    /// The peer wants a credit once this number of bytes has been read.
    asked: Option<u64>,
    /// This side wants one.
    wanted: u64,
    /// Notes to go out.
    due: u32,
    /// The post of `END`, once it is out.
    ended: Option<u64>,
    /// The peer has said `END`.
    pub(crate) is_ended: bool,
    /// This side reads the peer's ring no more, and follows no switch.
    is_closed: bool,
}

/// How far a side has read: words of one moment.
#[derive(Clone, Copy, Default)]
struct Reading {
    /// [`Position`] of the next byte.
    read: u64,
    /// Stream bytes before that.
    bytes: u64,
    /// What is left there of a frame.
    left: u32,
}

impl<'a, T: Transport> Bond<'a, T> {
    pub(crate) fn new(slot: u32, life: u32, lines: Lines<'a>, regions: [T::Region; 2]) -> Self {
        let [source, sink] = regions;
        let mut bond = Self {
            slot,
            life,
            lines,
            source,
            sink,
            runs: Runs::new(),
            arrivals: None,
            stage: Stage::Tcp,
            read: Reading::default(),
            told: Position::unpack(0),
            asked: None,
            wanted: 0,
            due: 0,
            ended: None,
            is_ended: false,
            is_closed: false,
        };
        bond.begin(life);
        bond
    }

    /// Begins a life, and says so.
    pub(crate) fn begin(&mut self, life: u32) {
        self.life = life;
        self.runs = Runs::new();
        self.arrivals = None;
        self.stage = Stage::Tcp;
        self.read = Reading::default();
        self.told = Position::unpack(0);
        self.asked = None;
        self.ended = None;
        self.is_ended = false;
        self.is_closed = false;
        self.due = due::BEGIN | due::READY;
        // As `Slot::begin` leaves this side's: nothing has been read.
        let view = self.lines.view;
        view.face.state.store(0, Ordering::Relaxed);
        view.recall.stage.store(Recall::NONE, Ordering::Relaxed);
        view.output.switch_at.store(0, Ordering::Relaxed);
        view.progress.bytes.store(0, Ordering::Relaxed);
        view.receiving.left.store(0, Ordering::Relaxed);
        view.receiving.read.store(0, Ordering::Relaxed);
        publish::word(&view.progress.read, 0);
    }

    /// The life is over.
    pub(crate) fn close(&mut self) {
        self.life = 0;
        self.arrivals = None;
        self.due = 0;
    }

    /// The peer has begun the life that this side is in: its ring is empty.
    pub(crate) fn peer_began(&mut self) {
        self.arrivals = Some(Arrivals::begin(self.lines.inward));
        publish::half(&self.lines.view.face.generation, self.life);
    }

    /// The sending half. The memory is there, since it is pinned.
    pub(crate) fn producer(&self) -> Producer<'a, fn(usize) -> bool> {
        Producer {
            memory: self.lines.out,
            sending: &self.lines.own.sending,
            output: &self.lines.own.output,
            peer: &self.lines.view.progress,
            populate: |_| true,
        }
    }

    /// The receiving half.
    pub(crate) fn consumer(&self) -> Consumer<'a> {
        Consumer {
            memory: self.lines.inward,
            receiving: &self.lines.own.receiving,
            progress: &self.lines.own.progress,
        }
    }

    /// Posts what is in the own ring and has not been posted. `Err(Full)`: the rest later.
    pub(crate) fn publish(
        &mut self,
        transport: &T,
        lane: &mut Lane<T>,
        target: Target,
    ) -> Result<Result<(), Unposted>, Fault> {
        let write = self.lines.own.sending.write.load(Ordering::Relaxed);
        loop {
            let before = self.runs;
            let Some(run) = self.runs.next(self.lines.out, write)? else {
                return Ok(Ok(()));
            };
            if let Err(unposted) = lane.write(transport, self.write_of(run, target)) {
                self.runs = before;
                return Ok(Err(unposted));
            }
        }
    }

    fn write_of(&self, run: Run, target: Target) -> Write<'_, T::Region> {
        let (kind, at, length, trailer) = match run {
            Run::Frame { offset, length } => (Kind::Frame, offset, length, None),
            Run::Frames { offset, length } => (Kind::Frames, offset, length, Some(offset)),
            Run::Jump { offset } => (Kind::Jump, offset, 0, None),
        };
        let payload = at + 8;
        Write {
            region: &self.source,
            offset: payload,
            length,
            trailer,
            target: Target {
                key: target.key,
                address: target.address + u64::from(payload),
            },
            immediate: Immediate {
                kind,
                slot: self.slot,
                offset: at,
            }
            .pack(),
        }
    }

    /// The peer has answered a proposal. `true`: the one that stands.
    pub(crate) fn agreed(&mut self, at: u64) -> bool {
        let stands = self.stage == Stage::Proposed(at);
        if stands {
            self.stage = Stage::Agreed(at);
        }
        stands
    }

    /// The stream is in the ring from now on, where the peer has agreed to that.
    pub(crate) fn enter(&mut self) -> bool {
        let Stage::Agreed(at) = self.stage else {
            return false;
        };
        self.stage = Stage::Ring;
        publish::word(&self.lines.own.output.switch_at, at + 1);
        true
    }

    /// The peer has written. What is of another life is nobody's.
    pub(crate) fn arrived(&mut self, immediate: Immediate, length: u32) -> Result<bool, Fault> {
        let Some(arrivals) = &mut self.arrivals else {
            return Ok(false);
        };
        let (ring, at) = (self.lines.inward, immediate.offset);
        match immediate.kind {
            Kind::Frame => arrivals.frame(ring, at, length)?,
            Kind::Frames => arrivals.frames(ring, at, length.checked_sub(8).ok_or(Fault)?)?,
            Kind::Jump => arrivals.jump(ring, at)?,
        }
        Ok(true)
    }

    /// The peer has read so far.
    pub(crate) fn credited(&mut self, read: u64, bytes: u64, left: u32) -> Result<(), Fault> {
        let view = self.lines.view;
        let before = view.progress.bytes.load(Ordering::Relaxed);
        let written = self.lines.own.output.bytes.load(Ordering::Relaxed);
        if !(before..=written).contains(&bytes) {
            return Err(Fault);
        }
        view.progress.bytes.store(bytes, Ordering::Relaxed);
        view.receiving.left.store(left, Ordering::Relaxed);
        view.receiving.read.store(read, Ordering::Release);
        publish::word(&view.progress.read, read);
        Ok(())
    }

    /// The peer wants a credit once this number of bytes has been read.
    pub(crate) fn ask(&mut self, bytes: u64) {
        self.asked = Some(bytes);
        self.look_at_reading();
    }

    /// The peer switches at a byte of TCP; `u64::MAX`: not any more.
    pub(crate) fn switched(&mut self, at: u64) {
        let is_proposal = at != u64::MAX;
        if is_proposal && self.is_closed {
            return;
        }
        publish::word(&self.lines.view.output.switch_at, at.wrapping_add(1));
        // Pairs with the receiver's, between its way and its second look at the word.
        full();
        // In the ring it looks for what was proposed before: first it goes back. Behind the ring it looks for nothing.
        let looks = Way::load(&self.lines.own.receiving.way) == Way::Tcp;
        if is_proposal && looks {
            self.owe(due::SWITCHED);
        }
    }

    /// The receiver has gone back to TCP, where it looks for what the peer has proposed since.
    pub(crate) fn stayed(&mut self) {
        let is_proposed = self.lines.view.output.switch_at.load(Ordering::Relaxed) != 0;
        if is_proposed && !self.is_closed {
            self.owe(due::SWITCHED);
        }
    }

    /// This side reads the peer's ring no more: the peer is to leave it, or not to enter it.
    pub(crate) fn recall(&mut self) {
        self.is_closed = true;
        self.owe(due::RECALL);
    }

    /// The peer reads this side's ring no more, or the queue pair is over: the view says so, as a peer's arena within a host does. A
    /// direction that is not in the ring never comes there, which the peer is told.
    pub(crate) fn recalled(&mut self) {
        let view = self.lines.view;
        publish::half(&view.recall.stage, Recall::ASKED);
        publish::set_bits(&view.face.state, slot::RECALLED);
        if !matches!(self.stage, Stage::Ring | Stage::Left) {
            self.stage = Stage::Left;
            self.owe(due::SWITCH);
        }
    }

    /// The queue pair is over. A peer that has ended, having read everything, needs nothing again, and may be gone.
    pub(crate) fn failed(&mut self) {
        let written = self.lines.own.output.bytes.load(Ordering::Relaxed);
        let read = self.lines.view.progress.bytes.load(Ordering::Relaxed);
        let state = self.lines.view.face.state.load(Ordering::Relaxed);
        let is_done = self.is_ended && self.stage == Stage::Ring && read == written;
        if !is_done && state & slot::DIED == 0 {
            self.recalled();
        }
    }

    /// The peer has died after it had received `received` bytes and sent `sent` bytes through the rings. It reads nothing any more, so it
    /// has not recalled what it left unread.
    pub(crate) fn died(&mut self, received: u64, sent: u64) {
        let view = self.lines.view;
        let written = self.lines.own.output.bytes.load(Ordering::Relaxed);
        let before = view.progress.bytes.load(Ordering::Relaxed);
        if (before..=written).contains(&received) {
            view.progress.bytes.store(received, Ordering::Relaxed);
        }
        view.output.bytes.store(sent, Ordering::Release);
        view.recall.stage.store(Recall::NONE, Ordering::Relaxed);
        publish::clear_bits(&view.face.state, slot::RECALLED);
        publish::set_bits(&view.face.state, slot::DIED);
    }

    /// Whether one of its directions is not back on TCP for good, in the life that the slot is in.
    pub(crate) fn is_needed(&self) -> bool {
        let own = self.lines.own;
        let is_over = |way| Way::load(way) == Way::TcpAgain;
        own.face.generation.load(Ordering::Relaxed) == self.life
            && !(is_over(&own.sending.way) && is_over(&own.receiving.way))
    }

    /// Shows nothing more of what the peer's NIC places.
    pub(crate) fn freeze(&mut self) {
        self.arrivals = None;
    }

    /// Whether something is to be said.
    pub(crate) fn is_due(&self) -> bool {
        self.due != 0
    }

    /// Notes how far this side has read, and whether a credit is due. Nobody reads meanwhile.
    pub(crate) fn note_reading(&mut self) {
        let own = self.lines.own;
        self.read = Reading {
            read: own.progress.read.load(Ordering::Relaxed),
            bytes: own.progress.bytes.load(Ordering::Relaxed),
            left: own.receiving.left.load(Ordering::Relaxed),
        };
        self.look_at_reading();
    }

    fn look_at_reading(&mut self) {
        let at = Position::unpack(self.read.read);
        let is_half = at.lap != self.told.lap
            || at.offset.wrapping_sub(self.told.offset) >= self.lines.inward.size() / 2;
        if is_half || self.asked.is_some_and(|asked| self.read.bytes >= asked) {
            self.due |= due::CREDIT;
        }
    }

    /// This side wants a credit once the peer has read this number of bytes.
    pub(crate) fn want(&mut self, bytes: u64) {
        self.wanted = bytes;
        self.due |= due::ROOM;
    }

    /// Something is to be said.
    pub(crate) fn owe(&mut self, notes: u32) {
        self.due |= notes;
    }

    /// Says what is due. `Err(Full)`: the rest later.
    pub(crate) fn say(&mut self, transport: &T, lane: &mut Lane<T>) -> Result<(), Unposted> {
        while self.due != 0 {
            let bit = self.due & self.due.wrapping_neg();
            lane.note(transport, self.note(bit), bit == due::END)?;
            self.due &= !bit;
            match bit {
                due::CREDIT => {
                    self.told = Position::unpack(self.read.read);
                    self.asked = None;
                }
                due::END => self.ended = Some(lane.last()),
                _ => {}
            }
        }
        Ok(())
    }

    fn note(&self, bit: u32) -> Note {
        let (slot, own) = (self.slot, self.lines.own);
        match bit {
            due::BEGIN => Note::Begin {
                slot,
                life: self.life,
            },
            due::READY => {
                let Target { key, address } = self.sink.target();
                Note::Ready {
                    slot,
                    life: self.life,
                    key,
                    size: self.lines.inward.size(),
                    address,
                }
            }
            due::SWITCH => Note::Switch {
                slot,
                at: match self.stage {
                    Stage::Proposed(at) => at,
                    // Not meant any more: the answer will be of no use.
                    _ => u64::MAX,
                },
            },
            due::SWITCHED => {
                let switch_at = self.lines.view.output.switch_at.load(Ordering::Relaxed);
                Note::Switched {
                    slot,
                    at: switch_at.wrapping_sub(1),
                }
            }
            due::CREDIT => Note::Credit {
                slot,
                read: self.read.read,
                bytes: self.read.bytes,
                left: self.read.left,
            },
            due::ROOM => Note::Room {
                slot,
                bytes: self.wanted,
            },
            due::RECALL => Note::Recall { slot },
            _ => Note::End {
                slot,
                bytes: own.output.bytes.load(Ordering::Relaxed),
            },
        }
    }

    /// Whether the end, and so everything before it, is in the peer's memory.
    pub(crate) fn has_ended(&self, lane: &Lane<T>) -> bool {
        self.ended.is_some_and(|number| lane.has_arrived(number))
    }
}
