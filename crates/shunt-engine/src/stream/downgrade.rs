//! The way back to TCP, in both directions, of a connection that must be a plain
//! kernel socket from here on: for a program that `exec` starts, a process that is
//! given the descriptor, a stdio stream, an option that only the kernel has.
//!
//! ```text
//! this side                                   peer
//!   RECALLED: reads the ring no more ───────> sends again by TCP what was not read
//!   leaves its own ring (Back frame) ───────> reads on to there, then TCP
//! ```
//!
//! A peer that is in no operation when it is recalled cannot begin one without
//! seeing that. So if the ring is empty nobody need answer; and if the peer does not
//! come by, this side sends to itself what it has not read, with shuntd's help ([`loan`](super::loan)).

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::slot::Way;

use super::aside::end_by_kernel;
use super::errors::break_off;
use super::from_afar;
use super::holder::Stopped;
use super::leave::leave_ring_within;
use super::loan::{AGAIN, Help, is_deaf, send_to_self};
use super::recall::{ENDED, is_any_unanswered, is_never_answered};
use super::recv::{await_to_hand_on, is_home, recount, settle};
use super::want::any_waits_for_room;
use super::{Conn, owed};
use crate::config::hesitate;
use crate::control::{self, Loan};
use crate::socket::returning::is_wish;
use crate::socket::{Socket, Stage};
use crate::thread::{self, Rest, give};
use crate::{hold, sys, wake};

/// The peer answers by itself within this time if it is awake, or sleeps on the
/// connection; nanoseconds.
const ANSWER: u64 = 300_000;
/// After this time the wait for an answer is given up: the peer is stopped, or no daemon helps, …
const PATIENCE: u64 = 3_000_000_000;
/// … and after this time, where a daemon has the request and is late, and the bytes cannot be had otherwise.
const LONG_PATIENCE: u64 = 10_000_000_000;

/// Makes the connection a plain kernel socket. `false`: unread bytes in the peer's ring have not
/// come by TCP, since the peer has not answered in time, or must be read in the ring, since it has
/// ended the stream. The caller holds no token.
#[cold]
pub(crate) fn downgrade(conn: &Conn, reason: Reason) -> bool {
    end_by_kernel(conn);
    conn.socket.again.begin(reason);
    // Another thread may just be taking it back to its rings.
    if conn.take(&conn.pair.own.receiving.token) {
        give(&conn.pair.own.receiving.token);
    }
    // If it goes to TCP only so that the kernel wakes its sleepers, or since another program also has it, it does
    // not insist: unread bytes may come by TCP at any later time.
    let blocked = matches!(reason, Reason::Blocked | Reason::Held);
    let insists = !is_wish(reason) && !blocked;
    if is_plain(conn) {
        hand_on_all(conn, insists);
        return true;
    }
    conn.socket.set_reason(reason);
    if conn.is_mirrored() {
        let patience = if insists { PATIENCE } else { ANSWER };
        let home = from_afar::downgrade(conn, reason, patience);
        conn.socket.look_again();
        return home;
    }
    if insists {
        conn.socket.again.insists.store(true, Ordering::Relaxed);
    }
    hesitate();
    let recalled = recall(conn, insists);
    hesitate();
    // On a connection that the kernel has ended nothing can be sent, and its error is for the next call of the program's.
    let goes_on = sys::ready(conn.fd, 0) & (libc::POLLERR | libc::POLLHUP) == 0;
    if goes_on {
        conn.tell_of_recall();
    } else {
        stay_out(conn);
    }
    if goes_on {
        leave_ring_within(conn, reason, PATIENCE);
    }
    // If this program reads on itself, it need not wait.
    let waits = conn.way_in() == Way::TcpAgain && (insists || recalled);
    let home = waits && await_answer(conn, insists, reason);
    if goes_on && conn.is_on_ring() {
        leave_ring_within(conn, reason, PATIENCE);
    }
    if goes_on && insists && reason != Reason::SocketOption {
        end_if_peer_is_held_up(conn);
    }
    // The peer may have put the connection aside meanwhile.
    end_by_kernel(conn);
    sys::acknowledge(conn.fd);
    conn.socket.note_downgrade();
    if any_waits_for_room(conn) {
        wake::wake_all();
    }
    hand_on_all(conn, insists && home);
    conn.socket.look_again();
    // In a `vfork` child the connection to the daemon is not ours.
    if thread::owns_memory() {
        control::report(conn.socket, Some(reason));
    } else {
        conn.socket.again.owe_report();
    }
    home
}

/// Waits until TCP has brought what the program could read, if another program `gets` the connection.
fn hand_on_all(conn: &Conn, gets: bool) {
    if gets {
        await_to_hand_on(conn);
    }
}

/// The socket is the kernel's from here on, whatever it was; `then` looks at a connection that has gone back.
pub(crate) fn give_up(
    socket: &'static Socket,
    fd: c_int,
    reason: Reason,
    then: impl FnOnce(&Conn<'static>),
) {
    control::refuse(socket, reason);
    if socket.stage() != Stage::Attached {
        return;
    }
    hold::beside_close(socket, || {
        if let Some(conn) = Conn::new(socket, fd) {
            downgrade(&conn, reason);
            then(&conn);
        }
    });
}

impl Conn<'_> {
    /// Moves both directions back to TCP, to wake a peer that cannot be called (it is in another
    /// network namespace, or this process may not send to it). Without a token.
    #[cold]
    pub(super) fn reach(&self) {
        // A direction to another host has gone back already.
        if self.is_mirrored() {
            return;
        }
        downgrade(self, Reason::Blocked);
    }
}

/// Whether both directions are the kernel's already.
pub(crate) fn is_plain(conn: &Conn) -> bool {
    conn.receiver().is_plain()
}

/// Recalls the incoming direction, so that the peer's ring is read no more. `true`: this call has begun the recall.
pub(super) fn recall(conn: &Conn, insists: bool) -> bool {
    let own = conn.pair.own;
    if !conn.take(&own.receiving.token) {
        return false;
    }
    let path = conn.receiver();
    let recalled = path.has_recalled();
    settle(conn);
    if conn.way_in() == Way::Ring && owed::is_withdrawn(conn) {
        // A peer that is in the middle of a withdrawal answers the recall by it, or after it.
        owed::follow_if_withdrawn(conn);
    }
    // What a peer that leaves its ring has left there is read in the ring, unless the caller needs it by TCP.
    let leaves = path.peer_has_left();
    let begins = conn.way_in() != Way::TcpAgain
        && (insists || !leaves)
        && !recalled
        && !path.stays_in_ring()
        && (!is_deaf(conn) || !conn.consumer().is_ready());
    if begins {
        conn.socket.hints.late.store(false, Ordering::Relaxed);
        path.recall();
        let _ = send_to_self(conn, &Loan::Refused);
    }
    give(&own.receiving.token);
    begins
}

/// The program may send next by calls that this library does not see. While the peer is in the middle of its recall, these bytes
/// would overtake what it has not read. So, if the peer has been waited for, both ends get an error instead.
fn end_if_peer_is_held_up(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if owed::cannot_send(conn) && conn.take(token) {
        if conn.is_on_ring() {
            break_off(conn);
        }
        give(token);
    }
}

fn stay_out(conn: &Conn) {
    let sending = &conn.pair.own.sending;
    if conn.take(&sending.token) {
        conn.sender().stay_with_kernel();
        give(&sending.token);
    }
}

/// Waits until TCP carries the incoming stream. With the reasons `Blocked` and `Held` the recall stays if nobody
/// answers in time. But a thread that then sleeps (`Blocked`) would not hear of bytes that lie unread in the ring, or
/// are being put there, so these are waited for.
fn await_answer(conn: &Conn, insists: bool, reason: Reason) -> bool {
    let own = conn.pair.own;
    let asks_on = matches!(reason, Reason::Blocked | Reason::Held);
    let start = sys::now();
    let mut help = Help::from(start + ANSWER);
    let mut stopped = Stopped::new(conn);
    loop {
        // The peer may be waiting for our answer to its own recall.
        if owed::is_due(conn) {
            owed::answer(conn);
        }
        // From a peer that has ended nothing can come any more.
        let has_ended = help.is_refused() && sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0;
        if !conn.take(&own.receiving.token) {
            return false;
        }
        // Another thread may have closed it, or taken the recall back.
        let is_open = conn.base().is_some() && conn.way_in() == Way::TcpAgain;
        let stays = is_open && is_never_answered(conn);
        let home = is_open && !stays && is_home(conn);
        let now = sys::now();
        // In this order: what a sender was about to publish is there when its operation is over.
        let is_coming = reason == Reason::Blocked && conn.receiver().is_in_operation();
        let unheard = reason == Reason::Blocked && is_any_unanswered(conn);
        let patience = match (insists, help.is_late()) {
            (true, true) => LONG_PATIENCE,
            (false, false) if !is_coming && (!unheard || help.is_refused()) => AGAIN,
            // Nobody else would be told of what lies unread in the ring.
            _ => PATIENCE,
        };
        let over = home
            || stays
            || has_ended
            || stopped.is_holder_of(&conn.pair.peer.sending.token)
            || now - start > patience;
        let over = over || !is_open;
        if over && !home && !stays && is_open && (!asks_on || unheard) {
            do_without_answer(conn);
        }
        give(&own.receiving.token);
        hesitate();
        if stays || over && !home {
            wake::wake_all();
            conn.tell_of_recall();
        }
        if over {
            return home;
        }
        help.seek(conn);
        stopped.turn();
    }
}

/// Brings a recall to its end, or takes it back, before this side shuts down both halves
/// ([`shunt_shm::path::is_deaf`]) or closes. Waits a little for a peer that is answering just now. Without a
/// token.
#[cold]
pub(super) fn end_recall(conn: &Conn) {
    /// Nanoseconds.
    const PATIENCE: u64 = 10_000_000;
    let until = sys::now() + PATIENCE;
    let token = &conn.pair.own.receiving.token;
    let rest = Rest::new();
    while conn.take(token) {
        let ended = has_ended_recall(conn);
        give(token);
        conn.tell_of_recall();
        if ended || sys::now() >= until {
            break;
        }
        rest.turn();
    }
}

/// Whether everything that is to come by TCP has come. With the receiving token.
fn has_ended_recall(conn: &Conn) -> bool {
    if conn.way_in() == Way::Ring && owed::is_withdrawn(conn) {
        owed::follow_withdrawal(conn);
    }
    if conn.way_in() != Way::TcpAgain {
        return true;
    }
    let home = is_home(conn);
    if conn.way_in() != Way::TcpAgain {
        return true;
    }
    if !home {
        take_back_in_time(conn);
        return conn.way_in() != Way::TcpAgain;
    }
    let path = conn.receiver();
    // A call of the kernel's may have taken some of it, without the token.
    let _ = path.is_bringing().is_none() || recount(conn);
    let queued = || sys::ioctl_int(conn.fd, libc::FIONREAD).unwrap_or(0) as u64;
    path.is_bringing()
        .is_none_or(|until| path.taken() + queued() >= until)
}

/// Ends a recall that nobody answers. With the receiving token.
fn do_without_answer(conn: &Conn) {
    if !conn.socket.again.insists.load(Ordering::Relaxed) {
        take_back_in_time(conn);
    }
}

/// Takes the recall back, unless the peer has answered, or is in an operation and so will answer.
/// With the receiving token.
fn take_back_in_time(conn: &Conn) {
    if conn.receiver().awaits() {
        conn.receiver().take_back_in_time();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    use crate::both_ends::BothEnds;

    #[test]
    fn what_nobody_can_send_again_is_read_in_the_ring_by_who_must_be_called() {
        let ends = BothEnds::attached();
        ends.send(b"unread");
        // Here is no daemon, and its sender makes no call.
        assert!(!downgrade(&ends.conns()[1], Reason::Blocked));
        assert_eq!(ends.receive::<8>(), b"unread");
        // What it sends later comes by TCP.
        assert!(downgrade(&ends.conns()[1], Reason::Blocked));
        assert!(is_plain(&ends.conns()[1]));
    }
}
