//! Connections that another program or process has made: inherited by exec, or
//! passed here. They are candidates like our own, but shuntd pairs them only once
//! no other process has them (`shuntd/src/holders.rs`).

use std::sync::atomic::Ordering;

use libc::{c_int, pollfd};
use shunt_abi::Reason;

use super::option::learn;
use super::track::track;
use crate::config::{self, Upgrade};
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{SOCKETS, Stage};
use crate::{control, sys, upgrade};

/// Inherited descriptors are looked for up to this number, …
const INHERITED: usize = 1024;
/// … this many in one `poll`, for which each process has room in its table, …
const AT_ONCE: usize = 64;
/// … or only this many in a process that may not have that many descriptors (`poll` refuses to look
/// at more).
const FEW: usize = 16;

/// At the start of a program: takes note of the connections among its descriptors.
/// Those below 3 are the kernel's until no such number names them.
#[unsafe(link_section = "shunt_start")]
pub(super) fn look_around() {
    if config::upgrade() == Upgrade::Off {
        return;
    }
    let open = Open::find();
    // Connections that an inherited set watches must stay with the kernel, and nobody can say which
    // these are.
    if !open.each().any(is_connection) || open.each().any(is_set) {
        return;
    }
    for fd in open.each() {
        adopt(fd);
    }
}

/// The descriptors that are open, a bit each.
struct Open([u64; INHERITED / 64]);

impl Open {
    /// Finds them. It looks no further than the kernel says that there can be any.
    #[unsafe(link_section = "shunt_start")]
    fn find() -> Self {
        let mut open = Self([0; INHERITED / 64]);
        let (mut looked, mut at_once) = (0, AT_ONCE);
        while looked < INHERITED {
            if open.look(looked, at_once).is_some() {
                looked += at_once;
                if sys::fcntl(looked as c_int, libc::F_GETFD, 0).is_err()
                    && sys::is_behind_descriptors(looked)
                {
                    break;
                }
            } else if at_once > FEW {
                at_once = FEW;
            } else {
                break;
            }
        }
        open
    }

    /// Looks at some from `first` on. `None`: the kernel refuses.
    #[unsafe(link_section = "shunt_start")]
    fn look(&mut self, first: usize, count: usize) -> Option<()> {
        let mut some = [pollfd {
            fd: 0,
            events: 0,
            revents: 0,
        }; AT_ONCE];
        let some = &mut some[..count];
        for (fd, one) in (first..).zip(some.iter_mut()) {
            one.fd = fd as c_int;
        }
        sys::poll_now(some).ok()?;
        let is_open = |one: &&pollfd| one.revents & libc::POLLNVAL == 0;
        for one in some.iter().filter(is_open) {
            self.0[one.fd as usize / 64] |= 1 << (one.fd % 64);
        }
        Some(())
    }

    #[inline(always)]
    fn has(&self, fd: usize) -> bool {
        self.0[fd / 64] >> (fd % 64) & 1 != 0
    }

    fn each(&self) -> impl Iterator<Item = c_int> {
        (0..INHERITED)
            .filter(|&fd| self.has(fd))
            .map(|fd| fd as c_int)
    }
}

/// Takes note of a connection that has come to this process. `false`: it is none of TCP.
pub(super) fn adopt(fd: c_int) -> bool {
    if config::upgrade() == Upgrade::Off || !is_connection(fd) {
        return false;
    }
    let Ok(cookie) = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) else {
        return false;
    };
    let known = SOCKETS.each().find(|socket| {
        socket.is_live() && socket.adopted.load(Ordering::Relaxed) && socket.cookie() == cookie
    });
    if let Some(socket) = known {
        socket.hold();
        if let Entry::Socket(stale) = entry::enter(fd, Entry::Socket(socket)) {
            stale.unhold();
        }
    } else if let Some(socket) = track(fd, Stage::Fresh) {
        socket.set_cookie(cookie);
        learn(socket, fd);
        if socket.settings.needs_kernel.load(Ordering::Relaxed) {
            control::refuse(socket, Reason::SocketOption);
        } else {
            upgrade::adopt(socket);
        }
    }
    true
}

#[unsafe(link_section = "shunt_start")]
fn is_connection(fd: c_int) -> bool {
    let ask = |name| sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, name);
    ask(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
        && matches!(ask(libc::SO_DOMAIN), Ok(libc::AF_INET | libc::AF_INET6))
        && sys::name(fd, true).is_ok()
}

/// Whether a descriptor is an epoll set: asked to change a descriptor that it does not watch, a set
/// answers `ENOENT`, anything else that it is no set.
fn is_set(fd: c_int) -> bool {
    let Ok(stranger) = sys::eventfd() else {
        return true;
    };
    let answer = sys::epoll_ctl(fd, libc::EPOLL_CTL_DEL, stranger, std::ptr::null_mut());
    sys::close(stranger);
    answer == Err(libc::ENOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_found_however_many_are_looked_at_once() {
        let one = sys::eventfd().expect("a descriptor");
        let far = sys::copy_high(one).expect("another one");
        for at_once in [FEW, AT_ONCE] {
            let mut open = Open([0; INHERITED / 64]);
            for first in (0..INHERITED).step_by(at_once) {
                open.look(first, at_once).expect("a look");
            }
            let found: Vec<c_int> = open.each().collect();
            assert!(found.contains(&one) && found.contains(&far), "{found:?}");
            assert!(!found.contains(&900), "{found:?}");
        }
        sys::close(one);
        sys::close(far);
    }

    #[test]
    fn the_look_does_not_end_before_the_last_that_is_open() {
        let one = sys::eventfd().expect("a descriptor");
        let far = sys::copy_high(one).expect("another one");
        let open = Open::find();
        assert!(open.has(one as usize) && open.has(far as usize));
        // In the middle: beside this test others open low numbers and high ones.
        let middle = far as usize / 2;
        let mut closed = (middle - 16..middle).filter(|&fd| !open.has(fd)).peekable();
        assert!(closed.peek().is_some());
        for fd in closed {
            assert!(!sys::is_behind_descriptors(fd), "{fd} of {far}");
        }
        sys::close(one);
        sys::close(far);
    }
}
