//! Whether it pays to claim connections at once.

use shunt_abi::Reason;

use super::trial;
use crate::config::{self, Upgrade};
use crate::control::Vain;
use crate::socket::{Socket, Stage};

/// Connections that were claimed at once (eager): in vain if they ended before anybody used them in shared
/// memory. The others are claimed when they have shown that they live.
static AT_ONCE: Vain = Vain::new();

/// Whether to claim a new connection at once.
pub(super) fn is_eager() -> bool {
    if config::upgrade() == Upgrade::Eager {
        AT_ONCE.pays()
    } else {
        config::claims_at_once()
    }
}

/// A connection of this process ends. (That its peer is plain says nothing of others.)
pub(crate) fn note_end(socket: &Socket) {
    trial::note_end(socket);
    let is_vain = matches!(socket.stage(), Stage::Claimed | Stage::Paired)
        && socket.reason() != Reason::PeerPlain;
    if is_vain {
        AT_ONCE.note();
    }
}

/// One is used in shared memory.
pub(super) fn note_use() {
    AT_ONCE.reset();
}
