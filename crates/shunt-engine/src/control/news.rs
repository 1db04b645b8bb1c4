//! Messages to the daemon that are sent at once, or as soon as it has room.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;

use super::due;
use super::state::shows_counters;
use crate::socket::untold::{BURIED, LISTENED, LISTENS, RELEASED};
use crate::socket::{Socket, Stage};

/// Tells the daemon that this process accelerates a listener.
pub(crate) fn listen(socket: &'static Socket) {
    due::say(socket, LISTENS);
}

/// Tells the daemon that this process accelerates the listener no more.
pub(crate) fn unlisten(socket: &'static Socket) {
    due::say(socket, LISTENED);
}

/// Tells the daemon that a claim is void, since the connection was not made.
pub(crate) fn release(socket: &'static Socket) {
    due::say(socket, RELEASED);
}

/// Never to be upgraded (or, once attached, too late).
pub(crate) fn refuse(socket: &'static Socket, reason: Reason) {
    let stage = socket.give_up(reason);
    if matches!(stage, Some(Stage::Claimed | Stage::Paired)) {
        report(socket, Some(reason));
    }
}

/// A socket is closed; its object is free once the daemon knows that.
pub(crate) fn bury(socket: &'static Socket) {
    if socket.dealings.told.load(Ordering::Relaxed) {
        due::say(socket, RELEASED | BURIED);
    } else if socket.dealings.due.what() == 0 {
        socket.free();
    } else {
        due::say(socket, BURIED);
    }
}

/// Tells what became of a connection, for `shunt ss`; `None`: it is shunted.
pub(crate) fn report(socket: &'static Socket, reason: Option<Reason>) {
    socket.dealings.told.store(true, Ordering::Relaxed);
    due::say_status(socket, reason.map_or(0, |reason| reason as u8));
}

/// Tells that a connection is shunted, unless the daemon sees that in the counters region.
pub(crate) fn report_shunted(socket: &'static Socket) {
    if !shows_counters() || !socket.is_shown() {
        report(socket, None);
    }
}
