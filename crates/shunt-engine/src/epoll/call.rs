//! A set that sleeps often has a datagram socket in it, by which peers call it: a third of
//! what a doorbell byte costs, which is a TCP segment with its answer.
//!
//! The address lies at the doors where the set's threads stand, with a word that each
//! call must say: the names of such sockets are no secret (`/proc/net/unix`), and the kernel
//! drops what does not say it. Whoever cannot send there rings on the connection, as for
//! a set without one; so does everybody where other sets, or forked relatives, may stand
//! behind the same door.
//!
//! A call says nothing but that a log has news. So whoever takes one out of the socket
//! reads the logs after that.

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc::{c_int, epoll_event, sock_filter, sockaddr_un};
use shunt_shm::atomic::full;
use shunt_shm::wake::{Door, MANY, NOWHERE};

use super::SHARED;
use super::set::Set;
use super::state::State;
use crate::link;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{stats, thread};

/// A set that has slept so often gets a socket: seven system calls.
const SLEEPS: u32 = 16;
/// [`Set::call`] of a set without one, that shall have none.
const NEVER: c_int = -2;

/// So many sets that several share a group, and its doors.
static CROWDED: AtomicBool = AtomicBool::new(false);
/// The socket that this process sends by; -1: none yet.
static SENDER: AtomicI32 = AtomicI32::new(-1);

/// Whether a door's word is an address.
#[inline]
pub(crate) fn is_address(word: u64) -> bool {
    word != NOWHERE && word != MANY
}

/// A set is made.
pub(super) fn begin(set: &Set) {
    set.call.store(-1, Ordering::Relaxed);
    set.slept.store(0, Ordering::Relaxed);
    if set.index() >= SHARED {
        CROWDED.store(true, Ordering::Release);
    }
}

/// A thread is about to sleep on the set, which has doors: says at these where it can be
/// called. With the set's lock.
pub(super) fn tell_doors(set: &Set, state: &State) {
    if set.call.load(Ordering::Relaxed) == -1 && !CROWDED.load(Ordering::Acquire) {
        let slept = set.slept.load(Ordering::Relaxed) + 1;
        set.slept.store(slept, Ordering::Relaxed);
        if slept >= SLEEPS && thread::owns_memory() {
            let fd = open(set).unwrap_or(NEVER);
            set.call.store(fd, Ordering::Release);
        }
    }
    let doors = || {
        let follows = state.follows.iter();
        follows.map(|follow| follow.link.own().door(set.group()))
    };
    doors().for_each(|door| tell_door(set, door));
    if set.call.load(Ordering::Relaxed) >= 0 {
        // A set that is made now stands there after this, or is seen.
        full();
        if CROWDED.load(Ordering::Acquire) {
            doors().for_each(|door| tell_door(set, door));
        }
    }
}

/// The same at one door, at a new one also where threads are asleep already.
pub(super) fn tell_door(set: &Set, door: &Door) {
    let address = if CROWDED.load(Ordering::Acquire) {
        MANY
    } else if set.call.load(Ordering::Relaxed) >= 0 {
        let secret = set.secret.load(Ordering::Relaxed);
        door.secret.store(secret, Ordering::Relaxed);
        set.address.load(Ordering::Relaxed)
    } else {
        NOWHERE
    };
    door.address.store(address, Ordering::Release);
}

fn open(set: &Set) -> Result<c_int, Errno> {
    let (address, secret) = (sys::random()?, sys::random()?);
    let fd = sys::move_high(sys::datagram_socket()?);
    let mut event = epoll_event {
        events: libc::EPOLLIN as u32,
        u64: set.call_magic(),
    };
    let (name, length) = name(address);
    let done = listen_for(fd, secret)
        .and_then(|_| sys::bind(fd, &name, length))
        .and_then(|_| sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event));
    if let Err(errno) = done {
        sys::close(fd);
        return Err(errno);
    }
    table::enter(fd, Entry::Ours);
    set.address.store(address, Ordering::Relaxed);
    set.secret.store(secret, Ordering::Relaxed);
    Ok(fd)
}

/// The kernel drops what does not begin with this word, before it wakes anybody
/// (`socket(7)`, `SO_ATTACH_FILTER`).
fn listen_for(fd: c_int, secret: u64) -> Result<usize, Errno> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        step(LOAD, 0, 0),
        step(IS_EQUAL, 3, (secret >> 32) as u32),
        step(LOAD, 0, 4),
        step(IS_EQUAL, 1, secret as u32),
        step(RETURN, 0, u32::MAX),
        step(RETURN, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// The abstract name (`unix(7)`) that belongs to an address.
fn name(address: u64) -> (sockaddr_un, usize) {
    const PREFIX: &[u8] = b"\0shunt/call/";
    // SAFETY: all-zero is a valid address.
    let mut name: sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    let bytes = PREFIX.iter().copied().chain(address.to_ne_bytes());
    for (to, from) in name.sun_path.iter_mut().zip(bytes) {
        *to = from as _;
    }
    let length = offset_of!(sockaddr_un, sun_path) + PREFIX.len() + size_of::<u64>();
    (name, length)
}

/// Takes a call out of the set's socket; if there are more, the kernel says so again.
/// `false`: there is none.
pub(super) fn hear(set: &Set) -> bool {
    let fd = set.call.load(Ordering::Acquire);
    let mut byte = 0u8;
    let called = fd >= 0 && sys::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT).is_ok();
    if called {
        stats::called();
    }
    called
}

/// Calls whoever sleeps at a peer's door with this address, by its word. `false`: that
/// cannot be done. Also where there is no room: be it theirs, or what others have not heard
/// yet fills this process's share.
pub(crate) fn call(address: u64, secret: u64) -> bool {
    let Some(sender) = sender() else {
        return false;
    };
    let (name, length) = name(address);
    let sent = sys::send_to(sender, &secret.to_be_bytes(), &name, length).is_ok();
    if sent {
        stats::calls();
    }
    sent
}

fn sender() -> Option<c_int> {
    let known = SENDER.load(Ordering::Acquire);
    if known >= 0 {
        return Some(known);
    }
    if known == NEVER || !thread::owns_memory() {
        return None;
    }
    let Ok(fd) = sys::datagram_socket().map(sys::move_high) else {
        SENDER.store(NEVER, Ordering::Release);
        return None;
    };
    let (o, failed) = (Ordering::AcqRel, Ordering::Acquire);
    match SENDER.compare_exchange(-1, fd, o, failed) {
        Ok(_) => {
            table::enter(fd, Entry::Ours);
            Some(fd)
        }
        Err(other) => {
            sys::close(fd);
            Some(other).filter(|&other| other >= 0)
        }
    }
}

/// No set that there is will be called any more: who is asleep looks once.
pub(crate) fn retire_all() {
    for set in table::SETS.each() {
        if set.call.load(Ordering::Acquire) == NEVER {
            continue;
        }
        set.with(|_| {
            close(set, NEVER);
            set.kick();
        });
    }
}

/// Nobody can call the set any more; what was in the socket has come too late.
pub(super) fn close(set: &Set, instead: c_int) {
    set.slept.store(0, Ordering::Relaxed);
    let fd = set.call.swap(instead, Ordering::AcqRel);
    if fd >= 0 {
        table::enter(fd, Entry::Other);
        sys::close(fd);
    }
}

/// In a forked child, whose doors are its parent's where links are.
pub(super) fn after_fork_child() {
    if link::any() {
        CROWDED.store(true, Ordering::Release);
    }
    for set in table::SETS.each() {
        close(set, NEVER);
    }
}

/// If `fd` is the sender's number and the program wants it: moves elsewhere.
pub(super) fn make_way(fd: c_int) {
    if SENDER.load(Ordering::Acquire) == fd {
        let other = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1);
        let other = other.map_or(NEVER, |other| other as c_int);
        if other >= 0 {
            table::enter(other, Entry::Ours);
        }
        SENDER.store(other, Ordering::Release);
        table::enter(fd, Entry::Other);
    }
}
