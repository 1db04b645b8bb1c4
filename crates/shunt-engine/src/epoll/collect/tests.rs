use super::*;

use shunt_shm::publish;
use shunt_shm::slot;

use super::super::{register, see_to_chores};
use crate::Outcome;
use crate::both_ends::BothEnds;
use crate::hold::Held;
use crate::table::{self, Word};

const IN: u32 = libc::EPOLLIN as u32;

/// A connection, and a set of the program's with the end that receives.
struct Watched {
    set: &'static Set,
    ends: BothEnds,
}

impl Watched {
    /// The set has no member yet.
    fn empty() -> Self {
        let ends = BothEnds::attached();
        let fd = sys::epoll_create().unwrap();
        Set::enter(fd);
        let set = Set::of(fd).unwrap();
        Self { set, ends }
    }

    fn with(events: c_int) -> Self {
        let watched = Self::empty();
        let added = watched.change(libc::EPOLL_CTL_ADD, events);
        assert_eq!(added, Outcome::Done(0));
        assert!(watched.wait().is_empty());
        watched
    }

    fn change(&self, operation: c_int, events: c_int) -> Outcome {
        let event = epoll_event {
            events: events as u32,
            u64: 7,
        };
        let (socket, fd) = (self.ends.sockets[1], self.ends.fds[1]);
        register(self.set, operation, socket, fd, event)
    }

    /// The same, and the set looks at the end itself.
    fn polled(events: c_int) -> Self {
        let watched = Self::with(events);
        for _ in 0..100 {
            watched.ends.send(b"bytes");
            watched.wait();
            assert_eq!(watched.ends.receive::<8>(), b"bytes");
            assert_eq!(watched.answer(8), Outcome::Done(8));
            assert_eq!(watched.take_answer(), Outcome::Done(8));
            if watched.set.has_chores() {
                see_to_chores(watched.set);
            }
        }
        assert_eq!(watched.set.with(|state| state.polled.len()), Some(1));
        watched.wait();
        watched
    }

    /// The watched end sends `length` bytes.
    fn answer(&self, length: usize) -> Outcome {
        let bytes = vec![7u8; length];
        let parts = [libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: length,
        }];
        // SAFETY: the bytes are there.
        unsafe { stream::send(&self.ends.conns()[1], &parts, libc::MSG_DONTWAIT) }
    }

    /// Its peer receives some.
    fn take_answer(&self) -> Outcome {
        let mut bytes = [0u8; 1 << 16];
        let parts = [libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }];
        // SAFETY: the part covers `bytes`.
        unsafe { stream::receive(&self.ends.conns()[0], &parts, libc::MSG_DONTWAIT) }
    }

    /// What a wait tells that looks at the rings only, and how much waits in the queue then.
    fn look(&self) -> (Vec<u32>, usize) {
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: as below.
        let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
        let found = collect(self.set, &mut room, false, 4);
        let queued = self.set.with(|state| state.queue.len()).unwrap();
        (events[..found].iter().map(|e| e.events).collect(), queued)
    }

    /// What a wait that does not sleep tells.
    fn wait(&self) -> Vec<(u32, u64)> {
        self.wait_with_room(4)
    }

    /// What a wait tells in an array of `most` events.
    fn wait_with_room(&self, most: usize) -> Vec<(u32, u64)> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; most];
        // SAFETY: the array is there as long as the room is.
        let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
        let found = collect(self.set, &mut room, true, 0);
        events[..found].iter().map(|e| (e.events, e.u64)).collect()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let fd = self.set.fd();
        table::enter(fd, Word::NOTHING);
        self.set.unhold();
        sys::close(fd);
    }
}

#[test]
fn a_member_that_another_thread_is_about_to_let_go_is_not_polled_twice() {
    let watched = Watched::polled(libc::EPOLLIN);
    // The first half of what a thread does that sleeps.
    watched.set.with(|state| {
        let index = state.polled[0] as usize;
        (state.items[index].polled, state.awake) = (false, u32::MAX);
    });
    polled::review(watched.set);
    assert_eq!(watched.set.with(|state| state.polled.len()), Some(1));
}

#[test]
fn what_the_slot_s_former_connection_left_in_the_ring_hides_no_edge() {
    let watched = Watched::empty();
    // The connection before, whose slot this end uses again already, and its peer does not yet.
    watched.ends.send(b"former");
    let peer = watched.ends.sockets[0].pair().unwrap();
    let life = peer.life();
    peer.own
        .face
        .generation
        .store(life.wrapping_sub(1), Ordering::Relaxed);
    // Without an inner set the ring is looked at itself.
    watched.set.is_flat.store(true, Ordering::Relaxed);
    let added = watched.change(libc::EPOLL_CTL_ADD, libc::EPOLLIN | libc::EPOLLET);
    assert_eq!(added, Outcome::Done(0));
    // Nor is there a channel at which the set could be called, as where the process has no descriptor left.
    let own = watched.ends.sockets[1].pair().unwrap().own;
    own.face
        .wait
        .fetch_and(!slot::WATCH_MASK, Ordering::Relaxed);
    assert!(watched.wait().is_empty());
    peer.own.begin(life, peer.out);
    publish::set_bits(&peer.own.face.state, slot::READY);
    for _ in 0..3 {
        watched.ends.send(b"bytes");
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert!(watched.wait().is_empty());
        assert_eq!(watched.ends.receive::<8>(), b"bytes");
    }
}

#[test]
fn a_level_is_told_as_long_as_it_lasts() {
    let watched = Watched::with(libc::EPOLLIN);
    watched.ends.send(b"bytes");
    assert_eq!(watched.wait(), [(IN, 7)]);
    assert_eq!(watched.wait(), [(IN, 7)]);
    assert_eq!(watched.ends.receive::<8>(), b"bytes");
    assert!(watched.wait().is_empty());
}

#[test]
fn members_have_their_turns_where_there_is_not_room_for_all_that_are_ready() {
    let watched = Watched::with(libc::EPOLLIN);
    let other = epoll_event { events: IN, u64: 8 };
    let (socket, fd) = (watched.ends.sockets[0], watched.ends.fds[0]);
    let added = register(watched.set, libc::EPOLL_CTL_ADD, socket, fd, other);
    assert_eq!(added, Outcome::Done(0));
    watched.ends.send(b"bytes");
    assert_eq!(watched.answer(8), Outcome::Done(8));
    let mut told = watched.wait();
    told.sort_unstable();
    assert_eq!(told, [(IN, 7), (IN, 8)]);
    let turns: Vec<u64> = (0..6).map(|_| watched.wait_with_room(1)[0].1).collect();
    assert!(
        [[7, 8, 7, 8, 7, 8], [8, 7, 8, 7, 8, 7]]
            .iter()
            .any(|each| turns == each),
        "{turns:?}"
    );
}

#[test]
fn an_edge_is_told_once_and_again_when_more_comes() {
    let watched = Watched::with(libc::EPOLLIN | libc::EPOLLET);
    watched.ends.send(b"bytes");
    assert_eq!(watched.wait(), [(IN, 7)]);
    assert!(watched.wait().is_empty());
    watched.ends.send(b"more");
    assert_eq!(watched.wait(), [(IN, 7)]);
    assert!(watched.wait().is_empty());
}

#[test]
fn an_edge_of_a_new_member_is_told_once_whenever_the_kernel_is_asked() {
    let watched = Watched::with(libc::EPOLLIN | libc::EPOLLET);
    watched.ends.send(b"bytes");
    assert_eq!(watched.ends.receive::<8>(), b"bytes");
    assert_eq!(watched.answer(8), Outcome::Done(8));
    assert_eq!(watched.take_answer(), Outcome::Done(8));
    watched.wait();
    let event = epoll_event {
        events: (libc::EPOLLOUT | libc::EPOLLET) as u32,
        u64: 9,
    };
    let (socket, fd) = (watched.ends.sockets[0], watched.ends.fds[0]);
    assert!(!stream::leaves_ring(&watched.ends.conns()[0]));
    let added = register(watched.set, libc::EPOLL_CTL_ADD, socket, fd, event);
    assert_eq!(added, Outcome::Done(0));
    // As in a wait soon after one that has asked.
    assert_eq!(watched.look(), (vec![libc::EPOLLOUT as u32], 0));
    assert!(watched.wait().is_empty());
}

#[test]
fn what_a_relative_may_wait_for_stays_in_the_inner_set_when_a_member_is_added() {
    let watched = Watched::with(libc::EPOLLIN | libc::EPOLLET);
    watched.ends.send(b"bytes");
    assert_eq!(watched.ends.receive::<8>(), b"bytes");
    assert_eq!(watched.answer(8), Outcome::Done(8));
    assert_eq!(watched.take_answer(), Outcome::Done(8));
    watched.wait();
    watched.set.waited_on.before_fork();
    assert!(watched.set.waited_on.raise());
    let (ends, set) = (&watched.ends, watched.set);
    let item = ends.sockets[1].lock().unwrap().places()[0].1;
    sys::shutdown(ends.fds[0], libc::SHUT_WR).unwrap();
    let event = epoll_event { events: IN, u64: 9 };
    assert!(!stream::leaves_ring(&ends.conns()[0]));
    let added = register(
        set,
        libc::EPOLL_CTL_ADD,
        ends.sockets[0],
        ends.fds[0],
        event,
    );
    assert_eq!(added, Outcome::Done(0));
    let mut told = [epoll_event { events: 0, u64: 0 }; 4];
    let inner = set.inner.number();
    let n = sys::epoll_now(inner, told.as_mut_ptr(), told.len()).unwrap();
    assert!(told[..n].iter().any(|event| { event.u64 } as u32 == item));
}

#[test]
fn a_one_shot_registration_tells_nothing_until_it_is_armed_anew() {
    let watched = Watched::with(libc::EPOLLIN | libc::EPOLLONESHOT);
    watched.ends.send(b"bytes");
    assert_eq!(watched.wait(), [(IN, 7)]);
    watched.ends.send(b"more");
    assert!(watched.wait().is_empty());
    let events = libc::EPOLLIN | libc::EPOLLONESHOT;
    assert_eq!(
        watched.change(libc::EPOLL_CTL_MOD, events),
        Outcome::Done(0)
    );
    assert_eq!(watched.wait(), [(IN, 7)]);
}

#[test]
fn a_level_of_a_polled_end_is_told_without_the_queue() {
    let watched = Watched::polled(libc::EPOLLIN);
    assert_eq!(watched.look(), (vec![], 0));
    watched.ends.send(b"bytes");
    assert_eq!(watched.look(), (vec![IN], 0));
    assert_eq!(watched.look(), (vec![IN], 0));
    assert_eq!(watched.ends.receive::<8>(), b"bytes");
    assert_eq!(watched.look(), (vec![], 0));
}

#[test]
fn an_edge_of_a_polled_end_is_told_once() {
    let watched = Watched::polled(libc::EPOLLIN | libc::EPOLLET);
    watched.ends.send(b"bytes");
    assert_eq!(watched.look(), (vec![IN], 0));
    assert_eq!(watched.look(), (vec![], 0));
    watched.ends.send(b"more");
    assert_eq!(watched.look(), (vec![IN], 0));
}

#[test]
fn room_of_a_polled_end_is_told_as_long_as_it_lasts() {
    const OUT: u32 = libc::EPOLLOUT as u32;
    let watched = Watched::polled(libc::EPOLLIN);
    watched.change(libc::EPOLL_CTL_MOD, libc::EPOLLIN | libc::EPOLLOUT);
    assert_eq!(watched.look().0, [OUT]);
    while watched.ends.conns()[1].has_room() {
        assert!(matches!(watched.answer(1 << 14), Outcome::Done(1..)));
    }
    assert_eq!(watched.look(), (vec![], 0));
    while let Outcome::Done(1..) = watched.take_answer() {}
    assert_eq!(watched.look().0, [OUT]);
    assert_eq!(watched.look().0, [OUT]);
}

#[test]
fn what_the_program_takes_out_tells_nothing_and_comes_back_at_once() {
    let watched = Watched::with(libc::EPOLLIN);
    watched.ends.send(b"bytes");
    let changed = |operation| watched.change(operation, libc::EPOLLIN);
    assert_eq!(changed(libc::EPOLL_CTL_DEL), Outcome::Done(0));
    assert!(watched.wait().is_empty());
    assert_eq!(changed(libc::EPOLL_CTL_DEL), Outcome::Fail(libc::ENOENT));
    assert_eq!(changed(libc::EPOLL_CTL_ADD), Outcome::Done(0));
    assert_eq!(watched.wait(), [(IN, 7)]);
    assert_eq!(changed(libc::EPOLL_CTL_ADD), Outcome::Fail(libc::EEXIST));
}

#[test]
fn a_reader_that_falls_behind_in_a_log_looks_at_every_member_of_the_link() {
    let watched = Watched::with(libc::EPOLLIN);
    watched.ends.send(b"bytes");
    // More entries follow than the log holds, so that the one which tells of the bytes is
    // overwritten; no socket has their slot.
    let pair = watched.ends.sockets[0].pair().unwrap();
    let wait = pair.peer.face.wait.load(Ordering::Relaxed);
    let log = pair
        .link
        .own()
        .log(wait >> shunt_shm::slot::GROUP_SHIFT & 0x3f);
    (0..=shunt_abi::layout::LOG_ENTRIES).for_each(|_| log.append(pair.number + 1));
    assert_eq!(watched.wait(), [(IN, 7)]);
}

#[test]
fn what_was_told_before_wakes_waits_on_the_set_alone_and_what_has_just_come_wakes_who_sleeps_around_it_too()
 {
    let watched = Watched::with(libc::EPOLLIN);
    let set = watched.set;
    // Whether another thread is woken when this one leaves unread what it is told of.
    let wakes = || {
        assert_eq!(watched.wait().len(), 1);
        let (kick, mut count) = (set.kick.number(), 0u64);
        sys::read(kick, (&raw mut count).cast(), 8).is_ok()
    };
    // A thread sleeps on a set around this one.
    set.sleepers.fetch_add(1, Ordering::Relaxed);
    watched.ends.send(b"unread");
    assert_eq!([wakes(), wakes()], [true, false]);
    set.begin_wait();
    assert!(wakes());
    set.end_wait();
    assert!(!wakes());
    watched.ends.send(b"more");
    assert!(wakes());
    set.sleepers.fetch_sub(1, Ordering::Relaxed);
}

#[test]
fn a_kick_is_left_for_who_sleeps_around_the_set_as_long_as_the_set_is_ready() {
    let watched = Watched::with(libc::EPOLLIN);
    let set = watched.set;
    let shows = || sys::ready(set.fd(), libc::POLLIN) != 0;
    set.sleepers.fetch_add(1, Ordering::Relaxed);
    watched.ends.send(b"unread");
    for _ in 0..3 {
        assert_eq!(watched.wait(), [(IN, 7)]);
        assert!(shows());
    }
    assert_eq!(watched.ends.receive::<8>(), b"unread");
    assert!(watched.wait().is_empty() && !shows());
    // Nobody but a thread in a wait on the set itself is left: that one is woken anew by each look.
    set.begin_wait();
    watched.ends.send(b"more");
    assert_eq!(watched.wait(), [(IN, 7)]);
    let inner = set.inner.number();
    set.with(|state| hear_inner(set, state, false, None));
    assert_eq!(sys::ready(inner, libc::POLLIN), 0);
    set.end_wait();
    set.sleepers.fetch_sub(1, Ordering::Relaxed);
}
