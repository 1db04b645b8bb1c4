//! Random orders of long scenes: both directions, two threads at each end that send, receive, change
//! the path, go back to the rings and die at any step, as shuttle's random numbers say. Each
//! run can be had again by its schedule, which shuttle prints where one fails.

use std::cell::Cell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex as RealMutex;
use std::sync::atomic::{AtomicU64 as RealU64, Ordering as RealOrdering};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread;

use super::receives::Loan;
use super::{End, World};
use crate::atomic::Ordering;

/// Schedules in one run of the tests; more with `SHUNT_MODEL_RUNS`.
const RUNS: usize = 20_000;

shuttle::thread_local! {
    /// One in this many steps of this thread kills it; 0: none does.
    static MORTAL: Cell<u32> = Cell::new(0);
}

/// What a thread that dies unwinds with.
struct Died;

/// At a step.
pub(in crate::path) fn may_die() {
    let one_of = MORTAL.with(Cell::get);
    if one_of != 0 && thread_rng().gen_range(0..one_of) == 0 {
        MORTAL.with(|mortal| mortal.set(0));
        resume_unwind(Box::new(Died));
    }
}

/// Whether TCP takes another byte: mostly.
pub(super) fn has_room() -> bool {
    thread_rng().gen_range(0..4) != 0
}

/// Does something as a thread that may die in it. `false`: it has.
fn lives_through(end: &End<'_>, one_of: u32, work: impl FnOnce()) -> bool {
    MORTAL.with(|mortal| mortal.set(one_of));
    let result = catch_unwind(AssertUnwindSafe(work));
    MORTAL.with(|mortal| mortal.set(0));
    match result {
        Ok(()) => true,
        Err(why) if why.is::<Died>() => {
            end.die();
            false
        }
        Err(why) => resume_unwind(why),
    }
}

/// The states of both slots that were seen: what decides, without counts.
static SEEN: RealMutex<Option<HashSet<[u32; 16]>>> = RealMutex::new(None);
static SCHEDULES: RealU64 = RealU64::new(0);

fn note(world: &World) {
    let mut state = [0; 16];
    for (host, words) in world.0.iter().zip(state.chunks_mut(8)) {
        let (slot, o) = (&host.slot, Ordering::Relaxed);
        words.copy_from_slice(&[
            slot.face.state.load(o),
            slot.face.generation.load(o) & 3 | u32::from(slot.face.again.load(o) != 0) << 2,
            slot.sending.way.load(o) | slot.receiving.way.load(o) << 4,
            slot.receiving.awaits.load(o),
            slot.recall.stage.load(o) | slot.recall.answered.load(o) << 4,
            u32::from(slot.output.switch_at.load(o) != 0),
            u32::from(slot.output.back_at.load(o) != 0),
            u32::from(slot.recall.brought_until.load(o) != 0),
        ]);
    }
    let mut seen = SEEN.lock().unwrap();
    seen.get_or_insert_with(HashSet::new).insert(state);
}

/// What a thread does, drawn one after the other.
fn live(end: End<'_>, world: &World, steps: u32, dies: u32) {
    for _ in 0..steps {
        let draw = thread_rng().gen_range(0..20);
        let lives = lives_through(&end, dies, || match draw {
            0..5 => {
                end.send();
            }
            5..10 => end.receive(),
            10..12 => end.recall(false, Loan::Refused),
            12 if has_room() => end.recall(true, Loan::Lent),
            12 => end.recall(true, Loan::InVain),
            13 => end.give_up(),
            14 => end.leave(false),
            15 => end.leave(true),
            _ => end.return_to_rings(),
        });
        note(world);
        if !lives {
            return;
        }
    }
}

fn runs() -> usize {
    let told = std::env::var("SHUNT_MODEL_RUNS");
    told.map_or(RUNS, |runs| runs.parse().expect("a number of schedules"))
}

/// Both directions, two threads at each end.
fn scene(steps: u32, dies: u32, ends: bool) {
    let world = Arc::new(World::new());
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let world = Arc::clone(&world);
            // One of the two at each end may die.
            let dies = if i < 2 { dies } else { 0 };
            thread::spawn(move || live(world.end(i % 2, i as u64 + 1), &world, steps, dies))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    if ends {
        world.end(0, 5).shutdown();
    }
    world.end(0, 5).has_everything();
    world.end(1, 6).has_everything();
    SCHEDULES.fetch_add(1, RealOrdering::Relaxed);
}

fn report(name: &str, from: std::time::Instant) {
    let seen = SEEN.lock().unwrap().as_ref().map_or(0, HashSet::len);
    let schedules = SCHEDULES.load(RealOrdering::Relaxed);
    println!(
        "{name}: {schedules} schedules, {seen} states so far, {:.1?}",
        from.elapsed()
    );
}

fn check(name: &str, scene: impl Fn() + Send + Sync + Copy + 'static) {
    let from = std::time::Instant::now();
    shuttle::check_random(scene, runs());
    shuttle::check_pct(scene, runs() / 4, 4);
    report(name, from);
}

#[test]
fn a_path_that_changes_at_random_loses_nothing() {
    check("changes", || scene(8, 0, false));
}

#[test]
fn nor_does_one_whose_processes_die() {
    check("deaths", || scene(8, 24, false));
}

#[test]
fn nor_one_that_ends_beside_a_change() {
    check("ends", || {
        let world = Arc::new(World::new());
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                live(world.end(0, 1), &world, 5, 0);
                world.end(0, 1).shutdown();
            })
        };
        live(world.end(1, 2), &world, 6, 0);
        other.join().unwrap();
        world.end(1, 2).has_everything();
        SCHEDULES.fetch_add(1, RealOrdering::Relaxed);
    });
}
