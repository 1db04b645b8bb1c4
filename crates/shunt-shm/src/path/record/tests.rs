//! One direction between hosts, in all orders of its steps: the receiver's are those of this module, the rest is a model. The queue pair may
//! fail at any moment, and the sender leaves its ring at any. States are visited once.

use std::collections::{HashSet, VecDeque};

use super::*;
use crate::slot::{READY, Slot, first_life};

/// Bytes of the stream: 0, 1, 2.
const BYTES: u8 = 3;
/// What a record takes of TCP.
const RECORD: u64 = 24;
const LIFE: u32 = first_life(1);

/// In TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Byte(u8),
    /// A record: what follows it begins this many bytes into the stream of the ring.
    Record(u64),
}

/// By the queue pair, to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum There {
    /// The word of `output.switch_at`.
    Switch(u64),
    Frame(u8),
}

/// And back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Back {
    Switched(u64),
    Credit(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Tcp,
    Ring,
    Left,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    // The sender.
    stage: Stage,
    next: u8,
    given: u64,
    proposed: Option<u64>,
    agreed: Option<u64>,
    ring: Vec<u8>,
    credit: u64,
    // Between.
    is_broken: bool,
    there: VecDeque<There>,
    back: VecDeque<Back>,
    tcp: VecDeque<Piece>,
    // The receiver.
    way: u32,
    taken: u64,
    switch_at: u64,
    view: VecDeque<u8>,
    read: u64,
    credited: u64,
    resumed: [u64; 2],
    got: u8,
}

impl World {
    fn new() -> Self {
        Self {
            stage: Stage::Tcp,
            next: 0,
            given: 0,
            proposed: None,
            agreed: None,
            ring: Vec::new(),
            credit: 0,
            is_broken: false,
            there: VecDeque::new(),
            back: VecDeque::new(),
            tcp: VecDeque::new(),
            way: Way::Tcp as u32,
            taken: 0,
            switch_at: 0,
            view: VecDeque::new(),
            read: 0,
            credited: 0,
            resumed: [0; 2],
            got: 0,
        }
    }

    /// What may come next.
    fn steps(&self) -> Vec<Self> {
        const STEPS: &[fn(&mut World) -> bool] = &[
            World::send,
            World::propose,
            World::enter,
            World::leave,
            World::carry,
            World::carry_back,
            World::fail,
            World::receive,
            World::tell,
        ];
        let after = |step: &fn(&mut World) -> bool| {
            let mut world = self.clone();
            step(&mut world).then_some(world)
        };
        STEPS.iter().filter_map(after).collect()
    }

    fn give(&mut self, piece: Piece) {
        self.given += match piece {
            Piece::Byte(_) => 1,
            Piece::Record(_) => RECORD,
        };
        self.tcp.push_back(piece);
    }

    fn send(&mut self) -> bool {
        if self.next == BYTES {
            return false;
        }
        let byte = self.next;
        self.next += 1;
        if self.stage == Stage::Ring {
            self.ring.push(byte);
            match self.is_broken {
                true => drop(self.leave()),
                false => self.there.push_back(There::Frame(byte)),
            }
        } else {
            self.give(Piece::Byte(byte));
        }
        true
    }

    fn propose(&mut self) -> bool {
        let may = self.stage == Stage::Tcp && !self.is_broken && self.proposed != Some(self.given);
        if may {
            (self.proposed, self.agreed) = (Some(self.given), None);
            self.there.push_back(There::Switch(self.given + 1));
        }
        may
    }

    fn enter(&mut self) -> bool {
        let may = self.stage == Stage::Tcp && !self.is_broken && self.agreed == Some(self.given);
        if may {
            self.stage = Stage::Ring;
        }
        may
    }

    /// By a record, or never to come.
    fn leave(&mut self) -> bool {
        match std::mem::replace(&mut self.stage, Stage::Left) {
            Stage::Left => return false,
            Stage::Tcp if self.proposed.is_some() && !self.is_broken => {
                self.there.push_back(There::Switch(0));
            }
            Stage::Tcp => {}
            Stage::Ring => {
                self.give(Piece::Record(self.credit));
                for at in self.credit as usize..self.ring.len() {
                    self.give(Piece::Byte(self.ring[at]));
                }
            }
        }
        true
    }

    fn carry(&mut self) -> bool {
        match self.there.pop_front() {
            None => return false,
            Some(There::Switch(at)) => {
                self.switch_at = at;
                // Who looks in the ring for what was proposed before goes back first.
                if self.way != Way::Ring as u32 {
                    self.answer(at);
                }
            }
            Some(There::Frame(byte)) if self.resumed[0] == 0 => self.view.push_back(byte),
            Some(There::Frame(_)) => {}
        }
        true
    }

    /// To what the peer has proposed.
    fn answer(&mut self, switch_at: u64) {
        if let Some(at) = switch_at.checked_sub(1).filter(|_| !self.is_broken) {
            self.back.push_back(Back::Switched(at));
        }
    }

    fn stay(&mut self, receiver: &Receiver<'_>) {
        receiver.stay_on_tcp();
        self.answer(receiver.peer.output.switch_at.load(Ordering::Relaxed));
    }

    fn carry_back(&mut self) -> bool {
        match self.back.pop_front() {
            None => return false,
            Some(Back::Switched(at)) if self.proposed == Some(at) => self.agreed = Some(at),
            Some(Back::Switched(_)) => {}
            Some(Back::Credit(read)) => self.credit = read,
        }
        true
    }

    fn fail(&mut self) -> bool {
        self.there.clear();
        self.back.clear();
        !std::mem::replace(&mut self.is_broken, true)
    }

    fn tell(&mut self) -> bool {
        let may = self.read > self.credited && !self.is_broken;
        if may {
            self.credited = self.read;
            self.back.push_back(Back::Credit(self.read));
        }
        may
    }

    /// A step of this module's, on slots that say what this world does.
    fn receive(&mut self) -> bool {
        let before = self.clone();
        let [own, peer] = [Slot::default(), Slot::default()];
        let o = Ordering::Relaxed;
        peer.face.state.store(READY, o);
        peer.face.generation.store(LIFE, o);
        peer.output.switch_at.store(self.switch_at, o);
        own.receiving.way.store(self.way, o);
        own.receiving.kernel_bytes.store(self.taken, o);
        own.progress.bytes.store(self.read, o);
        own.recall.resumed_at.store(self.resumed[0], o);
        own.recall.resumed_from.store(self.resumed[1], o);
        let receiver = Receiver {
            own: &own,
            peer: &peer,
            life: LIFE,
        };
        self.receive_by(&receiver);
        self.switch_at = peer.output.switch_at.load(o);
        self.way = own.receiving.way.load(o);
        self.taken = own.receiving.kernel_bytes.load(o);
        let recall = &own.recall;
        self.resumed = [recall.resumed_at.load(o), recall.resumed_from.load(o)];
        *self != before
    }

    fn receive_by(&mut self, receiver: &Receiver<'_>) {
        if receiver.way() == Way::Tcp {
            receiver.forget_void();
            if !receiver.follow_switch() {
                match self.tcp.front() {
                    Some(&Piece::Byte(byte)) => {
                        self.take(receiver);
                        self.accept(byte);
                    }
                    Some(Piece::Record(_)) => panic!("a record is taken for payload: {self:?}"),
                    None => {}
                }
                return;
            }
        }
        if receiver.way() == Way::Ring {
            if let Some(byte) = self.view.pop_front() {
                self.read += 1;
                return self.accept(byte);
            }
            if !receiver.has_record() {
                match self.tcp.front() {
                    _ if receiver.is_void() => self.stay(receiver),
                    Some(&Piece::Record(from)) => {
                        self.take(receiver);
                        receiver.note_record(from);
                    }
                    Some(Piece::Byte(_)) => {
                        assert_eq!(self.read, 0, "no record: {self:?}");
                        self.stay(receiver);
                    }
                    None => {}
                }
            } else if receiver.doubled() == 0 {
                receiver.follow_back();
            } else if matches!(self.tcp.front(), Some(Piece::Byte(_))) {
                self.take(receiver);
            }
        } else if let Some(&Piece::Byte(byte)) = self.tcp.front() {
            self.take(receiver);
            self.accept(byte);
        }
    }

    fn take(&mut self, receiver: &Receiver<'_>) {
        let bytes = match self.tcp.pop_front() {
            Some(Piece::Record(_)) => RECORD,
            _ => 1,
        };
        let taken = &receiver.own.receiving.kernel_bytes;
        taken.store(receiver.taken() + bytes, Ordering::Relaxed);
    }

    fn accept(&mut self, byte: u8) {
        assert_eq!(byte, self.got, "{self:?}");
        self.got += 1;
    }
}

#[test]
fn in_all_orders_of_steps_no_byte_is_lost_or_doubled() {
    let (mut visited, mut left) = (HashSet::new(), vec![World::new()]);
    let (mut ends, mut by_record) = (0, 0);
    while let Some(world) = left.pop() {
        if !visited.insert(world.clone()) {
            continue;
        }
        assert!(world.back.len() < 32, "no end of answers: {world:?}");
        let steps = world.steps();
        if steps.is_empty() {
            assert_eq!(world.got, BYTES, "{world:?}");
            ends += 1;
            by_record += u32::from(world.resumed[0] != 0);
        }
        left.extend(steps);
    }
    assert!(ends > 50 && by_record > 50, "{ends} {by_record}");
    assert!(visited.len() > 1000, "{}", visited.len());
    println!(
        "{} states, {ends} ends, {by_record} by a record",
        visited.len()
    );
}
