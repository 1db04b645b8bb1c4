//! What serves a call: shared memory, or the kernel?

use std::sync::atomic::Ordering;

use libc::c_int;

use crate::socket::{RECEIVER, Socket, Stage};
use crate::stream::Conn;
use crate::{Outcome, config, real, stats, thread, upgrade};

/// A call that has moved at least this many bytes counts as several: as one more for each such
/// part.
const LARGE: isize = 32 << 10;

/// What to do for a call on a descriptor.
pub(super) enum Target {
    /// Leave it to the real function.
    Kernel,
    /// Serve it from shared memory.
    Shunted(Conn<'static>),
    /// The kernel serves it, but the engine must know who is inside: an upgrade
    /// is on its way. The caller is inside now, and must leave.
    Counted(&'static Socket),
}

#[inline(always)]
pub(super) fn target(fd: c_int, who: u32) -> Target {
    let Some(socket) = Socket::of(fd) else {
        return Target::Kernel;
    };
    match Conn::attached(socket, fd) {
        Some(conn) if conn.is_off_rings() && is_anothers() => Target::Kernel,
        Some(conn) => Target::Shunted(conn),
        None => not_attached(socket, fd, who),
    }
}

/// Whether the descriptors of the caller are not those that the memory knows ([`thread::owns_memory`]): the number may name
/// anything there, and what is at its place here is left to the kernel.
#[cold]
fn is_anothers() -> bool {
    !config::is_confined() && !thread::owns_memory()
}

#[cold]
fn not_attached(socket: &'static Socket, fd: c_int, who: u32) -> Target {
    stats::kernel_call(socket);
    if socket.stage() == Stage::Plain {
        return Target::Kernel;
    }
    while matches!(
        socket.stage(),
        Stage::Candidate | Stage::Claimed | Stage::Paired
    ) {
        upgrade::progress(socket, fd, crate::epoll::Known::Nothing);
        if socket.stage() == Stage::Attached {
            break;
        }
        if !socket.go_in(fd, who) {
            match Socket::of(fd) {
                Some(now) if std::ptr::eq(now, socket) => continue,
                _ => return target(fd, who),
            }
        }
        // Nobody changes the stage to attached while we are in.
        if socket.stage() != Stage::Attached {
            return Target::Counted(socket);
        }
        socket.go_out(who);
    }
    match Conn::new(socket, fd) {
        Some(conn) if socket.stage() == Stage::Attached => Target::Shunted(conn),
        _ if socket.stage() == Stage::Paired => not_attached(socket, fd, who),
        _ => Target::Kernel,
    }
}

/// Makes the real call at once if nothing else is to be done: `fd` is the kernel's, or may be
/// shunted later, but not yet. `None`: nothing has been done.
#[inline(always)]
pub(super) fn call_unless_shunted(
    fd: c_int,
    who: u32,
    call: impl FnOnce() -> isize,
) -> Option<isize> {
    let Some(socket) = Socket::of(fd) else {
        return Some(call());
    };
    match socket.stage() {
        Stage::Attached => return None,
        Stage::Plain => {
            stats::kernel_call(socket);
            return Some(call());
        }
        _ if !upgrade::stays(socket) || !socket.go_in(fd, who) => return None,
        _ => {}
    }
    // Nobody changes the stage to attached while we are in.
    if socket.stage() == Stage::Attached {
        socket.go_out(who);
        return None;
    }
    stats::kernel_call(socket);
    Some(counted(socket, who, call))
}

/// Serves one call on `fd` by `who`: from shared memory, or by the kernel while
/// the socket knows that a thread is inside. The one branch of every call.
#[inline(always)]
pub(super) fn serve(
    fd: c_int,
    who: u32,
    mut shunted: impl FnMut(Conn<'static>) -> Outcome,
    real: impl FnOnce() -> isize,
) -> Outcome {
    let told = |n: isize| match n {
        n if n < 0 => Outcome::Fail(real::errno()),
        n => Outcome::Done(n),
    };
    match target(fd, who) {
        Target::Kernel => Outcome::Kernel,
        Target::Shunted(conn) => loop {
            let life = conn.pair.life();
            match shunted(conn) {
                Outcome::Kernel if who == RECEIVER => {}
                outcome => return outcome,
            }
            match enter_plain(&conn, life) {
                Plain::Never => return Outcome::Kernel,
                Plain::Now => return told(counted(conn.socket, who, real)),
                Plain::NoMore => {}
            }
        },
        Target::Counted(socket) => told(counted(socket, who, real)),
    }
}

/// Whether a receive on a connection that was shunted is the kernel's.
enum Plain {
    /// Yes; the caller is inside now, and must leave.
    Now,
    /// It was, but the connection is on its way to its rings again.
    NoMore,
    /// The call is one that only the kernel can make.
    Never,
}

#[cold]
fn enter_plain(conn: &Conn<'static>, life: u32) -> Plain {
    if conn.is_in(life) && !conn.is_plain_in(life) {
        return Plain::Never;
    }
    conn.socket.go_in_attached(RECEIVER);
    // Nobody begins another life while we are in.
    if conn.is_plain_in(life) {
        return Plain::Now;
    }
    conn.socket.go_out(RECEIVER);
    Plain::NoMore
}

/// A real call of a thread that is inside, and leaves after it. The thread may
/// be cancelled there; then the socket stays on TCP.
#[inline(always)]
fn counted(socket: &'static Socket, who: u32, call: impl FnOnce() -> isize) -> isize {
    let n = call();
    // A connection that moves much in few calls lives too.
    if n >= LARGE {
        socket
            .calls
            .fetch_add((n / LARGE) as u32, Ordering::Relaxed);
    }
    socket.go_out(who);
    n
}

/// Whether `fd` is a socket that is (or may be about to be) shunted.
#[inline(always)]
pub(super) fn is_candidate(fd: c_int) -> bool {
    Socket::of(fd)
        .is_some_and(|s| !matches!(s.stage(), Stage::Plain | Stage::Fresh | Stage::Listener))
}
