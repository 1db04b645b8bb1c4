//! Epoll sets that hold shunted sockets.
//!
//! ```text
//!   program's set (kernel) ── pipe, listener, TCP sockets…     as registered
//!        │
//!        └── inner set (kernel) ── base sockets of shunted     edge-triggered,
//!                 │                connections                 for doorbells, FIN, RST
//!                 └── kick (eventfd): wakes a sleeper of this process
//!   ready queue (here) ── items whose connection may have news
//! ```
//!
//! The kernel's idea of a shunted socket's readiness is wrong (always
//! writable), so its registration lives here. A sleeper sleeps in the real
//! `epoll_wait` on the program's own set; news of shunted sockets arrive by
//! doorbell through the inner set, or, for a thread that is awake, through the
//! logs of the links. As in the kernel (`fs/eventpoll.c`) an item enters the
//! ready queue when something happens to its socket; a wait takes items from
//! the queue, asks each socket what is ready, and puts level-triggered ones back.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{c_int, epoll_event};
use shunt_abi::Reason;
use shunt_shm::atomic::heavy;
use shunt_shm::slot;

use crate::link::{Link, Pair};
use crate::socket::Socket;
use crate::stream::Conn;
use crate::sys::{self, Errno};
use crate::table::{self, Entry, Links, Pooled};
use crate::tcp::{self, Mark};
use crate::thread::Lock;

mod control;
mod wait;

pub(crate) use control::change;
use wait::has_ready;
pub(crate) use wait::{Limit, begin_sleep, end_sleep, expose, wait};

/// The group of connections that are in several sets.
const SHARED: u32 = shunt_abi::layout::GROUPS as u32 - 1;
/// What the inner set reports a kick with.
const KICK: u64 = u64::MAX;
/// Bits of a registration that are not events.
const FLAGS: u32 =
    (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// An epoll set of the program.
pub(crate) struct Set {
    links: Links,
    live: AtomicBool,
    holds: AtomicU32,
    fd: AtomicI32,
    inner: AtomicI32,
    kick: AtomicI32,
    /// Items, and those of them that are served here.
    tracked: AtomicU32,
    moved: AtomicU32,
    /// Sets inside it.
    nested: AtomicU32,
    /// Threads asleep in the real call.
    sleepers: AtomicU32,
    /// Threads asleep there that stand at no door: the set was plain.
    plain_sleepers: AtomicU32,
    /// The kick makes the set look ready to whatever contains it.
    exposed: AtomicBool,
    /// When the kernel's side was last looked at (ticks).
    looked_at: AtomicU64,
    /// Ticks until the next look.
    pause: AtomicU32,
    lock: Lock,
    state: UnsafeCell<Option<Box<State>>>,
}

// SAFETY: `state` is touched only by the holder of `lock`.
unsafe impl Sync for Set {}

impl Pooled for Set {
    fn links(&self) -> &Links {
        &self.links
    }
}

/// One registration of a TCP socket.
struct Item {
    socket: &'static Socket,
    fd: c_int,
    events: u32,
    data: u64,
    /// Served here; otherwise the kernel's set has it and this is a note.
    moved: bool,
    queued: bool,
    /// Taken out by the program, but still in the inner set: programs that take
    /// interest in turns put it back at once, which then costs nothing.
    dormant: bool,
    /// What happened to the socket while dormant.
    idle_news: u32,
    /// The kernel has news about its socket.
    look: bool,
    /// Added or modified since the kernel's set was last asked for all it has.
    armed: bool,
    /// Waits in which it might have been carried over and was not.
    put_off: u32,
    live: bool,
    generation: u32,
    /// Next item of the same socket, index + 1.
    next: u32,
}

/// A link whose logs the set reads.
struct Follow {
    link: &'static Link,
    /// How far the log of our group, and of the shared one, is read.
    heads: [u64; 2],
    members: u32,
}

#[derive(Default)]
struct State {
    items: Vec<Item>,
    free: Vec<u32>,
    /// First item by socket index, index + 1.
    by_socket: Vec<u32>,
    queue: std::collections::VecDeque<u32>,
    follows: Vec<Follow>,
    /// Sets of the program inside this one.
    nested: Vec<&'static Set>,
    /// A log has told of something since the set was last exposed.
    fresh: bool,
    /// Sockets that are used although their registration is dormant.
    busy: Vec<&'static Socket>,
    /// Whose turn it is when only one event fits.
    kernel_first: bool,
}

/// A socket's registrations: which sets it is in.
pub(crate) struct ItemList(UnsafeCell<Option<Box<Places>>>);

/// Where a socket's registrations are: set and item.
type Places = Vec<(u32, u32)>;

impl ItemList {
    /// With the socket's lock.
    #[allow(clippy::mut_from_ref)]
    fn list(&self) -> &mut Places {
        // SAFETY: the caller holds the socket's lock.
        unsafe { (*self.0.get()).get_or_insert_default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: a look that loses a race is repeated with the lock.
        unsafe { (*self.0.get()).as_ref().is_none_or(|l| l.is_empty()) }
    }

    /// What keeps the registrations where they are: one that the kernel may have
    /// an event for, or has disarmed, must not move unless that is `known`. With
    /// the socket's lock.
    pub(crate) fn obstacle(&self, known: Known) -> Option<Reason> {
        if self.is_empty() {
            return None;
        }
        self.list().iter().find_map(|&(set, item)| {
            let of = table::SETS.get(set)?;
            let Some((events, fd)) = of.with(|s| {
                let item = &s.items[item as usize];
                (item.events, item.fd)
            }) else {
                return Some(Reason::Busy);
            };
            let arming = matches!(known, Known::Arming(s, n) if (s, n) == (set, fd));
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
}

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

impl Set {
    /// After `epoll_create`.
    pub(crate) fn enter(fd: c_int) {
        let Some(set) = table::SETS.take() else {
            return;
        };
        let o = Ordering::Relaxed;
        set.fd.store(fd, o);
        set.inner.store(-1, o);
        set.kick.store(-1, o);
        set.holds.store(1, o);
        set.tracked.store(0, o);
        set.moved.store(0, o);
        set.nested.store(0, o);
        set.sleepers.store(0, o);
        set.plain_sleepers.store(0, o);
        set.exposed.store(false, o);
        set.looked_at.store(0, o);
        set.pause.store(0, o);
        set.lock.reset();
        // SAFETY: a free object is nobody's.
        unsafe { *set.state.get() = None };
        set.live.store(true, Ordering::Release);
        if let Entry::Socket(stale) = table::enter(fd, Entry::Set(set)) {
            stale.unhold();
        }
    }

    pub(crate) fn index(&self) -> u32 {
        self.links.index()
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// The group whose logs tell of this set's sockets.
    fn group(&self) -> u32 {
        self.index() % SHARED
    }

    /// Whether some socket of the set is served here.
    pub(crate) fn is_shunted(&self) -> bool {
        self.moved.load(Ordering::Acquire) != 0
    }

    /// Whether there is nothing to know about the set: no TCP sockets, no sets.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.tracked.load(Ordering::SeqCst) == 0 && self.nested.load(Ordering::SeqCst) == 0
    }

    /// Runs `work` with the set's lock; `None` in a signal handler that
    /// interrupted its holder.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        if !self.lock.take() {
            return None;
        }
        // SAFETY: the lock is held.
        let result = work(unsafe { (*self.state.get()).get_or_insert_default() });
        self.lock.give();
        Some(result)
    }

    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// One descriptor less; the last one ends the set.
    pub(crate) fn unhold(&'static self) {
        if self.holds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        self.live.store(false, Ordering::Release);
        for outer in table::SETS
            .each()
            .filter(|s| s.nested.load(Ordering::Acquire) != 0)
        {
            outer.with(|state| {
                let before = state.nested.len();
                state.nested.retain(|&s| !std::ptr::eq(s, self));
                outer
                    .nested
                    .fetch_sub((before - state.nested.len()) as u32, Ordering::AcqRel);
            });
        }
        // SAFETY: no descriptor names the set any more.
        if let Some(state) = unsafe { (*self.state.get()).take() } {
            for item in state.items.iter().filter(|i| i.live) {
                if item.socket.lock.take() {
                    item.socket
                        .items
                        .list()
                        .retain(|&(set, _)| set != self.index());
                    watch(item.socket);
                    item.socket.lock.give();
                }
            }
            for follow in &state.follows {
                follow.link.unhold();
            }
        }
        for fd in [&self.inner, &self.kick] {
            let fd = fd.swap(-1, Ordering::AcqRel);
            if fd >= 0 {
                table::enter(fd, Entry::Other);
                sys::close(fd);
            }
        }
        table::SETS.give(self);
    }

    /// Makes the inner set, with the lock held.
    fn open_inner(&self) -> Result<c_int, Errno> {
        let inner = self.inner.load(Ordering::Relaxed);
        if inner >= 0 {
            return Ok(inner);
        }
        let inner = sys::move_high(sys::epoll_create()?);
        let kick = match sys::eventfd() {
            Ok(kick) => sys::move_high(kick),
            Err(errno) => {
                sys::close(inner);
                return Err(errno);
            }
        };
        let mut event = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: KICK,
        };
        let mut outer = epoll_event {
            events: libc::EPOLLIN as u32,
            u64: self.magic(),
        };
        let done = sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, kick, &raw mut event)
            .and_then(|_| sys::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, inner, &raw mut outer));
        if let Err(errno) = done {
            sys::close(inner);
            sys::close(kick);
            return Err(errno);
        }
        for fd in [inner, kick] {
            table::enter(fd, Entry::Ours);
        }
        self.kick.store(kick, Ordering::Relaxed);
        self.inner.store(inner, Ordering::Release);
        Ok(inner)
    }

    /// How the program's set reports the inner one: an address of ours, which
    /// no program has as its data.
    fn magic(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Makes the kernel see the set as ready exactly if it is: for whoever waits
    /// on something that contains it.
    fn expose(&'static self) {
        self.expose_nested();
        if !self.is_shunted() {
            return;
        }
        let kick = self.kick.load(Ordering::Relaxed);
        let mut count = 1u64;
        if has_ready(self) {
            // An edge of the outer set for every piece of news, and for no look.
            let fresh = self
                .with(|state| std::mem::take(&mut state.fresh))
                .unwrap_or(true);
            if !self.exposed.swap(true, Ordering::Relaxed) || fresh {
                let _ = sys::write(kick, (&raw const count).cast(), 8);
            }
        } else {
            self.exposed.store(false, Ordering::Relaxed);
            let _ = sys::read(kick, (&raw mut count).cast(), 8);
        }
    }

    /// The same for the sets inside it.
    fn expose_nested(&'static self) {
        self.each_nested(Self::expose);
    }

    fn each_nested(&'static self, visit: impl Fn(&'static Set)) {
        if self.nested.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut children = [None; 64];
        self.with(|state| {
            for (to, from) in children.iter_mut().zip(&state.nested) {
                *to = Some(*from);
            }
        });
        children.into_iter().flatten().for_each(visit);
    }

    /// Wakes a thread of this process that sleeps on the set.
    fn kick(&self) {
        let kick = self.kick.load(Ordering::Relaxed);
        let asleep =
            self.sleepers.load(Ordering::Acquire) + self.plain_sleepers.load(Ordering::SeqCst);
        if kick >= 0 && asleep != 0 {
            let one = 1u64;
            let _ = sys::write(kick, (&raw const one).cast(), 8);
        }
    }
}

impl State {
    /// Notes that something may have happened to an item.
    fn enqueue(&mut self, index: u32, look: bool) {
        let item = &mut self.items[index as usize];
        item.look |= look;
        if item.live && item.moved && !item.queued && !item.dormant {
            item.queued = true;
            self.queue.push_back(index);
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

    fn find(&self, socket: &Socket, fd: c_int) -> Option<u32> {
        self.of_socket(socket.index())
            .find(|&i| self.items[i as usize].fd == fd && !self.items[i as usize].dormant)
    }

    fn find_dormant(&self, socket: &Socket, fd: c_int) -> Option<u32> {
        self.of_socket(socket.index())
            .find(|&i| self.items[i as usize].fd == fd && self.items[i as usize].dormant)
    }

    fn insert(&mut self, socket: &'static Socket, fd: c_int, event: epoll_event) -> u32 {
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
            queued: false,
            dormant: false,
            idle_news: 0,
            look: false,
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

    fn remove(&mut self, index: u32) {
        let (socket, queued, next) = {
            let item = &mut self.items[index as usize];
            item.live = false;
            (item.socket.index() as usize, item.queued, item.next)
        };
        if queued {
            self.queue.retain(|&i| i != index);
        }
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

    /// Reads the logs of this link from now on.
    fn follow(&mut self, link: &'static Link, set: &Set) {
        if let Some(follow) = self.follows.iter_mut().find(|f| std::ptr::eq(f.link, link)) {
            follow.members += 1;
            return;
        }
        link.hold();
        let heads = [
            link.peer().log(set.group()).end(),
            link.peer().log(SHARED).end(),
        ];
        self.follows.push(Follow {
            link,
            heads,
            members: 1,
        });
        // Threads already asleep on the set stand at this door too.
        let asleep = set.sleepers.load(Ordering::Acquire);
        for group in [set.group(), SHARED] {
            link.own()
                .door(group)
                .sleepers
                .fetch_add(asleep, Ordering::AcqRel);
            link.own().door(group).naps.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// One member less.
    fn unfollow(&mut self, link: &'static Link, set: &Set) {
        if let Some(at) = self.follows.iter().position(|f| std::ptr::eq(f.link, link)) {
            self.follows[at].members -= 1;
            if self.follows[at].members == 0 {
                self.follows.swap_remove(at);
                let asleep = set.sleepers.load(Ordering::Acquire);
                for group in [set.group(), SHARED] {
                    link.own()
                        .door(group)
                        .sleepers
                        .fetch_sub(asleep, Ordering::AcqRel);
                }
                link.unhold();
            }
        }
    }
}

/// Tells the peer, by our wait word, in which group to log what happens to a
/// socket. With the socket's lock.
///
/// A socket whose registrations are all dormant stays as it is. `true`: the
/// peer has been told something new.
fn watch(socket: &'static Socket) -> bool {
    let Some(pair) = socket.pair() else {
        return false;
    };
    let mut group = None;
    let mut dormant = false;
    for &(set, item) in socket.items.list().iter() {
        let Some(set) = table::SETS.get(set) else {
            continue;
        };
        let state = set.with(|s| (s.items[item as usize].moved, s.items[item as usize].dormant));
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
    let bits = group.map_or(0, |g| slot::WATCHED | g << slot::GROUP_SHIFT);
    let wait = &pair.own.face.wait;
    let mut old = wait.load(Ordering::Relaxed);
    if old & slot::WATCH_MASK == bits {
        return false;
    }
    while let Err(now) = wait.compare_exchange(
        old,
        old & !slot::WATCH_MASK | bits,
        Ordering::AcqRel,
        Ordering::Relaxed,
    ) {
        old = now;
    }
    // Pairs with the light barrier before a peer's look at the wait word: what
    // it publishes from now on is logged; what came before is seen by the look
    // that the caller makes next.
    heavy();
    true
}

/// A socket is being attached: its registrations move here. With its lock.
/// `Some(false)`: the kernel may have an event to report first; `None`: no
/// resources. Then nothing has changed.
pub(crate) fn carry(socket: &'static Socket, fd: c_int, pair: &Pair, known: Known) -> Option<bool> {
    if socket.items.is_empty() {
        return Some(true);
    }
    let mut moved = Vec::new();
    for &(set_index, item) in socket.items.list().iter() {
        let Some(set) = table::SETS.get(set_index) else {
            continue;
        };
        let done = set
            .with(|s| {
                let edge = s.items[item as usize].events & libc::EPOLLET as u32 != 0;
                let mark = match known {
                    Known::Told(set, mark) if edge && set == set_index => Some(mark),
                    _ => None,
                };
                if mark.is_some_and(|m| s.items[item as usize].armed || tcp::mark(fd) != Some(m)) {
                    return Some(None);
                }
                if !control::move_in(set, s, item, pair.link) {
                    return None;
                }
                // The inner set tells of its new member what the program knows.
                let quiet = mark.is_some_and(|mark| {
                    wait::hear_others(set, s, item);
                    tcp::mark(fd) == Some(mark) && sys::ready(fd, libc::POLLRDHUP) == 0
                });
                Some(Some(quiet))
            })
            .flatten();
        match done {
            Some(Some(quiet)) => moved.push((set, item, quiet)),
            refused => {
                for (set, item, _) in moved {
                    control::move_out(set, item, pair.link);
                }
                return refused.map(|_| false);
            }
        }
    }
    watch(socket);
    for (set, item, quiet) in moved {
        if quiet {
            continue;
        }
        set.with(|s| {
            let index = item as usize;
            let arming = matches!(known, Known::Arming(at, fd) if (at, fd) == (set.index(), s.items[index].fd));
            if arming {
                // Whoever modifies it queues it. The kernel has disarmed it, or may have.
                s.items[index].look = true;
                if s.items[index].events & libc::EPOLLONESHOT as u32 != 0 {
                    s.items[index].events &= FLAGS;
                }
            } else {
                s.enqueue(item, true);
            }
        });
        set.kick();
    }
    Some(true)
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
            let item = &s.items[item as usize];
            if item.fd == fd && !item.moved {
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

/// Whether a thread may be asleep in a set that this connection is in: then its
/// doorbells are left for it.
pub(crate) fn may_sleep(conn: &Conn) -> bool {
    let wait = conn.pair.own.face.wait.load(Ordering::Relaxed);
    wait & slot::WATCHED != 0
        && conn
            .pair
            .link
            .own()
            .door(wait >> slot::GROUP_SHIFT & 0x3f)
            .sleepers
            .load(Ordering::Acquire)
            != 0
}

/// In a forked child: locks that other threads held are free.
pub(crate) fn after_fork_child() {
    for set in table::SETS.each() {
        set.lock.reset();
        set.sleepers.store(0, Ordering::Relaxed);
        set.plain_sleepers.store(0, Ordering::Relaxed);
    }
}

/// If `fd` is a number of ours that the program wants: moves elsewhere.
pub(crate) fn make_way(fd: c_int) {
    for set in table::SETS
        .each()
        .filter(|s| s.live.load(Ordering::Acquire))
    {
        for ours in [&set.inner, &set.kick] {
            if ours.load(Ordering::Acquire) != fd {
                continue;
            }
            if let Ok(other) = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) {
                table::enter(other as c_int, Entry::Ours);
                ours.store(other as c_int, Ordering::Release);
                table::enter(fd, Entry::Other);
            }
        }
    }
}
