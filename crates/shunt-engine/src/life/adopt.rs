//! Connections that another program or process has made: inherited by exec, or
//! passed here. They are candidates like our own, but shuntd pairs them only once
//! no other process has them (`shuntd/src/holders.rs`).

use std::sync::atomic::Ordering;

use libc::{c_int, pollfd};

use super::option::learn_time;
use super::track::track;
use crate::config::{self, Upgrade};
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{SOCKETS, Stage};
use crate::{sys, upgrade};

/// Inherited descriptors are looked for up to this number, …
const INHERITED: usize = 1024;
/// … so many at once, …
const AT_ONCE: usize = 128;
/// … or so few in a process that may not have that many (`poll` refuses to look at more).
const FEW: usize = 16;

/// At the start of a program: takes note of the connections among its descriptors.
/// Those below 3 are the kernel's until no such number names them.
pub(super) fn look_around() {
    if config::upgrade() == Upgrade::Off {
        return;
    }
    let open = Open::find();
    // What an inherited set watches must stay with the kernel, and nobody can say what
    // that is.
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
    /// Looks no further than there are any, where the kernel says how many there are.
    fn find() -> Self {
        let mut open = Self([0; INHERITED / 64]);
        let all = sys::open_descriptors().unwrap_or(usize::MAX);
        let (mut looked, mut found, mut at_once) = (0, 0, AT_ONCE);
        while looked < INHERITED && found < all {
            if let Some(some) = open.look(looked, at_once) {
                looked += at_once;
                found += some;
            } else if at_once > FEW {
                at_once = FEW;
            } else {
                break;
            }
        }
        open
    }

    /// Looks at some from `first` on; how many of them are open. `None`: the kernel refuses.
    fn look(&mut self, first: usize, count: usize) -> Option<usize> {
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
        Some(some.iter().filter(is_open).count())
    }

    fn each(&self) -> impl Iterator<Item = c_int> {
        let is_open = |fd: &usize| self.0[fd / 64] >> (fd % 64) & 1 != 0;
        (0..INHERITED).filter(is_open).map(|fd| fd as c_int)
    }
}

/// Takes note of a connection that has come. `false`: it is none of TCP.
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
        learn_time(socket, fd);
        upgrade::adopt(socket);
    }
    true
}

fn is_connection(fd: c_int) -> bool {
    let ask = |name| sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, name);
    ask(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
        && matches!(ask(libc::SO_DOMAIN), Ok(libc::AF_INET | libc::AF_INET6))
        && sys::name(fd, true).is_ok()
}

/// Whether it is an epoll set: one says of what it does not watch that there is no such
/// thing, anything else that it is no set.
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
}
