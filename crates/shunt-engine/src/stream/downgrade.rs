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
//! come by, shuntd lends its descriptor, and this side sends to itself what it has
//! not read; or shuntd does, where that peer is in another network namespace, or another
//! user's.

use std::sync::atomic::Ordering;

use libc::c_int;
use shunt_abi::Reason;
use shunt_shm::path;
use shunt_shm::path::unread::Unread;
use shunt_shm::slot::Way;

use super::errors::break_off;
use super::leave::{Stopped, leave_ring_within};
use super::owed::Written;
use super::recall::{ENDED, is_never_answered};
use super::recv::{is_home, recount, settle};
use super::tell::News;
use super::want::any_waits_for_room;
use super::{Conn, owed};
use crate::config::hesitate;
use crate::control::{self, Loan, Proxy, Resent};
use crate::socket::returning::is_wish;
use crate::socket::{Socket, Stage};
use crate::thread::{self, give};
use crate::{hold, sys, wake};

/// The peer answers by itself within this time if it is awake, or sleeps on the
/// connection; nanoseconds.
const ANSWER: u64 = 300_000;
/// Between two requests for its descriptor.
const AGAIN: u64 = 5_000_000;
/// After this it is given up: the peer is stopped, or there is no daemon to lend.
const PATIENCE: u64 = 3_000_000_000;

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
    // A connection that goes to TCP only so that the kernel wakes its sleepers does not insist: its bytes may come
    // whenever they do.
    let blocked = matches!(reason, Reason::Blocked | Reason::Held);
    let insists = !is_wish(reason) && !blocked;
    if insists {
        conn.socket.again.insists.store(true, Ordering::Relaxed);
    }
    hesitate();
    let recalled = recall(conn, insists);
    hesitate();
    // Of a connection that the kernel has ended nothing can be sent, and the error is for the call that uses it next.
    let goes_on = sys::ready(conn.fd, 0) & (libc::POLLERR | libc::POLLHUP) == 0;
    if goes_on {
        wake(conn);
    } else {
        stay_out(conn);
    }
    if goes_on {
        leave_ring_within(conn, reason, PATIENCE);
    }
    // A program that goes on to read here need not wait.
    let waits = conn.way_in() == Way::TcpAgain && (insists || recalled);
    let patience = if insists { PATIENCE } else { AGAIN };
    let home = waits && await_answer(conn, patience, blocked);
    if goes_on && conn.is_on_ring() {
        leave_ring_within(conn, reason, PATIENCE);
    }
    conn.socket.note_downgrade();
    if any_waits_for_room(conn) {
        wake::wake_all();
    }
    conn.socket.look_again();
    // In a `vfork` child the connection to the daemon is not ours.
    if thread::owns_memory() {
        control::report(conn.socket, Some(reason));
    } else {
        conn.socket.again.owe_report();
    }
    home
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
    /// Goes back to TCP, which wakes a peer that cannot be called (it is in another network
    /// namespace, or this process may not send to it). Without a token.
    #[cold]
    pub(super) fn reach(&self) {
        downgrade(self, Reason::Blocked);
    }
}

/// Whether both directions are the kernel's already.
pub(crate) fn is_plain(conn: &Conn) -> bool {
    conn.receiver().is_plain()
}

/// Reads the peer's ring no more. `true`: so far it has.
fn recall(conn: &Conn, insists: bool) -> bool {
    let own = conn.pair.own;
    if !conn.take(&own.receiving.token) {
        return false;
    }
    let path = conn.receiver();
    let recalled = path.has_recalled();
    settle(conn);
    if conn.way_in() == Way::Ring && owed::is_withdrawn(conn) {
        owed::follow_withdrawal(conn);
    }
    // What a peer that leaves its ring has left there is read there, unless it is needed by TCP.
    let leaves = path.peer_has_left();
    let begins = conn.way_in() != Way::TcpAgain
        && (insists || !leaves)
        && !recalled
        && !path.stays_in_ring()
        && (!is_deaf(conn) || !conn.consumer().is_ready());
    if begins {
        path.recall();
        send_to_self(conn, &Loan::Refused);
    }
    give(&own.receiving.token);
    begins
}

/// Takes the peer's part, if it is in no operation: sends what is unread in its ring
/// by its descriptor, which is needed if there is any. With the receiving token.
fn send_to_self(conn: &Conn, loan: &Loan) {
    let mut means = None;
    let can = || {
        let unread = conn.receiver().switch_offset().is_some() && conn.consumer().is_ready();
        means = Means::new(conn, loan, unread);
        means.is_some()
    };
    if !conn.receiver().take_part(can) {
        return;
    }
    if means.is_none_or(|means| means.send(conn)) {
        conn.receiver().done(|| conn.unread_in_ring());
    } else {
        conn.receiver().ask_on();
    }
}

/// By what the bytes go that this side sends to itself.
enum Means<'a> {
    /// There are none.
    Nothing,
    /// By the peer's descriptor.
    Lent(c_int),
    /// By the daemon's hand.
    Proxy(&'a Proxy, Written),
}

impl<'a> Means<'a> {
    /// `None`: there are some, and no way. When the sender is known to wait.
    fn new(conn: &Conn, loan: &'a Loan, unread: bool) -> Option<Self> {
        match loan {
            _ if !unread => Some(Self::Nothing),
            _ if is_deaf(conn) => None,
            Loan::Lent(fd) => Some(Self::Lent(*fd)),
            Loan::Proxy(proxy) => {
                let there = Unread::of(conn.pair.own);
                let written = Written::new(&there, conn.consumer().memory)?;
                Some(Self::Proxy(proxy, written))
            }
            Loan::Refused | Loan::Late => None,
        }
    }

    /// `false`: nothing is sent. What TCP does not take now the peer sends when it comes by.
    fn send(self, conn: &Conn) -> bool {
        match self {
            Self::Nothing => true,
            Self::Lent(fd) => {
                let there = Unread::of(conn.pair.own);
                let _ = owed::resend(&there, conn.consumer().memory, 0, fd, owed::GROWTH_MS);
                true
            }
            Self::Proxy(proxy, written) => {
                let resent = proxy.send(written.file());
                if resent == Resent::Unknown {
                    // It may send them at any time, also behind what the peer sends.
                    break_off(conn);
                }
                resent != Resent::Nothing
            }
        }
    }
}

/// Whether nothing more can come by TCP.
fn is_deaf(conn: &Conn) -> bool {
    path::is_deaf(conn.pair.own.face.state.load(Ordering::Relaxed))
}

fn stay_out(conn: &Conn) {
    let sending = &conn.pair.own.sending;
    if conn.take(&sending.token) {
        conn.sender().stay_with_kernel();
        give(&sending.token);
    }
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

/// Waits until what comes by TCP is payload. `asks_on`: the recall stays if nobody answers in time.
fn await_answer(conn: &Conn, mut patience: u64, asks_on: bool) -> bool {
    let own = conn.pair.own;
    let start = sys::now();
    let mut borrow_at = start + ANSWER;
    let mut nobody_lends = false;
    let mut stopped = Stopped::new();
    loop {
        // It may be waiting for ours.
        if owed::is_due(conn) {
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
        if over && !home && !stays && is_open && !asks_on {
            do_without_answer(conn);
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
            match send_by_loan(conn) {
                Loan::Lent(lent) => sys::close(lent),
                Loan::Proxy(_) => {}
                Loan::Refused => nobody_lends = true,
                // Somebody may, and what lies unread in the ring nobody else would be told of.
                Loan::Late => patience = PATIENCE,
            }
            borrow_at = sys::now() + AGAIN;
        }
        sys::sched_yield();
    }
}

/// Asks the daemon for the peer's descriptor, and sends by it, or has the daemon send, what is unread in the
/// peer's ring.
fn send_by_loan(conn: &Conn) -> Loan {
    let token = &conn.pair.own.receiving.token;
    let loan = control::borrow(conn.socket.cookie(), conn.fd);
    // The peer may only have been in an operation before: for an empty ring no descriptor is needed.
    if conn.take(token) {
        if conn.receiver().asks() {
            send_to_self(conn, &loan);
        }
        give(token);
    }
    loan
}

/// Before this side is deaf ([`path::is_deaf`]), or ends: a recall comes to its end, or is taken back.
/// Waits a little for a peer that answers just now. Without a token.
#[cold]
pub(super) fn end_recall(conn: &Conn) {
    /// Nanoseconds.
    const PATIENCE: u64 = 10_000_000;
    let until = sys::now() + PATIENCE;
    let token = &conn.pair.own.receiving.token;
    while conn.take(token) {
        let ended = has_ended_recall(conn);
        give(token);
        if ended || sys::now() >= until {
            break;
        }
        sys::sched_yield();
    }
}

/// With the receiving token: whether what is to come by TCP has, or nothing is.
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
    // Some of it may have been taken by the kernel, without the token.
    let _ = path.is_bringing().is_none() || recount(conn);
    let queued = || sys::ioctl_int(conn.fd, libc::FIONREAD).unwrap_or(0) as u64;
    path.is_bringing()
        .is_none_or(|until| path.taken() + queued() >= until)
}

/// Nobody answers. With the receiving token.
fn do_without_answer(conn: &Conn) {
    if !conn.socket.again.insists.load(Ordering::Relaxed) {
        take_back_in_time(conn);
    }
}

/// Takes the recall back, unless the peer is in an operation: then it answers. With the
/// receiving token.
fn take_back_in_time(conn: &Conn) {
    if conn.receiver().awaits() {
        conn.receiver().take_back_in_time();
    }
}
