//! Which sets a socket is in, and what its peer is told of that.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_shm::atomic::heavy;
use shunt_shm::slot;

use super::SHARED;
use crate::socket::Socket;
use crate::{sys, table};

/// A socket's registrations: which sets it is in.
pub(crate) struct ItemList(UnsafeCell<Option<Box<Places>>>);

/// Where a socket's registrations are: set and item.
type Places = Vec<(u32, u32)>;

impl ItemList {
    /// With the socket's lock.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn list(&self) -> &mut Places {
        // SAFETY: the caller holds the socket's lock.
        unsafe { (*self.0.get()).get_or_insert_default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: a look that loses a race is repeated with the lock.
        unsafe { (*self.0.get()).as_ref().is_none_or(|l| l.is_empty()) }
    }
}

/// Tells the peer, by our wait word, in which group to log what happens to a
/// socket. With the socket's lock.
///
/// A socket whose registrations are all dormant stays as it is. `true`: the
/// peer has been told something new.
pub(super) fn watch(socket: &'static Socket) -> bool {
    let told = say_watched(socket);
    if told {
        // Pairs with the light barrier before a peer's look at the wait word: what
        // it publishes from now on is logged; what came before is seen by the look
        // that the caller makes next.
        heavy();
    }
    told
}

/// The same without the barrier.
pub(super) fn say_watched(socket: &'static Socket) -> bool {
    let Some(pair) = socket.pair() else {
        return false;
    };
    // Who waits for several says no more where that is.
    pair.own.face.forget_core();
    let mut group = None;
    let mut dormant = false;
    for &(set, item) in socket.items.list().iter() {
        let Some(set) = table::SETS.get(set) else {
            continue;
        };
        // `None`: the set has just ended.
        let state = set.with(|s| {
            let item = s.items.get(item as usize)?;
            // One that is near is looked at directly.
            Some((item.moved && !item.near, item.dormant))
        });
        let state = state.flatten();
        dormant |= state == Some((true, true));
        if state == Some((true, false)) {
            let this = set.group();
            group = Some(if group.is_none_or(|g| g == this) {
                this
            } else {
                SHARED
            });
        }
    }
    if group.is_none() && dormant {
        return false;
    }
    // Relatives since a fork say it by the same word: none takes back what another says.
    let alone = pair.own.options.forked.load(Ordering::Acquire) == slot::UNFORKED;
    let change = |old: u32| {
        let bits = match group {
            Some(g) if !alone && old & slot::WATCHED != 0 && old & slot::WATCH_MASK != said(g) => {
                said(SHARED)
            }
            Some(g) => said(g),
            None if alone => 0,
            None => old & slot::WATCH_MASK,
        };
        (old & slot::WATCH_MASK != bits).then_some(old & !slot::WATCH_MASK | bits)
    };
    let wait = &pair.own.face.wait;
    wait.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change)
        .is_ok()
}

/// The bits that name a group.
fn said(group: u32) -> u32 {
    slot::WATCHED | group << slot::GROUP_SHIFT
}

/// The last descriptor of a socket is about to be closed while the daemon may
/// hold a copy of it, which would keep the kernel's registration alive.
pub(crate) fn part(socket: &'static Socket, fd: c_int) {
    if socket.items.is_empty() || !socket.lock.take() {
        return;
    }
    for &(set, item) in socket.items.list().iter() {
        let Some(set) = table::SETS.get(set) else {
            continue;
        };
        set.with(|s| {
            if let Some(item) = s.items.get(item as usize)
                && item.fd == fd
                && !item.moved
            {
                let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
            }
        });
    }
    socket.lock.give();
}

/// A socket ends: its registrations are gone, as the kernel's are.
pub(crate) fn forget(socket: &'static Socket) {
    if socket.items.is_empty() || !socket.lock.take() {
        return;
    }
    let link = socket.pair().map(|p| p.link);
    for (set, item) in std::mem::take(socket.items.list()) {
        let Some(set) = table::SETS.get(set) else {
            continue;
        };
        set.with(|s| {
            if s.items[item as usize].moved {
                set.moved.fetch_sub(1, Ordering::AcqRel);
                if let Some(link) = link {
                    s.unfollow(link, set);
                }
            }
            s.remove(item);
            set.tracked.fetch_sub(1, Ordering::AcqRel);
        });
    }
    socket.lock.give();
}
