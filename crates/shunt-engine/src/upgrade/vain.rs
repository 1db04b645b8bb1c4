//! Whether it pays to claim connections at once.

use std::sync::atomic::{AtomicU32, Ordering};

use shunt_abi::Reason;

use crate::config::{self, Upgrade};
use crate::socket::{Socket, Stage};

/// So many connections in a row that were claimed at once (eager) and ended before anybody
/// used them in shared memory show that it does not pay just now: …
const MANY_VAIN: u32 = 64;
/// … only one in so many is claimed at once then, the others when they have shown that they live.
const PROBE: u32 = 64;
/// The last connections of which that is so, and those that were not claimed for it.
static VAIN: AtomicU32 = AtomicU32::new(0);

/// Whether to claim a new connection at once.
pub(super) fn is_eager() -> bool {
    if config::upgrade() != Upgrade::Eager {
        return config::claims_at_once();
    }
    let Some(since) = VAIN.load(Ordering::Relaxed).checked_sub(MANY_VAIN) else {
        return true;
    };
    let next = (since + 1) % PROBE;
    VAIN.store(MANY_VAIN + next, Ordering::Relaxed);
    next == 0
}

/// A connection of this process ends. (That its peer is plain says nothing of others.)
pub(crate) fn note_end(socket: &Socket) {
    let is_vain = matches!(socket.stage(), Stage::Claimed | Stage::Paired)
        && socket.reason() != Reason::PeerPlain;
    if is_vain && VAIN.load(Ordering::Relaxed) < MANY_VAIN {
        VAIN.fetch_add(1, Ordering::Relaxed);
    }
}

/// One is used in shared memory.
pub(super) fn note_use() {
    VAIN.store(0, Ordering::Relaxed);
}
