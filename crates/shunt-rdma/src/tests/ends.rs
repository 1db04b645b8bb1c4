//! Two ports on one emulated wire, connected by a link with some connections; and for each direction of these a TCP stream beside
//! the ring.

use std::collections::VecDeque;

use shunt_shm::atomic::Ordering;
use shunt_shm::ring::Producer;

use super::store::{Store, all_of, byte};
use crate::bond::Lines;
use crate::fabric::{Fabric, Manners, Nic};
use crate::link::{Broken, Link, News, Resumed};
use crate::port::{Found, Port};
use crate::resume;
use crate::transport::{QueueId, Refused, Transport};

/// Where one direction's bytes travel, as its sender or its receiver has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tcp,
    Ring,
}

/// One direction of a connection: its sender, its receiver and TCP between them.
struct Direction {
    tcp: VecDeque<u8>,
    sender: Way,
    receiver: Way,
    /// Bytes that TCP was given, and that were taken of it.
    given: u64,
    taken: u64,
    /// Bytes of TCP that the receiver has had already.
    doubled: u64,
    /// Bytes of the stream sent, and received.
    sent: u64,
    received: u64,
    /// Bytes put into the ring since it was entered.
    by_ring: u64,
}

pub(super) struct Ends<'a> {
    pub(super) fabric: Fabric,
    pub(super) ports: [Port<'a, Nic>; 2],
    pub(super) links: [QueueId; 2],
    pub(super) news: [Vec<Found>; 2],
    store: &'a Store,
    directions: Vec<[Direction; 2]>,
    life: u32,
    is_real: bool,
    has_device: [bool; 2],
}

impl<'a> Ends<'a> {
    /// Connected; every connection is in its first life, on TCP.
    pub(super) fn new(store: &'a Store, manners: Manners) -> Self {
        let fabric = Fabric::new(manners);
        let port = || Port::new(fabric.nic().unwrap());
        let direction = || Direction {
            tcp: VecDeque::new(),
            sender: Way::Tcp,
            receiver: Way::Tcp,
            given: 0,
            taken: 0,
            doubled: 0,
            sent: 0,
            received: 0,
            by_ring: 0,
        };
        let mut ends = Self {
            ports: [port(), port()],
            fabric,
            links: [QueueId(0); 2],
            news: [Vec::new(), Vec::new()],
            store,
            directions: (0..store.connections())
                .map(|_| [direction(), direction()])
                .collect(),
            life: 1,
            is_real: !manners.manual,
            has_device: [true; 2],
        };
        ends.connect();
        for slot in 0..store.connections() {
            for side in 0..2 {
                let lines = store.lines(side, slot);
                lines.own.begin(ends.life, lines.out);
                ends.open(side, slot);
            }
        }
        ends
    }

    /// Makes a queue pair, in place of the former one if there is any.
    fn connect(&mut self) {
        for side in 0..2 {
            self.ports[side].remove(self.links[side]);
        }
        let queues = [0, 1].map(|side| self.ports[side].transport().queue().unwrap());
        let ends = [0, 1].map(|side| self.ports[side].transport().endpoint(&queues[side]));
        for (side, queue) in queues.into_iter().enumerate() {
            let port = &mut self.ports[side];
            let (own, peer) = (&ends[side], &ends[1 - side]);
            port.transport().connect(&queue, peer).unwrap();
            let link = Link::new(port.transport(), queue, own, peer);
            self.links[side] = port.add(link);
        }
    }

    fn open(&mut self, side: usize, slot: usize) {
        let lines = self.store.lines(side, slot);
        let life = self.life;
        let (nic, link) = self.link(side);
        // SAFETY: the store outlives the ports.
        unsafe { link.open(nic, slot as u32, life, lines) }.unwrap();
    }

    /// One connection more, which has that memory.
    pub(super) fn open_more(
        &mut self,
        side: usize,
        slot: u32,
        lines: Lines<'a>,
    ) -> Result<(), Refused> {
        let life = self.life;
        let (nic, link) = self.link(side);
        // SAFETY: the store outlives the ports.
        unsafe { link.open(nic, slot, life, lines) }
    }

    pub(super) fn link(&mut self, side: usize) -> (&Nic, &mut Link<'a, Nic>) {
        self.ports[side].link(self.links[side]).unwrap()
    }

    pub(super) fn progress(&mut self, side: usize) {
        let news = &mut self.news[side];
        let done = self.ports[side].progress(|found| news.push(found));
        assert!(done.is_ok() || !self.has_device[side]);
    }

    pub(super) fn advance(&mut self) {
        self.fabric.advance(10_000);
        if self.is_real {
            // What is on its way takes less than that.
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }

    /// A side's device is removed, or is there again.
    pub(super) fn plug(&mut self, side: usize, is_there: bool) {
        self.has_device[side] = is_there;
        let nic = self.ports[side].transport();
        self.fabric.plug(nic, is_there);
    }

    /// Time passes, and both sides look until nothing comes any more.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 8 {
            self.advance();
            let before = self.news.each_ref().map(Vec::len);
            let counts = [0, 1].map(|side| self.ports[side].transport().counts().completions);
            (0..2).for_each(|side| self.progress(side));
            let after = [0, 1].map(|side| self.ports[side].transport().counts().completions);
            let is_quiet = counts == after && before == self.news.each_ref().map(Vec::len);
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
    }

    pub(super) fn broken(&mut self, side: usize) -> Option<Broken> {
        self.link(side).1.broken()
    }

    /// Sends up to `most` bytes, by the ring or by TCP; returns how many.
    pub(super) fn send(&mut self, from: usize, slot: usize, most: usize) -> usize {
        let start = self.directions[slot][from].sent;
        let bytes: Vec<u8> = (start..start + most as u64)
            .map(|at| byte(slot, from, at))
            .collect();
        let link = self.link(from).1;
        if link.enter(slot as u32) {
            self.directions[slot][from].sender = Way::Ring;
            self.directions[slot][from].by_ring = 0;
        }
        let n = match self.directions[slot][from].sender {
            Way::Tcp => {
                self.link(from).1.stay(slot as u32);
                self.give(from, slot, &bytes);
                self.propose(from, slot);
                most
            }
            Way::Ring => self.send_in_ring(from, slot, &bytes),
        };
        self.directions[slot][from].sent += n as u64;
        n
    }

    /// Asks the peer whether the ring may be entered.
    pub(super) fn propose(&mut self, from: usize, slot: usize) {
        let given = self.directions[slot][from].given;
        let (nic, link) = self.link(from);
        link.propose(nic, slot as u32, given);
    }

    /// Brings all directions to their rings.
    pub(super) fn enter(&mut self) {
        self.settle();
        for slot in 0..self.directions.len() {
            (0..2).for_each(|from| self.propose(from, slot));
        }
        self.settle();
    }

    fn send_in_ring(&mut self, from: usize, slot: usize, bytes: &[u8]) -> usize {
        let (nic, link) = self.link(from);
        let sent = link.send(nic, slot as u32, bytes);
        let written = self.written(from, slot);
        let n = match sent {
            Ok(n) => n,
            // What was taken is in the ring, posted or not.
            Err(_) => (written - self.by_ring(from, slot)) as usize,
        };
        self.directions[slot][from].by_ring += n as u64;
        if sent.is_err() {
            self.leave(from, slot);
        } else if n < bytes.len() {
            let (nic, link) = self.link(from);
            link.want_room(nic, slot as u32, written);
        }
        n
    }

    /// Writes `frames` frames of `bytes` bytes each into the ring, and posts none.
    pub(super) fn write_frames(&mut self, from: usize, slot: usize, frames: u64, bytes: u64) {
        let lines = self.store.lines(from, slot);
        for _ in 0..frames {
            let start = self.directions[slot][from].sent;
            let payload: Vec<u8> = (start..start + bytes)
                .map(|at| byte(slot, from, at))
                .collect();
            let producer = Producer {
                memory: lines.out,
                sending: &lines.own.sending,
                output: &lines.own.output,
                peer: &lines.view.progress,
                populate: |_| true,
            };
            // SAFETY: the vector is readable.
            let written = unsafe { producer.write(payload.as_ptr(), payload.len()) };
            assert_eq!(written, Ok(payload.len()));
            self.directions[slot][from].sent += bytes;
        }
    }

    /// Bytes that have gone into the ring in this life.
    fn written(&self, from: usize, slot: usize) -> u64 {
        let own = self.store.lines(from, slot).own;
        own.output.bytes.load(Ordering::Relaxed)
    }

    fn give(&mut self, from: usize, slot: usize, bytes: &[u8]) {
        let direction = &mut self.directions[slot][from];
        direction.tcp.extend(bytes);
        direction.given += bytes.len() as u64;
    }

    /// The sender leaves its ring, whatever has become of the link.
    pub(super) fn leave(&mut self, from: usize, slot: usize) {
        let Some(leave) = self.link(from).1.leave(slot as u32) else {
            return;
        };
        let ring = self.store.lines(from, slot).out;
        let unread = leave.unread.read_by(ring, all_of).unwrap();
        self.give(from, slot, &leave.record);
        self.give(from, slot, &unread);
        self.directions[slot][from].sender = Way::Tcp;
    }

    /// Receives up to `most` bytes, and compares them with the stream.
    pub(super) fn receive(&mut self, to: usize, slot: usize, most: usize) -> usize {
        let bytes = match self.way_in(to, slot) {
            Way::Tcp => self.receive_tcp(to, slot, most),
            Way::Ring => {
                let mut bytes = vec![0; most];
                let (nic, link) = self.link(to);
                let n = link.receive(nic, slot as u32, &mut bytes).unwrap_or(0);
                bytes.truncate(n);
                bytes
            }
        };
        let direction = &mut self.directions[slot][1 - to];
        for &got in &bytes {
            let expected = byte(slot, 1 - to, direction.received);
            assert_eq!(got, expected, "byte {} of {slot}", direction.received);
            direction.received += 1;
        }
        bytes.len()
    }

    /// Where the receiver reads: it follows a switch, and a resume record.
    fn way_in(&mut self, to: usize, slot: usize) -> Way {
        let view = self.store.lines(to, slot).view;
        let switch_at = view.output.switch_at.load(Ordering::Acquire);
        let direction = &mut self.directions[slot][1 - to];
        if switch_at == direction.taken + 1 && direction.doubled == 0 {
            direction.receiver = Way::Ring;
        }
        if direction.receiver == Way::Ring && !direction.tcp.is_empty() {
            self.follow(to, slot);
        }
        self.directions[slot][1 - to].receiver
    }

    /// TCP has brought something while the stream is to be in the ring.
    fn follow(&mut self, to: usize, slot: usize) {
        let direction = &self.directions[slot][1 - to];
        let bytes: Vec<u8> = direction.tcp.iter().copied().take(resume::BYTES).collect();
        let followed = direction.taken + 1;
        // As the sender's shuntd would read it.
        let peer = self.store.lines(1 - to, slot).own;
        let has_entered = peer.output.switch_at.load(Ordering::Relaxed) != 0;
        let resumed = self.link(to).1.resume(slot as u32, &bytes);
        let direction = &mut self.directions[slot][1 - to];
        match resumed {
            Resumed::Record(doubled) => {
                direction.doubled = doubled;
                direction.tcp.drain(..resume::BYTES);
                direction.taken += resume::BYTES as u64;
            }
            Resumed::Begins if has_entered => return,
            Resumed::Begins | Resumed::Plain => {}
            Resumed::Wrong => panic!("no record in direction {to} of {slot}"),
        }
        direction.receiver = Way::Tcp;
        // This switch has been followed; another one may have come.
        let at = &self.store.lines(to, slot).view.output.switch_at;
        let _ = at.compare_exchange(followed, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn receive_tcp(&mut self, to: usize, slot: usize, most: usize) -> Vec<u8> {
        let view = self.store.lines(to, slot).view;
        let switch_at = view.output.switch_at.load(Ordering::Acquire);
        let direction = &mut self.directions[slot][1 - to];
        let skipped = direction.doubled.min(direction.tcp.len() as u64);
        direction.tcp.drain(..skipped as usize);
        direction.doubled -= skipped;
        direction.taken += skipped;
        let mut n = direction.tcp.len().min(most) as u64;
        // A switch behind what has been taken is void.
        if let Some(left) = switch_at.checked_sub(1 + direction.taken) {
            n = n.min(left);
        }
        direction.taken += n;
        direction.tcp.drain(..n as usize).collect()
    }

    /// Both sides read until all that was sent has come.
    pub(super) fn finish(&mut self) {
        for _ in 0..2000 {
            self.advance();
            (0..2).for_each(|side| self.progress(side));
            self.answer();
            for slot in 0..self.directions.len() {
                for to in 0..2 {
                    while self.receive(to, slot, 5000) > 0 {}
                }
            }
            if self.is_done() {
                return;
            }
        }
        let left: Vec<_> = self
            .directions
            .iter()
            .flatten()
            .map(|d| (d.sent, d.received, d.sender, d.receiver, d.doubled))
            .collect();
        panic!("not all has come: {left:?}");
    }

    /// What each side does about its news: it leaves rings that have failed or are recalled.
    pub(super) fn answer(&mut self) {
        for side in 0..2 {
            for found in std::mem::take(&mut self.news[side]) {
                if let Found::News(_, slot, News::Recalled) = found {
                    self.leave(side, slot as usize);
                }
            }
            // A call may have found it first.
            if self.broken(side).is_some() {
                (0..self.directions.len()).for_each(|slot| self.leave(side, slot));
            }
        }
    }

    fn is_done(&self) -> bool {
        let mut all = self.directions.iter().flatten();
        all.all(|d| d.received == d.sent)
    }

    /// All directions are on TCP and read: makes a new queue pair, and begins the next life of each slot.
    pub(super) fn come_back(&mut self) {
        assert!(self.is_done());
        for slot in 0..self.directions.len() {
            (0..2).for_each(|from| self.leave(from, slot));
        }
        self.finish_records();
        self.connect();
        self.life += 1;
        for slot in 0..self.directions.len() {
            for side in 0..2 {
                let lines = self.store.lines(side, slot);
                let taken = self.directions[slot][1 - side].taken;
                lines.own.begin_again(self.life, taken, lines.out);
                self.open(side, slot);
            }
        }
    }

    fn finish_records(&mut self) {
        for slot in 0..self.directions.len() {
            for to in 0..2 {
                while self.receive(to, slot, 5000) > 0 {}
                let direction = &mut self.directions[slot][1 - to];
                assert!(direction.tcp.is_empty() && direction.doubled == 0);
                // Its sender may have proposed a switch, and not made it.
                direction.receiver = Way::Tcp;
            }
        }
    }

    /// Bytes that this direction has put into its ring since it switched.
    pub(super) fn by_ring(&self, from: usize, slot: usize) -> u64 {
        self.directions[slot][from].by_ring
    }
}
