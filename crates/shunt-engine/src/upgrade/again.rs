//! Back to the rings: a connection that went back to TCP for a reason that has passed (`socket/returning.rs`: a started
//! program among them) is shunted again, in the same slot, in a life of its own. The program after an `exec` knows
//! nothing of the slot, and adopts the socket as one that is new to it (`life/adopt.rs`).
//!
//! ```text
//! this side                                   peer
//!   both directions are the kernel's
//!   nobody else has the socket
//!   again = n + 1 ──────────────────────────> the same
//!   begins its slot anew, READY in life n + 1
//!                    and from here on as after a first upgrade
//! ```
//!
//! A side that says it is ready for a life does nothing more in the life before: it looks at no ring, and all bytes
//! are the kernel's. So when both have said so, each may begin its own slot anew whenever it likes; until both have,
//! neither is honoured by the other (`Slot::state`), and TCP carries the stream.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::slot;

use super::attach::note_nonblock;
use crate::config::{self, Upgrade, hesitate};
use crate::epoll::Known;
use crate::socket::returning::{ALONE, ASKED, COUNTS};
use crate::socket::{BETWEEN_HOSTS, IN_VAIN, LEFT, Locked, NO_RCVTIMEO, NO_SNDTIMEO, Socket};
use crate::stream::{Conn, is_plain, say_again, waits_for_many};
use crate::thread::{self, give};
use crate::{control, epoll, stats, sys, tcp};

/// A call on this descriptor finds a direction back with the kernel: brings the connection back to its rings, if it is
/// time. Without a token.
#[cold]
pub(crate) fn may_return(socket: &'static Socket, fd: c_int) {
    let Some(conn) = &Conn::attached(socket, fd) else {
        return;
    };
    let again = &conn.socket.again;
    settle(conn);
    note(conn);
    match again.stage() {
        COUNTS if is_free(conn) && !control::lacks_sockets() && again.is_due() => ask(conn),
        ASKED => control::check_mail(),
        ALONE if is_free(conn) && !control::lacks_sockets() => try_again(conn),
        _ => {}
    }
}

fn ask(conn: &Conn) {
    let again = &conn.socket.again;
    if !again.move_on(COUNTS, ASKED) {
        return;
    }
    let question = again.new_question();
    if !control::ask_alone(conn.socket, conn.fd, question) {
        again.note_try();
        again.move_on(ASKED, COUNTS);
    }
}

/// Takes note if a relative, or the program that it has become, has sent the connection back to TCP.
fn note(conn: &Conn) {
    let socket = conn.socket;
    let untold = socket.again.owes_report() || !socket.is_downgraded();
    if untold && is_plain(conn) && thread::owns_memory() {
        socket.again.note_report();
        socket.note_downgrade();
        if socket.reason() == Reason::Pending {
            socket.set_reason(Reason::Inherited);
        }
        control::report(socket, Some(socket.reason()));
    }
}

/// A peer that is ready for the next life, and has not entered its ring in this one, never will:
/// leaves the incoming direction to the kernel.
fn settle(conn: &Conn) {
    let token = &conn.pair.own.receiving.token;
    if conn.receiver().is_skipped() && conn.take(token) {
        if conn.receiver().is_skipped() {
            conn.receiver().skip();
        }
        give(token);
    }
}

/// Whether the connection could come back as far as this side knows.
fn is_free(conn: &Conn) -> bool {
    let socket = conn.socket;
    thread::owns_memory()
        && config::upgrade() != Upgrade::Off
        && conn.receiver().may_begin_again()
        && socket.hints.kernel_state.load(Ordering::Relaxed) & !(LEFT | IN_VAIN | BETWEEN_HOSTS)
            == 0
        && conn.error().load(Ordering::Relaxed) == 0
}

/// Says that this side is ready; begins the next life if the peer is, too.
fn try_again(conn: &Conn) {
    let own = conn.pair.own;
    let Some(next) = slot::next_life(conn.pair.life()) else {
        return;
    };
    if !conn.receiver().is_ready() {
        let Some(locked) = conn.socket.try_lock() else {
            return;
        };
        let obstacle = epoll::obstacle(&locked, conn.pair, Known::Nothing);
        drop(locked);
        if obstacle.is_some() {
            conn.socket.again.note_try();
            conn.socket.again.move_on(ALONE, COUNTS);
            return;
        }
        if !conn.take(&own.sending.token) {
            return;
        }
        if !conn.take(&own.receiving.token) {
            give(&own.sending.token);
            return;
        }
        // With both tokens no operation is under way.
        if is_free(conn) && conn.pair.life() + 1 == next {
            conn.receiver().say_ready();
        }
        give(&own.receiving.token);
        give(&own.sending.token);
    }
    if conn.receiver().is_peer_ready()
        && let Some(locked) = conn.socket.try_lock()
    {
        hesitate();
        if carry(conn, &locked) {
            begin(conn, &locked, next);
        } else {
            conn.socket.again.note_try();
            conn.socket.again.move_on(ALONE, COUNTS);
        }
    }
}

/// Moves registrations that were made while the connection was the kernel's to the inner sets. The caller holds no
/// token, since a thread that holds a set's lock may wait for one.
fn carry(conn: &Conn, locked: &Locked) -> bool {
    epoll::obstacle(locked, conn.pair, Known::Nothing).is_none()
        && epoll::carry(locked, conn.fd, conn.pair, Known::Nothing) == Some(true)
}

/// Begins the next life, with both tokens.
fn begin(conn: &Conn, locked: &Locked, next: u32) {
    let own = conn.pair.own;
    if !conn.take(&own.sending.token) {
        return;
    }
    let mut begun = false;
    if conn.take(&own.receiving.token) {
        begun = begin_with_tokens(conn, next);
        give(&own.receiving.token);
    }
    give(&own.sending.token);
    if begun {
        epoll::begun_again(locked, conn.pair);
        conn.socket.set_reason(Reason::Pending);
        control::report(conn.socket, None);
        stats::look(conn.socket);
    }
}

fn begin_with_tokens(conn: &Conn, next: u32) -> bool {
    let (socket, own) = (conn.socket, conn.pair.own);
    // A thread inside a real call would not see the ring.
    if socket.inside.shut().is_none() {
        return false;
    }
    if !say_again(conn) {
        socket.again.note_try();
        socket.again.move_on(ALONE, COUNTS);
        socket.inside.open(true);
        return false;
    }
    let base = conn
        .base()
        .filter(|&base| is_free(conn) && conn.pair.life() + 1 == next && !waits_for_many(base));
    let consumed = base.and_then(tcp::consumed);
    let flags = base.and_then(|base| sys::fcntl(base, libc::F_GETFL, 0).ok());
    let begins = consumed.is_some() && flags.is_some() && socket.again.move_on(ALONE, COUNTS);
    if let (true, Some(consumed), Some(flags)) = (begins, consumed, flags) {
        note_nonblock(own, flags, || {
            base.and_then(|base| sys::fcntl(base, libc::F_GETFL, 0).ok())
        });
        // Relatives that no longer have the connection may have left a count here.
        own.sending.in_kernel.store(0, Ordering::Relaxed);
        if own.options.forked.load(Ordering::Relaxed) == slot::SHARED {
            socket.share.settle();
            own.options.forked.store(slot::INHERITED, Ordering::Release);
        }
        socket.again.insists.store(false, Ordering::Relaxed);
        // Another process that had the connection meanwhile may have set a timeout.
        let unknown = !(NO_RCVTIMEO | NO_SNDTIMEO);
        socket
            .settings
            .timeouts
            .fetch_and(unknown, Ordering::SeqCst);
        socket.note_return();
        if socket.reason() != Reason::Blocked {
            socket.again.forget_tries();
        }
        hesitate();
        own.begin_again(next, consumed, conn.pair.out);
    }
    hesitate();
    socket.inside.open(true);
    begins
}
