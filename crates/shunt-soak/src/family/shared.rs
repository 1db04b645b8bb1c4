//! What a family keeps in common memory: a file that all of its processes map.
//!
//! ```text
//! Shared ── phase, failures, port
//!    └─ ways[connection][side that sends]
//!          ├─ send     lock, next, intent, ended
//!          ├─ receive  lock, next, intent, ended
//!          └─ twice    records that may come once more
//! ```
//!
//! A lock is a robust mutex: when its holder is killed, the next one is told
//! and finds in `intent` what the dead one was at.

use crate::system::checked;
use std::cell::UnsafeCell;
use std::fs::OpenOptions;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

pub(super) const CONNECTIONS: usize = 4;
/// On these connections processes may be killed in the middle of a call.
pub(super) const MORTAL: usize = 2;
/// Records under way on a connection whose users may be killed.
pub(super) const WINDOW: u64 = 64;
const REMEMBERED: usize = 256;

/// What a round is at.
pub(super) mod phase {
    /// After running, which is 0: senders say goodbye, receivers read to the end.
    pub(in crate::family) const DRAIN: u32 = 1;
}

#[repr(C)]
pub(super) struct Shared {
    pub(super) phase: AtomicU32,
    pub(super) failures: AtomicU32,
    pub(super) port: AtomicU32,
    pub(super) events: AtomicU64,
    /// Processes that were stopped for a moment.
    pub(super) stops: AtomicU64,
    /// Sends that do not wait, and were put off for a stopped process.
    pub(super) put_off: AtomicU64,
    pub(super) ways: [[Way; 2]; CONNECTIONS],
}

/// One direction of one connection.
#[repr(C)]
pub(super) struct Way {
    pub(super) send: Half,
    pub(super) receive: Half,
    twice: [AtomicU64; REMEMBERED],
}

/// One end of it.
#[repr(C)]
pub(super) struct Half {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    /// The number of the next record.
    pub(super) next: AtomicU64,
    /// Noted before a record is sent or taken, so that whoever comes after a
    /// killed process knows what it was at: 0, or [`intent`].
    pub(super) intent: AtomicU64,
    /// The last record has been sent or taken.
    pub(super) ended: AtomicU32,
}

// SAFETY: the mutex is process-shared and used only through pthread calls.
unsafe impl Sync for Half {}

/// Whoever is inside of a half.
pub(super) struct Guard<'a>(&'a Half);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.0.lock.get()) };
    }
}

/// A record's number, and whether it is the last one.
pub(super) fn intent(number: u64, last: bool) -> u64 {
    (number + 1) << 1 | u64::from(last)
}

impl Half {
    /// Waits at most a tenth of a second: its holder may be asleep for long.
    pub(super) fn enter(&self) -> Result<Option<Guard<'_>>> {
        let mut until = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the time lives through the calls; the mutex was made by `create`.
        let result = unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
            until.tv_nsec += 100_000_000;
            until.tv_sec += until.tv_nsec / 1_000_000_000;
            until.tv_nsec %= 1_000_000_000;
            libc::pthread_mutex_timedlock(self.lock.get(), &raw const until)
        };
        match result {
            0 => Ok(Some(Guard(self))),
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds the mutex; `intent` tells what is to be mended.
                unsafe { libc::pthread_mutex_consistent(self.lock.get()) };
                Ok(Some(Guard(self)))
            }
            libc::ETIMEDOUT => Ok(None),
            other => Err(Error::from_raw_os_error(other)),
        }
    }
}

impl Way {
    /// Notes that a record may come a second time, since nobody knows whether
    /// the process that was killed while it sent it had done so.
    pub(super) fn may_come_twice(&self, number: u64) {
        self.twice[place(number)].store(number + 1, SeqCst);
    }

    pub(super) fn came_twice(&self, number: u64) -> bool {
        self.twice[place(number)].load(SeqCst) == number + 1
    }

    pub(super) fn under_way(&self) -> u64 {
        self.send
            .next
            .load(SeqCst)
            .saturating_sub(self.receive.next.load(SeqCst))
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % REMEMBERED as u64).unwrap_or(0)
}

impl Shared {
    /// A new file, all zero but for the locks.
    pub(super) fn create(path: &Path) -> Result<&'static Self> {
        let shared = Self::map(path, true)?;
        for half in shared
            .ways
            .iter()
            .flatten()
            .flat_map(|way| [&way.send, &way.receive])
        {
            // SAFETY: nobody else has mapped the file yet; the attributes live through the calls.
            unsafe {
                let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
                libc::pthread_mutexattr_init(&raw mut attributes);
                libc::pthread_mutexattr_setpshared(
                    &raw mut attributes,
                    libc::PTHREAD_PROCESS_SHARED,
                );
                libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
                libc::pthread_mutex_init(half.lock.get(), &raw const attributes);
            }
        }
        Ok(shared)
    }

    pub(super) fn open(path: &Path) -> Result<&'static Self> {
        Self::map(path, false)
    }

    /// Stays mapped until the process ends.
    fn map(path: &Path, create: bool) -> Result<&'static Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(create)
            .open(path)?;
        let size = size_of::<Self>();
        if create {
            file.set_len(size as u64)?;
        }
        // SAFETY: a new mapping of a file that is large enough; its contents are
        // atomics and mutexes, for which zero is a valid value.
        unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if memory == libc::MAP_FAILED {
                checked(-1)?;
            }
            Ok(&*memory.cast::<Self>())
        }
    }

    pub(super) fn draining(&self) -> bool {
        self.phase.load(SeqCst) == phase::DRAIN
    }

    /// Says what is wrong; the director ends the round.
    pub(super) fn fail(&self, text: &str) {
        eprintln!("FAILED: {}: {text}", std::process::id());
        self.failures.fetch_add(1, SeqCst);
    }

    /// Whether one side has sent and taken the last record everywhere.
    pub(super) fn side_has_ended(&self, side: usize) -> bool {
        self.ways.iter().all(|ways| {
            ways[side].send.ended.load(SeqCst) == 1
                && ways[1 - side].receive.ended.load(SeqCst) == 1
        })
    }
}
