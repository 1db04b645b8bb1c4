//! From a kernel connection to a shunted one: when to ask, when to attach.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::Role;
use shunt_shm::publish;
use shunt_shm::slot;

use crate::config::{self, Upgrade};
use crate::epoll::Known;
use crate::socket::{Socket, Stage};
use crate::stream::Want;
use crate::{address, control, epoll, signal, sys, tcp};

/// Data calls after which a connection has shown that it will live (adaptive).
/// A one-request connection makes about four at each end.
const LIVES_AFTER: u32 = 5;

/// Data calls after which nobody will come any more to pair a connection with.
const GIVEN_UP_AFTER: u32 = 1024 * LIVES_AFTER;

/// A socket is about to connect to `port`, or has been accepted.
pub(crate) fn consider(socket: &'static Socket, fd: c_int, role: Role, port: Option<u16>) {
    socket.set_role(role);
    socket.set_port(port.unwrap_or(0));
    let against = config::against().or((fd <= 2).then_some(Reason::Stdio));
    if let Some(reason) = against {
        socket.set_plain(Stage::Fresh, reason);
        return;
    }
    let alone = alone(socket);
    if let (Some(reason), Upgrade::Eager) = (alone, config::upgrade()) {
        socket.set_plain(Stage::Fresh, reason);
        return;
    }
    socket.set_reason(alone.unwrap_or(Reason::Pending));
    socket.move_on(Stage::Fresh, Stage::Candidate);
    if config::upgrade() == Upgrade::Eager {
        ask(socket, fd, role == Role::Acceptor);
    }
}

/// Why nobody is known with whom the socket could be paired. That may change: a
/// `listen` is known to the kernel sooner than to the daemon, which may be slow.
fn alone(socket: &Socket) -> Option<Reason> {
    if socket.share.is_shared() {
        Some(Reason::Forked)
    } else if !control::ensure() {
        Some(control::why_not())
    } else if socket.role() == Role::Connector && !control::accelerates(socket.port()) {
        Some(Reason::PeerPlain)
    } else {
        None
    }
}

/// Asks the daemon for a pairing. A connector asks before it connects, so that
/// the acceptor, whenever it looks, finds its claim.
fn ask(socket: &'static Socket, fd: c_int, wait: bool) {
    match sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE) {
        Ok(cookie) => socket.set_cookie(cookie),
        Err(_) => {
            socket.set_plain(Stage::Candidate, Reason::NotEstablished);
            return;
        }
    }
    if wait && let Err(reason) = local(fd) {
        socket.set_plain(Stage::Candidate, reason);
        return;
    }
    // The next call on it attaches it: a server that only hands it over to another
    // program gives that a socket which has never been but the kernel's.
    if wait {
        control::claim_now(socket, fd, socket.role());
    } else {
        control::claim(socket, fd, socket.role());
    }
}

/// Whether both ends are on this host, and are two.
fn local(fd: c_int) -> Result<(), Reason> {
    let (Ok(own), Ok(peer)) = (sys::name(fd, false), sys::name(fd, true)) else {
        return Err(Reason::NotEstablished);
    };
    if !address::is_local(&own, &peer) {
        return Err(Reason::NotLocal);
    }
    if address::parts(&own) == address::parts(&peer) {
        return Err(Reason::SelfConnected);
    }
    Ok(())
}

/// A data or readiness call on a socket that is not attached: counts it, and
/// moves the socket on if it can be. `true` if it is attached now.
#[cold]
pub(crate) fn progress(socket: &'static Socket, fd: c_int, known: Known) -> bool {
    match socket.stage() {
        Stage::Attached => true,
        Stage::Candidate => {
            let calls = socket.calls.load(Ordering::Relaxed) + 1;
            socket.calls.store(calls, Ordering::Relaxed);
            let due = config::upgrade() == Upgrade::Eager || calls >= LIVES_AFTER;
            // What a parent has connected is not counted as this process's own.
            let connected = socket.connected.load(Ordering::Relaxed);
            if due && (connected || !socket.share.is_unknown()) && socket.lock.try_take() {
                if socket.stage() == Stage::Candidate {
                    move_candidate(socket, fd, calls);
                }
                socket.lock.give();
            }
            false
        }
        Stage::Claimed => {
            control::check_mail();
            socket.stage() == Stage::Paired && attach(socket, fd, known)
        }
        Stage::Paired => attach(socket, fd, known),
        _ => false,
    }
}

/// Before a fork: leaves it to whoever will have the connection alone. `false`:
/// it cannot be.
pub(crate) fn share(socket: &'static Socket) -> bool {
    socket.lock.take() && {
        let shared = match socket.stage() {
            Stage::Candidate => socket.share.before_fork(),
            // Nobody honours its rings before one process has it alone.
            Stage::Paired if socket.items.is_empty() => share_pair(socket),
            _ => false,
        };
        socket.lock.give();
        shared
    }
}

fn share_pair(socket: &Socket) -> bool {
    let Some(pair) = socket.pair() else {
        return false;
    };
    let shared = socket.share.before_fork();
    if shared {
        let forked = &pair.own.options.forked;
        forked.store(slot::SHARED, Ordering::Release);
        // Two processes hold the link until both have died.
        pair.link.hold();
    }
    shared
}

/// A connection that lives: asks for a pairing, if there may be somebody. With
/// its lock.
fn move_candidate(socket: &'static Socket, fd: c_int, calls: u32) {
    if !socket.share.is_shared() {
        // Also if it was the parent that connected it.
        socket.connected.store(true, Ordering::Relaxed);
    }
    if let Some(reason) = alone(socket) {
        if calls < GIVEN_UP_AFTER {
            socket.set_reason(reason);
        } else {
            socket.set_plain(Stage::Candidate, reason);
        }
        return;
    }
    socket.set_reason(Reason::Pending);
    match local(fd) {
        Ok(()) => ask(socket, fd, false),
        Err(reason) => {
            socket.set_plain(Stage::Candidate, reason);
        }
    }
}

/// Never to be upgraded (or, once attached, too late).
pub(crate) fn refuse(socket: &'static Socket, reason: Reason) {
    loop {
        let stage = socket.stage();
        if matches!(
            stage,
            Stage::Attached | Stage::Free | Stage::Plain | Stage::Listener
        ) {
            return;
        }
        if !socket.set_plain(stage, reason) {
            continue;
        }
        if let Some(pair) = socket.pair() {
            pair.own
                .face
                .state
                .fetch_or(slot::REFUSED, Ordering::AcqRel);
        }
        if matches!(stage, Stage::Claimed | Stage::Paired) {
            control::report(socket, socket.fd(), Some(reason));
        }
        return;
    }
}

/// Begins to honour the rings, if nothing is in the way just now.
fn attach(socket: &'static Socket, fd: c_int, known: Known) -> bool {
    if !socket.lock.try_take() {
        return false;
    }
    // A thread inside a real call would not see the ring: later.
    let pollers = (socket.stage() == Stage::Paired)
        .then(|| socket.inside.shut())
        .flatten();
    let done = if let Some(pollers) = pollers {
        let done = try_attach(socket, fd, known, pollers);
        socket.inside.open(done);
        done
    } else {
        socket.set_reason(Reason::Busy);
        false
    };
    socket.lock.give();
    if socket.stage() == Stage::Plain {
        control::report(socket, fd, Some(socket.reason()));
    }
    done
}

fn try_attach(socket: &'static Socket, fd: c_int, known: Known, pollers: u32) -> bool {
    let Some(pair) = socket.pair() else {
        return false;
    };
    if pair.peer_state() & slot::REFUSED != 0 {
        socket.set_plain(Stage::Paired, Reason::PeerRefused);
        return false;
    }
    let forked = &pair.own.options.forked;
    if forked.load(Ordering::Acquire) == slot::SHARED {
        if socket.share.is_unknown() || socket.share.is_shared() {
            socket.set_reason(Reason::Forked);
            return false;
        }
        forked.store(slot::INHERITED, Ordering::Release);
    }
    if let Some(reason) = socket.items.obstacle(known) {
        socket.set_reason(reason);
        return false;
    }
    let Ok(flags) = sys::fcntl(fd, libc::F_GETFL, 0) else {
        return false;
    };
    let refused = if flags & libc::O_ASYNC as usize != 0 {
        Some(Reason::AsyncIo)
    } else {
        None
    };
    let consumed = tcp::consumed(fd);
    let (Some(consumed), None) = (consumed, refused) else {
        pair.own
            .face
            .state
            .fetch_or(slot::REFUSED, Ordering::AcqRel);
        socket.set_plain(Stage::Paired, refused.unwrap_or(Reason::NotEstablished));
        return false;
    };
    let own = pair.own;
    let o = Ordering::Relaxed;
    own.options
        .nonblock
        .store(u32::from(flags & libc::O_NONBLOCK as usize != 0), o);
    own.receiving.kernel_bytes.store(consumed, o);
    own.options.most.store(socket.sndbuf.load(o), o);
    // Threads that poll the kernel's socket sleep on the connection from now on.
    own.receiving.sleepers.store(pollers * Want::ALL_UNITS, o);
    let wait = if pollers > 0 {
        slot::WAIT_RX | slot::WAIT_TX
    } else {
        0
    };
    own.face.naps.store(1, o);
    own.face.wait.store(wait, o);
    let Some(carried) = epoll::carry(socket, fd, pair, known) else {
        pair.own
            .face
            .state
            .fetch_or(slot::REFUSED, Ordering::AcqRel);
        socket.set_plain(Stage::Paired, Reason::NoResources);
        return false;
    };
    if !carried {
        socket.set_reason(Reason::Edge);
        return false;
    }
    take_options(fd, own);
    socket.set_reason(Reason::Pending);
    signal::guard_copies();
    if !socket.move_on(Stage::Paired, Stage::Attached) {
        return false;
    }
    publish::set_bits(&own.face.state, slot::READY);
    control::report(socket, fd, None);
    true
}

/// Takes from the base socket what would delay a doorbell, and remembers it.
fn take_options(fd: c_int, own: &slot::Slot) {
    let o = Ordering::Relaxed;
    let get =
        |level, name, default| sys::getsockopt::<i32>(fd, level, name).unwrap_or(default) as u32;
    own.options
        .nodelay
        .store(get(libc::IPPROTO_TCP, libc::TCP_NODELAY, 0), o);
    own.options
        .cork
        .store(get(libc::IPPROTO_TCP, libc::TCP_CORK, 0), o);
    own.options
        .rcvlowat
        .store(get(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1).max(1), o);
    let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &0i32);
    let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
    if own.options.rcvlowat.load(o) != 1 {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
    }
}
