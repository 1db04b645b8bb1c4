//! Sending a call by the number of a socket that the program may want.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use super::datagram;
use crate::sys;
use crate::thread::alone::add;
use crate::thread::undisturbed;

/// Threads that may be sending by the socket's number, whatever it was when they looked.
static SENDING: AtomicU64 = AtomicU64::new(0);

/// Sends by the socket's number: no handler of this thread comes in between, and a thread that gives the number to
/// something else waits ([`await_sent`]).
#[inline]
pub(super) fn sending<R>(send: impl FnOnce() -> R) -> R {
    undisturbed::all_of(|| {
        add(&SENDING, 1);
        let result = send();
        add(&SENDING, 1u64.wrapping_neg());
        result
    })
}

/// To be called after the socket has got another number: waits until no more than `except` threads may
/// still be sending by the former number. None of them sleeps.
pub(super) fn await_sent(except: u64) {
    while SENDING.load(Ordering::SeqCst) > except {
        sys::sched_yield();
    }
}

/// Whether a call by this socket has come, or is pending.
pub(super) fn is_heard(fd: c_int, name: u64, secret: u64) -> bool {
    match datagram::send(fd, name, secret) {
        Ok(()) => true,
        // Theirs is full, unless what others have not heard yet fills this process's share.
        Err(libc::EAGAIN) => !is_spent(fd),
        Err(_) => false,
    }
}

/// Whether what others have not heard yet fills half of what a socket may send.
fn is_spent(fd: c_int) -> bool {
    let sent = sys::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0);
    let most = || sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    sent > 0 && sent > most() / 2
}

/// In a forked child, where no other thread is sending.
pub(super) fn after_fork_child() {
    SENDING.store(0, Ordering::Relaxed);
}
