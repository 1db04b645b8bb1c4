//! The sending end of all wake channels: one socket for the process.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use shunt_shm::wake::Address;

use super::channel;
use crate::table::{self, Entry};
use crate::{stats, sys, thread};

/// The socket that this process sends by; -1: none yet.
static SENDER: AtomicI32 = AtomicI32::new(-1);
/// [`SENDER`] where there can be none.
const NEVER: c_int = -2;

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

/// If `fd` is the sender's number and the program wants it: moves elsewhere.
pub(super) fn make_way(fd: c_int) {
    sys::make_way(&SENDER, fd);
}
