//! For which events of their base sockets the members of the inner set are registered.
//!
//! A thread that waits on the set itself does not mind an event that nobody wants: it looks, and sleeps on. So a member
//! comes with [`ALL`], and no change of its registration takes a system call.
//!
//! A thread that waits from outside, by `poll` or on a set around this one, does mind: such an event makes the program's
//! set look ready until somebody reads the inner set. So before the kernel is asked from outside, each member is
//! [narrowed](narrow) to the events that its registration asks for and those that the library needs. From then on each
//! change of a registration [changes](follow) the member, too.
//!
//! The kernel tells of what is there already whenever the events of a member change. To the program that is news
//! only if it has changed the registration.

use super::inner::{hear_inner, hear_others};
use super::set::Set;
use super::state::{Item, State};
use super::{ALWAYS, wanted};
use crate::stream::{self, Conn};
use crate::sys::{self, Errno};
use crate::tcp;

const EDGE: u32 = libc::EPOLLET as u32;

/// The events that the library itself needs as long as a connection is not wholly the kernel's: the end of the stream, which shows
/// that a peer was killed, and room in the kernel, to send what this side owes its peer by TCP.
const OURS: u32 = (libc::EPOLLRDHUP | libc::EPOLLOUT) as u32;

/// Edges of all events: which of them count is decided when the member is looked at.
pub(super) const ALL: u32 = (libc::EPOLLIN | libc::EPOLLPRI) as u32 | OURS | ALWAYS | EDGE;

/// The events with which a new member is registered.
pub(super) fn at_first(set: &Set, state: &State, item: &Item) -> u32 {
    if state.narrows && may_narrow(set) {
        needed(item)
    } else {
        ALL
    }
}

/// The events of a member that the inner set must tell.
fn needed(item: &Item) -> u32 {
    match wanted(item.events) {
        _ if item.inactive => EDGE,
        // A one-shot registration that is used up. When it is armed anew, the kernel tells what is there.
        0 => EDGE,
        wanted if is_kernels(item) => wanted | EDGE,
        wanted => wanted | OURS | EDGE,
    }
}

fn is_kernels(item: &Item) -> bool {
    Conn::new(item.socket, item.socket.fd()).is_some_and(|conn| stream::is_plain(&conn))
}

/// Whether the events of members may be changed. If a relative has the inner set, too, they may not: it knows only of its own
/// changes.
fn may_narrow(set: &Set) -> bool {
    set.is_own() && set.waited_on.is_unknown()
}

/// Changes the events of a member after the program has changed its registration. The look that follows tells the program what is
/// there. With the set's lock. `Err`: the kernel has refused.
pub(super) fn follow(set: &'static Set, state: &mut State, index: u32) -> Result<(), Errno> {
    let item = &mut state.items[index as usize];
    if !item.moved || item.outside {
        return Ok(());
    }
    if item.base == ALL {
        state.may_narrow_later(index);
        return Ok(());
    }
    let needed = needed(item);
    let events = match may_narrow(set) {
        true => needed,
        false if needed & !item.base == 0 => return Ok(()),
        false => ALL | needed,
    };
    if events != item.base && item.is_named() {
        change(set, item, index, events)?;
        if !set.may_be_shared() {
            hear_inner(set, state, true, None);
        }
    }
    Ok(())
}

/// A connection has begun another life. With the set's lock.
pub(super) fn begun_again(set: &'static Set, state: &mut State, index: u32) {
    let item = &state.items[index as usize];
    let events = needed(item);
    if item.base != ALL && events & !item.base != 0 && is_here(item) {
        let events = if may_narrow(set) {
            events
        } else {
            ALL | events
        };
        renew(set, state, index, events);
        // The change makes the inner set report the member, which is no news to a thread that waits from outside: the report is
        // taken out. Where a relative may have the set, too, it stays, so that both are told: one would take it from the other.
        if !set.may_be_shared() {
            hear_inner(set, state, true, None);
            set.kick();
        }
    }
}

/// A `poll` or another set waits on this set: its inner set tells no more of events that nobody wants. `true`: for some
/// members it now tells of other events than before, and is to be asked for them. With the set's lock.
pub(super) fn narrow(set: &'static Set, state: &mut State) -> bool {
    if !may_narrow(set) {
        return false;
    }
    if !std::mem::replace(&mut state.narrows, true) {
        (0..state.items.len() as u32).for_each(|index| state.note_to_narrow(index));
    }
    let mut any = false;
    while let Some(index) = state.to_narrow.pop() {
        let item = &mut state.items[index as usize];
        item.may_be_narrowed = false;
        let events = needed(item);
        if events != item.base && is_here(item) {
            any = true;
            renew(set, state, index, events);
        }
    }
    any
}

/// [`narrow`], also for the members in the queue, which have just been looked at.
pub(super) fn narrow_queued(set: &'static Set, state: &mut State) -> bool {
    for at in 0..state.queue.len() {
        state.may_narrow_later(state.queue[at]);
    }
    narrow(set, state)
}

/// Whether the inner set has it, by a number that names it.
fn is_here(item: &Item) -> bool {
    item.live && item.moved && !item.outside && item.is_named()
}

/// Changes the events of a member of which the program has not changed the registration.
fn renew(set: &'static Set, state: &mut State, index: u32, events: u32) {
    let item = &mut state.items[index as usize];
    let (fd, is_told) = (item.fd, !item.inactive && wanted(item.events) != 0);
    let hears_more = events & !item.base != 0;
    if !is_told || item.events & EDGE == 0 {
        let _ = change(set, item, index, events);
        return;
    }
    // The change reports the member anew, but an edge must be told once: this finds out whether something has come meanwhile.
    let before = tcp::mark(fd);
    hear_inner(set, state, true, None);
    let _ = change(set, &mut state.items[index as usize], index, events);
    hear_others(set, state, index);
    // An end that was there before was not told if nobody had asked for it.
    if tcp::mark(fd) != before || hears_more && sys::ready(fd, libc::POLLRDHUP) != 0 {
        state.enqueue(index, true);
    }
}

/// In a forked child: another thread of the parent's may have been in the middle of narrowing. So the events of such a set's members
/// are not known, and each next change of a registration sets them.
pub(super) fn after_fork_child(state: &mut State) {
    if state.narrows {
        state.items.iter_mut().for_each(|item| item.base = EDGE);
    }
}

fn change(set: &Set, item: &mut Item, index: u32, events: u32) -> Result<(), Errno> {
    let inner = set.inner_fd();
    let mut event = item.as_member(index, events);
    sys::epoll_ctl(inner, libc::EPOLL_CTL_MOD, item.fd, &raw mut event)?;
    item.base = events;
    Ok(())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use libc::{c_int, epoll_event};
    use shunt_abi::Reason;

    use super::super::collect::collect;
    use super::super::nested::expose;
    use super::super::register::register;
    use super::super::room::Room;
    use super::*;
    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::hold::Held;
    use crate::socket::returning::{ALONE, COUNTS};
    use crate::table::{self, Word};
    use crate::upgrade;

    const IN: c_int = libc::EPOLLIN;
    const OUT: c_int = libc::EPOLLOUT;
    const EDGES: c_int = libc::EPOLLET;
    const ONCE: c_int = libc::EPOLLONESHOT;

    /// A connection, and a set that has the end which receives.
    struct Member {
        ends: BothEnds,
        set: &'static Set,
    }

    impl Member {
        fn with(events: c_int) -> Self {
            let ends = BothEnds::attached();
            let fd = sys::epoll_create().unwrap();
            Set::enter(fd);
            let set = Set::of(fd).unwrap();
            let member = Self { ends, set };
            member.change(libc::EPOLL_CTL_ADD, events);
            member
        }

        fn change(&self, operation: c_int, events: c_int) {
            let event = epoll_event {
                events: events as u32,
                u64: 7,
            };
            let (socket, fd) = (self.ends.sockets[1], self.ends.fds[1]);
            let changed = register(self.set, operation, socket, fd, event);
            assert_eq!(changed, Outcome::Done(0));
        }

        /// What a wait tells that does not sleep.
        fn told(&self) -> Vec<u32> {
            let mut events = [epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: the array is there as long as the room is.
            let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
            let found = collect(self.set, &mut room, true, 0);
            events[..found].iter().map(|event| event.events).collect()
        }

        /// Whether the kernel shows the set as ready.
        fn is_ready(&self) -> bool {
            sys::ready(self.set.fd(), libc::POLLIN) != 0
        }

        /// Whether the kernel shows the set as ready, after a look from outside.
        fn looks_ready(&self) -> bool {
            expose(self.set);
            self.is_ready()
        }

        /// A byte comes by TCP.
        fn comes_by_tcp(&self) {
            assert_eq!(sys::send(self.ends.fds[0], b"x"), Ok(1));
            assert_ne!(sys::ready(self.ends.fds[1], libc::POLLIN), 0);
        }

        fn goes_back(&self) {
            let conns = self.ends.conns();
            // The last answers the first.
            for at in [0, 1, 0] {
                stream::downgrade(&conns[at], Reason::Requested);
            }
            assert!(conns.iter().all(stream::is_plain));
        }

        fn comes_back(&self) {
            let sides = || self.ends.sockets.into_iter().zip(self.ends.fds);
            for (socket, _) in sides() {
                assert!(socket.again.move_on(COUNTS, ALONE));
            }
            // Each says that it is ready; the first hears that of the second then.
            for (socket, fd) in sides().chain(sides()) {
                upgrade::may_return(socket, fd);
            }
            assert!(!self.ends.conns().iter().any(stream::is_plain));
        }

        fn events(&self) -> u32 {
            self.set.with(|state| state.items[0].base).unwrap()
        }
    }

    impl Drop for Member {
        fn drop(&mut self) {
            let fd = self.set.fd();
            table::enter(fd, Word::NOTHING);
            self.set.unhold();
            sys::close(fd);
        }
    }

    #[test]
    fn what_nobody_wants_makes_no_set_ready_that_was_looked_at_from_outside() {
        for events in [0, OUT | ONCE, libc::EPOLLRDHUP | EDGES] {
            let member = Member::with(events);
            member.told();
            assert!(!member.looks_ready());
            member.comes_by_tcp();
            assert!(!member.is_ready(), "{events:x}");
        }
    }

    #[test]
    fn of_a_connection_that_is_the_kernels_the_set_tells_what_is_wanted_and_nothing_else() {
        let member = Member::with(OUT | EDGES);
        assert!(member.looks_ready());
        assert_eq!(member.told(), [OUT as u32]);
        member.goes_back();
        member.told();
        assert!(!member.looks_ready());
        for events in [IN, libc::EPOLLPRI | EDGES] {
            member.change(libc::EPOLL_CTL_MOD, events);
            assert!(!member.looks_ready());
            assert_eq!(member.events(), events as u32 | ALWAYS | EDGE);
        }
        member.comes_by_tcp();
        sys::shutdown(member.ends.fds[0], libc::SHUT_WR).unwrap();
        assert!(!member.is_ready());
        member.change(libc::EPOLL_CTL_MOD, IN | libc::EPOLLRDHUP);
        assert_eq!(member.told(), [(IN | libc::EPOLLRDHUP) as u32]);
    }

    #[test]
    fn of_a_connection_that_comes_back_to_its_rings_the_library_hears_again_what_it_needs() {
        let member = Member::with(IN | EDGES);
        member.comes_by_tcp();
        assert_eq!(member.told(), [IN as u32]);
        member.goes_back();
        member.told();
        assert!(!member.looks_ready());
        assert_eq!(member.events(), IN as u32 | ALWAYS | EDGE);
        member.comes_back();
        assert_eq!(member.events(), IN as u32 | OURS | ALWAYS | EDGE);
        // And the edge is told once.
        assert!(member.told().is_empty() && !member.looks_ready());
        sys::shutdown(member.ends.fds[0], libc::SHUT_WR).unwrap();
        assert_eq!(member.told(), [IN as u32]);
    }

    #[test]
    fn a_connection_that_comes_back_to_its_rings_makes_no_set_ready() {
        for events in [IN, IN | EDGES, IN | ONCE, libc::EPOLLPRI] {
            let member = Member::with(events);
            member.goes_back();
            member.told();
            assert!(!member.looks_ready());
            member.comes_back();
            assert!(!member.is_ready(), "{events:x}");
            // And it is told of what comes then.
            member.comes_by_tcp();
            assert_eq!(!member.told().is_empty(), events & IN != 0, "{events:x}");
        }
    }

    #[test]
    fn what_is_wanted_from_here_on_is_told_though_it_came_before() {
        let member = Member::with(0);
        assert!(!member.looks_ready());
        member.comes_by_tcp();
        member.change(libc::EPOLL_CTL_MOD, IN | EDGES);
        assert!(member.looks_ready());
        assert_eq!(member.told(), [IN as u32]);
        assert!(!member.looks_ready() && member.told().is_empty());
        member.comes_by_tcp();
        assert!(member.is_ready());
        assert_eq!(member.told(), [IN as u32]);
    }

    #[test]
    fn a_registration_that_is_used_up_or_taken_out_makes_no_set_ready() {
        let member = Member::with(IN | ONCE);
        assert!(!member.looks_ready());
        member.comes_by_tcp();
        assert_eq!(member.told(), [IN as u32]);
        assert!(!member.looks_ready());
        member.comes_by_tcp();
        assert!(!member.is_ready() && member.told().is_empty());
        member.change(libc::EPOLL_CTL_MOD, IN | ONCE);
        assert_eq!(member.told(), [IN as u32]);
        member.change(libc::EPOLL_CTL_MOD, IN);
        assert_eq!(member.told(), [IN as u32]);
        member.change(libc::EPOLL_CTL_DEL, 0);
        assert!(!member.looks_ready());
        member.comes_by_tcp();
        assert!(!member.is_ready());
        member.change(libc::EPOLL_CTL_ADD, IN);
        assert_eq!(member.told(), [IN as u32]);
    }

    #[test]
    fn an_edge_that_was_told_is_not_told_again_as_somebody_looks_from_outside() {
        let member = Member::with(IN | OUT | EDGES);
        member.comes_by_tcp();
        assert_eq!(member.told(), [(IN | OUT) as u32]);
        assert_eq!(member.events(), ALL);
        assert!(!member.looks_ready());
        assert_ne!(member.events(), ALL);
        assert!(member.told().is_empty());
    }

    #[test]
    fn nothing_changes_in_the_kernel_as_long_as_nobody_looks_from_outside() {
        let member = Member::with(0);
        for events in [IN, IN | OUT, 0, OUT, IN | EDGES] {
            member.change(libc::EPOLL_CTL_MOD, events);
            member.told();
            assert_eq!(member.events(), ALL);
        }
    }

    #[test]
    fn nor_as_room_is_wanted_by_turns_or_a_one_shot_is_armed_anew_in_memory() {
        let member = Member::with(IN | ONCE);
        assert!(!member.looks_ready());
        let events = member.events();
        for _ in 0..3 {
            member.change(libc::EPOLL_CTL_MOD, IN | OUT | ONCE);
            assert!(member.looks_ready());
            assert_eq!(member.told(), [OUT as u32]);
            member.change(libc::EPOLL_CTL_MOD, IN | ONCE);
            assert!(!member.looks_ready());
            assert_eq!(member.events(), events);
        }
    }

    #[test]
    fn a_peer_that_is_killed_is_heard_of_by_who_wants_nothing() {
        let member = Member::with(0);
        assert!(!member.looks_ready());
        sys::shutdown(member.ends.fds[0], libc::SHUT_WR).unwrap();
        assert!(member.is_ready());
    }
}
