//! What the peer of a socket is told of the sets that it is in.

use std::sync::atomic::Ordering;

use shunt_shm::atomic::{full, heavy};
use shunt_shm::slot;

use super::hearing;
use super::set::SETS;
use crate::link::Pair;
use crate::socket::Locked;

/// Tells the peer, by our wait word, in which group to log what happens to a
/// socket.
///
/// A socket whose registrations are all inactive stays as it is. `true`: the
/// peer has been told something new.
pub(super) fn watch(socket: &Locked) -> bool {
    let said = change_word(socket);
    // The word is read first: the call that tells the peer to stop its barriers writes `origin`
    // before it clears `FENCED` in the word.
    let is_fenced = |said: u32| said & slot::FENCED != 0 && socket.origin.is_fenced();
    match said {
        // The peer passes a full barrier before its look at the wait word, so a full one pairs with
        // it; otherwise as below.
        Some(said) if is_fenced(said) => full(),
        // Pairs with the light barrier before a peer's look at the wait word: what
        // it publishes from now on is logged; what came before is seen by the look
        // that the caller makes next.
        Some(_) => heavy(),
        None => {}
    }
    said.is_some()
}

/// [`watch`] without the barrier.
pub(super) fn say_watched(socket: &Locked) -> bool {
    change_word(socket).is_some()
}

/// Changes the wait word for [`watch`]. Returns what it was, if it has changed.
fn change_word(socket: &Locked) -> Option<u32> {
    let pair = socket.pair()?;
    // A thread that waits for several connections does not say on which core.
    pair.own.face.forget_core();
    let mut group = None;
    let mut inactive = false;
    for &(set, item) in socket.places() {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        set.with(|s| {
            let watched = s
                .items
                .get(item as usize)
                // One that is polled is looked at directly.
                .filter(|item| item.moved && !item.polled);
            match watched {
                Some(item) if item.inactive => inactive = true,
                // A socket in several sets is on its way to TCP.
                Some(_) => group = s.door(pair.link, set).or(group),
                None => {}
            }
        });
    }
    if group.is_none() && inactive {
        return None;
    }
    let bits = group.map_or(0, said);
    let change = |old: u32| {
        let said = old & slot::WATCH_MASK;
        (said != bits && !hearing::is_relatives(pair, said))
            .then_some(old & !slot::WATCH_MASK | bits)
    };
    let wait = &pair.own.face.wait;
    wait.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change)
        .ok()
}

/// Whether the peer is told to log in this group already.
pub(super) fn is_said(pair: &Pair, group: u32) -> bool {
    pair.own.face.wait.load(Ordering::Relaxed) & slot::WATCH_MASK == said(group)
}

/// The bits that name a group.
fn said(group: u32) -> u32 {
    slot::WATCHED | group << slot::GROUP_SHIFT
}
