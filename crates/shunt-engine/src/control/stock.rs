//! Arenas that the daemon has in stock for us, so that a pairing finds one.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use shunt_abi::message::{Kind, Message};
use shunt_abi::{Reason, layout};
use shunt_shm::arena::Arena;

use super::state::note_due;
use super::to_daemon::send;
use super::wire::Sent;
use crate::{sys, wake};

/// As many as the daemon keeps.
static PLACES: [Place; layout::SPARES] = [const { Place::new() }; layout::SPARES];
static NEXT_ARENA: AtomicU32 = AtomicU32::new(1);

/// One arena in stock, or one that the daemon waits for and had no room for.
struct Place {
    /// The arena's number; 0: there is none here.
    number: AtomicU32,
    base: AtomicPtr<u8>,
    /// How many slots it has, or is to have.
    slots: AtomicU32,
    wanted: AtomicU32,
}

impl Place {
    const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            base: AtomicPtr::new(std::ptr::null_mut()),
            slots: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
        }
    }

    /// Takes the arena out.
    fn take(&self) -> Option<Arena> {
        self.number.store(0, Ordering::Relaxed);
        let base = self.base.swap(std::ptr::null_mut(), Ordering::Relaxed);
        let slots = self.slots.load(Ordering::Relaxed);
        // SAFETY: `add` put the address of an arena of ours there, with its slots, and the
        // swap gives it to nobody else.
        (!base.is_null()).then(|| unsafe { Arena::from_own_address(base, slots) })
    }
}

/// Gives the daemon an arena in stock, with as many slots as it asks for, or fewer. With the
/// lock.
pub(super) fn add(slots: u32) {
    let free = |place: &&Place| place.number.load(Ordering::Relaxed) == 0;
    let mut m = Message::new(Kind::Spare);
    m.slot = slots;
    let (Some(place), Ok((arena, fd))) = (PLACES.iter().find(free), Arena::create(slots)) else {
        m.status = Reason::NoResources as u8;
        if send(&m, None) == Sent::Full {
            put_off(slots);
        }
        return;
    };
    m.arena = next_number();
    let sent = send(&m, Some(fd));
    if sent == Sent::Done {
        let o = Ordering::Relaxed;
        place.slots.store(arena.slots(), o);
        place.base.store(arena.address() as *mut u8, o);
        place.number.store(m.arena, o);
    } else {
        // SAFETY: nobody else has it, and shuntd has not got it.
        unsafe { arena.unmap() };
    }
    sys::close(fd);
    if sent == Sent::Full {
        put_off(slots);
    }
}

/// A new number for an arena of this process.
pub(super) fn next_number() -> u32 {
    NEXT_ARENA.fetch_add(1, Ordering::Relaxed)
}

fn put_off(slots: u32) {
    let idle = |place: &&Place| place.wanted.load(Ordering::Relaxed) == 0;
    // The daemon asks for no more than there are places.
    if let Some(place) = PLACES.iter().find(idle) {
        place.wanted.store(slots, Ordering::Relaxed);
        note_due();
    }
}

/// Gives the daemon arenas for which it had no room before, and asks it for sockets. With the lock.
pub(super) fn catch_up() {
    if wake::wants_sockets() {
        let mut m = Message::new(Kind::Abroad);
        m.index = wake::begin_question();
        if send(&m, None) == Sent::Full {
            wake::put_off_question();
        }
    }
    let wanted = PLACES
        .each_ref()
        .map(|place| place.wanted.swap(0, Ordering::Relaxed));
    for slots in wanted.into_iter().filter(|&slots| slots > 0) {
        add(slots);
    }
}

/// Whether the daemon has none left.
pub(super) fn is_empty() -> bool {
    PLACES
        .iter()
        .all(|place| place.number.load(Ordering::Relaxed) == 0)
}

/// Drops the stock: the daemon that had it is gone.
pub(super) fn forget() {
    // SAFETY: what is in stock nobody has looked at.
    empty(|arena| unsafe { arena.unmap() });
}

/// In a forked child, which has none of it.
pub(super) fn after_fork_child() {
    empty(Arena::forget);
}

fn empty(end: impl Fn(Arena)) {
    for place in &PLACES {
        place.wanted.store(0, Ordering::Relaxed);
        place.take().into_iter().for_each(&end);
    }
}

/// The arena that the daemon has used, out of the stock.
pub(super) fn take(number: u32) -> Option<Arena> {
    let is_it = |place: &&Place| number != 0 && place.number.load(Ordering::Relaxed) == number;
    PLACES.iter().find(is_it)?.take()
}
