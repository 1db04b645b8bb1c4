//! The connection to the daemon, and what is known of it. Changed with the lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::Reason;

use super::vain::Vain;
use crate::kept::Kept;
use crate::thread::Lock;
use crate::{link, sys, wake};

/// How long after a failure the next try is (nanoseconds).
pub(super) const RETRY_NS: u64 = 1_000_000_000;
/// The longest wait for an answer of the daemon's, where a call waits (milliseconds).
pub(super) const PATIENCE_MS: i64 = 50;
pub(super) static LOCK: Lock = Lock::new();
pub(super) static SOCKET: Kept = Kept::nothing();
pub(super) static RETRY_AT: AtomicU64 = AtomicU64::new(0);
/// A connection whose welcome is late.
pub(super) static GREETED: Kept = Kept::nothing();
/// A connection to a daemon that only lists this process, which has changed its user.
pub(super) static GUEST: Kept = Kept::nothing();
/// Why there is no daemon, as a reason number.
pub(super) static WHY_NOT: AtomicU32 = AtomicU32::new(Reason::NoDaemon as u32);

/// The daemon has been shown the counters.
pub(super) static SHOWN: AtomicBool = AtomicBool::new(false);

/// Something may be due ([`super::due`]).
pub(super) static ANY_DUE: AtomicBool = AtomicBool::new(false);
/// Questions that have not been answered yet.
pub(super) static OPEN_QUESTIONS: AtomicU32 = AtomicU32::new(0);

/// Until when somebody reads for all, in nanoseconds; 0: nobody does. (A signal
/// handler may leave the reader's wait by a jump: then its time runs out.)
pub(super) static READS_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Some connection should go back to TCP ([`Socket::wished`](crate::socket::Socket)).
pub(super) static WISHES: AtomicBool = AtomicBool::new(false);

/// Claims of connections whose addresses lead out of their network namespace. They come to nothing if
/// nobody on this host has the other end.
pub(crate) static AFAR: Vain = Vain::new();

/// Why nothing can be paired now.
pub(crate) fn why_not() -> Reason {
    Reason::from_number(WHY_NOT.load(Ordering::Relaxed) as u8).unwrap_or(Reason::NoDaemon)
}

/// Whether a daemon has come so lately that other processes may still have to find it, and tell it
/// where they listen.
pub(crate) fn is_fresh() -> bool {
    let latest = RETRY_AT.load(Ordering::Relaxed).saturating_add(RETRY_NS);
    SOCKET.number() >= 0 && sys::now() < latest
}

/// Whether the daemon sees what this process counts.
pub(super) fn shows_counters() -> bool {
    SHOWN.load(Ordering::Relaxed)
}

/// Something is due.
pub(super) fn note_due() {
    ANY_DUE.store(true, Ordering::Release);
}

/// Whether there may be something to say.
pub(super) fn is_any_due() -> bool {
    ANY_DUE.load(Ordering::Acquire) || link::is_any_to_retire() || wake::wants_sockets()
}

/// Nobody will answer any more.
pub(super) fn forget_questions() {
    OPEN_QUESTIONS.store(0, Ordering::Relaxed);
}

/// Whether a thread reads for all. With the lock.
pub(super) fn has_reader() -> bool {
    let until = READS_UNTIL.load(Ordering::SeqCst);
    until != 0 && sys::now() < until
}

/// Some connection should go back to TCP: the next wait does that.
pub(crate) fn wish_again() {
    WISHES.store(true, Ordering::Release);
}

/// The control socket, if its number still names it. With the lock.
pub(super) fn intact() -> Option<c_int> {
    let fd = SOCKET.get();
    if fd.is_none() {
        SOCKET.take();
    }
    fd
}
