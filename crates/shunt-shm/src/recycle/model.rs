//! Model checking: what the connector believes to be taken is taken, and nothing else is; and who sleeps on a connection hears
//! of its end.

#[cfg(loom)]
use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};
#[cfg(shuttle)]
use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Arc, Condvar, Mutex},
    thread,
};

use super::{Side, Turn};
#[cfg(shuttle)]
use crate::atomic::pause;
use crate::atomic::{Ordering, light};
use crate::path::{Receiver, Sender};
use crate::publish;
use crate::slot::{CLOSED, READY, Slot, WAIT_RX, Way, recycled_life};

/// Both slots, and for each side what can end a sleep of its.
struct World {
    slots: [Slot; 2],
    kernels: [Kernel; 2],
}

/// What a thread of one side polls: its channel, and the base socket.
struct Kernel {
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Default)]
struct News {
    is_called: bool,
    has_fin: bool,
}

const FIRST: u32 = 256;

impl World {
    /// The program has the connection at both ends, and nobody has sent a byte.
    fn in_use() -> Arc<Self> {
        let world = Self {
            slots: [Slot::default(), Slot::default()],
            kernels: [(); 2].map(|()| Kernel {
                news: Mutex::new(News::default()),
                changed: Condvar::new(),
            }),
        };
        for (i, slot) in world.slots.iter().enumerate() {
            slot.face.state.store(READY, Ordering::Relaxed);
            slot.face.generation.store(FIRST, Ordering::Relaxed);
            world.side(i).begin(FIRST);
        }
        Arc::new(world)
    }

    /// Both ends have been put aside, and both directions are in their rings.
    fn put_aside() -> Arc<Self> {
        let world = Self::in_use();
        for (i, slot) in world.slots.iter().enumerate() {
            Way::Ring.store(&slot.sending.way);
            Way::Ring.store(&slot.receiving.way);
            slot.face.state.store(READY | CLOSED, Ordering::Relaxed);
            world.side(i).put_aside();
        }
        world
    }

    /// 0: the connector.
    fn side(&self, i: usize) -> Side<'_> {
        Side {
            own: &self.slots[i].options.turn,
            peer: &self.slots[1 - i].options.turn,
        }
    }

    /// The life that a side's slot has begun.
    fn begun(&self, i: usize) -> u32 {
        self.slots[i].face.generation.load(Ordering::Relaxed)
    }

    fn sender(&self, i: usize) -> Sender<'_> {
        Sender {
            own: &self.slots[i],
            peer: &self.slots[1 - i],
            life: self.begun(i),
        }
    }

    fn receiver(&self, i: usize) -> Receiver<'_> {
        Receiver {
            own: &self.slots[i],
            peer: &self.slots[1 - i],
            life: self.begun(i),
        }
    }

    /// The connector connects once. `true`: its program has a connection.
    fn connects(&self) -> bool {
        let side = self.side(0);
        if !side.may_offer() {
            return false;
        }
        self.slots[0].begin_recycled(recycled_life(side.own().life));
        side.offer()
    }

    /// The acceptor takes what it has found offered.
    fn takes(&self) -> bool {
        let side = self.side(1);
        let next = recycled_life(side.own().life);
        let taken = side.take(|life| self.slots[1].begin_recycled(life));
        if taken {
            assert_eq!(self.begun(0), next, "the connector has not begun");
            side.accept();
        }
        taken
    }

    /// The acceptor waits once, and waits no more. `true`: it has accepted something.
    fn accepts(&self) -> bool {
        let side = self.side(1);
        side.wait() && self.takes() || side.end_wait() && self.takes()
    }

    /// A side's program closes the connection. `false`: the kernel tells the peer.
    fn closes(&self, i: usize) -> bool {
        let (side, own) = (self.side(i), &self.slots[i]);
        let peer = self.sender(i).peer_state();
        let is_closed = peer & CLOSED != 0;
        let may =
            side.may_put_aside() && peer & READY != 0 && is_closed == side.has_peer_put_aside();
        if may && self.sender(i).may_switch_at_end() {
            self.sender(i).switch(0);
        }
        if may {
            side.put_aside();
        }
        publish::set_bits(&own.face.state, CLOSED);
        if may {
            self.tells(i);
        } else {
            self.kernels[1 - i].news(|news| news.has_fin = true);
        }
        may
    }

    /// Calls a thread that sleeps at the other side, once for each sleep.
    fn tells(&self, i: usize) {
        let (called, face) = (&self.slots[i].sending.called, &self.slots[1 - i].face);
        light();
        let wait = face.look_again(face.wait.load(Ordering::Relaxed));
        let epoch = face.epoch.load(Ordering::Acquire);
        if wait & WAIT_RX != 0 && called.load(Ordering::Relaxed) != epoch {
            self.kernels[1 - i].news(|news| news.is_called = true);
            called.store(epoch, Ordering::Relaxed);
        }
    }

    /// Whether the rings say that the connection has ended.
    fn has_ended(&self, i: usize) -> bool {
        self.receiver(i).follow_switch()
            && self.receiver(i).peer_state() & CLOSED != 0
            && self.side(i).has_peer_put_aside()
    }

    /// A side receives the end, asleep until then. Whoever is not called sleeps for ever, which the checker sees.
    fn receives_end(&self, i: usize) {
        let face = &self.slots[i].face;
        while !self.has_ended(i) {
            face.epoch.fetch_add(1, Ordering::AcqRel);
            face.say_asleep(true);
            if !self.has_ended(i) && self.kernels[i].sleep() {
                return;
            }
            publish::clear_bits(&face.wait, WAIT_RX);
        }
    }

    /// Both ends agree, when both programs are done.
    #[cfg(loom)]
    fn ends(&self, made: bool, taken: bool) {
        assert_eq!(made, taken, "{:?}", self.side(0).own());
        if made {
            assert!(self.side(0).is_taken());
            assert_eq!(self.begun(0), self.begun(1));
        }
    }
}

impl Kernel {
    fn news(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap());
        self.changed.notify_all();
    }

    #[cfg(shuttle)]
    fn has_fin(&self) -> bool {
        self.news.lock().unwrap().has_fin
    }

    /// Sleeps until something is told. `true`: the base socket has ended.
    fn sleep(&self) -> bool {
        let mut news = self.news.lock().unwrap();
        while !news.is_called && !news.has_fin {
            news = self.changed.wait(news).unwrap();
        }
        news.is_called = false;
        news.has_fin
    }
}

/// Every order of the steps: one who connects, up to twice, and one who waits, takes, waits no more and gives up.
#[cfg(loom)]
#[test]
fn an_offer_that_is_made_is_taken_however_the_wait_ends() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::put_aside();
        let connector = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.connects() || world.connects())
        };
        let taken = world.accepts();
        if !taken {
            world.side(1).give_up();
        }
        let made = connector.join().unwrap();
        world.ends(made, taken);
        assert!(made || world.side(1).own().turn == Turn::Away);
    });
}

/// The same of one who waits twice: an offer of the first wait that was withdrawn is none of the second.
#[cfg(loom)]
#[test]
fn an_offer_that_was_withdrawn_is_not_taken_later() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::put_aside();
        let connector = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let made = world.connects();
                if !made {
                    world.side(0).give_up();
                }
                made
            })
        };
        let taken = world.accepts() || world.accepts();
        let made = connector.join().unwrap();
        // What was offered at last is there for the next who looks.
        let taken = taken || world.side(1).is_offered() && world.takes();
        world.ends(made, taken);
    });
}

/// One side closes a connection on which nobody has said a word, and so moves its direction to its ring; the other one
/// receives.
#[cfg(loom)]
#[test]
fn who_sleeps_on_a_connection_without_a_byte_hears_of_its_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::in_use();
        let closer = {
            let world = Arc::clone(&world);
            thread::spawn(move || assert!(world.closes(0)))
        };
        world.receives_end(1);
        closer.join().unwrap();
        assert!(world.closes(1));
    });
}

/// What is offered is closed at once, before it is taken or behind that. The call that goes with the offer may come late.
#[cfg(loom)]
#[test]
fn who_takes_what_its_connector_has_closed_already_hears_of_its_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let world = World::put_aside();
        let connector = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let made = world.connects();
                if made {
                    world.tells(0);
                    world.closes(0);
                }
                made
            })
        };
        let taken = world.accepts();
        if taken {
            world.receives_end(1);
        } else {
            world.side(1).give_up();
        }
        assert_eq!(connector.join().unwrap(), taken);
    });
}

/// The same, and offered once more where the first one was put aside at both ends.
#[cfg(loom)]
#[test]
fn what_is_offered_closed_and_offered_again_is_taken_twice() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let world = World::put_aside();
        let connector = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let first = world.connects();
                let again = first && world.closes(0) && world.connects();
                if again {
                    world.closes(0);
                }
                u32::from(first) + u32::from(again)
            })
        };
        let mut taken = 0;
        while taken < 2 && world.accepts() {
            taken += 1;
            world.receives_end(1);
            if !world.closes(1) {
                break;
            }
        }
        world.side(1).give_up();
        assert_eq!(connector.join().unwrap(), taken);
    });
}

/// Random orders of many connections one after the other, closed by either side first, or as soon as they are offered.
#[cfg(shuttle)]
#[test]
fn many_connections_one_after_the_other() {
    const LIVES: usize = 12;
    let runs = std::env::var("SHUNT_MODEL_RUNS").map_or(20_000, |n| n.parse().unwrap());
    shuttle::check_random(
        || {
            let world = World::put_aside();
            let connector = {
                let world = Arc::clone(&world);
                thread::spawn(move || connect_many(&world, LIVES))
            };
            let taken = accept_many(&world);
            assert_eq!(connector.join().unwrap(), taken);
        },
        runs,
    );
}

/// How many connections the connector has had, until it gives up.
#[cfg(shuttle)]
fn connect_many(world: &World, most: usize) -> usize {
    let side = world.side(0);
    let mut made = 0;
    while made < most && thread_rng().gen_range(0..40) != 0 {
        if !world.connects() {
            pause();
            continue;
        }
        made += 1;
        world.tells(0);
        if thread_rng().r#gen() {
            // It waits for an answer before it closes.
            while !side.is_taken() {
                pause();
            }
        }
        if !world.closes(0) {
            return made;
        }
    }
    side.give_up();
    world.kernels[1].news(|news| news.has_fin = true);
    made
}

/// How many the acceptor has had, until the connector has given up.
#[cfg(shuttle)]
fn accept_many(world: &World) -> usize {
    let side = world.side(1);
    let mut taken = 0;
    // What was offered before the end is accepted behind it.
    while side.is_offered() || side.peer().turn != Turn::Away && !world.kernels[1].has_fin() {
        if !world.accepts() {
            pause();
            continue;
        }
        taken += 1;
        if thread_rng().r#gen() {
            world.receives_end(1);
        }
        if !world.closes(1) {
            break;
        }
    }
    taken
}
