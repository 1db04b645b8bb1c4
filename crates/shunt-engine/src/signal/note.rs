//! What a handler's beginning means for the thread that it interrupts.

use crate::socket::Socket;
use crate::thread::{signals, under_way, undisturbed};
use crate::{stream, wake};

/// A handler is about to run on this thread. Those that are not put off in the middle of an
/// operation interrupt no call.
pub(super) fn note(restarting: bool) {
    signals::count_one(restarting);
    if undisturbed::has_begun() {
        return;
    }
    // SAFETY: all calls are on sockets (`stream::Stay`).
    let (place, socket) = unsafe { under_way::interrupt::<Socket>() };
    if let Some(place) = place {
        wake::Place::numbered(place).interrupted();
    }
    if let Some(socket) = socket {
        stream::interrupted(socket);
    }
}
