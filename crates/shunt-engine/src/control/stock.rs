//! Arenas that the daemon has in stock for us, so that a pairing finds one.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};
use shunt_shm::arena::Arena;

use super::wire::Sent;
use super::{due, send};
use crate::sys;

const PLACES: usize = 4;
static NUMBERS: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
static ARENAS: [AtomicPtr<u8>; PLACES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PLACES];
static NEXT_ARENA: AtomicU32 = AtomicU32::new(1);
/// Arenas that the daemon waits for, and had no room for.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Gives the daemon an arena in stock. With the lock.
pub(super) fn add() {
    let Some(place) = NUMBERS.iter().position(|n| n.load(Ordering::Relaxed) == 0) else {
        return;
    };
    let Ok((arena, fd)) = Arena::create() else {
        let mut m = Message::new(Kind::Spare);
        m.status = Reason::NoResources as u8;
        if send(&m, None) == Sent::Full {
            put_off();
        }
        return;
    };
    let number = NEXT_ARENA.fetch_add(1, Ordering::Relaxed);
    let mut m = Message::new(Kind::Spare);
    m.arena = number;
    let sent = send(&m, Some(fd));
    if sent == Sent::Done {
        ARENAS[place].store(arena.address() as *mut u8, Ordering::Relaxed);
        NUMBERS[place].store(number, Ordering::Relaxed);
    } else {
        arena.unmap();
    }
    sys::close(fd);
    if sent == Sent::Full {
        put_off();
    }
}

fn put_off() {
    WANTED.fetch_add(1, Ordering::Relaxed);
    due::note();
}

/// Gives the daemon what it had no room for before. With the lock.
pub(super) fn catch_up() {
    for _ in 0..WANTED.swap(0, Ordering::Relaxed) {
        add();
    }
}

/// Whether the daemon has none left.
pub(super) fn is_empty() -> bool {
    NUMBERS.iter().all(|n| n.load(Ordering::Relaxed) == 0)
}

/// What the daemon had is of no use any more.
pub(super) fn forget() {
    WANTED.store(0, Ordering::Relaxed);
    for (number, arena) in NUMBERS.iter().zip(&ARENAS) {
        number.store(0, Ordering::Relaxed);
        arena.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// The arena that the daemon has used, out of the stock.
pub(super) fn take(number: u32) -> Option<Arena> {
    let place = NUMBERS
        .iter()
        .position(|n| number != 0 && n.load(Ordering::Relaxed) == number)?;
    NUMBERS[place].store(0, Ordering::Relaxed);
    let base = ARENAS[place].swap(std::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: `add` put the address of an arena of ours there, and the swap gives it
    // to nobody else.
    (!base.is_null()).then(|| unsafe { Arena::from_own_address(base) })
}
