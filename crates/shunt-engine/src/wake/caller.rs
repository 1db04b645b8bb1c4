//! The sending end of all wake channels: one socket for the process.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use shunt_shm::wake::Address;

use super::channel;
use crate::kept::Kept;
use crate::{config, stats, sys, thread};

/// The socket that this process sends by, …
static SENDER: Kept = Kept::nothing();
/// … made by one thread at a time.
static MAKING: AtomicBool = AtomicBool::new(false);

/// Calls who sleeps at a peer's address. `false`: that cannot be done. Also where there is
/// no room: be it theirs, or what others have not heard yet fills this process's share.
pub(crate) fn call(at: &Address) -> bool {
    let (name, secret) = at.look();
    if name == Address::NOWHERE || name == Address::MANY {
        return false;
    }
    // Whatever the number names by now: a connection takes nothing that is sent so.
    let known = SENDER.number();
    let sent = known >= 0 && channel::send(known, name, secret)
        || sender().is_some_and(|sender| sender != known && channel::send(sender, name, secret));
    if sent {
        stats::calls();
    }
    sent
}

/// The socket; another one if the program has closed its number behind our back.
pub(super) fn sender() -> Option<c_int> {
    SENDER.get().or_else(make)
}

#[cold]
fn make() -> Option<c_int> {
    let may = thread::owns_memory() && !config::is_confined();
    if !may || MAKING.swap(true, Ordering::Acquire) {
        return None;
    }
    let fd = SENDER.get().or_else(|| {
        let made = sys::datagram_socket().map(sys::move_high).ok();
        SENDER.take();
        made.inspect(|&fd| SENDER.keep(fd))
    });
    MAKING.store(false, Ordering::Release);
    fd
}

/// In a forked child, where nobody is making it.
pub(super) fn after_fork_child() {
    MAKING.store(false, Ordering::Relaxed);
}

/// If `fd` is the sender's number and the program wants it: moves elsewhere.
pub(super) fn make_way(fd: c_int) {
    SENDER.make_way(fd);
}
