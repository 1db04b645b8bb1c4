//! `connect`: is there a connection to the same listener that can be used again?

use std::sync::atomic::Ordering;

use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use shunt_abi::counters::GivenUp;
use shunt_abi::message::Role;

use super::lock::{self, Locked};
use super::pristine;
use super::store::{self, Kept};
use crate::entry::{self, Entry};
use crate::hold::Held;
use crate::socket::made::Flags;
use crate::socket::{KEEPALIVE, RESTORED, Socket, Stage, is_any_queued};
use crate::stream::{self, Conn, Spin};
use crate::sys::{self, address};
use crate::upgrade::trial;
use crate::{Outcome, config, control, signal, thread};

/// Before the real `connect`. `Done`: the number names the connection.
///
/// # Safety
/// As for `connect(2)`.
pub(crate) unsafe fn connect(fd: c_int, at: *const sockaddr, length: socklen_t) -> Outcome {
    if !config::recycles() || config::is_confined() || !thread::owns_descriptors() {
        return Outcome::Kernel;
    }
    // Most peers are not under Shunt: of these nothing need be known.
    let may_matter = |port| control::accelerates(port) || trial::is_due(port);
    // SAFETY: the caller's promise.
    if !store::is_any() && !unsafe { address::port_of(at, length) }.is_some_and(may_matter) {
        return Outcome::Kernel;
    }
    let is_new = |socket: &&Socket| socket.stage() == Stage::Fresh && socket.holds() == 1;
    let Some(socket) = Socket::of(fd).filter(is_new) else {
        return Outcome::Kernel;
    };
    let is_as_made = !socket.settings.is_odd.load(Ordering::Relaxed)
        && socket.items.is_empty()
        && socket.share.is_unknown();
    // SAFETY: the caller's promise.
    let wanted = unsafe { Wanted::new(socket, fd, at, length) };
    let Some(wanted) = wanted.filter(|_| is_as_made) else {
        return Outcome::Kernel;
    };
    socket.origin.note_connect();
    let (_, port, _) = address::parts(&wanted.peer);
    if !store::is_any() {
        return Outcome::Kernel;
    }
    if is_any_queued(port) {
        if lock::lock().is_some_and(|locked| wanted.could_connect(&locked)) {
            trial::note_wanted(port);
        }
        return Outcome::Kernel;
    }
    if wanted.connect(trial::may_wait(port)) {
        trial::note_used(port);
        return Outcome::Done(0);
    }
    if lock::lock().is_some_and(|locked| wanted.is_any_by(&locked)) {
        trial::note_missed(port);
    }
    Outcome::Kernel
}

/// How long a connect that does not wait looks for an acceptor that is about to close the connection before, and to accept the
/// next one (ticks, about 5 µs): less than the kernel's own would take. One that waits does so as for an answer ([`Spin`]).
const GLANCE: u64 = 13_000;

/// What the program wants to connect, and to what.
struct Wanted {
    new: &'static Socket,
    fd: c_int,
    peer: sockaddr_storage,
    flags: Flags,
}

impl Wanted {
    /// `None`: the address is the kernel's to refuse, or the socket is bound.
    ///
    /// # Safety
    /// As for `connect(2)`.
    unsafe fn new(
        new: &'static Socket,
        fd: c_int,
        at: *const sockaddr,
        length: socklen_t,
    ) -> Option<Self> {
        let length = length as usize;
        let fits = (2..=size_of::<sockaddr_storage>()).contains(&length);
        if !fits || (at as usize) < 4096 || !signal::may_read(at.cast::<u8>(), length) {
            return None;
        }
        // SAFETY: a C struct of integers, for which zero is a value.
        let mut peer: sockaddr_storage = unsafe { std::mem::zeroed() };
        // SAFETY: readable, as we have just seen, and no longer than a storage.
        unsafe {
            at.cast::<u8>()
                .copy_to(std::ptr::from_mut(&mut peer).cast(), length)
        };
        let least = match c_int::from(peer.ss_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return None,
        };
        let own = sys::name(fd, false).ok()?;
        let unbound = (peer.ss_family, 0, [0; 16]);
        let flags = new.made.flags().or_else(|| flags_of(fd))?;
        let is_able = length >= least && address::parts(&own) == unbound;
        is_able.then_some(Self {
            new,
            fd,
            peer,
            flags,
        })
    }

    /// Tries to use a kept connection. `true`: the number names that connection now. `false`: no thread waits at
    /// a suitable one. `waits`: this waits, as long as that pays, for a thread that is about to.
    fn connect(&self, waits: bool) -> bool {
        let mut spin = Spin::new();
        loop {
            let Some(locked) = lock::lock() else {
                return false;
            };
            locked.sweep();
            let found = locked.each().find_map(|kept| self.offer(&locked, kept));
            if let Some((kept, conn)) = found {
                replace(&locked, kept, &conn, self);
                drop(locked);
                spin.paid();
                stream::call_acceptor(&conn);
                return true;
            }
            let soon = locked.each().any(|kept| self.acceptor_may_wait_soon(kept));
            drop(locked);
            if !waits || !soon || !self.waits_on(&mut spin) {
                return false;
            }
        }
    }

    /// Whether any kept connection leads to this address, as far as its port says.
    fn is_any_by(&self, locked: &Locked) -> bool {
        let mut sockets = locked.each().filter_map(Kept::socket);
        sockets.any(|socket| self.is_by(socket))
    }

    /// Whether a kept connection could be used now.
    fn could_connect(&self, locked: &Locked) -> bool {
        locked.sweep();
        let mut sockets = locked.each().filter_map(Kept::socket);
        let may_offer = |socket: &Socket| {
            let pair = socket.pair().filter(|_| self.is_by(socket));
            pair.is_some_and(|pair| stream::turns(pair).may_offer())
        };
        sockets.any(may_offer)
    }

    /// Waits for a moment. `false`: it has waited for long enough.
    fn waits_on(&self, spin: &mut Spin) -> bool {
        if !self.flags.nonblock {
            return spin.turn();
        }
        std::hint::spin_loop();
        !stream::shares_core() && sys::ticks().wrapping_sub(spin.began()) <= GLANCE
    }

    /// Whether the acceptor of a kept connection may be about to wait for it.
    fn acceptor_may_wait_soon(&self, kept: &Kept) -> bool {
        let leads_there = kept.socket().filter(|socket| self.is_by(socket));
        let pair = leads_there.and_then(|socket| socket.pair());
        pair.is_some_and(|pair| stream::turns(pair).may_offer_soon())
    }

    /// Offers a kept connection to its acceptor, if it leads to the address that this socket is to connect to, and a thread of
    /// the acceptor waits for it.
    fn offer(
        &self,
        locked: &Locked,
        kept: &'static Kept,
    ) -> Option<(&'static Kept, Conn<'static>)> {
        let socket = kept.socket().filter(|socket| self.is_by(socket))?;
        let conn = Conn::new(socket, kept.fd())?;
        let turns = stream::turns(conn.pair);
        if !turns.may_offer() {
            return None;
        }
        if !kept.is_there() || !self.leads_there(&conn) || !stream::use_again(&conn) {
            kept.give_up(locked, GivenUp::Lost);
            return None;
        }
        if !turns.offer() {
            return None;
        }
        // Only the kernel tells of an acceptor's process that has died.
        let holds = stream::awaits_base(&conn) || turns.is_taken();
        if !holds {
            kept.give_up(locked, GivenUp::Lost);
        }
        holds.then_some((kept, conn))
    }

    fn is_by(&self, socket: &Socket) -> bool {
        let (_, port, _) = address::parts(&self.peer);
        socket.role() == Role::Connector && socket.origin.is_connect() && socket.port() == port
    }

    /// Whether a kept base socket is connected to the address that this socket is to connect to, in the same network
    /// namespace. (This thread may have changed to another one since the socket was made.)
    fn leads_there(&self, conn: &Conn) -> bool {
        let base = &conn.socket.whereabouts;
        let network = base.network(conn.fd);
        network.is_some()
            && network == self.new.whereabouts.network(self.fd)
            && base.peer(conn.fd) == Some(address::words(&self.peer))
    }
}

/// A socket's flags, as the kernel says them. `None`: it has others than a new one may have.
#[cold]
fn flags_of(fd: c_int) -> Option<Flags> {
    const NEW: c_int = libc::O_RDWR | libc::O_NONBLOCK;
    let file = sys::fcntl(fd, libc::F_GETFL, 0).ok()? as c_int;
    let own = sys::fcntl(fd, libc::F_GETFD, 0).ok()? as c_int;
    (file & !NEW == 0).then_some(Flags {
        nonblock: file & libc::O_NONBLOCK != 0,
        cloexec: own & libc::FD_CLOEXEC != 0,
    })
}

/// Puts the connection in the place of the program's new socket, under its number.
fn replace(locked: &Locked, kept: &Kept, conn: &Conn<'static>, to: &Wanted) {
    let (Some(socket), new) = (kept.socket(), to.new) else {
        return;
    };
    pristine::put_aside(locked, new, to.fd, to.peer.ss_family.into());
    let flags = if to.flags.cloexec { libc::O_CLOEXEC } else { 0 };
    // `EBUSY`: another thread's `open` is about to get the number (dup(2)).
    while sys::dup3(conn.fd, to.fd, flags) == Err(libc::EBUSY) {
        sys::sched_yield();
    }
    let set = new.settings.on.load(Ordering::Relaxed);
    set_up(socket, to.fd, to.flags.nonblock, set);
    socket.use_again(to.fd);
    entry::enter(to.fd, Entry::Socket(socket));
    new.unhold();
    kept.use_again(locked);
}

/// Has the kernel's socket be as a new one: whether `O_NONBLOCK` is set, and these options ([`RESTORED`]), and [`KEEPALIVE`] as it was. Other flags make a
/// socket odd (`fcntl`), and of this one the rings have heard.
pub(super) fn set_up(socket: &Socket, fd: c_int, nonblock: bool, set: u32) {
    let o = Ordering::Relaxed;
    if let Some(pair) = socket.pair()
        && pair.own.options.nonblock.swap(nonblock.into(), o) != u32::from(nonblock)
    {
        let flags = libc::O_RDWR | if nonblock { libc::O_NONBLOCK } else { 0 };
        let _ = sys::fcntl(fd, libc::F_SETFL, flags as usize);
    }
    let differ = socket.settings.set_anew(set);
    for (bit, (level, name)) in RESTORED.into_iter().enumerate() {
        if differ >> bit & 1 != 0 {
            let on = (set >> bit & 1) as c_int;
            let _ = sys::setsockopt(fd, level, name, &on);
        }
    }
    for (before, name) in socket.settings.keepalive.iter().zip(KEEPALIVE) {
        if before.load(o) != 0 {
            let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, name, &before.swap(0, o));
        }
    }
}
