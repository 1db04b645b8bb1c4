//! When and how the registrations of a socket that is attached move to the inner set.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};
use shunt_abi::Reason;

use super::FLAGS;
use super::base_events;
use super::hearing::is_watched_by_relative;
use super::inner::hear_others;
use super::outside;
use super::set::{SETS, Set};
use super::state::{Item, State};
use super::watch::{say_watched, watch};
use crate::config::hesitate;
use crate::link::{Link, Pair};
use crate::socket::{Locked, Socket};
use crate::stream::{self, Conn};
use crate::sys;
use crate::tcp::{self, Mark};

/// What is known, at an upgrade, of the events that the kernel's set has still to
/// report for the socket. An edge must be reported once.
#[derive(Clone, Copy)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// The program is about to modify it in this set, by this descriptor: then
    /// whatever is ready is reported again.
    Arming(u32, c_int),
    /// This set has reported everything since the socket was at this mark.
    Told(u32, Mark),
}

impl Known {
    /// Whether the program is about to modify this registration of a set.
    fn is_arming(self, set: &Set, item: &Item) -> bool {
        matches!(self, Self::Arming(at, fd) if (at, fd) == (set.index(), item.fd))
    }
}

/// Why the registrations of a socket cannot move now: one for which the kernel may have an event,
/// or that it has disarmed, must not move unless that is `known`.
pub(crate) fn obstacle(socket: &Locked, pair: &Pair, known: Known) -> Option<Reason> {
    if socket.items.is_empty() {
        return None;
    }
    if is_watched_by_relative(pair) {
        return Some(Reason::Blocked);
    }
    let mut only = None;
    socket.places().iter().find_map(|&(set, item)| {
        let of = SETS.get(set)?;
        let inactive = |s: &mut State| s.items.get(item as usize).is_none_or(|i| i.inactive);
        if of.with(inactive) == Some(true) {
            return None;
        }
        if !of.is_own() || *only.get_or_insert(set) != set {
            return Some(Reason::Blocked);
        }
        let found = of.with(|s| {
            let follows = s.may_follow(pair.link, of);
            let item = s.items.get(item as usize);
            item.map(|item| {
                let arming = known.is_arming(of, item);
                (item.events, arming, item.moved, follows && may_move(item))
            })
        });
        let Some((events, arming, moved, may_move)) = found.flatten() else {
            return Some(Reason::Busy);
        };
        if !may_move {
            return Some(Reason::Blocked);
        }
        if of.channel.awaits_socket() {
            return Some(Reason::Pending);
        }
        if moved {
            return None;
        }
        let told = matches!(known, Known::Told(s, _) if s == set);
        if arming {
            None
        } else if events & libc::EPOLLONESHOT as u32 != 0 {
            Some(Reason::OneShot)
        } else {
            (events & libc::EPOLLET as u32 != 0 && !told).then_some(Reason::Edge)
        }
    })
}

/// Whether the number by which the kernel knows the registration still names the socket. The kernel takes no other number
/// for it; and another file that has the number by now may be in the set, too.
fn may_move(item: &Item) -> bool {
    item.moved || item.is_named()
}

/// Moves the registrations of a socket that is being attached, or comes back to its rings, to inner
/// sets, except those that are served here already. `Some(false)`: the kernel may have an event to
/// report first. `None`: there are no resources. In both cases nothing has changed.
pub(crate) fn carry(socket: &Locked, fd: c_int, pair: &Pair, known: Known) -> Option<bool> {
    if socket.items.is_empty() {
        return Some(true);
    }
    let mut moved = Vec::new();
    for &(set, item) in socket.places() {
        let Some(set) = SETS.get(set) else {
            continue;
        };
        let is_here = |s: &mut State| s.items.get(item as usize).is_some_and(|item| item.moved);
        if set.with(is_here) == Some(true) {
            continue;
        }
        let done = set.with(|s| carry_one(set, s, item, (fd, pair), known));
        let refused = match done.unwrap_or(Carried::NoResources) {
            Carried::Here { quiet } => {
                moved.push((set, item, quiet));
                continue;
            }
            Carried::KernelFirst => Some(false),
            Carried::NoResources => None,
        };
        for (set, item, _) in moved {
            move_out(set, item, pair.link);
        }
        return refused;
    }
    hesitate();
    // No barrier: the peer publishes nothing in the ring before it has seen, by what is published
    // after this, that this side honours it in this life.
    say_watched(socket);
    for (set, item, quiet) in moved {
        if !quiet {
            set.with(|s| queue_carried(set, s, item, known));
            set.kick();
        } else if set.plain_sleepers.load(Ordering::SeqCst) != 0 {
            // There is nothing to report, but a thread in a plain wait is not registered as a sleeper of the link:
            // it wakes and does so, or it would miss the next message.
            set.kick();
        }
    }
    Some(true)
}

/// What became of one registration that was to move.
enum Carried {
    /// It has moved; `quiet`: the program knows all that there is to report.
    Here {
        quiet: bool,
    },
    /// The kernel may have an event to report first.
    KernelFirst,
    NoResources,
}

/// Moves one registration, with its set's lock.
fn carry_one(
    set: &'static Set,
    s: &mut State,
    item: u32,
    (fd, pair): (c_int, &Pair),
    known: Known,
) -> Carried {
    if !may_move(&s.items[item as usize]) {
        return Carried::KernelFirst;
    }
    let edge = s.items[item as usize].events & libc::EPOLLET as u32 != 0;
    let mark = match known {
        Known::Told(at, mark) if edge && at == set.index() => Some(mark),
        _ => None,
    };
    if mark.is_some_and(|m| s.items[item as usize].armed || tcp::mark(fd) != Some(m)) {
        return Carried::KernelFirst;
    }
    if !move_in(set, s, item, pair.link) {
        return Carried::NoResources;
    }
    // The kernel has disarmed the one-shot registration, or may have: nothing is reported before the program arms it
    // anew.
    let moved = &mut s.items[item as usize];
    if moved.events & libc::EPOLLONESHOT as u32 != 0 && known.is_arming(set, moved) {
        moved.events &= FLAGS;
    }
    // The inner set reports its new member at once. The program knows of these events, or the first look finds them: this
    // report is dropped.
    if mark.is_some() || !set.may_be_shared() {
        hear_others(set, s, item);
    }
    let quiet = mark
        .is_some_and(|mark| tcp::mark(fd) == Some(mark) && sys::ready(fd, libc::POLLRDHUP) == 0);
    Carried::Here { quiet }
}

/// Queues a registration that has moved and may have something to report. With its set's lock.
fn queue_carried(set: &Set, s: &mut State, item: u32, known: Known) {
    let moved = &mut s.items[item as usize];
    if known.is_arming(set, moved) {
        // The call of the program's that modifies it queues it.
        moved.look = true;
    } else {
        s.enqueue(item, true);
    }
}

/// The connection has begun another life, and so has its ring: no end of its stream that was
/// seen before says anything.
pub(crate) fn begun_again(socket: &Locked, pair: &Pair) {
    let end = pair.consumer().position();
    for &(set, index) in socket.places() {
        if let Some(set) = SETS.get(set) {
            set.with(|s| {
                if let Some(item) = s.items.get_mut(index as usize) {
                    item.end = end;
                    base_events::begun_again(set, s, index);
                }
            });
        }
    }
}

/// This process has changed the way of a socket's bytes, of which neither a log nor the kernel
/// may tell: the sets that watch it look once more. Without locks and tokens.
pub(crate) fn look_again(socket: &'static Socket) {
    if socket.items.is_empty() {
        return;
    }
    let Some(socket) = socket.lock() else {
        return;
    };
    for set in socket.places().iter().filter_map(|&(set, _)| SETS.get(set)) {
        set.with(|state| state.enqueue_socket(socket.index()));
        set.kick();
    }
}

/// Moves a registration from the program's set to the inner one. With both locks.
pub(super) fn move_in(
    set: &'static Set,
    state: &mut State,
    index: u32,
    link: &'static Link,
) -> bool {
    let Ok(inner) = set.open_inner() else {
        return false;
    };
    let item = &state.items[index as usize];
    let events = base_events::at_first(set, state, item);
    let mut base = item.as_member(index, events);
    let fd = item.fd;
    let mut enter = |operation| sys::epoll_ctl(inner, operation, fd, &raw mut base);
    // A registration that could not be taken out while its number named another socket is still there.
    let entered = match enter(libc::EPOLL_CTL_ADD) {
        Err(libc::EEXIST) => enter(libc::EPOLL_CTL_MOD),
        entered => entered,
    };
    if entered.is_err() {
        return false;
    }
    let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
    state.follow(link, set);
    let item = &mut state.items[index as usize];
    (item.moved, item.base) = (true, events);
    state.may_narrow_later(index);
    set.moved.fetch_add(1, Ordering::AcqRel);
    true
}

/// Before an exec: the program's sets, which may outlive it, get back the registrations of
/// connections that are plain by now. Of sets that a parent has made, which it shares, only those
/// that the parent has no more.
pub(crate) fn give_back() {
    for set in SETS.each().filter(|set| set.is_live()) {
        let moved = |state: &mut State| -> Vec<(&'static Socket, u32)> {
            let items = state.items.iter().zip(0..);
            items
                .filter(|(item, _)| item.live && item.moved && !item.inactive)
                .map(|(item, index)| (item.socket, index))
                .collect()
        };
        for (socket, index) in set.with(moved).unwrap_or_default() {
            if let Some(socket) = socket.lock() {
                give_back_item(set, &socket, index);
            }
        }
    }
}

/// Before the last descriptor of a connection that was passed in a message is closed: it may lie in a Unix socket,
/// and the kernel keeps its registrations then (`epoll(7)`, question 6).
pub(crate) fn give_back_of(socket: &'static Socket) {
    if socket.items.is_empty() {
        return;
    }
    let Some(socket) = socket.lock() else {
        return;
    };
    for &(set, index) in socket.places() {
        if let Some(set) = SETS.get(set) {
            give_back_item(set, &socket, index);
        }
    }
}

fn give_back_item(set: &'static Set, socket: &Locked, index: u32) {
    let here = socket.places().contains(&(set.index(), index));
    let Some(conn) = Conn::attached(socket.socket, socket.fd()) else {
        return;
    };
    // The other end may be this process's, too, and have asked since.
    if stream::recall_is_due(&conn) {
        stream::answer_recall(&conn);
    }
    if !stream::is_plain(&conn) || !set.is_own() && conn.is_shared() {
        return;
    }
    let moved = here
        && set.with(|state| {
            let item = &mut state.items[index as usize];
            // The kernel can register the socket only by a number that still names it.
            let moved = item.moved && !item.inactive && item.is_named();
            if moved {
                (item.polled, item.queued, item.listed) = (false, false, false);
                state.polled.retain(|&polled| polled != index);
                state.queue.retain(|&queued| queued != index);
            }
            moved
        }) == Some(true);
    if moved {
        move_out(set, index, conn.pair.link);
        watch(socket);
    }
}

/// Moves a registration back to the program's set.
fn move_out(set: &'static Set, index: u32, link: &'static Link) {
    set.with(|state| {
        let at = if state.items[index as usize].outside {
            set.fd()
        } else {
            set.inner_fd()
        };
        outside::forget(set, state, index);
        let item = &mut state.items[index as usize];
        item.moved = false;
        let mut event = epoll_event {
            events: item.events,
            u64: item.data,
        };
        let (fd, is_named) = (item.fd, item.is_named());
        // If its number names something else by now, the kernel would register that.
        if is_named {
            let _ = sys::epoll_ctl(at, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
            let _ = sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event);
        }
        set.moved.fetch_sub(1, Ordering::AcqRel);
        state.unfollow(link, set);
    });
}

/// A registration of a socket that waits to be attached: by which descriptor, and whether it is edge-triggered.
type Waiting = (&'static Socket, c_int, bool);

/// The most such registrations that are looked at before one wait.
pub(crate) const AT_ONCE: usize = 32;

/// The next registrations of a set that wait to be attached, in turn.
#[cold]
pub(crate) fn waiting(set: &'static Set) -> [Option<Waiting>; AT_ONCE] {
    let mut paired = [None; AT_ONCE];
    let mut n = 0;
    set.with(|state| {
        if set.moved.load(Ordering::Relaxed) == set.tracked.load(Ordering::Relaxed) {
            return;
        }
        // In turn, so that some which cannot be attached yet do not hold up the others.
        let last = state.brought;
        Socket::each_paired(last, |socket| {
            state.visit_socket(socket.index(), |item| {
                let edge = item.events & libc::EPOLLET as u32 != 0;
                // The number may name another file by now.
                if item.moved || !item.is_named() {
                    return;
                }
                // A socket in several sets never can be attached, and each try costs system calls: so tries become rare.
                item.put_off += u32::from(edge && item.put_off < u32::MAX);
                if n < paired.len() && (item.put_off < 16 || item.put_off % 64 == 0) {
                    item.armed &= !edge;
                    paired[n] = Some((item.socket, item.fd, edge));
                    n += 1;
                }
            });
            state.brought = socket.index();
            n < paired.len()
        });
    });
    paired
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::collect::collect;
    use super::super::register::register;
    use super::super::room::Room;
    use super::*;
    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::hold::Held;
    use crate::table::{self, Word};

    /// How many events a wait that does not sleep tells.
    fn told(set: &'static Set) -> usize {
        told_by(set, true)
    }

    /// How many events it tells if it asks the kernel (`look`), or does not.
    fn told_by(set: &'static Set, look: bool) -> usize {
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: the array is there as long as the room is.
        let mut room = unsafe { Room::new(events.as_mut_ptr(), events.len()) };
        collect(set, &mut room, look, 0)
    }

    #[test]
    fn an_edge_of_a_registration_that_moves_as_it_is_modified_is_told_once() {
        let ends = BothEnds::attached();
        let (conn, fd) = (&ends.conns()[1], ends.fds[1]);
        ends.send(b"there");
        ends.receive::<8>();
        let mut byte = [7u8];
        let part = [libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        }];
        // SAFETY: the byte is there, and stays as it is.
        let back = unsafe { stream::send(conn, &part, libc::MSG_DONTWAIT) };
        assert_eq!(back, Outcome::Done(1));
        assert!(!stream::leaves_ring(conn));
        let own = sys::epoll_create().unwrap();
        Set::enter(own);
        let set = Set::of(own).unwrap();
        let event = epoll_event {
            events: (libc::EPOLLOUT | libc::EPOLLET) as u32,
            u64: 7,
        };
        let change = |operation| register(set, operation, ends.sockets[1], fd, event);
        assert_eq!(change(libc::EPOLL_CTL_ADD), Outcome::Done(0));
        let item = ends.sockets[1].lock().unwrap().places()[0].1;
        move_out(set, item, conn.pair.link);
        let arming = Known::Arming(set.index(), fd);
        let moves = |s: &mut State| carry_one(set, s, item, (fd, conn.pair), arming);
        assert!(matches!(set.with(moves), Some(Carried::Here { .. })));
        set.with(|s| queue_carried(set, s, item, arming));
        assert_eq!(change(libc::EPOLL_CTL_MOD), Outcome::Done(0));
        // The first wait does not ask the kernel, as one soon after another one.
        assert_eq!((told_by(set, false), told(set)), (1, 0));
        table::enter(own, Word::NOTHING);
        set.unhold();
        sys::close(own);
    }

    #[test]
    fn a_used_up_one_shot_registration_that_moves_tells_nothing_before_it_is_armed() {
        let ends = BothEnds::attached();
        let (conn, fd) = (&ends.conns()[1], ends.fds[1]);
        let own = sys::epoll_create().unwrap();
        Set::enter(own);
        let set = Set::of(own).unwrap();
        let event = epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32,
            u64: 7,
        };
        let change = |operation| register(set, operation, ends.sockets[1], fd, event);
        assert_eq!(change(libc::EPOLL_CTL_ADD), Outcome::Done(0));
        let item = ends.sockets[1].lock().unwrap().places()[0].1;
        move_out(set, item, conn.pair.link);
        ends.send(b"bytes");
        // Where another thread waits just now.
        let arming = Known::Arming(set.index(), fd);
        let moves = |s: &mut State| carry_one(set, s, item, (fd, conn.pair), arming);
        assert!(matches!(set.with(moves), Some(Carried::Here { .. })));
        assert_eq!(told(set), 0);
        set.with(|s| queue_carried(set, s, item, arming));
        assert_eq!(told(set), 0);
        assert_eq!(change(libc::EPOLL_CTL_MOD), Outcome::Done(0));
        assert_eq!((told(set), told(set)), (1, 0));
        table::enter(own, Word::NOTHING);
        set.unhold();
        sys::close(own);
    }
}
