//! What is kept of connections that are closed, and for how long.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::counters::GivenUp;

use super::lock::{self, LONGEST, Locked};
use super::pristine;
use crate::hold::Held;
use crate::region::count;
use crate::socket::{SOCKETS, Socket, Stage, Tries};
use crate::stream::{self, Conn};
use crate::sys;
use crate::table::{self, Word};
use crate::thread;
use crate::upgrade::trial;

/// The most connections that a process keeps, ...
const MOST: usize = 64;
/// ... which are also no more than one in this many of the descriptors that it may have.
const SHARE: u64 = 16;

static KEPT: [Kept; MOST] = [const { Kept::nothing() }; MOST];
/// How many there are, for a look without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// A connection that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    /// 1 + the number of its object; 0: nothing is kept here.
    socket: AtomicU32,
    fd: AtomicI32,
    /// When it is given up (nanoseconds of the monotonic clock).
    until: AtomicU64,
    /// The thread that waits at it ([`thread::here`]); [`NOBODY`], [`OPEN`], or [`TAKEN`].
    waiter: AtomicU64,
    /// Of one that is taken: how many this process had taken by then, this one included.
    taken: AtomicU64,
    /// How many connections had been made there without it by then ([`Tries::date`]).
    date: AtomicU32,
}

/// No thread waits at it.
const NOBODY: u64 = 0;
/// It was taken in a call that does not return it: the next `accept` does.
const TAKEN: u64 = u64::MAX;
/// The next connection may be offered here though no thread waits: see [`super::open`].
const OPEN: u64 = TAKEN - 1;

/// How many kept connections are taken now, for a look without the lock, ...
static TAKEN_NOW: AtomicU32 = AtomicU32::new(0);
/// ... and how many have ever been taken.
static TAKEN_EVER: AtomicU64 = AtomicU64::new(0);
/// How many are open, for a look without the lock.
static OPEN_NOW: AtomicU32 = AtomicU32::new(0);

impl Locked {
    /// The connections that are kept.
    pub(super) fn each(&self) -> impl Iterator<Item = &'static Kept> {
        let count = COUNT.load(Ordering::Relaxed) as usize;
        KEPT.iter()
            .filter(|kept| kept.socket().is_some())
            .take(count)
    }

    /// A place for one more, after those whose time has passed have gone. `None`: there is none just now.
    pub(super) fn room(&self) -> Option<&'static Kept> {
        /// Any process may keep this many, however few descriptors it may have.
        const FEW: u32 = 4;
        let now = sys::now();
        self.sweep_at(now);
        let count = COUNT.load(Ordering::Relaxed);
        let is_much = count >= FEW && u64::from(count) >= self.descriptor_limit(now) / SHARE;
        if is_much || !self.may_keep() {
            return None;
        }
        KEPT.iter().find(|kept| kept.socket().is_none())
    }

    /// How many descriptors the process may have, as of the last look. An older figure does no harm: a call that finds no
    /// number left has the kept connections given up ([`make_room`](crate::life::make_room)).
    fn descriptor_limit(&self, now: u64) -> u64 {
        static LIMIT: AtomicU64 = AtomicU64::new(0);
        static ASK_AT: AtomicU64 = AtomicU64::new(0);
        if ASK_AT.load(Ordering::Relaxed) <= now {
            ASK_AT.store(now + LONGEST, Ordering::Relaxed);
            LIMIT.store(sys::descriptor_limit(), Ordering::Relaxed);
        }
        LIMIT.load(Ordering::Relaxed)
    }

    /// Gives up connections that were kept for long enough, or should go back to TCP.
    pub(super) fn sweep(&self) {
        self.sweep_at(sys::now());
    }

    pub(super) fn sweep_at(&self, now: u64) {
        let is_over = |kept: &Kept| {
            let wished = |socket: &Socket| socket.dealings.wished.load(Ordering::Relaxed) != 0;
            kept.until.load(Ordering::Relaxed) <= now
                || kept.is_in_vain()
                || kept.socket().is_some_and(wished)
        };
        self.give_up(GivenUp::Time, is_over);
        pristine::sweep(self, now);
    }

    /// Gives up all kept connections at which no thread waits, and the new sockets. `true`: there were any.
    fn give_up_all(&self) -> bool {
        let sockets = pristine::give_up_all(self);
        self.give_up(GivenUp::Process, |_| true) > 0 || sockets
    }

    /// Gives up the connections of which `which` is true and at which no thread waits. Returns how many there were.
    fn give_up(&self, why: GivenUp, which: impl Fn(&Kept) -> bool) -> usize {
        let goes = |kept: &&Kept| which(kept) && kept.becomes_free(self);
        let each = self.each().filter(goes);
        each.inspect(|kept| kept.give_up(self, why)).count()
    }
}

impl Kept {
    /// All zeros, which take no room in the library's data.
    const fn nothing() -> Self {
        Self {
            socket: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            until: AtomicU64::new(0),
            waiter: AtomicU64::new(NOBODY),
            taken: AtomicU64::new(0),
            date: AtomicU32::new(0),
        }
    }

    /// Its number, for [`numbered`].
    pub(super) fn number(&self) -> u32 {
        let bytes = std::ptr::from_ref(self).addr() - KEPT.as_ptr().addr();
        (bytes / size_of::<Self>()) as u32
    }

    /// The connection.
    pub(super) fn socket(&self) -> Option<&'static Socket> {
        let index = self.socket.load(Ordering::Relaxed).checked_sub(1)?;
        SOCKETS.get(index)
    }

    /// The library's descriptor of its base socket.
    pub(super) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// Until when it is kept (nanoseconds of the monotonic clock).
    pub(super) fn until(&self) -> u64 {
        self.until.load(Ordering::Relaxed)
    }

    /// What is known of whether it pays to keep it: by its port, or by its listener.
    fn tries(&self) -> Option<&'static Tries> {
        let socket = self.socket()?;
        let accepted_by = socket.origin.listener();
        let connected = || socket.origin.is_connect().then(|| trial::of(socket.port()));
        accepted_by
            .map(|listener| &listener.accepts.keeps)
            .or_else(connected)
    }

    /// Whether many connections have been made without it.
    fn is_in_vain(&self) -> bool {
        let date = self.date.load(Ordering::Relaxed);
        self.tries().is_some_and(|tries| tries.is_stale(date))
    }

    /// Whether the number still names the base socket: a program may close descriptors that it has not opened.
    pub(super) fn is_there(&self) -> bool {
        let cookie = sys::getsockopt::<u64>(self.fd(), libc::SOL_SOCKET, libc::SO_COOKIE);
        let known = self.socket().map(Socket::cookie);
        table::look(self.fd()) == Word::OURS && known.is_some_and(|known| cookie == Ok(known))
    }

    /// Keeps a connection by this descriptor.
    pub(super) fn keep(&self, _: &Locked, socket: &Socket, fd: c_int) {
        table::enter(fd, Word::OURS);
        self.fd.store(fd, Ordering::Relaxed);
        let until = sys::now() + LONGEST;
        self.until.store(until, Ordering::Relaxed);
        self.waiter.store(NOBODY, Ordering::Relaxed);
        self.socket.store(socket.index() + 1, Ordering::Relaxed);
        let date = self.tries().map_or(0, Tries::date);
        self.date.store(date, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        count::put_aside();
    }

    /// The program has it again, by a descriptor of its own.
    pub(super) fn use_again(&self, locked: &Locked) {
        count::used_again();
        self.release(locked);
    }

    /// Frees the place, and closes the library's descriptor.
    fn release(&self, _: &Locked) {
        let fd = self.forget();
        if table::look(fd) == Word::OURS {
            table::enter(fd, Word::NOTHING);
            sys::close(fd);
        }
    }

    fn forget(&self) -> c_int {
        self.socket.store(0, Ordering::Relaxed);
        self.change_waiter(NOBODY);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        self.fd()
    }

    /// Ends the connection like one that is closed: the kernel tells the peer.
    pub(super) fn give_up(&self, locked: &Locked, why: GivenUp) {
        count::given_up(why);
        if !self.is_there() && table::look(self.fd()) == Word::OURS {
            // The program has put something else there, which is its own.
            table::enter(self.fd(), Word::NOTHING);
        }
        if let Some(socket) = self.socket() {
            if matches!(why, GivenUp::Time | GivenUp::Lost) {
                trial::note_unused(socket);
                if let Some(listener) = socket.origin.listener() {
                    listener.accepts.keeps.note_unused();
                }
            }
            if let Some(pair) = socket.pair() {
                stream::turns(pair).give_up();
            }
            socket.give_up_aside();
            socket.unhold();
        }
        self.release(locked);
    }

    /// The kernel resets what a listener leaves in its queue (`inet_csk_listen_stop`).
    fn reset(&self) {
        if let Some(conn) = self.conn() {
            stream::before_reset(&conn);
            sys::reset(self.fd());
        }
    }

    /// Whether it can be given up: no thread waits at it. What is open is so no more.
    fn becomes_free(&self, locked: &Locked) -> bool {
        if self.is_open() {
            self.leave(locked);
        }
        self.is_free()
    }

    /// The connection and its descriptor.
    pub(super) fn conn(&self) -> Option<Conn<'static>> {
        Conn::new(self.socket()?, self.fd())
    }

    /// Nothing is offered here any more. `true`: there was an offer, which is taken.
    pub(super) fn leave(&self, locked: &Locked) -> bool {
        let taken = self.conn().is_some_and(|conn| {
            stream::await_no_more(conn.pair);
            stream::turns(conn.pair).end_wait() && stream::take_again(&conn)
        });
        self.end_wait(locked, taken);
        taken
    }

    /// Whether no thread waits at it.
    pub(super) fn is_free(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == NOBODY
    }

    /// Whether any thread waits at it.
    pub(super) fn is_waited_at(&self) -> bool {
        !self.is_free() && !self.is_taken() && !self.is_open()
    }

    /// Whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == OPEN
    }

    /// It is open from here on, which was free.
    pub(super) fn open(&self, _: &Locked) {
        self.change_waiter(OPEN);
    }

    /// This thread waits at it, which was free.
    pub(super) fn begin_wait(&self, _: &Locked) {
        self.change_waiter(thread::here());
    }

    /// Whether this thread waits at it: when it begins anew, a signal handler has left the call before for good.
    pub(super) fn is_waited_at_here(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == thread::here()
    }

    /// The wait at it is over. `taken`: the next `accept` returns what was offered there.
    pub(super) fn end_wait(&self, _: &Locked, taken: bool) {
        if taken {
            let ever = TAKEN_EVER.fetch_add(1, Ordering::Relaxed) + 1;
            self.taken.store(ever, Ordering::Relaxed);
        }
        self.change_waiter(if taken { TAKEN } else { NOBODY });
    }

    fn change_waiter(&self, waiter: u64) {
        let before = self.waiter.swap(waiter, Ordering::Release);
        for (which, count) in [(TAKEN, &TAKEN_NOW), (OPEN, &OPEN_NOW)] {
            match (before == which, waiter == which) {
                (false, true) => count.fetch_add(1, Ordering::Release),
                (true, false) => count.fetch_sub(1, Ordering::Release),
                _ => continue,
            };
        }
    }

    /// Whether it was taken, and not returned.
    pub(super) fn is_taken(&self) -> bool {
        self.waiter.load(Ordering::Acquire) == TAKEN
    }

    /// Of one that is taken: how many had been taken before, and this one.
    pub(super) fn turn(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether this listener has accepted it.
    pub(super) fn is_of(&self, listener: &Socket) -> bool {
        self.socket()
            .is_some_and(|socket| socket.origin.is_accept_of(listener))
    }
}

/// The place with this number, which need not be in use any more.
pub(super) fn numbered(number: u32) -> &'static Kept {
    &KEPT[number as usize]
}

/// The number (counted over all of this process) of the youngest connection that is taken and waits for an `accept` of
/// this listener; 0: there is none.
pub(crate) fn last_taken(listener: &Socket) -> u64 {
    if !is_any_taken() {
        return 0;
    }
    let of_it = KEPT
        .iter()
        .filter(|kept| kept.is_taken() && kept.is_of(listener));
    of_it.map(Kept::turn).max().unwrap_or(0)
}

/// Whether any is open; a look without the lock.
pub(super) fn is_any_open() -> bool {
    OPEN_NOW.load(Ordering::Acquire) != 0
}

/// Whether any is taken; a look without the lock.
#[inline(always)]
pub(crate) fn is_any_taken() -> bool {
    TAKEN_NOW.load(Ordering::Acquire) != 0
}

/// Whether anything is kept that this listener has accepted; a look without the lock, which may be wrong for a moment.
pub(super) fn is_any_of(listener: &Socket) -> bool {
    is_any() && KEPT.iter().any(|kept| kept.is_of(listener))
}

/// Whether anything is kept.
#[inline(always)]
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Gives up all kept connections at which no thread waits, and the new sockets. `true`: there were any.
pub(crate) fn give_up_all() -> bool {
    let is_any = is_any() || pristine::is_any();
    is_any && lock::lock().is_some_and(|locked| locked.give_up_all())
}

/// Gives up what is kept, and keeps nothing from here on.
pub(crate) fn keep_no_more() {
    lock::keep_no_more();
    // Also if there is nothing yet: a thread that has the lock may have looked before, and be about to keep one.
    if let Some(locked) = lock::lock() {
        locked.give_up_all();
    }
}

/// A listener is closed: gives up the kept connections that it has accepted.
pub(crate) fn forget_listener(listener: &Socket) {
    if is_any()
        && let Some(locked) = lock::lock()
    {
        for kept in locked.each().filter(|kept| kept.is_of(listener)) {
            let is_free = kept.becomes_free(&locked);
            if kept.is_taken() {
                kept.reset();
            }
            if is_free || kept.is_taken() {
                kept.give_up(&locked, GivenUp::Listener);
            }
        }
    }
}

/// Gives up what is kept before a fork, since the child would have a copy. (The child closes the ones at which threads
/// wait.)
pub(crate) fn before_fork() {
    lock::before_fork();
    give_up_all();
}

/// After a fork, in the child: forgets what its parent keeps.
pub(crate) fn after_fork_child() {
    lock::after_fork_child(|locked| {
        for kept in locked.each() {
            if let Some(socket) = kept.socket() {
                socket.set_stage(Stage::Plain);
            }
            kept.release(locked);
        }
        pristine::give_up_all(locked);
    });
}

/// Frees the number `wanted`, which the program wants, if it is one of the library's here: a kept connection moves to
/// another number, a new socket is closed.
pub(crate) fn make_way(wanted: c_int) {
    if !is_any() && !pristine::is_any() {
        return;
    }
    let Some(locked) = lock::lock() else { return };
    pristine::make_way(&locked, wanted);
    for kept in locked.each().filter(|kept| kept.fd() == wanted) {
        let copy = || sys::copy_high(wanted).ok();
        let Some(other) = kept.is_there().then(copy).flatten() else {
            kept.becomes_free(&locked);
            kept.give_up(&locked, GivenUp::Lost);
            continue;
        };
        table::enter(other, Word::OURS);
        kept.fd.store(other, Ordering::Relaxed);
        if let Some(socket) = kept.socket() {
            socket.name_by(other);
        }
        table::enter(wanted, Word::NOTHING);
        sys::close(wanted);
    }
}
