//! The way back to TCP, in both directions, of a connection that must be a plain
//! kernel socket from here on: for a program that `exec` starts, a process that is
//! given the descriptor, a stdio stream, an option that only the kernel has.
//!
//! ```text
//! this side                                   peer
//!   RECALLED: reads the ring no more ───────> sends again what was not read,
//!   swallows doorbells until there   <─────── "payload from TCP offset N on"
//!   leaves its own ring (Back frame) ───────> reads on to there, then TCP
//! ```
//!
//! A peer that is in no operation when it is recalled cannot begin one without
//! seeing that. So if the ring is empty nobody need answer; and if the peer does not
//! come by, shuntd lends its descriptor, and this side sends to itself what it has
//! not read.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::publish;
use shunt_shm::recall;
use shunt_shm::slot::{self, Recall, Way};

use super::bell::News;
use super::leave::{self, Stopped, await_receiver, leave_ring_within};
use super::owed::Withdrawal;
use super::recv::{
    is_home, note_brought, settle, stay_in_ring, stays_in_ring, switch_offset, take_back,
};
use super::{Conn, close, owed, wait};
use crate::config::hesitate;
use crate::socket::bump;
use crate::thread::{self, give};
use crate::{control, epoll, sys, wake};

/// The peer answers by itself within this time if it is awake, or sleeps on the
/// connection; nanoseconds.
const ANSWER: u64 = 300_000;
/// Between two requests for its descriptor.
const AGAIN: u64 = 5_000_000;
/// After this it is given up: the peer is stopped, or there is no daemon to lend.
const PATIENCE: u64 = 3_000_000_000;

/// `Receiving::resume_at` until the peer has answered: what comes are doorbells.
pub(super) const UNKNOWN: u64 = u64::MAX;
/// The same where payload from before the ring comes first.
pub(super) const HELD: u64 = u64::MAX - 1;

/// Makes the connection a plain kernel socket. `false`: bytes in the peer's ring are still
/// to come, as it has not answered in time, or to be read there, as it has ended the stream.
/// The caller holds no token.
#[cold]
pub(crate) fn downgrade(conn: &Conn, reason: Reason) -> bool {
    conn.socket.again.begin(reason);
    // Another thread may just be taking it back to its rings.
    if conn.take(&conn.pair.own.receiving.token) {
        give(&conn.pair.own.receiving.token);
    }
    if is_plain(conn) {
        return true;
    }
    conn.socket.set_reason(reason);
    let insists = reason != Reason::Requested;
    if insists {
        conn.socket.insists.store(true, Ordering::Relaxed);
    }
    hesitate();
    let recalled = recall(conn);
    hesitate();
    // Of a connection that the kernel has ended nothing can be sent, and the error is
    // for who uses it next.
    let goes_on = sys::ready(conn.fd, 0) & (libc::POLLERR | libc::POLLHUP) == 0;
    if goes_on {
        wake(conn);
    } else {
        stay_out(conn);
    }
    if goes_on && !owed::is_mutual(conn) {
        repeat_unread(conn, PATIENCE);
        leave_ring_within(conn, reason, PATIENCE);
    }
    // Who goes on to read here need not wait.
    let waits = conn.way_in() == Way::TcpAgain && (insists || recalled);
    let patience = if insists { PATIENCE } else { AGAIN };
    let home = waits && await_answer(conn, patience);
    if goes_on && conn.is_on_ring() && !owed::is_mutual(conn) {
        leave_ring_within(conn, reason, PATIENCE);
    }
    conn.socket.note_downgrade();
    leave::restore_options(conn);
    if wait::any_waits_for_room(conn) {
        wake::wake_all();
    }
    epoll::look_again(conn.socket);
    // In a `vfork` child the connection to the daemon is not ours.
    if thread::owns_memory() {
        control::report(conn.socket, Some(reason));
    } else {
        conn.socket.again.owe_report();
    }
    home
}

/// Whether both directions are the kernel's already.
pub(crate) fn is_plain(conn: &Conn) -> bool {
    let receiving = &conn.pair.own.receiving;
    conn.way_out() == Way::TcpAgain
        && conn.way_in() == Way::TcpAgain
        && receiving.kernel_bytes.load(Ordering::Relaxed)
            >= receiving.resume_at.load(Ordering::Relaxed)
        && !owed::is_due(conn)
}

/// Reads the peer's ring no more. `true`: so far it has.
fn recall(conn: &Conn) -> bool {
    let own = conn.pair.own;
    if !conn.take(&own.receiving.token) {
        return false;
    }
    let recalled = own.face.state.load(Ordering::Relaxed) & slot::RECALLED != 0;
    settle(conn);
    if conn.way_in() == Way::Ring && owed::is_withdrawn(conn) {
        owed::follow_withdrawal(conn);
    }
    let begins = conn.way_in() != Way::TcpAgain && !recalled && !stays_in_ring(conn);
    if begins {
        // Payload that came by TCP before the ring is read there.
        let resume = match conn.way_in() {
            Way::Ring => UNKNOWN,
            _ => HELD,
        };
        as_receiver(conn).begin(resume);
        hesitate();
        send_to_self(conn, None);
    }
    give(&own.receiving.token);
    begins
}

/// The handshake of a recall, on this side.
pub(super) fn as_receiver<'a>(conn: &Conn<'a>) -> recall::Receiver<'a> {
    recall::Receiver {
        own: conn.pair.own,
        peer: conn.pair.peer,
    }
}

/// Takes the peer's part, if it is in no operation: sends what is unread in its ring
/// by its descriptor, which is needed if there is any. With the receiving token.
fn send_to_self(conn: &Conn, lent: Option<c_int>) {
    let (mut unread, mut in_front) = (false, 0);
    let can = || {
        hesitate();
        let switched = switch_offset(conn);
        unread = switched.is_some() && conn.consumer().is_ready();
        in_front = switched.map_or(0, |switched| in_front_of_bells(conn, switched));
        hesitate();
        !unread && in_front == 0 || lent.is_some()
    };
    if !as_receiver(conn).take_part(|| conn.pair.has_begun(), can) {
        return;
    }
    if let Some(lent) = lent {
        if in_front > 0 && !move_behind(conn, in_front, lent) {
            close::break_off(conn);
        }
        if unread {
            let there = owed::Unread::of(conn.pair.own);
            // What TCP does not take now the peer sends when it comes by.
            let _ = there.resend(conn.consumer().memory, 0, lent, owed::GROWTH_MS);
        }
    }
    taken(conn);
}

/// Bytes still to be read by TCP that doorbells follow there.
fn in_front_of_bells(conn: &Conn, switched: u64) -> u64 {
    let taken = conn.pair.own.receiving.kernel_bytes.load(Ordering::Relaxed);
    match conn.pair.peer.output.bells.load(Ordering::Acquire) {
        0 => 0,
        _ => switched.saturating_sub(taken),
    }
}

/// Takes bytes from the head of what TCP has for us and sends them by the peer's
/// descriptor, so that they are its tail. `false`: it cannot be done.
fn move_behind(conn: &Conn, mut count: u64, lent: c_int) -> bool {
    let (receiving, moved) = (&conn.pair.own.receiving, &conn.pair.own.recall.moved);
    let mut chunk = [0u8; 4096];
    while count > 0 {
        let want = chunk.len().min(count as usize);
        let n = match sys::recv(conn.fd, chunk.as_mut_ptr(), want, libc::MSG_DONTWAIT) {
            Ok(n) if n > 0 => n,
            Err(libc::EINTR) => continue,
            _ => return false,
        };
        bump(&receiving.kernel_bytes, n as u64);
        let mut sent = 0;
        while sent < n {
            match sys::send(lent, &chunk[sent..n]) {
                Ok(more) => sent += more,
                Err(libc::EAGAIN) if sys::poll_ms(lent, libc::POLLOUT, owed::GROWTH_MS) != 0 => {}
                Err(libc::EINTR) => {}
                Err(_) => return false,
            }
        }
        moved.store(moved.load(Ordering::Relaxed) + n as u64, Ordering::Release);
        count -= n as u64;
    }
    true
}

/// The peer's part has been taken, and it waits: the last step of that.
fn taken(conn: &Conn) {
    let (own, output) = (conn.pair.own, &conn.pair.peer.output);
    let (receiving, resume) = (&own.receiving, &own.receiving.resume_at);
    let switched = switch_offset(conn);
    let bells = output.bells.load(Ordering::Acquire);
    match (resume.load(Ordering::Relaxed), switched) {
        (UNKNOWN | HELD, Some(switched)) if bells > 0 => {
            resume.store(switched.wrapping_add(bells), Ordering::Relaxed);
        }
        (UNKNOWN | HELD, _) => {
            let taken = receiving.kernel_bytes.load(Ordering::Relaxed);
            resume.store(taken, Ordering::Relaxed);
        }
        _ => {}
    }
    if let Some(switched) = switched {
        let moved = own.recall.moved.load(Ordering::Relaxed);
        note_brought(conn, switched.wrapping_add(bells).wrapping_add(moved));
    }
    hesitate();
    as_receiver(conn).done();
}

/// With the receiving token of a process that died with it, perhaps in [`recall`]
/// or [`send_to_self`]: the peer must not wait for it.
pub(super) fn finish_recall(conn: &Conn) {
    if conn.way_in() != Way::TcpAgain {
        return;
    }
    let own = conn.pair.own;
    let recalled = own.face.state.load(Ordering::Relaxed) & slot::RECALLED != 0;
    let resume = own.receiving.resume_at.load(Ordering::Relaxed);
    let stage = &own.recall.stage;
    match stage.load(Ordering::Relaxed) {
        Recall::TAKEN => {
            // What it had moved in part nobody can put together again.
            if resume == HELD {
                close::break_off(conn);
            }
            taken(conn);
        }
        Recall::TRYING => publish::half(stage, Recall::ASKED),
        // It has not followed the peer: so it was leaving.
        Recall::NONE if !recalled && matches!(resume, UNKNOWN | HELD) => {
            publish::half(stage, Recall::ASKED);
        }
        _ => return,
    }
    publish::set_bits(&own.face.state, slot::RECALLED);
}

fn stay_out(conn: &Conn) {
    let sending = &conn.pair.own.sending;
    if conn.take(&sending.token) {
        Way::TcpAgain.store(&sending.way);
        give(&sending.token);
    }
}

/// Where doorbells lie behind what the peer has still to read by TCP, only a copy of
/// that behind them makes it possible for the peer to become plain later, when this
/// side is gone: leaves the ring so. Waits so many nanoseconds for a peer that is in the
/// middle of a receive.
#[cold]
pub(super) fn repeat_unread(conn: &Conn, patience: u64) {
    let behind = || conn.is_on_ring() && owed::is_behind_unread(conn) && !owed::is_recalled(conn);
    if !behind() {
        return;
    }
    let Some(lent) = control::borrow(conn.socket.cookie(), conn.fd) else {
        return;
    };
    let until = sys::now() + patience;
    while conn.take(&conn.pair.own.sending.token) {
        let withdrawal = if behind() {
            owed::withdraw_behind(conn, Some(lent))
        } else {
            Withdrawal::No
        };
        give(&conn.pair.own.sending.token);
        let waits = withdrawal == Withdrawal::PeerReceives;
        if !waits || !await_receiver(conn, || sys::now() < until) {
            break;
        }
    }
    sys::close(lent);
}

/// A peer that sleeps is to see that it is recalled.
fn wake(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if conn.take(token) {
        conn.tell_always(News::Data);
        conn.tell_always(News::Room);
        give(token);
    }
}

/// What the kernel says of a connection by which nothing comes any more.
const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

/// Waits until what comes by TCP is payload.
fn await_answer(conn: &Conn, patience: u64) -> bool {
    let own = conn.pair.own;
    let start = sys::now();
    let mut borrow_at = start + ANSWER;
    let mut nobody_lends = false;
    let mut stopped = Stopped::new();
    loop {
        // It may be waiting for ours.
        if owed::is_due(conn) && !owed::is_mutual(conn) {
            owed::answer(conn);
        }
        // From a peer that has ended nothing can come any more.
        let has_ended = nobody_lends && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0;
        if !conn.take(&own.receiving.token) {
            return false;
        }
        // Another thread may have closed it, or taken the recall back.
        let is_open = conn.base().is_some() && conn.way_in() == Way::TcpAgain;
        let stays = is_open && is_never_answered(conn);
        let home = is_open && !stays && is_home(conn);
        let now = sys::now();
        let over = home
            || stays
            || has_ended
            || stopped.is_holder_of(&conn.pair.peer.sending.token)
            || now - start > patience;
        let over = over || !is_open;
        if over && !home && !stays && is_open {
            give_up(conn);
        }
        give(&own.receiving.token);
        hesitate();
        if stays || over && !home {
            wake::wake_all();
        }
        if over {
            return home;
        }
        if now >= borrow_at {
            let lent = control::borrow(conn.socket.cookie(), conn.fd);
            // It may only have been in an operation before: for an empty ring none is needed.
            if conn.take(&own.receiving.token) {
                if own.recall.stage.load(Ordering::Relaxed) == Recall::ASKED {
                    send_to_self(conn, lent);
                }
                give(&own.receiving.token);
            }
            match lent {
                Some(lent) => sys::close(lent),
                None => nobody_lends = true,
            }
            borrow_at = sys::now() + AGAIN;
        }
        sys::sched_yield();
    }
}

/// Whether the peer has ended the stream, or was killed, without having seen that it is
/// recalled, so that it never answers.
pub(super) fn has_passed_the_end(conn: &Conn) -> bool {
    let (own, peer) = (conn.pair.own, conn.pair.peer);
    // In this order: the token, free behind the word, says that who wrote that has looked.
    let said = || {
        conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) != 0
            && !peer.sending.token.is_taken()
    };
    let heard = || {
        own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD == 0
            && conn
                .base()
                .is_some_and(|fd| sys::ready(fd, libc::POLLRDHUP) & ENDED != 0)
    };
    (said() || heard()) && peer.recall.answered.load(Ordering::Acquire) == 0
}

/// Whether no answer to a recall will come, so that what arrives is read where it was before,
/// or both ends are told by a reset. With the receiving token.
pub(super) fn is_never_answered(conn: &Conn) -> bool {
    has_passed_the_end(conn) && stay_with_ring(conn) || is_refused(conn)
}

/// Whether the peer has refused. The program may go on to read the ring where no other one is
/// about to have the connection.
fn is_refused(conn: &Conn) -> bool {
    let answered = conn.pair.peer.recall.answered.load(Ordering::Acquire);
    let refused = answered == Recall::REFUSED && !conn.consumer().has_ended();
    let Some(way) = way_before(conn).filter(|_| refused) else {
        return false;
    };
    if conn.socket.insists.load(Ordering::Relaxed) {
        close::break_off(conn);
    }
    take_back(conn, way);
    true
}

/// Where it came from before it was recalled; `None`: that has been answered.
fn way_before(conn: &Conn) -> Option<Way> {
    match conn.pair.own.receiving.resume_at.load(Ordering::Relaxed) {
        UNKNOWN => Some(Way::Ring),
        HELD => Some(Way::Tcp),
        _ => None,
    }
}

/// Takes the recall back, since nobody can send again what is unread in the ring. `false`:
/// there is no such thing. With the receiving token.
fn stay_with_ring(conn: &Conn) -> bool {
    let own = conn.pair.own;
    let Some(way) = way_before(conn) else {
        return false;
    };
    let unread = conn.consumer().is_ready() || has_in_front_of_bells(conn);
    if own.recall.stage.load(Ordering::Relaxed) != Recall::ASKED || !unread {
        return false;
    }
    hesitate();
    stay_in_ring(conn, way);
    true
}

/// Whether doorbells lie behind what this side, which has recalled the stream, has
/// still to read by TCP.
pub(super) fn has_in_front_of_bells(conn: &Conn) -> bool {
    let held = conn.pair.own.receiving.resume_at.load(Ordering::Relaxed) == HELD;
    held && switch_offset(conn).is_some_and(|switched| in_front_of_bells(conn, switched) > 0)
}

/// Nobody answers. Doorbells would be taken for payload: better that both ends are
/// told. With the receiving token.
fn give_up(conn: &Conn) {
    if !conn.socket.insists.load(Ordering::Relaxed) {
        take_back_in_time(conn);
    } else if has_in_front_of_bells(conn) {
        close::break_off(conn);
    }
}

/// Takes the recall back, unless the peer is in an operation: then it answers. With the
/// receiving token.
fn take_back_in_time(conn: &Conn) {
    if let Some(way) = way_before(conn) {
        as_receiver(conn).take_back_in_time(way);
    }
}
