//! What happens to our state when the process forks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::atomic::full;
use shunt_shm::slot;

mod seen;

use super::inherit::to_kernel;
use crate::entry::{self, Entry};
use crate::epoll::SETS;
use crate::hold::Held;
use crate::link::{self, Link, Pair};
use crate::socket::{SOCKETS, Socket, Stage, made};
use crate::stream::{self, Conn};
use crate::{
    config, control, epoll, reach, recycle, region, share, stats, sys, thread, upgrade, uring_map,
    wake,
};

/// Children of this process are in another PID namespace.
static ARE_CHILDREN_APART: AtomicBool = AtomicBool::new(false);

/// This process has given its children another PID namespace, or may have, …
pub(super) fn set_children_apart() {
    ARE_CHILDREN_APART.store(true, Ordering::Relaxed);
}

/// … and this process is such a child: its own children are in its PID namespace.
pub(super) fn set_children_beside() {
    ARE_CHILDREN_APART.store(false, Ordering::Relaxed);
}

/// Before a fork. Attached connections stay so, since their state lies in memory that both processes share; unless the
/// child will be in another PID namespace, in which numbers do not tell who holds a token. All others are upgraded only
/// when one process has them alone, since two would have to agree; best before they are claimed in the name of this
/// process.
pub(super) fn before_fork(is_apart: bool) {
    if !thread::owns_memory() {
        return;
    }
    let is_apart = is_apart || ARE_CHILDREN_APART.load(Ordering::Relaxed);
    made::before_child();
    recycle::before_fork();
    share::before_fork();
    epoll::before_fork();
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry
            && counts(socket, fd)
        {
            if matches!(
                socket.stage(),
                Stage::Candidate | Stage::Claimed | Stage::Paired
            ) && !upgrade::share(socket)
            {
                control::refuse(socket, Reason::Forked);
            }
            upgrade::sync::before_fork(socket);
            // Perhaps only since another thread has had its lock.
            if socket.stage() == Stage::Attached {
                share_attached(socket);
            }
        }
    });
    // After the steps that make a connection the child's, too.
    let has_memory = link::before_fork(|visit| Socket::each_used(|_| true, visit));
    let has_table = seen::begin();
    if is_apart {
        keep_from_child(|_| true, Reason::Forked);
    } else if !has_table {
        keep_from_child(|_| true, Reason::NoResources);
    } else if !has_memory {
        keep_from_child(|pair| !link::is_handed_on(pair), Reason::NoResources);
    }
    if reach::is_open() {
        // The NIC stays this process's.
        keep_from_child(|pair| pair.link.is_between_hosts(), Reason::Forked);
    }
    reach::before_fork();
    // Threads that sleep until there is room must look from time to time from now on.
    wake::wake_all();
}

/// After a fork, in the parent, also if it has failed.
pub(super) fn after_fork_parent() {
    if thread::owns_memory() {
        reach::after_fork_parent();
        seen::end();
        recycle::after_fork_parent();
        // Also for sockets that another thread has made meanwhile.
        made::before_child();
    }
}

/// Leaves to the kernel, before there is a child, all connections of which `is_lost` says that the child could not share them.
#[cold]
fn keep_from_child(is_lost: impl Fn(&Pair) -> bool, reason: Reason) {
    entry::each(|fd, entry| {
        if let Entry::Socket(socket) = entry
            && socket.pair().is_some_and(&is_lost)
        {
            to_kernel(fd, reason);
        }
    });
}

/// Whether a socket's descriptor is the one by which it is counted, and not another of several.
fn counts(socket: &'static Socket, fd: c_int) -> bool {
    let names = |fd| Socket::of(fd).is_some_and(|named| std::ptr::eq(named, socket));
    socket.fd() == fd || !names(socket.fd())
}

fn share_attached(socket: &'static Socket) {
    // With the lock, so that no thread takes it back to its rings meanwhile, as if this process had it alone.
    let _locked = socket.lock();
    socket.again.forget();
    socket.share.before_fork();
    socket.note_whole(false);
    if let Some(pair) = socket.pair() {
        if let Some(conn) = Conn::new(socket, socket.fd()) {
            stream::tell_kernel_of_end(&conn);
        }
        let forked = &pair.own.options.forked;
        forked.store(slot::SHARED, Ordering::Release);
        // In this order: what is noted after this look is seen by a look at that word.
        full();
        socket.settings.tell_cork(socket.fd());
    }
}

/// In the child: whether another thread of the parent has made the socket, or taken it into use,
/// after [`before_fork`] had looked at it. The parent believes that it has it alone.
fn is_unshared(socket: &Socket) -> bool {
    let counted = !socket.share.is_unknown();
    let noted = |pair: &Pair| pair.own.options.forked.load(Ordering::Acquire) == slot::SHARED;
    match socket.stage() {
        Stage::Candidate | Stage::Claimed | Stage::Paired => !counted,
        Stage::Attached => !counted && !socket.pair().is_some_and(noted),
        _ => false,
    }
}

/// In the child: the other threads are gone, and so is whatever they held.
pub(super) fn after_fork_child() {
    thread::note_fork();
    if !config::is_confined() {
        sys::take_over_pid_namespace();
    }
    seen::after_fork_child();
    share::after_fork_child();
    region::after_fork_child();
    stats::after_fork_child();
    control::after_fork_child();
    epoll::after_fork_child();
    link::after_fork_child();
    reach::after_fork_child();
    lose_what_has_not_come();
    epoll::forget_links(Link::is_empty);
    link::forget_empty();
    wake::after_fork_child();
    for socket in SOCKETS.each() {
        socket.again.forget();
    }
    // The registration is the parent's memory's, not ours.
    if SOCKETS.each().any(|s| s.stage() == Stage::Attached) {
        let _ = shunt_shm::atomic::register();
    }
    for socket in SOCKETS.each().filter(|s| s.is_live()) {
        socket.reset_lock();
        socket.inside.after_fork_child();
        socket.places.iter().for_each(wake::Places::clear);
        socket.dealings.told.store(false, Ordering::Relaxed);
        if is_unshared(socket) {
            socket.set_plain(socket.stage(), Reason::Forked);
        }
        // The parent will get the answer. When the parent has closed the socket, it is claimed in the name of this process.
        if socket.move_on(Stage::Claimed, Stage::Candidate) {
            socket.set_reason(Reason::Forked);
        }
        // The set is shared, so a registration that moves would move for both.
        if !socket.items.is_empty() {
            socket.set_plain(Stage::Candidate, Reason::Forked);
        }
    }
    recycle::after_fork_child();
    recount_holds();
    uring_map::after_fork_child();
    stream::after_fork_child();
    super::given::after_fork_child();
    stats::announce_child();
}

/// In a forked child: connections whose memory has not come are the kernel's.
fn lose_what_has_not_come() {
    for socket in SOCKETS.each() {
        let mut has_come = true;
        socket.each_pair(|pair| has_come &= link::has_come(&pair));
        if !has_come {
            // Another thread of the parent has made it after `before_fork`, or it is plain.
            socket.lose_memory();
            socket.set_plain(socket.stage(), Reason::Forked);
        }
    }
}

/// In a forked child: counts holds anew, one for each descriptor. A set that only a waiting thread
/// of the parent still held ends. A socket that no descriptor names stays: the process that closed
/// it tells the peer of its end.
fn recount_holds() {
    let o = Ordering::Relaxed;
    for socket in SOCKETS.each() {
        socket.handed.after_fork_child();
    }
    for set in SETS.each() {
        set.count().store(0, o);
    }
    each_count(|holds| holds.store(0, o));
    each_count(|holds| holds.store(holds.load(o) + 1, o));
    for set in SETS.each() {
        if set.is_live() && set.count().load(o) == 0 {
            set.hold();
            set.unhold();
        }
    }
}

/// Calls `visit` with the count of holders behind each descriptor.
fn each_count(visit: impl Fn(&AtomicU64)) {
    entry::each(|_, entry| match entry {
        Entry::Socket(socket) => visit(socket.count()),
        Entry::Set(set) => visit(set.count()),
        Entry::Ours | Entry::Other => {}
    });
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::{BothEnds, in_child};

    #[test]
    fn parent_and_child_share_a_connection_on_its_rings() {
        let ends = BothEnds::attached();
        ends.send(b"before");
        let [one, other] = ends.conns();
        before_fork(false);
        assert!(one.is_shared() && other.is_shared() && one.pair.link.is_retired());
        // The child receives what the parent has had sent.
        let receives = || {
            thread::learn_pid();
            after_fork_child();
            let mut bytes = [0u8; 8];
            let part = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            // SAFETY: the part covers the array `bytes`.
            let received = unsafe { crate::stream::receive(&other, &[part], libc::MSG_DONTWAIT) };
            received == crate::Outcome::Done(6) && &bytes[..6] == b"before"
        };
        assert!(in_child(receives));
        after_fork_parent();
        assert_eq!(crate::stream::unread(&other), 0);
        ends.send(b"after");
        assert!(one.is_on_ring());
        assert_eq!(ends.receive::<8>(), b"after");
        for socket in SOCKETS.each() {
            socket.share.settle();
        }
    }
}
