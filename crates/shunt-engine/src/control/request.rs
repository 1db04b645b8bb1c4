//! What the daemon is asked.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::layout;
use shunt_abi::message::{self, Kind, Message, Role};

use super::board::has_mail;
use super::dial::ensure;
use super::mail::read_counted;
use super::names::{names_of, write_names};
use super::patience::Patience;
use super::state::{LOCK, PATIENCE_MS, has_reader};
use super::to_daemon::send;
use super::wire::Sent;
use super::{due, reply, stock};
use crate::socket::{Socket, Stage};
use crate::sys::address::Names;
use crate::{reach, sys};

/// Says whether calls wait for the daemon's answer just now.
static PATIENCE: Patience = Patience::new();

/// Asks for a pairing of `socket`. Returns at once.
pub(crate) fn claim(socket: &'static Socket, fd: c_int, names: Option<Names>) {
    claim_with(socket, fd, names, 0);
}

/// Asks for a pairing and waits, within bounds, for the daemon's answer: so that a connection whose
/// other end has claimed it is paired when `accept` returns.
pub(crate) fn claim_now(socket: &'static Socket, fd: c_int, names: Names) {
    let start = sys::now();
    let asked = PATIENCE.has_any(start);
    let flags = if asked { message::FLAG_ANSWER } else { 0 };
    if !claim_with(socket, fd, Some(names), flags) || !asked {
        return;
    }
    let answered = || socket.stage() != Stage::Claimed || socket.answered();
    // If the daemon is stopped or overloaded, a later call on the connection hears its answer.
    reply::until(answered, start + PATIENCE_MS as u64 * 1_000_000);
    PATIENCE.note(start, sys::now());
}

/// Asks for a pairing in a test, and waits for the answer for `longest` nanoseconds: rather that
/// than have the first bytes go by TCP.
pub(crate) fn claim_patiently(socket: &'static Socket, fd: c_int, names: Names, longest: u64) {
    let start = sys::now();
    if claim_with(socket, fd, Some(names), message::FLAG_ANSWER) {
        let answered = || socket.stage() != Stage::Claimed || socket.answered();
        reply::until(answered, start + longest);
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
    // The daemon may wait for memory of ours. A process that only connects would not notice
    // otherwise.
    if has_mail() && !has_reader() {
        read_counted();
    }
    // If there is no room for the messages that are due, there is none for a claim.
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
    if socket.dealings.passed_over.load(Ordering::Relaxed) {
        m.flags |= message::FLAG_AGAIN;
    }
    if reach::may_be() {
        m.flags |= message::FLAG_REACHES;
    }
    if socket.tries() && socket.role() == Role::Connector {
        m.flags |= message::FLAG_TRIAL;
        m.port = socket.port();
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
            socket.dealings.told.store(true, Ordering::Relaxed);
            socket.dealings.passed_over.store(false, Ordering::Relaxed);
        }
        // The daemon has no room for the claim, or is gone: a later call claims the connection.
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
