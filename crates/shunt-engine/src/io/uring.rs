//! What a program does by `io_uring`, as far as it says so by `syscall`
//! ([0013](../../../../docs/decisions/0013-io-uring.md)).
//!
//! A ring by itself does no harm. A connection that an entry names becomes the kernel's before
//! the entry is submitted; a registration in an epoll set is made here instead. Where entries
//! cannot be seen, all connections of the process are the kernel's from then on.

use libc::{c_int, c_uint, epoll_event};
use shunt_abi::Reason;

use crate::config::{self, Rings};
use crate::entry::{self, Entry};
use crate::life::{closing, give_up, give_up_all};
use crate::socket::{Socket, Stage};
use crate::uring_map::{self, Entry as Submission, Parameters};
use crate::{Outcome, epoll, ready, sys, thread};

/// `IORING_ENTER_REGISTERED_RING`: the number is none of a descriptor.
const REGISTERED_RING: c_uint = 1 << 4;

// Operations (`IORING_OP_…`).
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const EPOLL_CTL: u8 = 29;
const SPLICE: u8 = 30;
const TEE: u8 = 33;

// Flags of entries (`IOSQE_…`).
const FIXED_FILE: u8 = 1;
const LINKS: u8 = 1 << 2 | 1 << 3;
/// `SPLICE_F_FD_IN_FIXED`.
const FIXED_SOURCE: u32 = 1 << 31;

/// Before `io_uring_setup`. If the user wishes so, the program finds that there is no such call:
/// then runtimes take epoll.
///
/// # Safety
/// As for `io_uring_setup`: nobody else writes the parameters meanwhile.
pub unsafe fn before_setup(parameters: *const Parameters) -> Outcome {
    if config::rings() == Rings::Denied {
        return Outcome::Fail(libc::ENOSYS);
    }
    // SAFETY: readable, as `is_whole` has seen.
    if is_whole(parameters) && !unsafe { parameters.read_unaligned() }.is_visible() {
        stop_shunting();
    }
    Outcome::Kernel
}

/// After an `io_uring_setup` that has returned `fd`.
///
/// # Safety
/// As for [`before_setup`].
pub unsafe fn after_setup(fd: c_int, parameters: *const Parameters) {
    if config::rings() == Rings::InUse {
        return;
    }
    let is_known = thread::owns_memory() && is_whole(parameters) && {
        // SAFETY: readable, as `is_whole` has seen.
        let parameters = unsafe { parameters.read_unaligned() };
        uring_map::note(fd, &parameters)
    };
    if !is_known {
        stop_shunting();
    }
}

fn is_whole(parameters: *const Parameters) -> bool {
    sys::is_readable(parameters)
        && sys::is_readable(
            parameters
                .cast::<u8>()
                .wrapping_add(size_of::<Parameters>() - 8),
        )
}

/// Before `io_uring_register`: what has been registered is named by numbers that we do not know.
pub fn before_register(operation: c_uint) {
    /// Files, updates of them, rings, and another size of a ring (`IORING_REGISTER_…`).
    const HIDES: [c_uint; 6] = [2, 6, 13, 14, 20, 33];
    if HIDES.contains(&operation) {
        stop_shunting();
    }
}

/// Before `io_uring_enter`. Returns how many entries may be submitted.
pub fn before_enter(fd: c_int, count: c_uint, flags: c_uint) -> c_uint {
    let is_of_no_concern =
        count == 0 || config::rings() == Rings::InUse || !entry::is_any() || !thread::owns_memory();
    if is_of_no_concern {
        return count;
    }
    let (mut linked, mut all) = (false, true);
    let seen = if flags & REGISTERED_RING == 0 {
        uring_map::look(fd, count, |entry| {
            all &= see_to(&entry, linked);
            linked = entry.flags() & LINKS != 0;
        })
    } else {
        None
    };
    match seen {
        // One that another thread adds just now is for the next call.
        Some(seen) if all => seen,
        _ => {
            stop_shunting();
            count
        }
    }
}

/// Does what must be done before an entry is submitted: mostly leaves the connection that it names
/// to the kernel. `linked`: the entry before it may keep this one from being carried out. `false`:
/// it is not known what the entry will do.
fn see_to(entry: &Submission, linked: bool) -> bool {
    let operation = entry.operation();
    if operation == FILES_UPDATE {
        return false;
    }
    if matches!(operation, SPLICE | TEE) && entry.own_flags() & FIXED_SOURCE == 0 {
        make_plain(entry.source());
    }
    if entry.flags() & FIXED_FILE != 0 {
        return true;
    }
    match (operation, entry::look(entry.fd())) {
        (EPOLL_CTL, _) => register(entry, linked),
        (CLOSE, named) => {
            if !matches!(named, Entry::Other | Entry::Ours) {
                closing(entry.fd(), named);
            }
            true
        }
        // If only the kernel waits on a set, it hears nothing of rings.
        (_, Entry::Set(set)) => set.is_plain(),
        _ => {
            make_plain(entry.fd());
            true
        }
    }
}

fn make_plain(fd: c_int) {
    if let Some(socket) = Socket::of(fd)
        && !matches!(socket.stage(), Stage::Plain | Stage::Listener)
    {
        give_up(fd, Reason::IoUring);
    }
}

/// An `epoll_ctl` by a ring (libuv's way to make many at once): made here, at once, if nothing in
/// its entry or before it says that it may not be made now. Where it fails the kernel is asked, too,
/// and says the same.
fn register(entry: &Submission, linked: bool) -> bool {
    let fd = entry.offset() as c_int;
    let named = entry::look(fd);
    let concerns_us = match named {
        Entry::Socket(socket) => {
            !matches!(socket.stage(), Stage::Plain | Stage::Listener) || !socket.items.is_empty()
        }
        Entry::Set(_) => true,
        Entry::Other | Entry::Ours => false,
    };
    if !concerns_us {
        return true;
    }
    if entry.flags() == 0 && !linked {
        let event = std::ptr::with_exposed_provenance_mut::<epoll_event>(entry.address() as usize);
        // SAFETY: the program's own, as the kernel's call demands.
        let outcome = unsafe { ready::epoll_ctl(entry.fd(), entry.length() as c_int, fd, event) };
        let adds = entry.length() as c_int == libc::EPOLL_CTL_ADD;
        match outcome {
            Outcome::Done(_) => {
                entry.set_done();
                return true;
            }
            // The registration is in the inner set, which is in the program's.
            Outcome::Fail(libc::EEXIST) => {
                if let Some(inner) = epoll::inner(entry.fd()) {
                    entry.set_offset(inner as u64);
                }
                return true;
            }
            Outcome::Fail(_) if !adds => return true,
            Outcome::Fail(_) | Outcome::Kernel => {}
        }
    }
    if let Entry::Set(set) = named {
        return set.is_plain();
    }
    // The kernel must report the error that it would natively: so its set gets what it would have
    // then.
    make_plain(fd);
    epoll::give_back();
    true
}

/// From here on entries of io_uring may name connections without this library seeing it: the
/// process makes no more upgrades, and its connections go back to TCP.
pub(super) fn stop_shunting() {
    config::use_rings();
    if thread::owns_memory() {
        give_up_all(Reason::IoUring);
    }
}
