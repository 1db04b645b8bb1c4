//! Connections that another program is about to get: by `exec`, by a spawn, or in a message. That
//! program may not run under Shunt, so each such connection becomes a plain kernel socket first.
//! What lies unread in its ring then comes by TCP (`stream/downgrade.rs`).

use libc::c_int;
use shunt_abi::Reason;

use crate::entry::{self, Entry};
use crate::socket::{Socket, Stage, made};
use crate::stream::{self, Conn};
use crate::{config, control, epoll, recycle, sys, thread, upgrade};

/// The socket that `fd` names is the kernel's from here on.
pub(crate) fn give_up(fd: c_int, reason: Reason) {
    if let Some(socket) = Socket::of(fd) {
        give_up_socket(socket, fd, reason);
    }
}

/// Leaves the socket that `fd` names to the kernel for good. (A `vfork` child does nothing: the
/// memory is its parent's, and only the descriptors are its own.)
pub(crate) fn to_kernel(fd: c_int, reason: Reason) {
    if thread::owns_memory()
        && let Some(socket) = Socket::of(fd)
    {
        give_up_now(socket, fd, reason);
        socket.again.stay();
    }
}

fn give_up_socket(socket: &'static Socket, fd: c_int, reason: Reason) {
    socket.settings.tell_cork(fd);
    if reason == Reason::Inherited && upgrade::share_with_program(socket) {
        return;
    }
    give_up_now(socket, fd, reason);
}

fn give_up_now(socket: &'static Socket, fd: c_int, reason: Reason) {
    stream::give_up(socket, fd, reason, |conn| {
        if goes_on_elsewhere(reason) {
            stream::stand_in_for_ended_peer(conn);
        }
    });
}

/// Whether what comes from then on is read past this library, by the kernel's calls alone: by another
/// program, by io_uring or asynchronous requests of this one, or by a process that shares its table.
fn goes_on_elsewhere(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Inherited
            | Reason::Passed
            | Reason::Stdio
            | Reason::IoUring
            | Reason::AsyncIo
            | Reason::SharedTable
    )
}

/// Leaves all connections to the kernel, since the program may use them past this library from here
/// on.
pub(crate) fn give_up_all(reason: Reason) {
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry {
            give_up_socket(socket, fd, reason);
        }
    });
}

/// Leaves connections that several processes have in shared memory to the kernel.
pub(super) fn give_up_shared(reason: Reason) {
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry
            && let Some(conn) = Conn::attached(socket, fd)
            && conn.is_shared()
        {
            give_up_socket(socket, fd, reason);
        }
    });
}

/// Before system calls of ours may be forbidden: everything is the kernel's, and what is
/// in no epoll set is forgotten, so that calls on it are but the program's own. What
/// several processes have, and none of them uses in shared memory yet, the others keep.
pub(super) fn forget_all(reason: Reason) {
    entry::each(|fd, entry| {
        let Entry::Socket(socket) = entry else { return };
        if socket.stage() == Stage::Paired && !socket.share.is_unknown() {
            socket.set_plain(Stage::Paired, reason);
        } else {
            give_up_socket(socket, fd, reason);
        }
    });
    forget_plain(|socket| !socket.items.is_empty());
}

/// Before a child is made that has this process's table of descriptors (`CLONE_FILES`), and is no thread of it; or before a
/// thread gets a table of its own.
///
/// What one of the two closes or opens, the other one's memory does not know. So all connections of the process go back to
/// the kernel, and neither upgrades any from then on. The child does not learn that it is one: in the memory of its
/// parent, or in a copy, it owns nothing ([`thread::owns_memory`]), and leaves the library's descriptors alone.
pub fn before_sharing_table() {
    if thread::owns_memory() {
        config::share_table();
        recycle::give_up_all();
        give_up_all(Reason::SharedTable);
        epoll::give_back();
        forget_plain(epoll::has);
    }
}

/// Forgets sockets that are the kernel's again, unless `is_in_set` says that an epoll set has them.
pub(super) fn forget_plain(is_in_set: impl Fn(&'static Socket) -> bool) {
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry
            && socket.stage() == Stage::Attached
            && !is_in_set(socket)
            && Conn::new(socket, fd).is_some_and(|conn| stream::is_plain(&conn))
        {
            // The object stays held for ever, since a thread may be about to use it.
            entry::enter(fd, Entry::Other);
        }
    });
}

/// Before an exec, or a spawn by libc: the descriptors that survive it.
pub(super) fn before_program() {
    let own = thread::owns_descriptors();
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry
            && is_in_use(socket)
            && survives(fd)
            && (own || is_still(socket, fd))
        {
            give_up_socket(socket, fd, Reason::Inherited);
        }
    });
}

/// Before an exec of this process: gives up connections that are shared with relatives, are not
/// attached, and do not survive the exec. From then on only the relatives have them, and may upgrade
/// them; if the exec fails, they stay with the kernel here.
pub(super) fn leave_the_rest() {
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry
            && (is_in_use(socket) || socket.stage() == Stage::Plain)
            && socket.stage() != Stage::Attached
            && !socket.share.is_unknown()
            && !survives(fd)
            && socket.holds() == 1
        {
            if socket.stage() != Stage::Plain {
                socket.set_plain(socket.stage(), Reason::Inherited);
            }
            socket.share.leave();
        }
    });
}

/// A `vfork` child, which works on its parent's memory with descriptors of its own,
/// has copied one: for the program that it will be.
pub(super) fn copied_apart(socket: &'static Socket, old: c_int, new: c_int) {
    if is_in_use(socket) && survives(new) && is_still(socket, old) {
        give_up_socket(socket, new, Reason::Inherited);
    }
}

/// A `vfork` child is about to have something else at the number that a connection has in its parent's memory: by that
/// memory it would read and write the connection. So this is the kernel's from then on, by whatever number.
pub(super) fn replaced_apart(socket: &'static Socket, fd: c_int) {
    if is_in_use(socket) && is_still(socket, fd) {
        give_up_socket(socket, fd, Reason::Inherited);
    }
}

/// Whether a number still names the socket that the parent's memory says.
fn is_still(socket: &Socket, fd: c_int) -> bool {
    let cookie = |fd| sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
    match socket.cookie() {
        0 => cookie(fd).is_ok() && cookie(fd) == cookie(socket.fd()),
        known => cookie(fd) == Ok(known),
    }
}

fn is_in_use(socket: &Socket) -> bool {
    matches!(
        socket.stage(),
        Stage::Candidate | Stage::Claimed | Stage::Paired | Stage::Attached
    )
}

fn survives(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0)
}

/// Before libc starts another program: what it inherits.
pub(super) fn before_spawn() {
    made::before_child();
    if thread::is_used() && thread::owns_memory() {
        recycle::shut_shared();
        before_program();
    }
}

/// A program that libc starts, now or later, gets a copy of `fd`, whether this is close-on-exec or not. It stays with the kernel:
/// any number of others may be started so.
pub(super) fn give_to_program(fd: c_int) {
    if thread::owns_memory()
        && let Some(socket) = Socket::of(fd)
    {
        give_up_now(socket, fd, Reason::Inherited);
        socket.again.stay();
    }
}

/// Before a stdio stream reads from `fd`, or it becomes a standard stream: libc's
/// streams call the kernel directly.
pub fn before_stdio(fd: c_int) {
    if thread::owns_memory() {
        give_up(fd, Reason::Stdio);
    }
}

/// Before libc writes to `fd` directly: that must follow what the program has sent.
pub fn before_stdio_write(fd: c_int) {
    if !thread::owns_memory() {
        return;
    }
    if let Some(socket) = Socket::of(fd) {
        control::refuse(socket, Reason::Stdio);
    }
    if let Some(conn) = Conn::of(fd) {
        stream::leave_ring(&conn, Reason::Stdio);
    }
}
