//! Whether it pays to claim connections at once.

use shunt_abi::Reason;

use super::trial;
use crate::config::{self, Upgrade};
use crate::control::{self, Vain};
use crate::socket::{Socket, Stage};

/// Claims of connections at once (eager). They come to nothing if the connection ends before it was used
/// in shared memory. If too many do, connections are claimed only when they have shown that they live.
static AT_ONCE: Vain = Vain::new();

/// Whether to claim a new connection at once.
pub(super) fn is_eager() -> bool {
    claims_new(config::upgrade(), || AT_ONCE.pays())
}

/// Whether to claim a new connection at once in this mode. It asks `pays` only if that matters.
fn claims_new(mode: Upgrade, pays: impl FnOnce() -> bool) -> bool {
    match mode {
        Upgrade::Eager => pays(),
        Upgrade::Sync => true,
        Upgrade::Adaptive | Upgrade::Off => false,
    }
}

/// A connection of this process ends. (That its peer is plain says nothing of others.)
pub(crate) fn note_end(socket: &Socket) {
    trial::note_end(socket);
    control::first_has_ended(socket.index());
    let is_vain = matches!(socket.stage(), Stage::Claimed | Stage::Paired)
        && socket.reason() != Reason::PeerPlain;
    if is_vain {
        AT_ONCE.note();
    }
}

/// A connection is used in shared memory.
pub(super) fn note_use() {
    AT_ONCE.reset();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_connection_is_claimed_at_once_as_its_mode_has_it_and_if_that_pays() {
        let never_asked = || -> bool { unreachable!("whether it pays does not matter") };
        assert!(claims_new(Upgrade::Sync, never_asked));
        assert!(!claims_new(Upgrade::Adaptive, never_asked));
        assert!(!claims_new(Upgrade::Off, never_asked));
        for pays in [false, true] {
            assert_eq!(claims_new(Upgrade::Eager, || pays), pays);
        }
    }
}
