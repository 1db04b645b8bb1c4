//! Whether the library makes a call, or the kernel.

use libc::c_int;

use crate::entry::{self, Entry};
use crate::epoll::Known;
use crate::socket::{Socket, Stage};
use crate::thread::is_alone;
use crate::thread::signals::Seen;
use crate::{recycle, upgrade};

/// Who makes a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::ready) enum Whose {
    /// The kernel.
    Kernels,
    /// The library, as something that it names may become shunted while it waits. Where nobody can bring that about it is the
    /// real call (`poll_in_kernel`).
    Perhaps,
    /// The library: it names something that is shunted.
    Ours,
}

/// Who makes a call; `now`: it does not wait. Not the kernel, if the call must end, as a signal handler has run since it
/// began, of which the kernel's call would not know.
#[inline]
pub(in crate::ready) fn whose(fds: impl Iterator<Item = c_int>, now: bool, seen: Seen) -> Whose {
    let mut whose = match !now && seen.any_since() {
        true => Whose::Ours,
        false => Whose::Kernels,
    };
    for fd in fds {
        whose = whose.max(match entry::look(fd) {
            Entry::Socket(socket) => whose_is(socket, fd, now),
            // Another thread may add to an empty one meanwhile, of which the kernel would not know.
            Entry::Set(set) if !now || set.must_be_exposed() || recycle::is_any() => Whose::Ours,
            _ => Whose::Kernels,
        });
    }
    if whose == Whose::Perhaps && !is_alone() {
        return Whose::Ours;
    }
    whose
}

#[inline(always)]
fn whose_is(socket: &'static Socket, fd: c_int, now: bool) -> Whose {
    match socket.stage() {
        Stage::Attached => Whose::Ours,
        Stage::Claimed | Stage::Paired => match upgrade::progress(socket, fd, Known::Nothing) {
            true => Whose::Ours,
            false => Whose::Perhaps,
        },
        Stage::Candidate if !now => Whose::Perhaps,
        Stage::Listener => {
            upgrade::sync::watches(socket);
            match recycle::concerns(socket, now) {
                true => Whose::Ours,
                false => Whose::Kernels,
            }
        }
        _ => Whose::Kernels,
    }
}
