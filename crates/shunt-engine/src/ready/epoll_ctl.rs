//! How `epoll_ctl` goes: what must be known of a descriptor before its registration changes.

use libc::{c_int, epoll_event};

use crate::entry::{self, Entry};
use crate::epoll::{self, Known, Set};
use crate::socket::Stage;
use crate::{Outcome, config, upgrade};

/// `epoll_ctl(2)` on a tracked set.
pub(super) fn change(
    set: &'static Set,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Outcome {
    let socket = match entry::look(fd) {
        Entry::Socket(socket) => socket,
        Entry::Set(child) => return epoll::nest(set, operation, child, fd, event),
        // For the program the library's own descriptors do not exist.
        Entry::Ours => return Outcome::Fail(libc::EBADF),
        Entry::Other => return Outcome::Kernel,
    };
    upgrade::sync::watches(socket);
    // Listeners matter only where connections are used again.
    let is_kernels = match socket.stage() {
        Stage::Plain => true,
        Stage::Listener => !config::recycles(),
        _ => false,
    };
    if is_kernels && socket.items.is_empty() {
        return Outcome::Kernel;
    }
    let needs_event = operation != libc::EPOLL_CTL_DEL;
    if needs_event && event.is_none() {
        return Outcome::Kernel;
    }
    let event = event.unwrap_or(epoll_event { events: 0, u64: 0 });
    if needs_event && matches!(socket.stage(), Stage::Claimed | Stage::Paired) {
        // Before the kernel arms the registration: otherwise a thread asleep on the set would be
        // told of events by both.
        let exclusive = event.events & libc::EPOLLEXCLUSIVE as u32 != 0;
        let known = if operation == libc::EPOLL_CTL_MOD && !exclusive {
            Known::Arming(set.index(), fd)
        } else {
            Known::Nothing
        };
        upgrade::progress(socket, fd, known);
    }
    epoll::register(set, operation, socket, fd, event)
}
