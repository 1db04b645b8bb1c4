//! What a handler's beginning means for the thread that it interrupts.

use libc::c_void;

use crate::socket::Socket;
use crate::thread::{signals, sleep, under_way, undisturbed};
use crate::{stream, wake};

/// A handler is about to run on this thread. Those that are not put off in the middle of an
/// operation interrupt no call.
///
/// # Safety
/// `context` is what the kernel passed to the running handler.
pub(super) unsafe fn note(restarting: bool, context: *mut c_void) {
    signals::count_one(restarting);
    // SAFETY: the caller's promise.
    unsafe { sleep::interrupt(context) };
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
