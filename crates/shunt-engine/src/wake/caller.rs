//! The sending end of all wake channels: one socket for the process.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use shunt_shm::wake::Address;

use super::channel;
use crate::kept::Kept;
use crate::{config, stats, sys, thread};

/// The socket that this process sends by, …
static SENDER: Kept = Kept::nothing();
/// … made by one thread, once.
static MADE: AtomicBool = AtomicBool::new(false);

/// Calls who sleeps at a peer's address. `false`: that cannot be done. Also where there is
/// no room: be it theirs, or what others have not heard yet fills this process's share.
pub(crate) fn call(at: &Address) -> bool {
    let (name, secret) = at.look();
    if name == Address::NOWHERE || name == Address::MANY {
        return false;
    }
    let sent = sender().is_some_and(|sender| channel::send(sender, name, secret));
    if sent {
        stats::calls();
    }
    sent
}

fn sender() -> Option<c_int> {
    let known = SENDER.number();
    let may = || thread::owns_memory() && !config::is_confined();
    if known < 0 && may() && !MADE.swap(true, Ordering::AcqRel) {
        SENDER.keep(sys::datagram_socket().map(sys::move_high).ok()?);
    }
    Some(SENDER.number()).filter(|&fd| fd >= 0)
}

/// If `fd` is the sender's number and the program wants it: moves elsewhere.
pub(super) fn make_way(fd: c_int) {
    SENDER.make_way(fd);
}
