//! Listeners in a set. The kernel tells of what is in their queues. Of a connection that was offered in memory
//! ([`crate::recycle`] calls it taken) the set tells here, as the kernel would.

use std::sync::atomic::Ordering;

use libc::epoll_event;
use shunt_shm::wake::Address;

use super::hearing;
use super::room::Room;
use super::set::Set;
use super::state::Item;
use super::wanted;
use crate::socket::Socket;

/// The most listeners of one set that are looked at.
const MOST: usize = 8;

/// What a listener is when there is something to accept.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// The events by which a registration asks to be told of something to accept. A one-shot registration is left to the
/// kernel, which would have to disarm it.
fn readable(item: &Item) -> u32 {
    if item.events & libc::EPOLLONESHOT as u32 == 0 {
        wanted(item.events) & READABLE
    } else {
        0
    }
}

impl Set {
    /// The listeners in the set that it watches for connections to accept.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &'static Socket> + use<> {
        let mut found = [None; MOST];
        if self.listeners.load(Ordering::Acquire) != 0 {
            self.with(|state| {
                let items = state.listeners.iter();
                let items = items.map(|&index| &state.items[index as usize]);
                let mut places = found.iter_mut();
                for item in items.filter(|item| wanted(item.events) & READABLE != 0) {
                    let may_tell = readable(item) != 0;
                    match may_tell.then(|| places.next()).flatten() {
                        Some(place) => *place = Some(item.socket),
                        None => item.socket.accepts.note_others(),
                    }
                }
            });
        }
        found.into_iter().flatten()
    }

    /// A thread waits on something that the set is in. What is offered in memory to its listeners does not wake it.
    pub(crate) fn hide_listeners(&'static self) {
        self.listeners()
            .for_each(|listener| listener.accepts.note_others());
        self.each_inside(Self::hide_listeners);
    }

    /// Hides the listeners of the sets inside it.
    pub(crate) fn hide_inner_listeners(&'static self) {
        self.each_inside(Self::hide_listeners);
    }

    /// Whether a thread that sleeps on the set hears calls that are sent [where it says](Self::tell).
    pub(crate) fn hears_calls(&self) -> bool {
        let watches = |_: &mut _| self.open_inner().is_ok() && hearing::watch(self);
        self.is_own() && !self.naps() && self.with(watches) == Some(true)
    }

    /// Writes down where the set's sleepers are called.
    pub(crate) fn tell(&self, at: &Address) {
        self.channel.tell(at);
    }
}

/// Reports listeners with taken connections that wait for an `accept`, behind `found` events. Returns how many events
/// there are now. `last` gives the number of a listener's youngest such connection, counted over all of this process; 0:
/// there is none.
#[cold]
pub(crate) fn tell_listeners(
    set: &Set,
    room: &mut Room,
    mut found: usize,
    last: impl Fn(&Socket) -> u64,
) -> usize {
    set.with(|state| {
        for &index in &state.listeners {
            let item = &mut state.items[index as usize];
            let (events, last) = (readable(item), last(item.socket));
            let is_told = item.events & libc::EPOLLET as u32 != 0 && item.end >= last;
            if events == 0 || last == 0 || is_told {
                continue;
            }
            // SAFETY: they have been stored.
            let told = unsafe { room.stored(found) };
            // The kernel tells of it, too: an event for each registration.
            let same = |told: &epoll_event| told.u64 == item.data && told.events & events != 0;
            if !told.iter().any(same) {
                let event = epoll_event {
                    events,
                    u64: item.data,
                };
                if found == room.len() || !room.put(found, event) {
                    break;
                }
                found += 1;
            }
            item.end = last;
        }
    });
    found
}
