//! A link: one queue pair to one process on another host, and the connections on it.
//!
//! All of a process's calls on a link are made by one thread at a time. A call takes what is in the arguments and posts at once what
//! it can; what could not be posted (no receive of the peer's is left) goes with the next completion.

use shunt_shm::atomic::Ordering;
use shunt_shm::publish;
use shunt_shm::ring::{Found, Stopped};
use shunt_shm::slot;

use crate::bond::{Bond, Heard, Lines, Stage, due};
use crate::endpoint::Endpoint;
use crate::grants::Rank;
use crate::immediate;
use crate::lane::{Counts, Lane, Unposted};
use crate::resume::{self, Leave, Look, Record, Secret};
use crate::transport::{Access, QueueId, Refused, Target, Transport};

mod incoming;

/// A large message is published in steps of this many bytes.
const STEP: usize = shunt_shm::ring::STEP;

/// Places kept for jumps, which take one each beside the frame behind them.
const JUMPS: u32 = 4;

/// What has happened to a connection, for whoever waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The peer honours this side's ring from now on: a switch to it may be proposed.
    Ready,
    /// The peer has answered the proposal that stands: the ring may be entered.
    Agreed,
    /// The peer's stream may be in its ring from a byte on, which the view's `output.switch_at` says.
    Switched,
    /// There is something to read.
    Data,
    /// The peer has read.
    Room,
    /// The peer reads this side's ring no more: it is to be left.
    Recalled,
    /// Nothing follows in the peer's ring: what it has written is the view's `output.bytes`.
    Ended,
}

/// What [`Link::resume`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// A record. This many bytes of what follows it have already been read.
    Record(u64),
    /// The beginning of a record, or plain bytes that look like one: what follows tells. (Where nothing does, the peer's shuntd can: its
    /// slot's `output.switch_at` is not 0 if there is a record.)
    Begins,
    /// No record: the stream has stayed on TCP.
    Plain,
    /// The peer breaks the rules.
    Wrong,
}

/// The link cannot be used any more. Its connections go on by TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The queue pair has failed, with the NIC's own word for it (0: unknown).
    Queue(u32),
    /// The peer has sent nonsense.
    Peer,
    /// This side's own ring is not what it should be.
    Ring,
}

/// See the module.
pub struct Link<'a, T: Transport> {
    lane: Lane<T>,
    places: Vec<Place<'a, T>>,
    secrets: [Secret; 2],
    broken: Option<Broken>,
    /// Some connection has something to say that could not go out when it arose.
    unsaid: bool,
}

struct Place<'a, T: Transport> {
    heard: Heard,
    bond: Option<Bond<'a, T>>,
}

impl<'a, T: Transport> Link<'a, T> {
    /// Over a connected queue pair: `own` and `peer` are its two ends.
    #[must_use]
    pub fn new(transport: &T, queue: T::Queue, own: &Endpoint, peer: &Endpoint) -> Self {
        let slots = u32::from(own.slots.min(peer.slots)).min(immediate::SLOTS);
        let place = |_| Place {
            heard: Heard::default(),
            bond: None,
        };
        Self {
            lane: Lane::new(transport, queue, peer),
            places: (0..slots).map(place).collect(),
            secrets: [Secret::new(own, peer), Secret::new(peer, own)],
            broken: None,
            unsaid: false,
        }
    }

    /// Of its queue pair.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.lane.id()
    }

    /// What it has posted and got.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lane.counts()
    }

    /// Why it cannot be used any more, if that is so.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Ends the queue pair, on this side's own account. All connections leave their rings.
    pub fn abandon(&mut self, transport: &T) -> Broken {
        self.lane.end(transport);
        self.fail(Broken::Queue(0))
    }

    /// A connection gets a slot, or begins another life in it: says so to the peer. Both sides know the life by the way by which the
    /// link was made. The first time the rings are pinned.
    ///
    /// # Errors
    /// [`Refused`]: they cannot be, or one of both sides has no such slot.
    ///
    /// # Panics
    /// If `life` is 0.
    ///
    /// # Safety
    /// The memory of both rings stays mapped as long as the link lives; the view belongs to this link alone.
    pub unsafe fn open(
        &mut self,
        transport: &T,
        slot: u32,
        life: u32,
        lines: Lines<'a>,
    ) -> Result<(), Refused> {
        assert_ne!(life, 0);
        let place = self.places.get_mut(slot as usize).ok_or(Refused {
            what: "a slot that the link has not",
            errno: libc::ENOSPC,
        })?;
        match &mut place.bond {
            Some(bond) => bond.begin(life),
            none => {
                let region = |ring: shunt_shm::ring::Memory, access| {
                    // SAFETY: the caller's promise.
                    unsafe { transport.register(ring.at(0), ring.size() as usize, access) }
                };
                let regions = [
                    region(lines.out, Access::Source)?,
                    region(lines.inward, Access::Target)?,
                ];
                *none = Some(Bond::new(slot, life, lines, regions));
            }
        }
        if let Some(bond) = &mut place.bond
            && place.heard.begun == life
        {
            bond.peer_began();
        }
        place.show_ready();
        self.say(transport, slot);
        Ok(())
    }

    /// A slot's life is over, and its memory is about to begin another one, of which [`Self::open`] says so: what the peer still says of
    /// the former one is nobody's from now on.
    pub fn close(&mut self, slot: u32) {
        let place = self.places.get_mut(slot as usize);
        if let Some(bond) = place.and_then(|place| place.bond.as_mut()) {
            bond.close();
        }
    }

    /// How many frames of a connection can be posted now: none unless its stream is in the ring.
    #[must_use]
    pub fn room(&self, slot: u32) -> u32 {
        if self.target(slot).is_some() {
            self.lane.room(Rank::Data).saturating_sub(JUMPS)
        } else {
            0
        }
    }

    /// Where a connection's ring goes, if its stream is there.
    fn target(&self, slot: u32) -> Option<Target> {
        let place = self.places.get(slot as usize)?;
        let bond = place.bond.as_ref()?;
        let is_in = bond.stage == Stage::Ring && self.broken.is_none();
        place.ready().filter(|_| is_in)
    }

    /// Proposes that the stream continues in this side's ring: `given` bytes of it have been given to TCP, and none follow
    /// before [`Self::enter`] or [`Self::stay`]. `false`: the peer is not ready for that, or this life's ring has been left.
    pub fn propose(&mut self, transport: &T, slot: u32, given: u64) -> bool {
        let place = &mut self.places[slot as usize];
        let is_ready = place.ready().is_some() && self.broken.is_none();
        let Some(bond) = place.bond.as_mut().filter(|_| is_ready) else {
            return false;
        };
        match bond.stage {
            Stage::Proposed(at) | Stage::Agreed(at) if at == given => return true,
            Stage::Tcp | Stage::Proposed(_) | Stage::Agreed(_) => {}
            Stage::Ring | Stage::Left => return false,
        }
        bond.stage = Stage::Proposed(given);
        self.owe(transport, slot, due::SWITCH);
        true
    }

    /// The stream goes on by TCP after all: a proposal is void. (The peer finds that out by what comes there.)
    pub fn stay(&mut self, slot: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond
            && matches!(bond.stage, Stage::Proposed(_) | Stage::Agreed(_))
        {
            bond.stage = Stage::Tcp;
        }
    }

    /// The byte of TCP from which on the stream may be in this side's ring, as the peer has agreed to.
    #[must_use]
    pub fn agreed(&self, slot: u32) -> Option<u64> {
        let bond = self.places.get(slot as usize)?.bond.as_ref()?;
        match bond.stage {
            Stage::Agreed(at) => Some(at),
            _ => None,
        }
    }

    /// The stream goes on in this side's ring, if the peer has agreed to the last proposal.
    pub fn enter(&mut self, slot: u32) -> bool {
        let bond = self.places[slot as usize].bond.as_mut();
        self.broken.is_none() && bond.is_some_and(Bond::enter)
    }

    /// Sends what is to be sent in this side's ring and was not posted yet. `true`: all of it is out.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn publish(&mut self, transport: &T, slot: u32) -> Result<bool, Broken> {
        let Some(target) = self.target(slot) else {
            return self.broken.map_or(Ok(false), Err);
        };
        let place = &mut self.places[slot as usize];
        let Some(bond) = &mut place.bond else {
            return Ok(false);
        };
        match bond.publish(transport, &mut self.lane, target) {
            Ok(posted) => {
                let is_all = posted.is_ok();
                self.look_at_lane()?;
                Ok(is_all)
            }
            Err(_) => Err(self.fail(Broken::Ring)),
        }
    }

    /// Takes as many of the bytes as there is room for, and posts them. No byte is taken that is not posted.
    ///
    /// # Errors
    /// [`Broken`]: none of these was taken, or some and the link has failed since.
    pub fn send(&mut self, transport: &T, slot: u32, bytes: &[u8]) -> Result<usize, Broken> {
        let mut done = 0;
        while done < bytes.len() && self.room(slot) > 0 {
            let Some(bond) = &self.places[slot as usize].bond else {
                break;
            };
            let step = &bytes[done..bytes.len().min(done + STEP)];
            // SAFETY: the slice is readable; the caller sends alone.
            let written = unsafe { bond.producer().write(step.as_ptr(), step.len()) };
            let n = written.map_err(|_| self.fail(Broken::Ring))?;
            if n == 0 {
                break;
            }
            done += n;
            if !self.publish(transport, slot)? {
                break;
            }
        }
        Ok(done)
    }

    /// Takes bytes of the peer's out of its ring, and says so to the peer where that is due.
    ///
    /// # Errors
    /// [`Broken::Peer`]: the ring has no frames there.
    pub fn receive(&mut self, transport: &T, slot: u32, into: &mut [u8]) -> Result<usize, Broken> {
        let Some(bond) = &self.places[slot as usize].bond else {
            return Ok(0);
        };
        // SAFETY: the slice is writable.
        match unsafe { bond.consumer().read(into.as_mut_ptr(), into.len(), false) } {
            Ok(Found::Bytes(n)) => {
                self.has_read(transport, slot);
                Ok(n)
            }
            Ok(Found::Empty) => Ok(0),
            Ok(Found::Back(_)) | Err(Stopped::Fault | Stopped::BadBuffer(_)) => {
                Err(self.fail(Broken::Peer))
            }
        }
    }

    /// After something has been read of the peer's ring, which nobody reads meanwhile: a credit, if that is due.
    pub fn has_read(&mut self, transport: &T, slot: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            bond.note_reading();
        }
        self.say(transport, slot);
    }

    /// This side wants [`News::Room`] once the peer has read `bytes` bytes of its ring.
    pub fn want_room(&mut self, transport: &T, slot: u32, bytes: u64) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            bond.want(bytes);
        }
        self.say(transport, slot);
    }

    /// This side reads the peer's ring no more, and follows no switch: a resume record is to come by TCP, or the view's
    /// `output.switch_at` will say that none does. Once is enough.
    pub fn recall(&mut self, transport: &T, slot: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            bond.recall();
        }
        self.say(transport, slot);
    }

    /// Nothing follows in this side's ring. [`Self::has_ended`] says when the peer has all of it. Before that it hears how far its own
    /// ring is read, which nobody reads meanwhile.
    pub fn end(&mut self, transport: &T, slot: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            bond.note_reading();
        }
        self.owe(transport, slot, due::CREDIT | due::END);
    }

    /// Whether the peer has said that nothing follows in its ring.
    #[must_use]
    pub fn has_peer_ended(&self, slot: u32) -> bool {
        let bond = self.places[slot as usize].bond.as_ref();
        bond.is_some_and(|bond| bond.is_ended)
    }

    /// The peer has died in this life of the slot, after it had received `received` bytes and sent `sent` bytes through the
    /// rings.
    pub fn died(&mut self, slot: u32, life: u32, received: u64, sent: u64) {
        let bond = self.places[slot as usize].bond.as_mut();
        if let Some(bond) = bond.filter(|bond| bond.life == life) {
            bond.died(received, sent);
        }
    }

    /// Whether everything of a connection that has been ended is in the peer's memory.
    #[must_use]
    pub fn has_ended(&self, slot: u32) -> bool {
        let bond = self.places[slot as usize].bond.as_ref();
        bond.is_some_and(|bond| bond.has_ended(&self.lane))
    }

    /// Leaves this side's ring for this life: nothing of it is posted from now on, and what this says goes to TCP. `None`: the stream
    /// was not there. A proposal is taken back with [`Self::flush`]: what is sent by TCP instead may look like a record.
    pub fn leave(&mut self, slot: u32) -> Option<Leave> {
        let bond = self.places[slot as usize].bond.as_mut()?;
        let stage = std::mem::replace(&mut bond.stage, Stage::Left);
        if matches!(stage, Stage::Proposed(_) | Stage::Agreed(_)) {
            bond.owe(due::SWITCH);
            self.unsaid = true;
        }
        (stage == Stage::Ring).then(|| Leave::new(bond.life, bond.lines.view, self.secrets[0]))
    }

    /// The record of a direction that has left its ring, where the peer was known to have read `from` bytes of it.
    #[must_use]
    pub fn record(&self, slot: u32, from: u64) -> Option<[u8; resume::BYTES]> {
        let bond = self.places[slot as usize].bond.as_ref()?;
        let life = bond.life;
        Some(Record { life, from }.to_bytes(self.secrets[0]))
    }

    /// TCP has brought these bytes, while the peer's stream is to be in its ring: whether they begin with the record by which it has left.
    /// [`Resumed::Record`] says how many bytes of what follows have already been read; nothing more is shown in the view of the ring.
    /// `Resumed::Plain`: the peer has never been in it.
    #[must_use]
    pub fn resume(&mut self, slot: u32, bytes: &[u8]) -> Resumed {
        let Some(bond) = &mut self.places[slot as usize].bond else {
            return Resumed::Wrong;
        };
        let own = bond.lines.own;
        match Record::look(bytes, bond.life, self.secrets[1]) {
            Look::Record(from) => {
                bond.freeze();
                resume::doubled(own, from).map_or(Resumed::Wrong, Resumed::Record)
            }
            Look::Begins => Resumed::Begins,
            Look::None if own.progress.bytes.load(Ordering::Relaxed) == 0 => Resumed::Plain,
            Look::None => Resumed::Wrong,
        }
    }

    /// This side reads on by TCP where it has looked for the peer's ring, as [`Resumed::Plain`] says: another proposal may be answered.
    pub fn stayed(&mut self, transport: &T, slot: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            bond.stayed();
        }
        self.say(transport, slot);
    }

    /// Says what is due on all connections, and what the peer may send again. After completions.
    pub fn flush(&mut self, transport: &T) {
        if std::mem::take(&mut self.unsaid) {
            for slot in 0..self.places.len() as u32 {
                self.say(transport, slot);
            }
        }
        self.lane.grant(transport);
    }

    fn owe(&mut self, transport: &T, slot: u32, notes: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            bond.owe(notes);
        }
        self.say(transport, slot);
    }

    /// Whatever cannot go out now goes with [`Self::flush`].
    fn say(&mut self, transport: &T, slot: u32) {
        if let Some(bond) = &mut self.places[slot as usize].bond {
            match bond.say(transport, &mut self.lane) {
                Ok(()) => {}
                Err(Unposted::Full) => self.unsaid = true,
                Err(Unposted::Failed) => {
                    self.fail(Broken::Queue(0));
                }
            }
        }
    }

    /// A post that was refused has failed the queue pair.
    fn look_at_lane(&mut self) -> Result<(), Broken> {
        if self.lane.has_failed() {
            return Err(self.fail(Broken::Queue(0)));
        }
        Ok(())
    }

    fn fail(&mut self, why: Broken) -> Broken {
        self.lane.fail();
        if self.broken.is_none() {
            let bonds = self
                .places
                .iter_mut()
                .filter_map(|place| place.bond.as_mut());
            bonds.for_each(Bond::failed);
        }
        *self.broken.get_or_insert(why)
    }

    /// Whether some connection may still have to leave a ring of this link's, or to follow a peer that does.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.places
            .iter()
            .any(|place| place.bond.as_ref().is_some_and(Bond::is_needed))
    }

    /// The slots that have been opened.
    pub fn slots(&self) -> impl Iterator<Item = u32> + use<'_, 'a, T> {
        let has_bond = |slot: &u32| self.places[*slot as usize].bond.is_some();
        (0..self.places.len() as u32).filter(has_bond)
    }
}

impl<T: Transport> Place<'_, T> {
    /// Where the peer wants this side's ring of the life that both are in.
    fn ready(&self) -> Option<Target> {
        let (life, target) = self.heard.ready?;
        let bond = self.bond.as_ref()?;
        (life == bond.life).then_some(target)
    }

    /// Where the peer honours this side's ring, the view says so.
    fn show_ready(&self) {
        if self.ready().is_some()
            && let Some(bond) = &self.bond
            && self.heard.begun == bond.life
        {
            publish::set_bits(&bond.lines.view.face.state, slot::READY);
        }
    }
}
