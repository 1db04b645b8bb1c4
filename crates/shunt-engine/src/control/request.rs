//! What the daemon is told and asked.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::message::{self, Kind, Message};
use shunt_abi::{Reason, layout};

use super::patience::Patience;
use super::wire::Sent;
use super::{LOCK, PATIENCE_MS, dial, due, ensure, has_mail, read_counted, send, stock, wait};
use crate::socket::due::{BURIED, LISTENED, LISTENS, RELEASED};
use crate::socket::{SOCKETS, Socket, Stage};
use crate::sys;
use crate::sys::address::{self, Names};

/// Whether the daemon's word is waited for just now.
static PATIENCE: Patience = Patience::new();

/// Tells the daemon that this process accelerates a listener.
pub(crate) fn listen(socket: &'static Socket) {
    due::say(socket, LISTENS);
}

/// Takes it back.
pub(crate) fn unlisten(socket: &'static Socket) {
    due::say(socket, LISTENED);
}

/// Asks for a pairing of `socket`. Returns at once.
pub(crate) fn claim(socket: &'static Socket, fd: c_int, names: Option<Names>) {
    claim_with(socket, fd, names, 0);
}

/// Asks for a pairing and waits, within bounds, for the daemon's word: so that
/// a connection whose other end has claimed it is paired when `accept` returns.
pub(crate) fn claim_now(socket: &'static Socket, fd: c_int, names: Names) {
    let start = sys::now();
    let asked = PATIENCE.has_any(start);
    let flags = if asked { message::FLAG_ANSWER } else { 0 };
    if !claim_with(socket, fd, Some(names), flags) || !asked {
        return;
    }
    let answered = || socket.stage() != Stage::Claimed || socket.answered();
    // If it is stopped or overloaded its word will still be heard, by a later call on the
    // connection.
    wait::until(answered, start + PATIENCE_MS as u64 * 1_000_000);
    PATIENCE.note(start, sys::now());
}

/// The same in a test, which would rather wait, for so many nanoseconds, than have the first bytes go by TCP.
pub(crate) fn claim_patiently(socket: &'static Socket, fd: c_int, names: Names, longest: u64) {
    let start = sys::now();
    if claim_with(socket, fd, Some(names), message::FLAG_ANSWER) {
        let answered = || socket.stage() != Stage::Claimed || socket.answered();
        wait::until(answered, start + longest);
    }
}

/// Asks whether this process alone has a connection. `false`: nobody can be asked.
pub(crate) fn ask_alone(socket: &Socket, fd: c_int, question: u32) -> bool {
    if !ensure() || !LOCK.take() {
        return false;
    }
    let mut m = Message::new(Kind::Alone);
    (m.cookie, m.fd, m.index) = (socket.cookie(), fd, socket.descriptors());
    m.generation = question;
    let sent = due::catch_up() && send(&m, None) == Sent::Done;
    LOCK.give();
    sent
}

/// Asks for another pairing in the place of one whose other end was handed on.
pub(crate) fn claim_again(socket: &'static Socket, fd: c_int) {
    claim_with(socket, fd, names_of(fd), message::FLAG_AGAIN);
}

fn claim_with(socket: &'static Socket, fd: c_int, names: Option<Names>, flags: u32) -> bool {
    if !ensure() || !LOCK.take() {
        return false;
    }
    // It may wait for memory, which a process that only connects would not give it.
    if has_mail() && !wait::has_reader() {
        read_counted();
    }
    // Behind what is due there is no room for a claim either.
    if !due::catch_up() {
        LOCK.give();
        socket.put_off();
        return false;
    }
    if stock::is_empty() {
        stock::add(layout::FIRST_SLOTS);
    }
    let mut m = Message::new(Kind::Claim);
    (m.cookie, m.fd, m.flags) = (socket.cookie(), fd, flags);
    m.role = socket.role() as u8;
    if socket.passed_over.load(Ordering::Relaxed) {
        m.flags |= message::FLAG_AGAIN;
    }
    if socket.adopted.load(Ordering::Relaxed) {
        m.flags |= message::FLAG_ADOPTED;
        m.index = socket.descriptors();
    }
    write_names(&mut m, names);
    // Another thread may have been faster.
    let begun = socket.move_on(Stage::Candidate, Stage::Claimed);
    let sent = if begun { send(&m, None) } else { Sent::Lost };
    match sent {
        Sent::Done => {
            socket.told.store(true, Ordering::Relaxed);
            socket.passed_over.store(false, Ordering::Relaxed);
        }
        // There is no room for it, or nobody any more to hear it: a later call claims it.
        Sent::Full | Sent::Lost => {
            if begun {
                socket.put_off();
                socket.move_on(Stage::Claimed, Stage::Candidate);
            }
        }
    }
    LOCK.give();
    sent == Sent::Done
}

/// The claim of a connection that has not come about is void.
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
    if socket.told.load(Ordering::Relaxed) {
        due::say(socket, RELEASED | BURIED);
    } else if socket.due.what() == 0 {
        socket.free();
    } else {
        due::say(socket, BURIED);
    }
}

/// Tells what became of a connection, for `shunt ss`; `None`: it is shunted.
pub(crate) fn report(socket: &'static Socket, reason: Option<Reason>) {
    socket.told.store(true, Ordering::Relaxed);
    due::say_status(socket, reason.map_or(0, |reason| reason as u8));
}

/// Tells that a connection is shunted, unless the daemon sees that in the counters region.
pub(crate) fn report_shunted(socket: &'static Socket) {
    if !dial::shows_counters() || !socket.is_shown() {
        report(socket, None);
    }
}

/// A new daemon knows nothing: tell it of listeners and unpaired connections.
pub(super) fn tell_everything() {
    stock::forget();
    due::forget();
    for socket in SOCKETS.each() {
        match socket.stage() {
            Stage::Listener => socket.due.add(LISTENS),
            Stage::Attached => {
                socket.told.store(true, Ordering::Relaxed);
                socket.due.add_status(0);
            }
            // Claims are made again by the next call on the connection.
            Stage::Claimed => {
                socket.move_on(Stage::Claimed, Stage::Candidate);
            }
            _ => {}
        }
    }
    due::note();
    due::catch_up();
}

/// The names of a connection's ends; `None`: it has none yet, or no more.
pub(super) fn names_of(fd: c_int) -> Option<Names> {
    let name = |peer| sys::name(fd, peer).ok().map(|name| address::parts(&name));
    Some([name(false)?, name(true)?])
}

/// Writes them into a message.
pub(super) fn write_names(m: &mut Message, names: Option<Names>) {
    for (i, (family, port, address)) in names.into_iter().flatten().enumerate() {
        (m.family, m.ports[i], m.addresses[i]) = (family, port, address);
    }
}
