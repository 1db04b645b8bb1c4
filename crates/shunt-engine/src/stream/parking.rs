//! Waking threads of this process that sleep until a ring has room. After
//! `shutdown` there is nothing to wait for, but no doorbell can say so: the peer
//! sends those, and the base socket, which could always be written to, reports
//! no change. So such threads also watch an event descriptor.
//!
//! Whoever rings wakes every thread at that descriptor, each of which looks at
//! its own connection again. The last to leave it takes the ring back; until
//! then others go to another descriptor.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::c_int;

use crate::sys;
use crate::table::{self, Entry};

struct Lot {
    /// The descriptor, or 0: none yet.
    fd: AtomicI32,
    /// Threads that sleep here or ring; and `RUNG`.
    threads: AtomicU32,
}

const RUNG: u32 = 1 << 31;

/// One is enough, unless several are rung within the time a thread takes to wake.
static LOTS: [Lot; 8] = [const {
    Lot {
        fd: AtomicI32::new(0),
        threads: AtomicU32::new(0),
    }
}; 8];

/// A thread's place, from before it says that it sleeps until after it has.
/// No destructor: a cancelled thread runs none.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

/// Takes a place. `None`: there is none now; do not sleep.
pub(crate) fn enter() -> Option<Place> {
    LOTS.iter()
        .position(|lot| lot.join(|now| now & RUNG == 0).is_some())
        .map(Place)
}

/// Wakes all who have a place.
#[cold]
pub(crate) fn ring() {
    for (i, lot) in LOTS.iter().enumerate() {
        if lot.join(|now| now != 0 && now & RUNG == 0).is_none() {
            continue;
        }
        lot.threads.fetch_or(RUNG, Ordering::AcqRel);
        let one = 1u64;
        let _ = sys::write(lot.fd(), (&raw const one).cast(), 8);
        Place(i).leave();
    }
}

impl Lot {
    /// One thread more, if the count may grow.
    fn join(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        self.threads
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                may(now).then_some(now + 1)
            })
            .ok()
    }

    /// The descriptor, made by the first who needs it; -1 if there can be none.
    fn fd(&self) -> c_int {
        let fd = self.fd.load(Ordering::Acquire);
        if fd != 0 {
            return fd;
        }
        let Ok(fresh) = sys::eventfd() else {
            return -1;
        };
        let fresh = sys::move_high(fresh);
        table::enter(fresh, Entry::Ours);
        match self
            .fd
            .compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => fresh,
            Err(faster) => {
                table::enter(fresh, Entry::Other);
                sys::close(fresh);
                faster
            }
        }
    }
}

impl Place {
    /// What to poll: readable when rung.
    pub(crate) fn watch(self) -> libc::pollfd {
        libc::pollfd {
            fd: LOTS[self.0].fd(),
            events: libc::POLLIN,
            revents: 0,
        }
    }

    /// Its number, for [`Place::numbered`].
    pub(crate) fn number(self) -> c_int {
        self.0 as c_int
    }

    pub(crate) fn numbered(number: c_int) -> Self {
        Self(number as usize)
    }

    /// Gives the place back.
    pub(crate) fn leave(self) {
        let lot = &LOTS[self.0];
        let last = RUNG | 1;
        loop {
            let now = lot.threads.load(Ordering::Acquire);
            if now == last {
                // Nobody comes while it is rung, so this takes the ring for good.
                let mut count = 0u64;
                let _ = sys::read(lot.fd(), (&raw mut count).cast(), 8);
            }
            let after = if now == last { 0 } else { now - 1 };
            if lot
                .threads
                .compare_exchange(now, after, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                return;
            }
        }
    }
}

/// In a forked child: it has its parent's descriptors, and no other thread.
pub(crate) fn after_fork_child() {
    for lot in &LOTS {
        lot.threads.store(0, Ordering::Relaxed);
        let fd = lot.fd.swap(0, Ordering::AcqRel);
        if fd > 0 {
            table::enter(fd, Entry::Other);
            sys::close(fd);
        }
    }
}

/// If `fd` is a number of ours that the program wants: moves elsewhere. Who
/// sleeps on the old number still sleeps on the same descriptor.
pub(crate) fn make_way(fd: c_int) {
    for lot in &LOTS {
        if lot.fd.load(Ordering::Acquire) == fd
            && let Ok(other) = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1)
        {
            table::enter(other as c_int, Entry::Ours);
            lot.fd.store(other as c_int, Ordering::Release);
            table::enter(fd, Entry::Other);
        }
    }
}
