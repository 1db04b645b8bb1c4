//! "Where is the other end?": asked by a process that writes statistics, once for each of its connections that has
//! shown that it lives. Only a process that ends waits for the answer.

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};

use super::mail::check_mail;
use super::names::{names_of, write_names};
use super::state::{LOCK, OPEN_QUESTIONS, PATIENCE_MS, SOCKET};
use super::to_daemon::send;
use super::wire::Sent;
use super::{due, reply};
use crate::config::LIVES_AFTER;
use crate::socket::{Socket, Stage};
use crate::sys;

/// After this many data calls the process asks also about a connection that still waits for a
/// pairing.
const SURELY: u64 = 2 * LIVES_AFTER as u64;

/// Asks the daemon where the other end of a connection is, after `calls` data calls on it, if this
/// process only supposes to know and has not asked before. If the daemon has no room for the
/// question, a later call asks.
pub(crate) fn inquire(socket: &'static Socket, calls: u64) {
    if OPEN_QUESTIONS.load(Ordering::Relaxed) != 0 {
        check_mail();
    }
    let reason = socket.reason();
    let supposes = match reason {
        Reason::Pending => socket.stage() == Stage::Claimed && calls >= SURELY,
        _ => reason.is_provisional() && calls >= LIVES_AFTER.into(),
    };
    if !supposes || socket.dealings.inquired.load(Ordering::Relaxed) || !socket.is_connected() {
        return;
    }
    if SOCKET.number() < 0 || !LOCK.try_take() {
        return;
    }
    let mut m = Message::new(Kind::Where);
    (m.cookie, m.fd, m.status) = (cookie(socket), socket.fd(), reason as u8);
    write_names(&mut m, names_of(socket.fd()));
    if m.cookie != 0 && due::catch_up() && send(&m, None) == Sent::Done {
        socket.dealings.inquired.store(true, Ordering::Relaxed);
        OPEN_QUESTIONS.fetch_add(1, Ordering::Relaxed);
    }
    LOCK.give();
}

/// The socket's `SO_COOKIE`, asked of the kernel if the socket was never claimed; 0: the kernel
/// tells none.
fn cookie(socket: &Socket) -> u64 {
    if socket.cookie() == 0
        && let Ok(cookie) = sys::getsockopt::<u64>(socket.fd(), libc::SOL_SOCKET, libc::SO_COOKIE)
    {
        socket.set_cookie(cookie);
    }
    socket.cookie()
}

/// Waits for the answers, within bounds: later ones are missing in the statistics.
pub(crate) fn await_answers() {
    let answered = || OPEN_QUESTIONS.load(Ordering::Relaxed) == 0;
    if !answered() {
        reply::until(answered, sys::now() + PATIENCE_MS as u64 * 1_000_000);
    }
}
