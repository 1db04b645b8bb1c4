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

/// Inherited descriptors are looked for up to this number.
const INHERITED: usize = 1024;

/// At the start of a program: takes note of the connections among its descriptors.
/// Those below 3 are the kernel's until no such number names them.
pub(super) fn look_around() {
    if config::upgrade() == Upgrade::Off {
        return;
    }
    let mut open = [pollfd {
        fd: 0,
        events: 0,
        revents: 0,
    }; INHERITED];
    for (fd, one) in open.iter_mut().enumerate() {
        one.fd = fd as c_int;
    }
    // More than the process may have open is an error; then a few must do.
    let looked = sys::poll_now(&mut open).or_else(|_| sys::poll_now(&mut open[..16]));
    let is_open = |one: &&pollfd| one.revents & libc::POLLNVAL == 0;
    let any = looked.is_ok() && open.iter().filter(is_open).any(|one| is_connection(one.fd));
    // What an inherited set watches must stay with the kernel, and nobody can say what
    // that is.
    if !any || open.iter().filter(is_open).any(|one| is_set(one.fd)) {
        return;
    }
    for one in open.iter().filter(is_open) {
        adopt(one.fd);
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
