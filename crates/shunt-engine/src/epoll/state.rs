//! What a set holds: registrations, the ready queue, and the links whose logs it reads.

use libc::{c_int, epoll_event};
use shunt_shm::wake::Log;
use std::cell::Cell;
use std::collections::VecDeque;

use super::wanted;
use crate::link::Link;
use crate::socket::Socket;
use crate::stream::{self, Conn};
use crate::tcp::Mark;

/// After this many events an inactive registration is taken out.
const BUSY: u32 = 16;

/// One registration of a TCP socket.
pub(super) struct Item {
    pub(super) socket: &'static Socket,
    pub(super) fd: c_int,
    pub(super) events: u32,
    pub(super) data: u64,
    /// Whether the registration is served here. Otherwise it is in the kernel's set, and this is only a note of it.
    pub(super) moved: bool,
    /// Whether its base socket is in the program's set under our data, since there is no inner set for it
    /// ([`super::outside`]).
    pub(super) outside: bool,
    /// If it is outside: where its base socket was when the kernel last told of it.
    pub(super) told_at: Option<Mark>,
    pub(super) queued: bool,
    /// Whether its number is in the queue, perhaps from a removed item that had this place before.
    pub(super) listed: bool,
    /// Of which events of its base socket the inner set tells ([`super::base_events`]).
    pub(super) base: u32,
    /// Whether its number is in the list of items that may be narrowed, perhaps from one that had this place before.
    pub(super) may_be_narrowed: bool,
    /// Taken out by the program, but still in the inner set: programs that take
    /// interest in turns put it back at once, which then costs nothing.
    pub(super) inactive: bool,
    /// Looked at directly; its peer need not log ([`super::polled`]).
    pub(super) polled: bool,
    /// The end of the stream when it was last looked at, if it is polled or outside and wants edges; of a listener, the last
    /// connection that was [told of](super::listener).
    pub(super) end: u64,
    /// Whether it was polled and is not as usual any more.
    pub(super) odd: bool,
    /// What happened to the socket while inactive.
    pub(super) idle_news: u32,
    /// The kernel has news about its socket.
    pub(super) look: bool,
    /// [`Conn::asked_at`](crate::stream::Conn::asked_at) when it was last told of room.
    pub(super) room_told: u64,
    /// Added or modified since the kernel's set was last asked for all it has.
    pub(super) armed: bool,
    /// How many waits might have moved it to the inner set and did not.
    pub(super) put_off: u32,
    pub(super) live: bool,
    pub(super) generation: u32,
    /// Next item of the same socket, index + 1.
    next: u32,
}

impl Item {
    /// Whether its number still names its socket, as far as the library has seen the calls by which
    /// the program closes and opens descriptors.
    pub(super) fn is_named(&self) -> bool {
        self.is_at(self.fd)
    }

    /// A number that names the socket now.
    pub(super) fn fd_now(&self) -> Option<c_int> {
        [self.fd, self.socket.fd()]
            .into_iter()
            .find(|&fd| self.is_at(fd))
    }

    fn is_at(&self, fd: c_int) -> bool {
        self.socket.is_at(fd)
    }

    /// The `epoll_event` with which it is registered in the inner set for these events, at its index.
    pub(super) fn as_member(&self, index: u32, events: u32) -> epoll_event {
        epoll_event {
            events,
            u64: u64::from(self.generation) << 32 | u64::from(index),
        }
    }
}

/// A link whose logs the set reads.
pub(super) struct Follow {
    pub(super) link: &'static Link,
    /// The door that the set got when it came to the link. Whether it still has it, the link knows.
    pub(super) door: Option<u32>,
    /// The name of the set's channel as it was written there.
    pub(super) name: Cell<u64>,
    /// The log of what happens to those that are watched from that door.
    pub(super) log: Log<'static>,
    /// How far it is read.
    pub(super) head: u64,
    pub(super) members: u32,
}

/// What the set's lock guards.
#[derive(Default)]
pub(super) struct State {
    pub(super) items: Vec<Item>,
    free: Vec<u32>,
    /// First item by socket index, index + 1.
    by_socket: Vec<u32>,
    pub(super) queue: VecDeque<u32>,
    pub(super) follows: Vec<Follow>,
    /// Items that are looked at directly, and the waits in a row without sleep.
    pub(super) polled: Vec<u32>,
    pub(super) awake: u32,
    /// Sets of the program inside this one, by their numbers.
    pub(super) nested: Vec<u32>,
    /// Something has come since a wait has last been told of events.
    pub(super) news: bool,
    /// A log has told of something since the set was last exposed.
    pub(super) fresh: bool,
    /// Sockets that are used although their registration is inactive.
    pub(super) busy: Vec<&'static Socket>,
    /// Whose turn it is when only one event fits.
    pub(super) kernel_first: bool,
    /// Items of listeners.
    pub(super) listeners: Vec<u32>,
    /// Once somebody has waited from outside, who minds that (`narrows`): items of which the inner set may tell more than is
    /// wanted ([`super::base_events`]).
    pub(super) to_narrow: Vec<u32>,
    pub(super) narrows: bool,
    /// The socket object that was last looked at of those that wait to be attached.
    pub(super) brought: u32,
}

impl State {
    /// Notes that something may have happened to an item.
    pub(super) fn enqueue(&mut self, index: u32, look: bool) {
        let item = &mut self.items[index as usize];
        item.look |= look;
        self.news = true;
        if item.live && item.moved && !item.queued && !item.inactive {
            item.queued = true;
            if !std::mem::replace(&mut item.listed, true) {
                self.queue.push_back(index);
            }
        }
    }

    /// Fewer events of an item may be wanted than before. Notes that, if somebody has waited on the set from outside.
    #[inline]
    pub(super) fn may_narrow_later(&mut self, index: u32) {
        if self.narrows {
            self.note_to_narrow(index);
        }
    }

    #[cold]
    pub(super) fn note_to_narrow(&mut self, index: u32) {
        let item = &mut self.items[index as usize];
        if !std::mem::replace(&mut item.may_be_narrowed, true) {
            self.to_narrow.push(index);
        }
    }

    /// Something may have happened to a socket.
    pub(super) fn enqueue_socket(&mut self, socket: u32) {
        let mut next = self.by_socket.get(socket as usize).copied().unwrap_or(0);
        while let Some(index) = next.checked_sub(1) {
            let item = &mut self.items[index as usize];
            next = item.next;
            if item.inactive {
                item.idle_news += 1;
                if item.idle_news == BUSY {
                    self.busy.push(item.socket);
                }
            }
            self.enqueue(index, false);
        }
    }

    /// The log was lost: any member of the link may have news.
    pub(super) fn enqueue_link(&mut self, link: u32) {
        for index in 0..self.items.len() as u32 {
            let item = &self.items[index as usize];
            if item.live && item.moved && item.socket.pair().is_some_and(|p| p.link.index() == link)
            {
                self.enqueue(index, false);
            }
        }
    }

    /// Whether some queued item is ready. It reports nothing, so that an edge is left for the real wait.
    pub(super) fn is_any_ready(&self) -> bool {
        self.queue.iter().any(|&index| {
            let item = &self.items[index as usize];
            let is_due = item.queued && !item.inactive;
            let conn = Conn::new(item.socket, item.socket.fd()).filter(|_| is_due);
            let Some(conn) = conn else {
                return false;
            };
            stream::mask(&conn, wanted(item.events), item.look) & wanted(item.events) != 0
        })
    }

    /// Calls `visit` with each item of a socket.
    pub(super) fn visit_socket(&mut self, socket: u32, mut visit: impl FnMut(&mut Item)) {
        let mut next = self.by_socket.get(socket as usize).copied().unwrap_or(0);
        while let Some(index) = next.checked_sub(1) {
            let item = &mut self.items[index as usize];
            next = item.next;
            visit(item);
        }
    }

    /// The items of a socket in this set.
    fn of_socket(&self, socket: u32) -> impl Iterator<Item = u32> + '_ {
        let mut next = self.by_socket.get(socket as usize).copied().unwrap_or(0);
        std::iter::from_fn(move || {
            let index = next.checked_sub(1)?;
            next = self.items[index as usize].next;
            Some(index)
        })
    }

    pub(super) fn find(&self, socket: &Socket, fd: c_int) -> Option<u32> {
        self.of_socket(socket.index())
            .find(|&i| self.items[i as usize].fd == fd && !self.items[i as usize].inactive)
    }

    pub(super) fn find_inactive(&self, socket: &Socket, fd: c_int) -> Option<u32> {
        self.of_socket(socket.index())
            .find(|&i| self.items[i as usize].fd == fd && self.items[i as usize].inactive)
    }

    pub(super) fn insert(&mut self, socket: &'static Socket, fd: c_int, event: epoll_event) -> u32 {
        let at = socket.index() as usize;
        if self.by_socket.len() <= at {
            self.by_socket.resize(at + 1, 0);
        }
        let mut item = Item {
            socket,
            fd,
            events: event.events,
            data: event.u64,
            moved: false,
            outside: false,
            told_at: None,
            queued: false,
            listed: false,
            base: 0,
            may_be_narrowed: false,
            inactive: false,
            polled: false,
            end: 0,
            odd: false,
            idle_news: 0,
            look: false,
            room_told: 0,
            armed: true,
            put_off: 0,
            live: true,
            generation: 0,
            next: self.by_socket[at],
        };
        let index = match self.free.pop() {
            Some(index) => {
                item.generation =
                    self.items[index as usize].generation.wrapping_add(1) & 0x7fff_ffff;
                item.listed = self.items[index as usize].listed;
                item.may_be_narrowed = self.items[index as usize].may_be_narrowed;
                self.items[index as usize] = item;
                index
            }
            None => {
                self.items.push(item);
                self.items.len() as u32 - 1
            }
        };
        self.by_socket[at] = index + 1;
        index
    }

    pub(super) fn remove(&mut self, index: u32) {
        let (socket, next) = {
            let item = &mut self.items[index as usize];
            // Its number stays in the queue, which passes it over: to take it out would mean a look at the whole queue.
            (item.live, item.queued) = (false, false);
            (item.socket.index() as usize, item.next)
        };
        self.polled.retain(|&i| i != index);
        self.listeners.retain(|&i| i != index);
        if self.by_socket[socket] == index + 1 {
            self.by_socket[socket] = next;
        } else {
            let before = self
                .of_socket(socket as u32)
                .find(|&i| self.items[i as usize].next == index + 1);
            if let Some(before) = before {
                self.items[before as usize].next = next;
            }
        }
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::socket::Stage;

    const EVENT: epoll_event = epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 7,
    };

    /// A set with one member that is served here.
    fn with_member(fd: c_int) -> (State, &'static Socket, u32) {
        let socket = Socket::enter(fd, Stage::Plain).unwrap();
        let mut state = State::default();
        let index = state.insert(socket, fd, EVENT);
        state.items[index as usize].moved = true;
        (state, socket, index)
    }

    #[test]
    fn a_registration_is_found_by_socket_and_number() {
        let (mut state, socket, index) = with_member(303_000);
        let other = state.insert(socket, 303_001, EVENT);
        assert_eq!(state.find(socket, 303_000), Some(index));
        assert_eq!(state.find(socket, 303_001), Some(other));
        assert_eq!(state.find(socket, 303_002), None);
        state.remove(index);
        assert_eq!(
            (state.find(socket, 303_000), state.find(socket, 303_001)),
            (None, Some(other))
        );
    }

    #[test]
    fn news_are_queued_once() {
        let (mut state, socket, index) = with_member(303_010);
        state.enqueue(index, false);
        state.enqueue_socket(socket.index());
        assert_eq!(state.queue, [index]);
        assert!(!state.items[index as usize].look);
        state.enqueue(index, true);
        assert!(state.queue.len() == 1 && state.items[index as usize].look);
    }

    #[test]
    fn a_note_of_what_the_kernel_has_is_not_queued() {
        let (mut state, _, index) = with_member(303_020);
        state.items[index as usize].moved = false;
        state.enqueue(index, true);
        assert!(state.queue.is_empty());
    }

    #[test]
    fn an_inactive_registration_of_a_busy_socket_is_to_go() {
        let (mut state, socket, index) = with_member(303_030);
        state.items[index as usize].inactive = true;
        assert_eq!(state.find_inactive(socket, 303_030), Some(index));
        assert_eq!(state.find(socket, 303_030), None);
        for _ in 1..BUSY {
            state.enqueue_socket(socket.index());
        }
        assert!(state.busy.is_empty() && state.queue.is_empty());
        state.enqueue_socket(socket.index());
        assert_eq!(state.busy.len(), 1);
    }

    #[test]
    fn a_place_that_is_used_anew_has_another_generation() {
        let (mut state, socket, index) = with_member(303_040);
        let before = state.items[index as usize].generation;
        state.remove(index);
        assert!(!state.items[index as usize].live);
        let again = state.insert(socket, 303_041, EVENT);
        assert_eq!(again, index);
        assert_ne!(state.items[index as usize].generation, before);
    }

    #[test]
    fn a_removed_member_leaves_its_number_in_the_queue_for_the_next_one() {
        let (mut state, socket, index) = with_member(303_050);
        state.enqueue(index, false);
        state.remove(index);
        assert_eq!(state.queue, [index]);
        let again = state.insert(socket, 303_051, EVENT);
        state.items[again as usize].moved = true;
        state.enqueue(again, false);
        // It is there once, and means the new one.
        assert_eq!(state.queue, [index]);
        assert!(state.items[again as usize].queued);
    }

    #[test]
    fn each_registration_of_a_socket_is_visited() {
        let (mut state, socket, index) = with_member(303_060);
        let other = Socket::enter(303_061, Stage::Plain).unwrap();
        state.insert(other, 303_061, EVENT);
        state.insert(socket, 303_062, EVENT);
        let mut seen = Vec::new();
        state.visit_socket(socket.index(), |item| seen.push(item.fd));
        seen.sort_unstable();
        assert_eq!((seen, index), (vec![303_060, 303_062], 0));
    }
}
