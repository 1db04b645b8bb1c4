//! Descriptors that close, multiply, or get a stdio stream.

use std::sync::atomic::Ordering;

use libc::{c_int, c_uint};
use shunt_abi::Reason;

use super::closing::closing;
use super::inherit::{before_sharing_table, before_stdio, copied_apart, replaced_apart, to_kernel};
use super::track::forget_stale;
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{SOCKETS, Socket, Stage};
use crate::stream;
use crate::{Outcome, config, control, epoll, reach, recycle, region, sys, thread, wake};

/// Whether a close of this descriptor ends more than the kernel knows of. Then the real call has to follow [`close`], or
/// the connection is open and half ended. (Also in the child of a `vfork` that nobody saw: that it is one [`close`] finds out.)
pub fn is_close_whole(fd: c_int) -> bool {
    let ends_more = match entry::look(fd) {
        Entry::Socket(socket) => socket.stage() != Stage::Plain,
        Entry::Set(_) => true,
        Entry::Ours | Entry::Other => false,
    };
    ends_more && thread::owns_memory()
}

/// Before a real call that does no more than look at a descriptor, or copy it (after `Kernel`). `Fail(EBADF)` for one of
/// ours: to the program its number names nothing.
#[inline]
pub fn look_at(fd: c_int) -> Outcome {
    match entry::look(fd) {
        Entry::Ours if !reach::is_at_work() => Outcome::Fail(libc::EBADF),
        _ => Outcome::Kernel,
    }
}

/// Before the real `close` (after `Kernel`). `Fail(EBADF)` for a descriptor of ours.
pub fn close(fd: c_int) -> Outcome {
    match entry::look(fd) {
        Entry::Other => {}
        Entry::Ours => return Outcome::Fail(libc::EBADF),
        entry => {
            if may_forget(entry) {
                closing(fd, entry);
            }
        }
    }
    Outcome::Kernel
}

/// Whether a close of what this is may leave a trace in memory. Of a connection that has not come to shuntd yet the kernel is not
/// asked: if the child of a `vfork` that nobody saw closes it, its parent's stays TCP, and that is all.
fn may_forget(entry: Entry) -> bool {
    let is_kernels = |socket: &Socket| {
        matches!(socket.stage(), Stage::Fresh | Stage::Candidate)
            && !socket.dealings.told.load(Ordering::Relaxed)
            && socket.share.is_unknown()
    };
    match entry {
        Entry::Socket(socket) if is_kernels(socket) => thread::owns_memory(),
        _ => thread::owns_descriptors(),
    }
}

/// Instead of `close_range` (`Kernel`: nothing of ours is touched).
pub fn close_range(first: c_uint, last: c_uint, flags: c_uint) -> Outcome {
    const CLOEXEC: c_uint = 4;
    const UNSHARE: c_uint = 2;
    if first > last || flags & !(CLOEXEC | UNSHARE) != 0 {
        return Outcome::Kernel;
    }
    let close = |a: c_uint, b: c_uint| -> Result<usize, i32> {
        // SAFETY: takes no pointers.
        unsafe { syscalls::syscall!(syscalls::Sysno::close_range, a, b, flags) }
            .map_err(|e| e.into_raw())
    };
    if flags & UNSHARE != 0 && sys::has_threads() {
        before_sharing_table();
        thread::set_apart();
    }
    let own = flags & CLOEXEC == 0 && thread::owns_descriptors();
    let mut from = first;
    let mut failed = None;
    entry::each(|fd, entry| {
        let n = fd as c_uint;
        if n < first || n > last {
            return;
        }
        match entry {
            Entry::Ours => {
                if n > from {
                    failed = failed.or(close(from, n - 1).err());
                }
                from = n + 1;
            }
            entry if own => closing(fd, entry),
            Entry::Socket(socket) => socket.made.forget(),
            _ => {}
        }
    });
    if from <= last {
        failed = failed.or(close(from, last).err());
    }
    failed.map_or(Outcome::Done(0), Outcome::Fail)
}

/// After a call that has found no number left for a descriptor (`EMFILE`). `true`: the library has freed numbers that
/// the program would have had natively, and the call must be made once more.
#[cold]
pub fn make_room() -> bool {
    if !thread::owns_descriptors() || config::is_confined() {
        return false;
    }
    let kept = recycle::give_up_all();
    let running = stream::give_up_running();
    stream::give_up_pipe() || running || kept
}

/// Before the real `dup2`/`dup3` (new != old): what closing `new` means, and
/// moves a descriptor of ours out of the way. `flags` as for `dup3(2)`.
pub fn before_replace(old: c_int, new: c_int, flags: c_int) {
    match entry::look(new) {
        Entry::Other => {}
        Entry::Ours => {
            if thread::owns_memory() {
                region::make_way(new);
                region::line_file::make_way(new);
                control::make_way(new);
                epoll::make_way(new);
                SOCKETS
                    .each()
                    .for_each(|socket| stream::make_way(socket, new));
                stream::make_way_by_pipe(new);
                stream::make_way_by_running(new);
                wake::make_way(new);
                reach::make_way(new);
                recycle::make_way(new);
            }
        }
        entry => {
            if !will_replace(old, new, flags) {
                return;
            }
            if thread::owns_descriptors() {
                closing(new, entry);
            } else if let Entry::Socket(socket) = entry {
                replaced_apart(socket, new);
            }
        }
    }
}

/// Whether the kernel will do it (`dup3(2)`): a call that it refuses closes nothing.
fn will_replace(old: c_int, new: c_int, flags: c_int) -> bool {
    flags & !libc::O_CLOEXEC == 0
        && sys::fcntl(old, libc::F_GETFD, 0).is_ok()
        && (new as u64) < sys::descriptor_limit()
}

/// After a successful `pidfd_getfd`, which may have brought one of this process's own connections.
/// (Of another process's connection this one knows no more than the kernel.)
pub fn after_getfd(fd: c_int) {
    forget_stale(fd);
    let cookie = |fd| sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok();
    let Some(wanted) = cookie(fd) else { return };
    let mut original = None;
    entry::each(|n, entry| {
        if matches!(entry, Entry::Socket(_)) && n != fd && cookie(n) == Some(wanted) {
            original = Some(n);
        }
    });
    if let Some(original) = original {
        after_dup(original, fd);
    }
}

/// After a successful `dup`, `dup2`, `dup3` (new != old).
pub fn after_dup(old: c_int, new: c_int) {
    let entry = entry::look(old);
    if matches!(entry, Entry::Other) && matches!(entry::look(new), Entry::Other) {
        return;
    }
    if !thread::owns_descriptors() {
        if let Entry::Socket(socket) = entry {
            copied_apart(socket, old, new);
        }
        return;
    }
    match entry {
        Entry::Socket(socket) => {
            socket.hold();
            socket.made.forget();
            recycle::shut_shared();
            if new <= 2 {
                before_stdio(old);
            }
        }
        Entry::Set(set) => set.hold(),
        Entry::Ours | Entry::Other => {}
    }
    let entry = if matches!(entry, Entry::Ours) {
        Entry::Other
    } else {
        entry
    };
    match entry::enter(new, entry) {
        Entry::Socket(stale) => stale.unhold(),
        Entry::Set(stale) => stale.unhold(),
        Entry::Ours | Entry::Other => {}
    }
    if let Entry::Socket(socket) = entry
        && !matches!(entry::look(new), Entry::Socket(_))
    {
        // There is no memory to note the copy, so calls on it would not be seen: the connection
        // becomes the kernel's.
        to_kernel(old, Reason::NoResources);
        socket.unhold();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::table::{self, Word};

    #[test]
    fn a_range_that_is_closed_leaves_out_what_the_library_has_there() {
        let _alone = crate::both_ends::one_at_a_time();
        thread::learn_pid();
        let event = sys::eventfd().unwrap();
        let high = || sys::fcntl(event, libc::F_DUPFD_CLOEXEC, 700).unwrap() as c_int;
        let [ours, theirs] = [(); 2].map(|()| high());
        table::enter(ours, Word::OURS);
        let close = |fd: c_int| close_range(fd as c_uint, fd as c_uint, 0);
        let is_open = |fd| sys::fcntl(fd, libc::F_GETFD, 0).is_ok();
        assert_eq!((close(ours), is_open(ours)), (Outcome::Done(0), true));
        assert_eq!((close(theirs), is_open(theirs)), (Outcome::Done(0), false));
        table::enter(ours, Word::NOTHING);
        assert_eq!((close(ours), is_open(ours)), (Outcome::Done(0), false));
        sys::close(event);
    }
}
