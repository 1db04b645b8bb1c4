//! From *paired* to *attached*: this side begins to honour the rings.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::Role;
use shunt_rdma::bond::Lines;
use shunt_shm::publish;
use shunt_shm::slot::{self, Slot};

use super::worth;
use crate::epoll::Known;
use crate::link::Pair;
use crate::socket::{BETWEEN_HOSTS, Locked, Socket, Stage};
use crate::{config, control, epoll, reach, signal, stats, stream, sys, tcp, wake};

/// A call on a paired socket: attaches it if possible. `true` if it is attached now.
pub(super) fn attach_paired(socket: &'static Socket, fd: c_int, known: Known) -> bool {
    match socket.stage() {
        Stage::Attached => true,
        Stage::Paired => {
            !awaits_acceptor(socket) && !control::lacks_sockets() && attach(socket, fd, known)
        }
        _ => false,
    }
}

/// Whether the acceptor, which was paired at once and has not used the connection yet, may still
/// hand it on to another process.
fn awaits_acceptor(socket: &Socket) -> bool {
    if !(config::claims_at_once() || socket.tries()) || socket.role() != Role::Connector {
        return false;
    }
    control::check_mail();
    let is_unused = |pair: &Pair| pair.peer_state() & (slot::READY | slot::REFUSED) == 0;
    // An acceptor on another host tells only a connector that is attached.
    let waits =
        |pair: &Pair| !pair.link.is_between_hosts() && is_unused(pair) && !is_left(socket, pair);
    socket.pair().is_some_and(waits)
}

/// Takes in what a peer on another host has told of itself. (A peer on this host writes it in
/// shared memory.)
pub(super) fn hear(pair: &Pair) {
    if pair.link.is_between_hosts() {
        reach::progress();
    }
}

/// Whether the daemon says that the other end was let go.
fn is_left(socket: &Socket, pair: &Pair) -> bool {
    socket.dealings.left.load(Ordering::Relaxed) == pair.generation
}

/// The peer has handed its end on: asks for another pair, as the process that has it now may claim
/// it.
fn pair_again(socket: &Locked, fd: c_int) {
    if socket.move_on(Stage::Paired, Stage::Candidate) {
        socket.set_reason(Reason::Pending);
        control::claim_again(socket.socket, fd);
    }
}

/// Begins to honour the rings, if nothing is in the way just now.
fn attach(socket: &'static Socket, fd: c_int, known: Known) -> bool {
    let Some(locked) = socket.try_lock() else {
        return false;
    };
    // A thread inside a real call would not see the ring: later.
    let pollers = (socket.stage() == Stage::Paired)
        .then(|| socket.inside.shut())
        .flatten();
    let done = if let Some(pollers) = pollers {
        let done = try_attach(&locked, fd, known, pollers);
        socket.inside.open(done);
        stats::look(socket);
        done
    } else {
        socket.set_reason(Reason::Busy);
        false
    };
    drop(locked);
    if socket.stage() == Stage::Plain {
        control::report(socket, Some(socket.reason()));
    }
    done
}

/// Why a socket is not attached just now.
enum Obstacle {
    /// Something that passes: a later call tries again.
    For(Reason),
    /// The socket is plain from here on.
    Plain(Reason),
    /// The socket has another stage by now, or another pair is asked for.
    Over,
}

fn try_attach(socket: &Locked, fd: c_int, known: Known, pollers: u32) -> bool {
    match attach_now(socket, fd, known) {
        Ok(()) => {}
        Err(Obstacle::For(reason)) => {
            socket.set_reason(reason);
            return false;
        }
        Err(Obstacle::Plain(reason)) => {
            socket.set_plain(Stage::Paired, reason);
            return false;
        }
        Err(Obstacle::Over) => return false,
    }
    if pollers > 0 {
        // Threads that poll the kernel's socket wake, and register as sleepers of the connection.
        wake::wake_all();
    }
    control::report_shunted(socket.socket);
    worth::note_use();
    true
}

/// Looks at the peer's end, relatives, sets and the kernel's socket, one after the other; then
/// publishes `READY`.
fn attach_now(socket: &Locked, fd: c_int, known: Known) -> Result<(), Obstacle> {
    let pair = socket.pair().ok_or(Obstacle::Over)?;
    look_at_peer(socket, fd, pair)?;
    look_at_relatives(socket, pair)?;
    if let Some(reason) = epoll::obstacle(socket, pair, known) {
        return Err(Obstacle::For(reason));
    }
    let own = pair.own;
    look_at_kernel(socket, fd, own)?;
    match epoll::carry(socket, fd, pair, known) {
        Some(true) => {}
        Some(false) => return Err(Obstacle::For(Reason::Edge)),
        None => return Err(refuse_peer(own, Reason::NoResources)),
    }
    tell_host(socket, pair).map_err(|reason| match reason {
        Reason::Busy => Obstacle::For(reason),
        _ => refuse_peer(own, reason),
    })?;
    if socket.items.is_empty() {
        stream::foresee_sleep(own);
    }
    socket.set_reason(Reason::Pending);
    let is_alone = own.options.forked.load(Ordering::Acquire) == slot::UNFORKED;
    socket.note_whole(is_alone && !socket.record.has_used_rings());
    signal::guard_copies();
    if !socket.move_on(Stage::Paired, Stage::Attached) {
        return Err(Obstacle::Over);
    }
    if config::recycles() {
        stream::turns(pair).begin(pair.life());
        socket.queued.note_end(socket.port());
    }
    publish::set_bits(&own.face.state, slot::READY);
    Ok(())
}

/// Whether the peer will honour the rings, too.
fn look_at_peer(socket: &Locked, fd: c_int, pair: &Pair) -> Result<(), Obstacle> {
    let peer = pair.peer_state();
    let alone = pair.own.options.forked.load(Ordering::Acquire) == slot::UNFORKED;
    let handed_on = peer & slot::HANDED_ON != 0 || peer == 0 && is_left(socket, pair);
    if handed_on && alone && socket.may_pair_again() {
        pair_again(socket, fd);
        return Err(Obstacle::Over);
    }
    if peer & slot::REFUSED != 0 {
        return Err(Obstacle::Plain(Reason::PeerRefused));
    }
    Ok(())
}

/// Whether this process has the connection alone: it always had, or the other processes that had it
/// since a fork have it no more.
fn look_at_relatives(socket: &Socket, pair: &Pair) -> Result<(), Obstacle> {
    let forked = &pair.own.options.forked;
    if forked.load(Ordering::Acquire) == slot::SHARED {
        if socket.share.is_unknown() || socket.share.is_shared() {
            return Err(Obstacle::For(Reason::Forked));
        }
        forked.store(slot::INHERITED, Ordering::Release);
    } else if socket.share.is_shared() {
        // The fork came before the pairing: the other processes use their copies as plain sockets.
        return Err(Obstacle::For(Reason::Forked));
    }
    Ok(())
}

/// Notes whether calls may wait, as the description's `flags` say. Another thread that changes them meanwhile notes that, too, and it
/// may do so before this: so `again` reads them until they are what was noted.
pub(super) fn note_nonblock(own: &Slot, mut flags: usize, again: impl Fn() -> Option<usize>) {
    let bit = |flags| u32::from(flags & libc::O_NONBLOCK as usize != 0);
    loop {
        own.options.nonblock.store(bit(flags), Ordering::SeqCst);
        match again() {
            Some(now) if bit(now) != bit(flags) => flags = now,
            _ => return,
        }
    }
}

/// Whether the state of the kernel's socket allows rings. Notes in our slot how many bytes it has
/// delivered.
fn look_at_kernel(socket: &Socket, fd: c_int, own: &Slot) -> Result<(), Obstacle> {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).map_err(|_| Obstacle::Over)?;
    let refused = if flags & libc::O_ASYNC as usize != 0 {
        Some(Reason::AsyncIo)
    } else if stream::waits_for_many(fd) {
        Some(Reason::SocketOption)
    } else {
        let is_able = wake::is_able().ok_or(Obstacle::For(Reason::Busy))?;
        (!is_able).then_some(Reason::NoResources)
    };
    let consumed = tcp::consumed(fd);
    let (Some(consumed), None) = (consumed, refused) else {
        return Err(refuse_peer(own, refused.unwrap_or(Reason::NotEstablished)));
    };
    let o = Ordering::Relaxed;
    note_nonblock(own, flags, || sys::fcntl(fd, libc::F_GETFL, 0).ok());
    own.receiving.kernel_bytes.store(consumed, o);
    let most = stream::bound(fd, socket.settings.sndbuf.load(o));
    own.options.most.store(most, o);
    own.face.epoch.store(1, o);
    Ok(())
}

/// Tells a peer on another host that this side honours its ring.
fn tell_host(socket: &Socket, pair: &Pair) -> Result<(), Reason> {
    if !pair.link.is_between_hosts() {
        return Ok(());
    }
    let lines = Lines {
        own: pair.own,
        view: pair.peer,
        out: pair.out,
        inward: pair.inward,
    };
    let link = pair.link.own_number();
    // SAFETY: the link is forgotten before it is unmapped; the view is written for that link alone.
    unsafe { reach::open(link, pair.number, pair.life(), lines, stream::hear_news) }?;
    // The NIC tells the peer what this side publishes, and how far it reads.
    publish::set_bits(&pair.peer.face.wait, slot::MIRRORED);
    socket
        .hints
        .kernel_state
        .fetch_or(BETWEEN_HOSTS, Ordering::Relaxed);
    Ok(())
}

/// Tells the peer that this side never honours the rings.
fn refuse_peer(own: &Slot, reason: Reason) -> Obstacle {
    own.face.state.fetch_or(slot::REFUSED, Ordering::AcqRel);
    Obstacle::Plain(reason)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::both_ends::BothEnds;

    #[test]
    fn what_another_thread_makes_of_the_description_while_it_is_read_is_noted() {
        const NONBLOCK: usize = libc::O_NONBLOCK as usize;
        let ends = BothEnds::attached();
        let own = ends.conns()[0].pair.own;
        for (first, then, noted) in [(0, NONBLOCK, 1), (NONBLOCK, 0, 0), (0, 0, 0)] {
            note_nonblock(own, first, || Some(then));
            assert_eq!(own.options.nonblock.load(Ordering::Relaxed), noted);
        }
    }
}
