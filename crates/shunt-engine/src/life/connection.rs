//! From `socket` to `shutdown`.
//!
//! When a connection is offered to shuntd, also one whose `connect` does not block, [`upgrade`] decides: each `before_…` and
//! `after_…` here asks it.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, sockaddr, socklen_t};
use shunt_abi::Reason;
use shunt_abi::message::Role;

use super::inherit::give_up;
use super::option::learn;
use super::track::{forget_stale, track};
use crate::config::{self, Upgrade};
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::{Settings, Socket, Stage};
use crate::stream::{self, Conn};
use crate::sys::{self, address};
use crate::{Outcome, control, epoll, recycle, tcp, thread, upgrade};

/// Whether `socket` makes one of TCP.
fn is_tcp(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    const KINDS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !KINDS == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
}

/// Instead of `socket`. `Kernel`: no socket that is as new has been kept.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Outcome {
    if !is_tcp(domain, kind, protocol) {
        return Outcome::Kernel;
    }
    let Some(recycle::Taken { fd, place }) = recycle::take_new(domain, kind) else {
        return Outcome::Kernel;
    };
    if let Some(socket) = track(fd, Stage::Fresh) {
        socket.made.note(kind);
        socket.whereabouts.note(place);
    }
    Outcome::Done(fd as isize)
}

/// After a successful `socket`.
pub fn after_socket(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    if !thread::owns_memory() {
        return;
    }
    if is_tcp(domain, kind, protocol) {
        if let Some(socket) = track(fd, Stage::Fresh) {
            socket.made.note(kind);
            if recycle::is_any() {
                // Its cookie shows later, when the socket is to be put aside, that the number still names this one.
                socket.whereabouts.place(fd);
            }
        }
    } else {
        forget_stale(fd);
    }
}

/// Instead of `connect`. `Kernel`: no connection is there that could be used again.
pub unsafe fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { recycle::connect(fd, address, length) }
}

/// Before the real `connect`.
pub unsafe fn before_connect(fd: c_int, address: *const sockaddr, length: socklen_t) {
    let Some(socket) = Socket::of(fd) else {
        return;
    };
    // Only a process that claims at once has something to do before the call.
    let fresh = socket.stage() == Stage::Fresh;
    if fresh && !config::claims_at_once() && !config::recycles() || !thread::owns_memory() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if !fresh {
            if address::is_none(address, length) {
                dissolve(socket);
            }
        } else if let Some(port) = address::port_of(address, length) {
            if config::recycles() {
                socket.queued.note_connect(port);
                upgrade::trial::begin(socket, port);
            }
            if config::claims_at_once() || socket.tries() {
                upgrade::consider(socket, fd, Role::Connector, Some(port));
            }
        }
    }
}

/// `connect` to no address resets a connection, or ends a listener, and leaves a
/// socket that may connect anew (`connect(2)`).
///
/// Its registrations in epoll sets stay. They are the kernel's from here on, and so is what it connects next.
fn dissolve(old: &'static Socket) {
    let is_in_set = !old.items.is_empty();
    // Once nothing names the old object, another socket may have it.
    let settings = Settings::default();
    settings.inherit(&old.settings);
    match old.stage() {
        Stage::Attached => {
            if is_in_set {
                give_up(old.fd(), Reason::UnknownSet);
                epoll::give_back_of(old);
            }
            if let Some(conn) = Conn::new(old, old.fd()) {
                stream::before_reset(&conn);
            }
        }
        Stage::Listener => {
            control::unlisten(old);
            recycle::forget_listener(old);
        }
        _ => {}
    }
    let mut new: Option<&'static Socket> = None;
    entry::each(|fd, entry| match (entry, new) {
        (Entry::Socket(socket), _) if !std::ptr::eq(socket, old) => {}
        (Entry::Socket(_), None) => new = track(fd, Stage::Fresh),
        (Entry::Socket(_), Some(new)) => {
            new.hold();
            entry::enter(fd, Entry::Socket(new));
            old.unhold();
        }
        _ => {}
    });
    if let Some(new) = new {
        new.settings.inherit(&settings);
        if is_in_set {
            control::refuse(new, Reason::UnknownSet);
        }
    }
}

/// After the real `connect`; `error` is 0 or its errno.
pub unsafe fn after_connect(fd: c_int, address: *const sockaddr, length: socklen_t, error: c_int) {
    let Some(socket) = Socket::of(fd) else {
        return;
    };
    let begun = matches!(error, 0 | libc::EINPROGRESS | libc::EINTR);
    if begun && socket.stage() == Stage::Fresh && thread::owns_memory() {
        // SAFETY: the kernel has just read it.
        if let Some(port) = unsafe { address::port_in(address, length) } {
            upgrade::consider(socket, fd, Role::Connector, Some(port));
        }
    }
    match error {
        // The connection has been dissolved.
        0 if socket.stage() == Stage::Fresh => {}
        0 | libc::EINPROGRESS | libc::EINTR | libc::EISCONN | libc::EALREADY => {
            socket.set_connected(true);
            // A trial shows at once whether it comes to something: what is connected next may rely on that. Within this host a
            // connect that does not wait has come about by now.
            if matches!(error, 0 | libc::EISCONN) || socket.tries() {
                upgrade::sync::complete(socket, fd);
            }
        }
        // The connect has failed: the program may try again, elsewhere.
        _ => {
            socket.queued.note_end(socket.port());
            socket.made.forget();
            if socket.stage() == Stage::Claimed {
                control::release(socket);
            }
            if !matches!(
                socket.stage(),
                Stage::Attached | Stage::Paired | Stage::Listener
            ) {
                socket.set_stage(Stage::Fresh);
            }
        }
    }
}

/// After a successful `listen`.
pub fn after_listen(fd: c_int) {
    let Some(socket) = Socket::of(fd) else {
        return;
    };
    if config::recycles() {
        socket.accepts.note_backlog(tcp::backlog(fd));
    }
    if socket.stage() != Stage::Fresh || config::upgrade() == Upgrade::Off || !thread::owns_memory()
    {
        return;
    }
    if !socket.items.is_empty() {
        // Sets know it, but not that it is a listener.
        socket.accepts.note_others();
    }
    let Ok(name) = sys::name(fd, false) else {
        return;
    };
    let Ok(cookie) = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) else {
        return;
    };
    let (_, port, _) = address::parts(&name);
    socket.set_port(port);
    socket.set_cookie(cookie);
    let known = control::ensure();
    socket.set_stage(Stage::Listener);
    if known {
        control::listen(socket);
        if config::claims_at_once() {
            control::await_listed(port);
        }
    }
}

/// Instead of `accept4`. `Kernel`: what is accepted is the kernel's.
pub unsafe fn accept(
    listener: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { recycle::accept(listener, address, length, flags) }
}

/// After a successful `accept` or `accept4` on `listener` gave `fd`.
/// `flags` are accept4's.
pub fn after_accept(listener: c_int, fd: c_int, _flags: c_int) {
    if !thread::owns_memory() {
        return;
    }
    // Only a listener that other processes can know of has shunted peers; one
    // inherited through fork is still the one that its parent registered.
    let tcp = match entry::look(listener) {
        Entry::Socket(socket) => socket.stage() == Stage::Listener,
        Entry::Other => adopt(listener),
        Entry::Set(_) | Entry::Ours => false,
    };
    if !tcp {
        forget_stale(fd);
        return;
    }
    if config::upgrade() != Upgrade::Off {
        control::look();
    }
    if let Some(socket) = track(fd, Stage::Fresh) {
        socket.set_connected(true);
        if let Some(listener) = Socket::of(listener) {
            socket.settings.inherit(&listener.settings);
            socket.origin.note_accept(listener);
            if config::recycles() {
                listener.accepts.keeps.note_passed();
            }
            upgrade::sync::watches(listener);
            upgrade::trial::follow(socket, listener);
        }
        upgrade::consider(socket, fd, Role::Acceptor, None);
        upgrade::sync::complete(socket, fd);
    }
}

/// Takes note of a listener that came through exec or in a message, as after a
/// reload, from a supervisor, or by socket activation. `false`: it is none of TCP, or this process upgrades nothing.
#[cold]
fn adopt(listener: c_int) -> bool {
    /// The number of the last descriptor that is none, so that it need not be looked at each time.
    static OTHER: AtomicI32 = AtomicI32::new(-1);
    if OTHER.load(Ordering::Relaxed) == listener || config::upgrade() == Upgrade::Off {
        return false;
    }
    let tcp = adopt_listener(listener);
    if !tcp {
        OTHER.store(listener, Ordering::Relaxed);
    }
    tcp
}

/// Takes note of a listener that another program has made, when its descriptor comes. `false`: it is not a listener of TCP.
pub(super) fn adopt_listener(fd: c_int) -> bool {
    let ask = |name| sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, name);
    if ask(libc::SO_ACCEPTCONN) != Ok(1) || ask(libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
        return false;
    }
    if let Some(socket) = track(fd, Stage::Fresh) {
        learn(socket, fd);
        after_listen(fd);
    }
    Socket::of(fd).is_some_and(|socket| socket.stage() == Stage::Listener)
}

/// Instead of `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Outcome {
    match Conn::of(fd) {
        Some(conn) => stream::shutdown(&conn, how),
        None => {
            // A connection that is ending is not worth an upgrade.
            if let Some(socket) = Socket::of(fd) {
                socket.made.forget();
                if how != libc::SHUT_WR {
                    recycle::forget_listener(socket);
                }
                control::refuse(socket, Reason::HalfClosed);
            }
            Outcome::Kernel
        }
    }
}
