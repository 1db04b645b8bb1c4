//! Birth, sharing and death of descriptors and processes.
//!
//! `before_…` and `after_…` functions surround the real call; the others answer
//! with an [`Outcome`]. None of them disturbs `errno`.
//!
//! # Safety
//! Pointers are the program's own, valid as the man page of the call demands.
#![allow(clippy::missing_safety_doc)]

use std::sync::atomic::Ordering;

use libc::{c_int, c_uint, c_ulong, c_void, sockaddr, socklen_t};
use shunt_abi::Reason;
use shunt_abi::message::Role;

use crate::config::{self, Upgrade};
use crate::socket::{Socket, Stage};
use crate::stream::{self, Conn};
use crate::table::{self, Entry};
use crate::{Outcome, address, control, epoll, process, stats, sys, thread, upgrade};

/// The library's constructor: reads the environment; makes no descriptor.
pub fn start() {
    thread::learn_pid();
    config::read();
    stats::start();
}

/// After a successful `socket`.
pub fn after_socket(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    const KINDS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !KINDS == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if !thread::owns_memory() {
        return;
    }
    if tcp {
        Socket::enter(fd, Stage::Fresh);
    } else {
        forget_stale(fd);
    }
}

/// A number that the kernel has just handed out names nothing that we know:
/// if we think so, its close passed us by.
fn forget_stale(fd: c_int) {
    match table::look(fd) {
        Entry::Socket(socket) => {
            table::enter(fd, Entry::Other);
            socket.unhold();
        }
        Entry::Set(set) => {
            table::enter(fd, Entry::Other);
            set.unhold();
        }
        Entry::Ours | Entry::Other => {}
    }
}

/// Before the real `connect`.
pub unsafe fn before_connect(fd: c_int, address: *const sockaddr, length: socklen_t) {
    let Some(socket) = table::socket(fd) else {
        return;
    };
    if !thread::owns_memory() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if socket.stage() != Stage::Fresh {
            if address::is_none(address, length) {
                dissolve(socket);
            }
        } else if let Some(port) = address::port_of(address, length) {
            upgrade::consider(socket, fd, Role::Connector, Some(port));
        }
    }
}

/// `connect` to no address resets a connection, or ends a listener, and leaves a
/// socket that may connect anew (`connect(2)`).
fn dissolve(old: &'static Socket) {
    match old.stage() {
        Stage::Attached => {
            if let Some(conn) = Conn::new(old, old.fd()) {
                stream::before_reset(&conn);
            }
        }
        Stage::Listener => control::unlisten(old.cookie(), old.port()),
        _ => {}
    }
    let mut new: Option<&'static Socket> = None;
    table::each(|fd, entry| match (entry, new) {
        (Entry::Socket(socket), _) if !std::ptr::eq(socket, old) => {}
        (Entry::Socket(_), None) => new = Socket::enter(fd, Stage::Fresh),
        (Entry::Socket(_), Some(new)) => {
            new.hold();
            table::enter(fd, Entry::Socket(new));
            old.unhold();
        }
        _ => {}
    });
}

/// After the real `connect`; `error` is 0 or its errno.
pub fn after_connect(fd: c_int, error: c_int) {
    let Some(socket) = table::socket(fd) else {
        return;
    };
    match error {
        // It has been dissolved.
        0 if socket.stage() == Stage::Fresh => {}
        0 | libc::EINPROGRESS | libc::EINTR | libc::EISCONN | libc::EALREADY => {
            socket.connected.store(true, Ordering::Relaxed);
        }
        // It may try again, elsewhere.
        _ => {
            if socket.stage() == Stage::Claimed {
                control::release(socket.cookie());
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
    let Some(socket) = table::socket(fd) else {
        return;
    };
    if socket.stage() != Stage::Fresh || config::upgrade() == Upgrade::Off || !thread::owns_memory()
    {
        return;
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
        control::listen(cookie, port);
        if config::upgrade() == Upgrade::Eager {
            control::await_listed(port);
        }
    }
}

/// After a successful `accept` or `accept4` on `listener` gave `fd`.
/// `flags` are accept4's.
pub fn after_accept(listener: c_int, fd: c_int, _flags: c_int) {
    if !thread::owns_memory() {
        return;
    }
    // Only a listener that other processes can know of has shunted peers; one
    // inherited through fork is still the one that its parent registered.
    let tcp = match table::socket(listener) {
        Some(socket) => socket.stage() == Stage::Listener,
        None => false,
    };
    if !tcp {
        forget_stale(fd);
        return;
    }
    control::look();
    if let Some(socket) = Socket::enter(fd, Stage::Fresh) {
        socket.connected.store(true, Ordering::Relaxed);
        upgrade::consider(socket, fd, Role::Acceptor, None);
    }
}

/// Instead of `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Outcome {
    match attached(fd) {
        Some(conn) => stream::shutdown(&conn, how),
        None => {
            // A connection that is ending is not worth an upgrade.
            if let Some(socket) = table::socket(fd) {
                upgrade::refuse(socket, Reason::HalfClosed);
            }
            Outcome::Kernel
        }
    }
}

fn attached(fd: c_int) -> Option<Conn<'static>> {
    let socket = table::socket(fd)?;
    if socket.stage() == Stage::Attached {
        Conn::new(socket, fd)
    } else {
        None
    }
}

/// Before the real `close` (after `Kernel`). `Fail(EBADF)` for a descriptor of ours.
pub fn close(fd: c_int) -> Outcome {
    match table::look(fd) {
        Entry::Other => {}
        Entry::Ours => return Outcome::Fail(libc::EBADF),
        entry => {
            if thread::owns_memory() {
                closing(fd, entry);
            }
        }
    }
    Outcome::Kernel
}

/// Bookkeeping for a descriptor about to be closed.
fn closing(fd: c_int, entry: Entry) {
    match entry {
        Entry::Socket(socket) => {
            socket.forget_fd(fd);
            if socket.holds() == 1 {
                match socket.stage() {
                    Stage::Attached => {
                        if let Some(conn) = Conn::new(socket, fd) {
                            stream::before_close(&conn);
                        }
                    }
                    Stage::Listener => control::unlisten(socket.cookie(), socket.port()),
                    _ => {}
                }
            }
            // No other descriptor has taken its place.
            if socket.holds() > 1
                && socket.fd() == fd
                && let Some(conn) = attached(fd)
            {
                stream::before_close_under_sleeper(&conn);
            }
            table::enter(fd, Entry::Other);
            socket.unhold();
        }
        Entry::Set(set) => {
            table::enter(fd, Entry::Other);
            set.unhold();
        }
        Entry::Ours | Entry::Other => {}
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
    let own = flags & CLOEXEC == 0 && thread::owns_memory();
    let mut from = first;
    let mut failed = None;
    table::each(|fd, entry| {
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
            _ => {}
        }
    });
    if from <= last {
        failed = failed.or(close(from, last).err());
    }
    failed.map_or(Outcome::Done(0), Outcome::Fail)
}

/// Before the real `dup2`/`dup3` (new != old): what closing `new` means, and
/// moves a descriptor of ours out of the way.
pub fn before_replace(old: c_int, new: c_int) {
    match table::look(new) {
        Entry::Other => {}
        Entry::Ours => {
            if thread::owns_memory() {
                control::make_way(new);
                epoll::make_way(new);
            }
        }
        entry => {
            // If `old` is bad nothing will be closed.
            if thread::owns_memory() && sys::fcntl(old, libc::F_GETFD, 0).is_ok() {
                closing(new, entry);
            }
        }
    }
}

/// After a successful `dup`, `dup2`, `dup3` (new != old).
pub fn after_dup(old: c_int, new: c_int) {
    let entry = table::look(old);
    if matches!(entry, Entry::Other) && matches!(table::look(new), Entry::Other)
        || !thread::owns_memory()
    {
        return;
    }
    match entry {
        Entry::Socket(socket) => {
            socket.hold();
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
    match table::enter(new, entry) {
        Entry::Socket(stale) => stale.unhold(),
        Entry::Set(stale) => stale.unhold(),
        Entry::Ours | Entry::Other => {}
    }
}

const F_SETSIG: c_int = 10;
const F_SETOWN: c_int = 8;
const F_SETOWN_EX: c_int = 15;

/// Instead of `fcntl` on a tracked descriptor (it does `F_DUPFD` and `F_SETFL` itself).
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> Outcome {
    let entry = table::look(fd);
    if matches!(entry, Entry::Other) {
        return Outcome::Kernel;
    }
    if matches!(entry, Entry::Ours) {
        return Outcome::Fail(libc::EBADF);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => match sys::fcntl(fd, command, argument as usize) {
            Ok(new) => {
                after_dup(fd, new as c_int);
                Outcome::Done(new as isize)
            }
            Err(errno) => Outcome::Fail(errno),
        },
        libc::F_SETFL => match sys::fcntl(fd, command, argument as usize) {
            Ok(_) => {
                if let Entry::Socket(socket) = entry {
                    flags_set(socket, fd, argument as c_int);
                }
                Outcome::Done(0)
            }
            Err(errno) => Outcome::Fail(errno),
        },
        F_SETOWN | F_SETSIG | F_SETOWN_EX => {
            if let Entry::Socket(socket) = entry {
                upgrade::refuse(socket, Reason::AsyncIo);
            }
            Outcome::Kernel
        }
        _ => Outcome::Kernel,
    }
}

fn flags_set(socket: &'static Socket, _fd: c_int, flags: c_int) {
    if let Some(pair) = socket.pair() {
        pair.own
            .options
            .nonblock
            .store(u32::from(flags & libc::O_NONBLOCK != 0), Ordering::Relaxed);
    }
    if flags & libc::O_ASYNC != 0 {
        upgrade::refuse(socket, Reason::AsyncIo);
    }
}

const SIOCATMARK: c_ulong = 0x8905;
/// Like `TIOCOUTQ`, also known as `SIOCOUTQ`, without what is on its way.
const SIOCOUTQNSD: c_ulong = 0x894B;

/// Instead of `ioctl`.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> Outcome {
    let socket = match table::look(fd) {
        Entry::Socket(socket) => socket,
        Entry::Ours => return Outcome::Fail(libc::EBADF),
        _ => return Outcome::Kernel,
    };
    match request {
        libc::FIONBIO => match sys::ioctl(fd, request as usize, argument as usize) {
            Ok(_) => {
                if let Some(pair) = socket.pair() {
                    // SAFETY: the kernel has just read it.
                    let on = unsafe { *argument.cast::<c_int>() } != 0;
                    pair.own
                        .options
                        .nonblock
                        .store(u32::from(on), Ordering::Relaxed);
                }
                Outcome::Done(0)
            }
            Err(errno) => Outcome::Fail(errno),
        },
        libc::FIONREAD => match attached(fd) {
            Some(_) if (argument as usize) < 4096 => Outcome::Fail(libc::EFAULT),
            Some(conn) => {
                let n = stream::unread(&conn).min(i32::MAX as u64) as c_int;
                // SAFETY: the caller's promise.
                unsafe { argument.cast::<c_int>().write_unaligned(n) };
                Outcome::Done(0)
            }
            _ => Outcome::Kernel,
        },
        libc::TIOCOUTQ | SIOCOUTQNSD => match attached(fd) {
            Some(conn) if conn.is_on_ring() && sys::is_readable(argument) => {
                let n = stream::unsent(&conn).min(i32::MAX as u64) as c_int;
                // SAFETY: the caller's promise.
                unsafe { argument.cast::<c_int>().write_unaligned(n) };
                Outcome::Done(0)
            }
            _ => Outcome::Kernel,
        },
        // What is in the ring lies before the mark.
        SIOCATMARK => match attached(fd) {
            Some(conn) if stream::ring_bytes(&conn) > 0 && sys::is_readable(argument) => {
                // SAFETY: the caller's promise.
                unsafe { argument.cast::<c_int>().write_unaligned(0) };
                Outcome::Done(0)
            }
            _ => Outcome::Kernel,
        },
        libc::FIOASYNC => {
            upgrade::refuse(socket, Reason::AsyncIo);
            Outcome::Kernel
        }
        _ => Outcome::Kernel,
    }
}

/// Instead of `setsockopt`.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Outcome {
    const TCP_ULP: c_int = 31;
    const TCP_REPAIR: c_int = 19;
    let Some(socket) = table::socket(fd) else {
        return Outcome::Kernel;
    };
    // SAFETY: the caller's promise; the kernel checks it again.
    let number = (length as usize >= size_of::<c_int>() && value as usize >= 4096)
        .then(|| unsafe { value.cast::<c_int>().read_unaligned() });
    let needs_kernel = match (level, name) {
        (libc::IPPROTO_TCP, TCP_ULP | TCP_REPAIR) => true,
        (
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER
            | libc::SO_ATTACH_BPF
            | libc::SO_ZEROCOPY
            | libc::SO_TIMESTAMP
            | libc::SO_TIMESTAMPNS
            | libc::SO_TIMESTAMPING,
        ) => true,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => number.is_some_and(|n| n != 0),
        _ => false,
    };
    if needs_kernel {
        upgrade::refuse(socket, Reason::SocketOption);
        return Outcome::Kernel;
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_SNDBUF)
        && let Some(number) = number
    {
        // The kernel doubles it for its own overhead; so do we (socket(7)).
        socket.sndbuf.store(
            (number as u32).saturating_mul(2).max(4608),
            Ordering::Relaxed,
        );
        if let Some(pair) = socket.pair() {
            pair.own
                .options
                .most
                .store(socket.sndbuf.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ)
        && let Some(on @ 0..=1) = number
    {
        socket.tells_left.store(on != 0, Ordering::Relaxed);
    }
    let Some(conn) = attached(fd) else {
        return Outcome::Kernel;
    };
    // Kept from the base socket, where they would delay a doorbell.
    let options = &conn.pair.own.options;
    let kept = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => &options.nodelay,
        (libc::IPPROTO_TCP, libc::TCP_CORK) => &options.cork,
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => &options.rcvlowat,
        _ => return Outcome::Kernel,
    };
    let Some(number) = number else {
        return Outcome::Kernel;
    };
    let number = match name {
        libc::SO_RCVLOWAT if level == libc::SOL_SOCKET => {
            // The kernel bounds it by the receive buffer; ask, then put back what
            // a doorbell needs.
            if let Err(errno) = sys::setsockopt(fd, level, name, &number) {
                return Outcome::Fail(errno);
            }
            let bounded = sys::getsockopt::<i32>(fd, level, name).unwrap_or(1);
            let _ = sys::setsockopt(fd, level, name, &1i32);
            bounded
        }
        _ => i32::from(number != 0),
    };
    kept.store(number as u32, Ordering::Relaxed);
    Outcome::Done(0)
}

/// Instead of `getsockopt`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Outcome {
    let Some(conn) = attached(fd) else {
        return Outcome::Kernel;
    };
    let options = &conn.pair.own.options;
    let number = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.nodelay.load(Ordering::Relaxed),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => options.cork.load(Ordering::Relaxed),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => options.rcvlowat.load(Ordering::Relaxed),
        (libc::SOL_SOCKET, libc::SO_ERROR) => stream::socket_error(&conn) as u32,
        _ => return Outcome::Kernel,
    };
    if (length as usize) < 4096 || (value as usize) < 4096 {
        return Outcome::Kernel;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let n = (*length as usize).min(4);
        if (*length as i32) < 0 {
            return Outcome::Kernel;
        }
        let bytes = number.to_ne_bytes();
        value
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), n);
        *length = n as socklen_t;
    }
    Outcome::Done(0)
}

/// Before `fdopen` (and the like) puts a stdio stream on `fd`: what such streams
/// write must follow what the program has sent.
pub fn before_stdio(fd: c_int) {
    let Some(socket) = table::socket(fd) else {
        return;
    };
    if !thread::owns_memory() {
        return;
    }
    upgrade::refuse(socket, Reason::Stdio);
    if let Some(conn) = attached(fd) {
        stream::leave_ring(&conn, Reason::Stdio);
    }
}

/// Descriptors are being passed to another process.
///
/// # Safety
/// `message` is a valid header with control data.
pub(crate) unsafe fn passing(message: *const libc::msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each_passed(message, |fd| {
            if let Some(socket) = table::socket(fd) {
                upgrade::refuse(socket, Reason::Passed);
            }
        });
    }
}

/// Descriptors have been passed to this process: some may be further ones of
/// connections that it has.
///
/// # Safety
/// `message` is a valid header with control data.
pub(crate) unsafe fn passed(message: *const libc::msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        each_passed(message, |fd| {
            forget_stale(fd);
            if !thread::owns_memory() {
                return;
            }
            let Ok(cookie) = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) else {
                return;
            };
            let known = table::SOCKETS
                .each()
                .find(|s| s.stage() == Stage::Attached && s.cookie() == cookie);
            if let Some(socket) = known {
                socket.hold();
                table::enter(fd, Entry::Socket(socket));
            }
        });
    }
}

/// Calls `visit` for every descriptor in the control data.
///
/// # Safety
/// `message` is a valid header with control data.
unsafe fn each_passed(message: *const libc::msghdr, visit: impl Fn(c_int)) {
    // SAFETY: the caller's promise; the CMSG macros stay inside the control data.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let h = *header;
            if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = h.cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
                for i in 0..bytes / size_of::<c_int>() {
                    visit(data.add(i).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Before any fork; the calling thread forks.
pub fn before_fork() {
    process::before_fork();
}

/// After a fork, in the parent (also when it failed).
pub fn after_fork_parent() {}

/// After a fork, in the child.
pub fn after_fork_child() {
    process::after_fork_child();
}

/// Before any exec: the same process goes on as another program, whose own line
/// will not know of the connections up to here.
pub fn before_exec() {
    stats::write_if_any();
}

/// After an exec that failed.
pub fn after_exec() {
    stats::forget_written();
}

/// Before an exit of the process by any road: the kernel will close what is open.
pub fn before_exit() {
    if thread::owns_memory() {
        process::before_exit();
    }
    stats::write();
}

/// Before the process changes its user, its root or its rights: afterwards it
/// might no longer reach the daemon that serves it now.
pub fn before_new_identity() {
    if thread::owns_memory() {
        stats::prepare();
        if config::upgrade() != Upgrade::Off {
            control::ensure();
        }
    }
}

/// Before `io_uring_setup` by `syscall`: its calls pass us by, so this process
/// makes no more upgrades.
pub fn before_io_uring() {
    config::disable();
}
