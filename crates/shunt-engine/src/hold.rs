//! What keeps a socket or an epoll set alive: its descriptors, and calls under way, which
//! outlive a `close` by another thread.
//!
//! In a forked child there are no such calls: the other threads are gone, and a call below
//! the signal handler that forked goes on without a hold, like one of a process with a
//! single thread. So each call notes how many forks led to the process that it began in, and
//! the child counts anew what its descriptors hold.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::epoll::Set;
use crate::socket::Socket;
use crate::table::{self, Entry, SETS, SOCKETS};
use crate::thread;

/// When a call took its hold, counted in forks of this process and its parents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken(u32);

impl Taken {
    /// A hold that is taken now.
    #[inline(always)]
    pub(crate) fn now() -> Self {
        Self(thread::forks())
    }

    /// Whether it is to be given back: not in a child that was forked since.
    #[inline(always)]
    pub(crate) fn lasts(self) -> bool {
        self == Self::now()
    }
}

/// The socket that `fd` is, held until it is given back with `unhold`.
pub(crate) fn socket(fd: c_int) -> Option<&'static Socket> {
    loop {
        let found = table::socket(fd)?;
        if raise(found.count()) {
            // Its life may have ended, and another begun, before it was held.
            if table::socket(fd).is_some_and(|now| std::ptr::eq(now, found)) {
                return Some(found);
            }
            found.unhold();
        }
    }
}

/// Does some work on a socket that another thread may close meanwhile: that does not wait for
/// this, nor is it a call of the program's that goes on under the `close`, but what the socket
/// is stays until this has ended.
pub(crate) fn beside_close(socket: &'static Socket, work: impl FnOnce()) {
    let began = Taken::now();
    let held = raise_by(socket.count(), BESIDE);
    work();
    if held && began.lasts() {
        socket.unhold_by(BESIDE);
    }
}

/// Whether such work is under way.
pub(crate) fn is_any_beside(socket: &Socket) -> bool {
    socket.count().load(Ordering::Acquire) >> 32 != 0
}

/// A hold of [`beside_close`], as it is counted: as one of all, and once more in the high half.
const BESIDE: u64 = 1 << 32 | 1;

/// Of a count of holders: those that a `close` has to reckon with.
pub(crate) fn lasting(holds: u64) -> u32 {
    (holds as u32).saturating_sub((holds >> 32) as u32)
}

/// The epoll set that `fd` is, held likewise.
pub(crate) fn set(fd: c_int) -> Option<&'static Set> {
    loop {
        let found = table::set(fd)?;
        if raise(found.count()) {
            if table::set(fd).is_some_and(|now| std::ptr::eq(now, found)) {
                return Some(found);
            }
            found.unhold();
        }
    }
}

/// Raises a count of holders that is not zero.
fn raise(holds: &AtomicU64) -> bool {
    raise_by(holds, 1)
}

fn raise_by(holds: &AtomicU64, hold: u64) -> bool {
    holds
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
            (n != 0).then_some(n + hold)
        })
        .is_ok()
}

/// In a forked child: each descriptor is a hold, and nothing else is. A set that only a
/// waiting thread had left ends. A socket that no descriptor names stays: its peer hears
/// of its end from the process that closed it.
pub(crate) fn after_fork_child() {
    let o = Ordering::Relaxed;
    for socket in SOCKETS.each() {
        socket.handed.after_fork_child();
    }
    for set in SETS.each() {
        set.count().store(0, o);
    }
    each_count(|holds| holds.store(0, o));
    each_count(|holds| holds.store(holds.load(o) + 1, o));
    for set in SETS.each() {
        if set.is_live() && set.count().load(o) == 0 {
            set.hold();
            set.unhold();
        }
    }
}

/// Calls `visit` with the count of holders behind each descriptor.
fn each_count(visit: impl Fn(&AtomicU64)) {
    table::each(|_, entry| match entry {
        Entry::Socket(socket) => visit(socket.count()),
        Entry::Set(set) => visit(set.count()),
        Entry::Ours | Entry::Other => {}
    });
}
