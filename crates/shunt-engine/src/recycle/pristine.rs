//! New sockets, of which the program has had a descriptor, and nothing else: a connection that is used again has taken
//! their place ([`super::offer`]). The next `socket` of that family gets one, as it was: unbound, with no option set, in no
//! epoll set, never copied, passed or inherited ([`crate::socket::made`]), and in the same network namespace.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::Reason;

use super::lock::{self, LONGEST, Locked};
use crate::socket::{Place, Socket};
use crate::sys::{self, Errno};
use crate::table::{self, Word};
use crate::{config, thread};

/// The most sockets that a process puts aside so.
const MOST: usize = 4;

static ASIDE: [Aside; MOST] = [const { Aside::nothing() }; MOST];
/// How many there are, for a look without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Threads of this process may be in different network namespaces: a `socket` makes one in that of its thread.
static ARE_APART: AtomicBool = AtomicBool::new(false);

/// A new socket that is put aside.
struct Aside {
    /// 1 + the library's descriptor of it; 0: there is none.
    fd: AtomicI32,
    family: AtomicI32,
    nonblock: AtomicBool,
    network: AtomicU64,
    cookie: AtomicU64,
    /// When it is given up (nanoseconds of the monotonic clock).
    until: AtomicU64,
}

/// A socket that the program has from [`take`].
pub(crate) struct Taken {
    /// Its number.
    pub(crate) fd: c_int,
    /// Its network namespace and cookie.
    pub(crate) place: Place,
}

fn cookie_of(fd: c_int) -> Result<u64, Errno> {
    sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

impl Aside {
    /// All zeros, which take no room in the library's data.
    const fn nothing() -> Self {
        Self {
            fd: AtomicI32::new(0),
            family: AtomicI32::new(0),
            nonblock: AtomicBool::new(false),
            network: AtomicU64::new(0),
            cookie: AtomicU64::new(0),
            until: AtomicU64::new(0),
        }
    }

    fn fd(&self) -> Option<c_int> {
        self.fd
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .filter(|&fd| fd >= 0)
    }

    /// Whether the number still names the socket: a program may close descriptors that it has not opened.
    fn is_there(&self, fd: c_int) -> bool {
        cookie_of(fd) == Ok(self.cookie.load(Ordering::Relaxed))
    }

    /// Forgets the socket. Returns its number, if that is still the library's own.
    fn forget(&self, _: &Locked) -> Option<c_int> {
        let fd = self.fd()?;
        self.fd.store(0, Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        let is_ours = table::look(fd) == Word::OURS;
        is_ours.then(|| {
            table::enter(fd, Word::NOTHING);
            fd
        })
    }

    /// Forgets the socket and closes it, unless its number names something of the program's by now.
    fn release(&self, locked: &Locked) {
        if let Some(fd) = self.forget(locked)
            && self.is_there(fd)
        {
            sys::close(fd);
        }
    }
}

/// Puts a new socket aside, which this number of the program's names just now, and then no more.
pub(super) fn put_aside(locked: &Locked, new: &Socket, fd: c_int, family: c_int) {
    let free = || ASIDE.iter().find(|aside| aside.fd().is_none());
    let is_as_made = new.settings.on.load(Ordering::Relaxed) == 0
        && new.reason() == Reason::Pending
        && !new.adopted.load(Ordering::Relaxed);
    let (Some(flags), Some(place)) = (new.made.flags(), new.whereabouts.noted()) else {
        return;
    };
    if !is_as_made || ARE_APART.load(Ordering::Relaxed) || !locked.may_keep() {
        return;
    }
    let Some(aside) = free() else { return };
    let Ok(copy) = lock::copy(fd) else { return };
    if cookie_of(copy) != Ok(place.cookie) {
        // A call that the library has not seen has put something else at the number.
        sys::close(copy);
        return;
    }
    table::enter(copy, Word::OURS);
    let o = Ordering::Relaxed;
    aside.family.store(family, o);
    aside.nonblock.store(flags.nonblock, o);
    aside.network.store(place.network, o);
    aside.cookie.store(place.cookie, o);
    aside.until.store(sys::now() + LONGEST, o);
    aside.fd.store(copy + 1, o);
    COUNT.fetch_add(1, o);
}

/// Whether any is put aside; a look without the lock.
#[inline(always)]
pub(crate) fn is_any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Takes one for a `socket` call of this family with these flags. `None`: the kernel must make one.
pub(crate) fn take(family: c_int, flags: c_int) -> Option<Taken> {
    if !is_any() || config::is_confined() || !thread::owns_descriptors() {
        return None;
    }
    let locked = lock::lock()?;
    sweep(&locked, sys::now());
    let o = Ordering::Relaxed;
    let is_of = |aside: &&Aside| aside.fd().is_some() && aside.family.load(o) == family;
    let aside = ASIDE.iter().find(is_of)?;
    let ours = aside.forget(&locked)?;
    if !aside.is_there(ours) {
        // The program has put something else there, which is its own.
        return None;
    }
    let taken = copy_for_program(aside, ours, flags);
    sys::close(ours);
    taken
}

fn copy_for_program(aside: &Aside, ours: c_int, flags: c_int) -> Option<Taken> {
    let copy = if flags & libc::SOCK_CLOEXEC != 0 {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    let fd = sys::fcntl(ours, copy, 0).ok()? as c_int;
    let nonblock = flags & libc::SOCK_NONBLOCK != 0;
    if nonblock != aside.nonblock.load(Ordering::Relaxed) {
        let flags = libc::O_RDWR | if nonblock { libc::O_NONBLOCK } else { 0 };
        let _ = sys::fcntl(fd, libc::F_SETFL, flags as usize);
    }
    let place = Place {
        network: aside.network.load(Ordering::Relaxed),
        cookie: aside.cookie.load(Ordering::Relaxed),
    };
    Some(Taken { fd, place })
}

/// Gives up what was put aside long enough ago.
pub(super) fn sweep(locked: &Locked, now: u64) {
    let is_over = |aside: &&Aside| aside.until.load(Ordering::Relaxed) <= now;
    ASIDE
        .iter()
        .filter(is_over)
        .for_each(|aside| aside.release(locked));
}

/// Gives up all. `true`: there were any.
pub(super) fn give_up_all(locked: &Locked) -> bool {
    let were_any = is_any();
    ASIDE.iter().for_each(|aside| aside.release(locked));
    were_any
}

/// Gives up what has this number, which the program wants.
pub(super) fn make_way(locked: &Locked, wanted: c_int) {
    let has_it = |aside: &&Aside| aside.fd() == Some(wanted);
    ASIDE
        .iter()
        .filter(has_it)
        .for_each(|aside| aside.release(locked));
}

/// A thread may have changed to another network namespace: no socket is put aside any more.
pub(crate) fn set_apart() {
    ARE_APART.store(true, Ordering::Relaxed);
    if let Some(locked) = lock::lock() {
        give_up_all(&locked);
    }
}
