//! Finding the daemon and being introduced to it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::message::{Kind, Message};
use shunt_abi::{PROTOCOL, Reason};

use super::home::Home;
use super::state::{
    GREETED, GUEST, LOCK, PATIENCE_MS, RETRY_AT, RETRY_NS, SHOWN, SOCKET, WHY_NOT, intact,
};
use super::wire::Sent;
use super::{board, due, wire};
use crate::region::{self, line_file};
use crate::{sys, thread, wake};

/// As which user this process, or the one that forked it, found a daemon last.
static SERVED: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;
/// Whether that was the host's daemon.
static BY_HOST: AtomicBool = AtomicBool::new(false);
/// The network namespace (`SO_NETNS_COOKIE`) of the daemon's abstract name; 0: it was found by a file.
static NETNS: AtomicU64 = AtomicU64::new(0);
/// When the daemon was greeted whose welcome has not come (`sys::now`). It is waited for until [`PATIENCE_MS`] after that.
static GREETED_AT: AtomicU64 = AtomicU64::new(0);

/// The first socket of a forked child for which it would have come to the daemon: a number, or one of these.
static TO_COME_FOR: AtomicU32 = AtomicU32::new(NONE);
/// It is no such child, or it has come.
const NONE: u32 = u32::MAX;
/// There has been none yet.
const ANY: u32 = u32::MAX - 1;

/// Connects to the daemon if there is no connection yet and another try is due. `true` if there is a daemon.
pub(crate) fn ensure() -> bool {
    ensure_within(PATIENCE_MS)
}

/// [`ensure`] without waiting for the welcome: a later call finds it. For a forked child, whose parent may look in `/proc`
/// whether it sleeps yet; and for a connection that uses TCP meanwhile, since beside busy programs the welcome takes as
/// long as two processes wait for a core.
pub(crate) fn ensure_without_waiting() -> bool {
    ensure_within(0)
}

/// Whether this process is a forked child whose parent had found a daemon, which has not welcomed the child yet; and whether this
/// socket is the first that asks.
pub(crate) fn is_to_come_for(socket: u32) -> bool {
    let o = Ordering::Relaxed;
    let first = TO_COME_FOR.compare_exchange(ANY, socket, o, o);
    first.is_ok() || first == Err(socket)
}

/// That socket is closed: the child has outlived its first connection.
pub(crate) fn first_has_ended(socket: u32) {
    let o = Ordering::Relaxed;
    let _ = TO_COME_FOR.compare_exchange(socket, NONE, o, o);
}

/// In a forked child.
pub(super) fn after_fork_child() {
    let first = if has_been_served() { ANY } else { NONE };
    TO_COME_FOR.store(first, Ordering::Relaxed);
    show_served();
}

/// Whether a daemon has served this process, or the one that forked it.
pub(crate) fn has_been_served() -> bool {
    SERVED.load(Ordering::Relaxed) != NOBODY
}

fn ensure_within(patience: i64) -> bool {
    if SOCKET.number() >= 0 {
        return true;
    }
    thread::set_used();
    if !LOCK.take() {
        return false;
    }
    // Another thread may have connected while we waited for the lock.
    let done =
        SOCKET.number() >= 0 || sys::now() >= RETRY_AT.load(Ordering::Relaxed) && open(patience);
    LOCK.give();
    done
}

/// The counters region has just been made: shows it to the daemon, if there is one.
pub(crate) fn show_region() {
    // Also while another thread connects: it may have looked for the region too early.
    if LOCK.take() {
        show_served();
        if let Some(fd) = intact().or_else(|| GUEST.get()) {
            show_counters(fd);
        }
        LOCK.give();
    }
}

/// Connects, introduces itself, and waits a little for the welcome, `most` milliseconds at most.
/// With the lock.
fn open(most: i64) -> bool {
    RETRY_AT.store(sys::now() + RETRY_NS, Ordering::Relaxed);
    // SAFETY: takes nothing and cannot fail.
    let uid = unsafe { libc::geteuid() };
    if !shunt_shm::atomic::register() {
        // Each kernel that Shunt supports has `membarrier`: a filter forbids it.
        WHY_NOT.store(Reason::Confined as u32, Ordering::Relaxed);
        return false;
    }
    let Some(fd) = GREETED.take().or_else(|| connect(uid)) else {
        return false;
    };
    show_counters(fd);
    if sys::poll_ms(fd, libc::POLLIN, most.min(patience_left())) == 0 {
        GREETED.keep(fd);
        // Without a welcome the daemon is overloaded or stopped: it is tried again soon.
        let (why, pause) = match patience_left() {
            0 => (Reason::NoDaemon, RETRY_NS / 100),
            _ => (Reason::Pending, 0),
        };
        WHY_NOT.store(why as u32, Ordering::Relaxed);
        RETRY_AT.store(sys::now() + pause, Ordering::Relaxed);
        return false;
    }
    if !take_welcome(fd) {
        sys::close(fd);
        return false;
    }
    if !SOCKET.keep(fd) {
        WHY_NOT.store(Reason::NoResources as u32, Ordering::Relaxed);
        return false;
    }
    TO_COME_FOR.store(NONE, Ordering::Relaxed);
    due::tell_everything();
    wake::renew_abroad();
    true
}

/// For how many more milliseconds to wait for the welcome of the daemon that was greeted.
fn patience_left() -> i64 {
    let waited = sys::now().saturating_sub(GREETED_AT.load(Ordering::Relaxed)) / 1_000_000;
    (PATIENCE_MS - waited.cast_signed()).max(0)
}

/// A new connection. `None`: there is no daemon, or it does not serve this user; then this process is its guest.
fn connect(uid: u32) -> Option<c_int> {
    match greet(uid) {
        Ok((fd, home)) => {
            note_served(fd, uid, home);
            GREETED_AT.store(sys::now(), Ordering::Relaxed);
            SHOWN.store(false, Ordering::Relaxed);
            leave_as_guest();
            Some(fd)
        }
        Err(why) => {
            let served = SERVED.load(Ordering::Relaxed);
            let is_other = has_been_served() && served != uid;
            let why = if is_other { Reason::OtherUser } else { why };
            WHY_NOT.store(why as u32, Ordering::Relaxed);
            if is_other {
                come_as_guest(served, uid);
            }
            None
        }
    }
}

/// Takes the daemon's welcome and its board; `false`: it refuses, which is noted, or says something else.
///
/// A daemon of another version: connections stay on TCP, for [`Reason::Version`]. Mostly the two do not even meet, since the
/// version is part of the address ([`shunt_abi::control_name`]); then the reason is [`Reason::NoDaemon`].
fn take_welcome(fd: c_int) -> bool {
    let received = wire::receive(fd).ok().flatten();
    let Some((m, passed)) = received.filter(|(m, _)| m.kind() == Some(Kind::Welcome)) else {
        // The daemon has ended, or is no daemon.
        WHY_NOT.store(Reason::NoDaemon as u32, Ordering::Relaxed);
        return false;
    };
    let mapped = passed.map(|b| (board::map(b), sys::close(b)).0);
    let refused = if m.protocol != PROTOCOL {
        Reason::Version as u8
    } else {
        m.status
    };
    let (0, Some(Some(board))) = (refused, mapped) else {
        // If the daemon has not refused, its board could not be mapped.
        let why = if refused == 0 {
            Reason::NoResources as u8
        } else {
            refused
        };
        WHY_NOT.store(u32::from(why), Ordering::Relaxed);
        return false;
    };
    board::adopt(board, m.index);
    true
}

/// A new connection on which this process has introduced itself, and to whom; or why there is none.
pub(super) fn greet(uid: u32) -> Result<(c_int, Home), Reason> {
    let mut why = Reason::NoDaemon;
    for home in Home::all(uid) {
        let greeted = home
            .dial(uid)
            .and_then(|fd| introduce(fd).ok_or(Reason::NoDaemon));
        match greeted {
            Ok(fd) => return Ok((fd, home)),
            Err(reason) => why = reason,
        }
    }
    Err(why)
}

/// Says who this process is.
fn introduce(fd: c_int) -> Option<c_int> {
    let fd = sys::move_high(fd);
    let mut hello = Message::new(Kind::Hello);
    hello.name = sys::comm();
    if wire::transmit(fd, &hello, None) == Sent::Done {
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// Lets the daemon of the former user list this process, which it does not serve any more.
fn come_as_guest(former: u32, uid: u32) {
    let by_host = BY_HOST.load(Ordering::Relaxed);
    if by_host || GUEST.get().is_some() {
        return;
    }
    leave_as_guest(); // The program may have closed it.
    let introduced = Home::User(former).dial(uid).ok().and_then(introduce);
    if let Some(fd) = introduced.filter(|&fd| GUEST.keep(fd)) {
        SHOWN.store(false, Ordering::Relaxed);
        show_counters(fd);
    }
}

/// A daemon serves this process again, or the connection is gone.
fn leave_as_guest() {
    if let Some(fd) = GUEST.take() {
        sys::close(fd);
    }
}

/// Remembers who serves this process, also for that daemon's successor.
fn note_served(fd: c_int, uid: u32, home: Home) {
    let here = || sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    let netns = if home.is_file() { Ok(0) } else { here() };
    NETNS.store(netns.unwrap_or(0), Ordering::Relaxed);
    BY_HOST.store(!matches!(home, Home::User(_)), Ordering::Relaxed);
    SERVED.store(uid, Ordering::Relaxed);
    show_served();
}

/// Says in the counters region, if there is one, who serves this process.
pub(super) fn show_served() {
    let uid = SERVED.load(Ordering::Relaxed);
    if let Some(header) = region::header().filter(|_| has_been_served()) {
        let mut name = [0; 40];
        let by_host = BY_HOST.load(Ordering::Relaxed);
        let home = if by_host { Home::Host } else { Home::User(uid) };
        home.write_name(&mut name);
        header.served.set(NETNS.load(Ordering::Relaxed), &name);
    }
}

/// Shows the daemon the counters region, once per connection. If there are counters already, this
/// is sent right after the introduction, so that the daemon gets to know them however late it
/// reads, and even if this process ends. With the lock.
fn show_counters(fd: c_int) {
    if let Some(file) = region::file().filter(|_| !SHOWN.load(Ordering::Relaxed)) {
        let shown = wire::transmit(fd, &Message::new(Kind::Counters), Some(file)) == Sent::Done;
        SHOWN.store(shown, Ordering::Relaxed);
        if shown && let Some(lines) = line_file::file() {
            wire::transmit(fd, &Message::new(Kind::Statistics), Some(lines));
        }
    }
}
