//! How a descriptor comes to be known as a socket, and is forgotten again.

use libc::c_int;

use super::end;
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{Socket, Stage, above};
use crate::{control, region};

/// A new socket object for `fd`. With the first one the process begins to count, and the daemon is shown where.
pub(super) fn track(fd: c_int, stage: Stage) -> Option<&'static Socket> {
    above::set(&end::ABOVE);
    if region::ensure() {
        control::show_region();
    }
    Socket::enter(fd, stage)
}

/// Forgets what a number named that the kernel has just handed out: the library has not seen its
/// close.
pub(super) fn forget_stale(fd: c_int) {
    match entry::look(fd) {
        Entry::Socket(socket) => {
            entry::enter(fd, Entry::Other);
            socket.unhold();
        }
        Entry::Set(set) => {
            entry::enter(fd, Entry::Other);
            set.unhold();
        }
        Entry::Ours | Entry::Other => {}
    }
}
