//! Model checking: what the connector believes to be taken is taken, and nothing else is.

#[cfg(loom)]
use loom::{sync::Arc, thread};
#[cfg(shuttle)]
use shuttle::{
    rand::{Rng, thread_rng},
    sync::Arc,
    thread,
};

use super::{Side, Turn};
#[cfg(shuttle)]
use crate::atomic::pause;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::slot::recycled_life;

/// Both words; beside each what its side writes before the other may look at it: the life that its slot has begun.
struct World {
    words: [AtomicU64; 2],
    begun: [AtomicU32; 2],
}

const FIRST: u32 = 256;

impl World {
    /// Both ends have been put aside.
    fn put_aside() -> Arc<Self> {
        let world = Self {
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            begun: [AtomicU32::new(FIRST), AtomicU32::new(FIRST)],
        };
        for i in 0..2 {
            world.side(i).begin(FIRST);
            world.side(i).put_aside();
        }
        Arc::new(world)
    }

    /// 0: the connector.
    fn side(&self, i: usize) -> Side<'_> {
        Side {
            own: &self.words[i],
            peer: &self.words[1 - i],
        }
    }

    /// The connector connects once. `true`: its program has a connection.
    fn connects(&self) -> bool {
        let side = self.side(0);
        if !side.may_offer() {
            return false;
        }
        let next = recycled_life(side.own().life);
        self.begun[0].store(next, Ordering::Relaxed);
        side.offer()
    }

    /// The acceptor takes what it has found offered.
    fn takes(&self) -> bool {
        let side = self.side(1);
        let next = recycled_life(side.own().life);
        let taken = side.take(|life| self.begun[1].store(life, Ordering::Relaxed));
        if taken {
            let seen = self.begun[0].load(Ordering::Relaxed);
            assert_eq!(seen, next, "the connector has not begun");
        }
        taken
    }

    /// The acceptor waits once, and waits no more. `true`: it has accepted something.
    fn accepts(&self) -> bool {
        let side = self.side(1);
        side.wait() && self.takes() || side.end_wait() && self.takes()
    }

    /// Both ends agree, when both programs are done.
    fn ends(&self, made: bool, taken: bool) {
        assert_eq!(made, taken, "{:?}", self.side(0).own());
        if made {
            assert!(self.side(0).is_taken());
            let [begun, seen] = [&self.begun[0], &self.begun[1]];
            assert_eq!(begun.load(Ordering::Relaxed), seen.load(Ordering::Relaxed));
        }
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

/// Random orders of many connections one after the other, closed by either side first.
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
        // It waits for an answer before it closes.
        while !side.is_taken() {
            pause();
        }
        if !side.may_put_aside() {
            break;
        }
        side.put_aside();
    }
    side.give_up();
    made
}

/// How many the acceptor has had, until the connector has given up.
#[cfg(shuttle)]
fn accept_many(world: &World) -> usize {
    let side = world.side(1);
    let mut taken = 0;
    while side.peer().turn != Turn::Away {
        if !world.accepts() {
            pause();
            continue;
        }
        taken += 1;
        if thread_rng().r#gen() {
            while side.peer().turn != Turn::Away && !side.has_peer_put_aside() {
                pause();
            }
        }
        if !side.may_put_aside() {
            break;
        }
        side.put_aside();
    }
    taken
}
