//! Back to the rings: a connection that went back to TCP for a reason that has passed is
//! shunted again, in the same slot, in a life of its own.
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
//! Who says that it is ready for a life does nothing more in the one before: it looks at
//! no ring, and all bytes are the kernel's. So when both have said so, each may begin its own
//! slot anew whenever it likes; until both have, neither is honoured by the other
//! ([`Pair::has_begun`](crate::link::Pair::has_begun)), and TCP carries the stream.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use shunt_abi::Reason;
use shunt_shm::slot::{self, Way};

use super::wait::say_again;
use super::{Conn, downgrade, waits_for_many};
use crate::config::{self, Upgrade, hesitate};
use crate::epoll::Known;
use crate::socket::{NO_RCVTIMEO, NO_SNDTIMEO, Socket};
use crate::thread::{self, give};
use crate::{control, epoll, stats, sys, tcp, upgrade};

/// What keeps a socket with the kernel, or brings it back.
#[derive(Default)]
pub(crate) struct Return {
    /// One of the stages below.
    stage: AtomicU8,
    /// Calls since it went back to TCP, or since the last answer.
    calls: AtomicU32,
    /// How often in a row somebody else had it, or it had to leave because it could not wait
    /// on its rings: each time it takes twice as many calls.
    tries: AtomicU32,
    /// The number of the last question; raised, too, where what has been asked holds no more.
    question: AtomicU32,
    /// A `vfork` child has sent it back, which could not say so to shuntd.
    untold: AtomicBool,
}

/// Calls are counted.
const COUNTS: u8 = 0;
/// shuntd has been asked whether this process alone has the socket.
const ASKED: u8 = 1;
/// It has.
const ALONE: u8 = 2;
/// The kernel keeps it.
const STAYS: u8 = 3;

/// As many doublings as there are.
const MOST_DOUBLINGS: u32 = 8;

impl Return {
    /// For the next socket.
    pub(crate) fn clear(&self) {
        self.stage.store(COUNTS, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
        self.tries.store(0, Ordering::Relaxed);
        self.question.fetch_add(1, Ordering::AcqRel);
        self.untold.store(false, Ordering::Relaxed);
    }

    /// It went back to TCP, and shuntd could not be told.
    pub(super) fn owe_report(&self) {
        self.untold.store(true, Ordering::Relaxed);
    }

    /// It goes back to TCP, or would if it had not: what was known of who has it holds no
    /// more.
    pub(super) fn begin(&self, reason: Reason) {
        if matches!(reason, Reason::Blocked | Reason::Held) {
            self.note_try();
        }
        self.calls.store(0, Ordering::Relaxed);
        if passes(reason) {
            self.forget();
        } else {
            self.stay();
        }
    }

    /// The kernel keeps it.
    pub(crate) fn stay(&self) {
        self.stage.store(STAYS, Ordering::Release);
    }

    /// What was known of who has the socket holds no more, nor does what is still to be said.
    pub(crate) fn forget(&self) {
        self.question.fetch_add(1, Ordering::AcqRel);
        self.calls.store(0, Ordering::Relaxed);
        let forget = |now| (now != STAYS).then_some(COUNTS);
        let _ = self
            .stage
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, forget);
    }

    fn move_on(&self, from: u8, to: u8) -> bool {
        self.stage
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Whether it is time to ask.
    fn is_due(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed).saturating_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        let first = match config::upgrade() {
            Upgrade::Eager => 1,
            _ => upgrade::LIVES_AFTER,
        };
        let doublings = self.tries.load(Ordering::Relaxed).min(MOST_DOUBLINGS);
        calls >= first << doublings
    }

    fn note_try(&self) {
        let tries = self.tries.load(Ordering::Relaxed);
        self.tries.store(tries.saturating_add(1), Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }
}

/// Whether what sends a connection back to TCP is over one day. Of one that was passed on
/// nobody can say where copies lie; and what the others need, they need for good.
fn passes(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Requested
            | Reason::Inherited
            | Reason::PeerLeft
            | Reason::Blocked
            | Reason::Held
            | Reason::NoResources
            | Reason::Pending
    )
}

/// shuntd has found out whether this process alone has a socket, as it was asked by the question
/// of that number.
pub(crate) fn answered(socket: &Socket, question: u32, alone: bool) {
    let again = &socket.again;
    if again.question.load(Ordering::Acquire) != question {
        return; // Others may have got it since.
    }
    if !alone {
        again.note_try();
    }
    again.move_on(ASKED, if alone { ALONE } else { COUNTS });
}

/// A call on a connection of which a direction is the kernel's again. Without a token.
#[cold]
pub(super) fn consider(conn: &Conn) {
    let again = &conn.socket.again;
    settle(conn);
    note(conn);
    match again.stage.load(Ordering::Acquire) {
        COUNTS if may_return(conn) && again.is_due() => ask(conn),
        ASKED => control::check_mail(),
        ALONE if may_return(conn) => try_again(conn),
        _ => {}
    }
}

fn ask(conn: &Conn) {
    let again = &conn.socket.again;
    if !again.move_on(COUNTS, ASKED) {
        return;
    }
    let question = again
        .question
        .fetch_add(1, Ordering::AcqRel)
        .wrapping_add(1);
    if !control::ask_alone(conn.socket, conn.fd, question) {
        again.note_try();
        again.move_on(ASKED, COUNTS);
    }
}

/// A relative, or what it has become, may have sent it back to TCP.
fn note(conn: &Conn) {
    let socket = conn.socket;
    let untold = socket.again.untold.load(Ordering::Relaxed) || !socket.is_downgraded();
    if untold && downgrade::is_plain(conn) && thread::owns_memory() {
        socket.again.untold.store(false, Ordering::Relaxed);
        socket.note_downgrade();
        if socket.reason() == Reason::Pending {
            socket.set_reason(Reason::Inherited);
        }
        control::report(socket, Some(socket.reason()));
    }
}

/// A peer that is ready for the next life, and has not begun with its ring in this one, never
/// will: what comes from it is the kernel's.
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
fn may_return(conn: &Conn) -> bool {
    let socket = conn.socket;
    thread::owns_memory()
        && config::upgrade() != Upgrade::Off
        && conn.receiver().may_begin_again()
        && socket.kernel_state.load(Ordering::Relaxed) == 0
        && conn.error().load(Ordering::Relaxed) == 0
}

/// Says that this side is ready; begins the next life if the peer is, too.
fn try_again(conn: &Conn) {
    let own = conn.pair.own;
    let Some(next) = slot::next_life(conn.pair.life()) else {
        return;
    };
    if !conn.receiver().is_ready() {
        if !conn.socket.lock.try_take() {
            return;
        }
        let obstacle = conn.socket.items.obstacle(conn.pair, Known::Nothing);
        conn.socket.lock.give();
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
        // Nobody is in the middle of anything.
        if may_return(conn) && conn.pair.life() + 1 == next {
            conn.receiver().say_ready();
        }
        give(&own.receiving.token);
        give(&own.sending.token);
    }
    if conn.receiver().is_peer_ready() && conn.socket.lock.try_take() {
        hesitate();
        if carry(conn) {
            begin(conn, next);
        } else {
            conn.socket.again.note_try();
            conn.socket.again.move_on(ALONE, COUNTS);
        }
        conn.socket.lock.give();
    }
}

/// Registrations that were made while it was the kernel's come to our sets. With the socket's
/// lock, and without tokens, for which who holds a set's lock may wait.
fn carry(conn: &Conn) -> bool {
    conn.socket
        .items
        .obstacle(conn.pair, Known::Nothing)
        .is_none()
        && epoll::carry(conn.socket, conn.fd, conn.pair, Known::Nothing) == Some(true)
}

/// With the socket's lock.
fn begin(conn: &Conn, next: u32) {
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
        epoll::begun_again(conn.socket, conn.pair);
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
        .filter(|&base| may_return(conn) && conn.pair.life() + 1 == next && !waits_for_many(base));
    let consumed = base.and_then(tcp::consumed);
    let flags = base.and_then(|base| sys::fcntl(base, libc::F_GETFL, 0).ok());
    let begins = consumed.is_some() && flags.is_some() && socket.again.move_on(ALONE, COUNTS);
    if let (true, Some(consumed), Some(flags)) = (begins, consumed, flags) {
        let nonblock = u32::from(flags & libc::O_NONBLOCK as usize != 0);
        own.options.nonblock.store(nonblock, Ordering::Relaxed);
        // Relatives that have it no more may have left this behind.
        own.sending.in_kernel.store(0, Ordering::Relaxed);
        if own.options.forked.load(Ordering::Relaxed) == slot::SHARED {
            socket.share.settle();
            own.options.forked.store(slot::INHERITED, Ordering::Release);
        }
        socket.insists.store(false, Ordering::Relaxed);
        // Who had it meanwhile may have set one.
        let unknown = !(NO_RCVTIMEO | NO_SNDTIMEO);
        socket.timeouts.fetch_and(unknown, Ordering::SeqCst);
        socket.note_return();
        if socket.reason() != Reason::Blocked {
            socket.again.tries.store(0, Ordering::Relaxed);
        }
        hesitate();
        own.begin_again(next, consumed, conn.pair.out);
    }
    hesitate();
    socket.inside.open(true);
    begins
}

/// Whether the connection is still in that life.
pub(crate) fn is_in(conn: &Conn, life: u32) -> bool {
    conn.pair.life() == life
}

/// Whether what arrives is the kernel's in that life, and the connection is still in it.
pub(crate) fn is_plain_in(conn: &Conn, life: u32) -> bool {
    is_in(conn, life) && conn.way_in() == Way::TcpAgain
}
