//! What the daemon is told and asked.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use shunt_abi::Reason;
use shunt_abi::message::{self, Kind, Message, Role};

use super::{LOCK, PATIENCE_MS, RETRY_NS, SOCKET, ensure, send, stock, wait};
use crate::socket::{Socket, Stage};
use crate::sys;
use crate::table::{self, Entry};

/// Until then nobody waits for the daemon's word: it has been too slow.
static HASTE_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Tells the daemon that this process accelerates a listener.
pub(crate) fn listen(cookie: u64, port: u16) {
    let mut m = Message::new(Kind::Listen);
    (m.cookie, m.port) = (cookie, port);
    post(&m);
}

/// Takes it back.
pub(crate) fn unlisten(cookie: u64, port: u16) {
    let mut m = Message::new(Kind::Unlisten);
    (m.cookie, m.port) = (cookie, port);
    post(&m);
}

/// Asks for a pairing of `socket`. Returns at once.
pub(crate) fn claim(socket: &'static Socket, fd: c_int, role: Role) {
    claim_with(socket, fd, role, 0);
}

/// Asks for a pairing and waits, within bounds, for the daemon's word: so that
/// a connection whose other end has claimed it is paired when `accept` returns.
pub(crate) fn claim_now(socket: &'static Socket, fd: c_int, role: Role) {
    let start = sys::now();
    let asked = start >= HASTE_UNTIL.load(Ordering::Relaxed);
    let flags = if asked { message::FLAG_ANSWER } else { 0 };
    if !claim_with(socket, fd, role, flags) || !asked {
        return;
    }
    let answered = || socket.stage() != Stage::Claimed || socket.answered();
    if !wait::until(answered, start + PATIENCE_MS as u64 * 1_000_000) {
        // It is stopped or overloaded. Its word will still be heard, by a
        // later call on the connection.
        HASTE_UNTIL.store(sys::now() + RETRY_NS, Ordering::Relaxed);
    }
}

/// Asks for another pairing in the place of one whose other end was handed on.
pub(crate) fn claim_again(socket: &'static Socket, fd: c_int) {
    claim_with(socket, fd, socket.role(), message::FLAG_AGAIN);
}

fn claim_with(socket: &'static Socket, fd: c_int, role: Role, flags: u32) -> bool {
    if !ensure() || !LOCK.take() {
        return false;
    }
    if stock::is_empty() {
        stock::add();
    }
    let mut m = Message::new(Kind::Claim);
    (m.cookie, m.fd, m.role, m.flags) = (socket.cookie(), fd, role as u8, flags);
    if socket.adopted.load(Ordering::Relaxed) {
        m.flags |= message::FLAG_ADOPTED;
        m.index = socket.descriptors();
    }
    fill_addresses(&mut m, fd);
    // Another thread may have been faster.
    let sent = socket.move_on(Stage::Candidate, Stage::Claimed) && send(&m, None);
    socket.told.store(true, Ordering::Relaxed);
    LOCK.give();
    sent
}

/// This end of a connection is closed.
pub(crate) fn release(cookie: u64) {
    let mut m = Message::new(Kind::Release);
    m.cookie = cookie;
    post(&m);
}

/// Tells what became of a connection, for `shunt ss`; `None`: it is shunted.
pub(crate) fn report(socket: &Socket, fd: c_int, reason: Option<Reason>) {
    let mut m = Message::new(Kind::Report);
    (m.cookie, m.fd, m.role) = (socket.cookie(), fd, socket.role() as u8);
    m.status = reason.map_or(0, |r| r as u8);
    fill_addresses(&mut m, fd);
    socket.told.store(true, Ordering::Relaxed);
    post(&m);
}

fn post(m: &Message) {
    if SOCKET.number() >= 0 && LOCK.take() {
        send(m, None);
        LOCK.give();
    }
}

/// A new daemon knows nothing: tell it of listeners and unpaired connections.
pub(super) fn tell_everything() {
    stock::forget();
    table::each(|fd, entry| {
        let Entry::Socket(socket) = entry else { return };
        match socket.stage() {
            Stage::Listener => {
                let mut m = Message::new(Kind::Listen);
                (m.cookie, m.port) = (socket.cookie(), socket.port());
                send(&m, None);
            }
            Stage::Attached => {
                let mut m = Message::new(Kind::Report);
                (m.cookie, m.fd, m.role) = (socket.cookie(), fd, socket.role() as u8);
                fill_addresses(&mut m, fd);
                socket.told.store(true, Ordering::Relaxed);
                send(&m, None);
            }
            // Claims are made again by the next call on the connection.
            Stage::Claimed => {
                socket.move_on(Stage::Claimed, Stage::Candidate);
            }
            _ => {}
        }
    });
}

fn fill_addresses(m: &mut Message, fd: c_int) {
    for (i, peer) in [false, true].into_iter().enumerate() {
        let Ok(name) = sys::name(fd, peer) else {
            continue;
        };
        let (family, port, address) = crate::address::parts(&name);
        (m.family, m.ports[i], m.addresses[i]) = (family, port, address);
    }
}
