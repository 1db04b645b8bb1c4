//! Model checking of the recall: a sender and a receiver on a ring and a TCP stream that are
//! lists, in every order of their steps. No message is lost, doubled or overtaken, and none
//! comes by TCP while its receiver reads the ring.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{Look, Receiver, Sender};
use crate::atomic::{AtomicU32, Ordering, light};
use crate::slot::{READY, Recall, Slot, Way, first_life};
use crate::token::Holder;

const LIFE: u32 = first_life(1);

struct World {
    receiver: Slot,
    sender: Slot,
    ring: Mutex<Vec<u8>>,
    /// How many of these have been read.
    read: AtomicU32,
    tcp: Mutex<Vec<u8>>,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Self {
            receiver: Slot::default(),
            sender: Slot::default(),
            ring: Mutex::new(Vec::new()),
            read: AtomicU32::new(0),
            tcp: Mutex::new(Vec::new()),
        };
        for slot in [&world.receiver, &world.sender] {
            slot.face.state.store(READY, Ordering::Relaxed);
            slot.face.generation.store(LIFE, Ordering::Release);
        }
        Way::Ring.store(&world.sender.sending.way);
        Way::Ring.store(&world.receiver.receiving.way);
        Arc::new(world)
    }

    fn as_sender(&self) -> Sender<'_> {
        Sender {
            own: &self.sender,
            peer: &self.receiver,
            life: LIFE,
        }
    }

    fn as_receiver(&self) -> Receiver<'_> {
        Receiver {
            own: &self.receiver,
            peer: &self.sender,
        }
    }

    fn way_out(&self) -> Way {
        Way::load(&self.sender.sending.way)
    }

    fn way_in(&self) -> Way {
        Way::load(&self.receiver.receiving.way)
    }

    /// What is unread in the ring, by TCP.
    fn send_again(&self) {
        let ring = self.ring.lock().unwrap();
        let read = self.read.load(Ordering::Acquire) as usize;
        self.tcp.lock().unwrap().extend_from_slice(&ring[read..]);
    }

    /// As a thread of the sender's does it.
    fn send(&self, me: u64, message: u8) {
        let token = &self.sender.sending.token;
        loop {
            while token.try_take(Holder(me)).is_err() {
                thread::yield_now();
            }
            light(); // As between any two of its steps (`heavy`).
            if self.way_out() == Way::Ring && !self.as_sender().is_recalled() {
                self.ring.lock().unwrap().push(message);
                return token.give();
            }
            if self.as_sender().is_asked() {
                self.answer();
            }
            if self.way_out() == Way::TcpAgain {
                self.tcp.lock().unwrap().push(message);
                return token.give();
            }
            token.give();
        }
    }

    fn answer(&self) {
        loop {
            match self.as_sender().look() {
                Look::Wait => thread::yield_now(),
                Look::TakenBack => return,
                Look::Asked => {
                    self.sender.output.back_at.store(1, Ordering::Release);
                    self.send_again();
                    return self.as_sender().answer(Recall::AGREED, Way::TcpAgain);
                }
                Look::Done => return self.as_sender().answer(Recall::AGREED, Way::TcpAgain),
                Look::Nonsense => unreachable!(),
            }
        }
    }

    /// What can be received now.
    fn receive(&self, got: &mut Vec<u8>) {
        if self.way_in() == Way::Ring {
            let ring = self.ring.lock().unwrap();
            let read = self.read.load(Ordering::Relaxed) as usize;
            got.extend_from_slice(&ring[read..]);
            self.read.store(ring.len() as u32, Ordering::Release);
        } else if self.receiver.recall.stage.load(Ordering::Relaxed) == Recall::DONE
            || self.sender.recall.answered.load(Ordering::Acquire) == Recall::AGREED
        {
            got.append(&mut self.tcp.lock().unwrap());
        }
    }

    /// Recalls; `lent`: it could send to itself what is unread.
    fn recall(&self, lent: bool) {
        self.as_receiver().begin();
        self.take_part(lent);
    }

    fn take_part(&self, lent: bool) {
        let can = || {
            let read = self.read.load(Ordering::Relaxed) as usize;
            lent || self.ring.lock().unwrap().len() == read
        };
        if self.as_receiver().take_part(|| true, can) {
            if lent {
                self.send_again();
            }
            self.as_receiver().done();
        }
    }

    fn is_asking(&self) -> bool {
        self.receiver.recall.stage.load(Ordering::Relaxed) == Recall::ASKED
    }

    /// When the sender has gone: everything has come, in order.
    fn end(&self, mut got: Vec<u8>, sent: u8) {
        let answered = self.sender.recall.answered.load(Ordering::Acquire);
        if self.is_asking() && answered == 0 {
            // It never will.
            assert!(self.as_receiver().take_back_in_time(Way::Ring));
        }
        self.receive(&mut got);
        assert_eq!(got, (0..sent).collect::<Vec<_>>());
        assert_eq!(self.tcp.lock().unwrap().len(), 0);
    }
}

/// Runs the receiver's part beside a sender of so many messages.
fn check(sent: u8, receiver: impl Fn(&World, &mut Vec<u8>) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = World::new();
        let sender = {
            let world = Arc::clone(&world);
            thread::spawn(move || (0..sent).for_each(|message| world.send(1, message)))
        };
        let mut got = Vec::new();
        receiver(&world, &mut got);
        sender.join().unwrap();
        world.end(got, sent);
    });
}

#[test]
fn an_answer_brings_everything() {
    check(2, |world, got| {
        world.recall(false);
        world.receive(got);
    });
}

#[test]
fn a_receiver_that_sends_to_itself_gets_everything() {
    check(2, |world, got| {
        world.recall(true);
        world.receive(got);
    });
}

#[test]
fn a_recall_is_taken_back_beside_an_answer() {
    check(2, |world, got| {
        world.recall(false);
        if world.is_asking() {
            world.as_receiver().take_back_in_time(Way::Ring);
        }
        world.receive(got);
    });
}

#[test]
fn a_recall_that_was_taken_back_is_begun_again() {
    check(2, |world, got| {
        world.recall(false);
        if world.is_asking() && world.as_receiver().take_back_in_time(Way::Ring) {
            world.receive(got);
            world.recall(true);
        }
        world.receive(got);
    });
}

#[test]
fn who_asks_may_send_to_itself_later() {
    check(2, |world, got| {
        world.recall(false);
        if world.is_asking() {
            world.take_part(true);
        }
        world.receive(got);
    });
}
