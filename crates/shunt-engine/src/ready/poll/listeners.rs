//! Listeners in a `poll`: what comes to one by the kernel the real call tells, and what was offered in memory is told here.

use libc::{c_int, pollfd};

use super::super::sleeper::reads;
use crate::entry::{self, Entry};
use crate::epoll::Limit;
use crate::recycle::{self, Waits};
use crate::socket::{Socket, Stage};

/// Tells of listeners for which something was offered in memory, behind what the kernel has reported; how many there are.
#[inline(always)]
pub(in crate::ready) fn look_at_listeners(fds: &mut [pollfd], waits: &Waits) -> usize {
    if recycle::is_any() {
        look_at_each(fds, waits)
    } else {
        0
    }
}

#[cold]
fn look_at_each(fds: &mut [pollfd], waits: &Waits) -> usize {
    if waits.have_news() {
        waits.end();
    }
    let mut found = 0;
    for one in fds.iter_mut().filter(|one| is_told_beside_kernel(one)) {
        found += usize::from(one.revents == 0);
        one.revents |= one.events & READABLE;
    }
    found
}

/// What a listener is when there is something to accept.
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Whether a listener has something to accept of which the kernel does not know.
#[cold]
fn has_taken(fd: c_int) -> bool {
    let is_listener = |socket: &&Socket| socket.stage() == Stage::Listener;
    let listener = Socket::of(fd).filter(is_listener);
    listener.is_some_and(recycle::is_readable)
}

/// Whether an entry of a program's array asks for something to accept of which the kernel does not
/// know, and there is some.
pub(in crate::ready) fn is_told_beside_kernel(one: &pollfd) -> bool {
    recycle::is_any_taken() && reads(one.events) && has_taken(one.fd)
}

/// The thread waits for what comes to its listeners, unless it does already. A call that does not wait learns what there is.
#[inline(always)]
pub(in crate::ready) fn wait_at_listeners(fds: &[pollfd], waits: &Waits, limit: Limit) {
    if recycle::is_any() && !waits.are_any() {
        wait_at_each(fds, waits, limit.is_now());
    }
}

#[cold]
fn wait_at_each(fds: &[pollfd], waits: &Waits, now: bool) {
    let reading = fds.iter().filter(|one| reads(one.events));
    for one in reading {
        match entry::look(one.fd) {
            Entry::Socket(listener) => waits.begin(listener, now),
            Entry::Set(set) => set.hide_listeners(),
            Entry::Ours | Entry::Other => {}
        }
    }
    recycle::shut_shared();
}
