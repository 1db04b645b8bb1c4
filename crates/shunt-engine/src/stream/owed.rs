//! Bytes in our ring that the peer will not read there: it has recalled them
//! ([`downgrade`](mod@super::downgrade) is the other side of this), or this side withdraws
//! them. They are sent again over TCP, before anything that follows.

use shunt_abi::Reason;
use shunt_shm::path::death::Unfinished;
use shunt_shm::path::recall::{Answer, Look};
use shunt_shm::path::unread::Unread;

use super::ring_end::end_ring;
use super::tell::News;
use super::{Conn, errors};
use crate::config::hesitate;
use crate::thread::give;
use crate::{sys, tcp};

mod by_record;
mod kernel_room;
mod look;
mod resend;
mod withdrawal;
mod written;

pub(crate) use by_record::has_room_again;
use by_record::pay_by_record;
pub(super) use by_record::{leave_by_record, publish, stay_out};
pub(super) use kernel_room::{Roomy, has_room};
#[cfg(test)]
pub(super) use look::CROWDED;
pub(super) use look::GROWTH_MS;
use look::await_peer;
pub(super) use look::has_died_with;
pub(super) use look::{
    PATIENCE, forget_waits_that_are_over, goes_on, has_died_elsewhere, is_being_withdrawn,
    is_held_up,
};
pub(crate) use look::{cannot_send, is_due, is_owing, is_recalled, is_withdrawn};
use resend::send_owed;
pub(super) use resend::{Debt, resend};
pub(super) use withdrawal::{Withdrawal, follow_if_withdrawn, follow_withdrawal, withdraw};
pub(super) use written::Written;

/// How long a `close` or `shutdown` waits for TCP to take what is owed: `LAST_STEPS` steps of
/// `LAST_STEP_MS` milliseconds.
const LAST_STEPS: u32 = 100;
const LAST_STEP_MS: i64 = 10;

/// Answers a recall, and sends what the kernel takes of what is owed. Without a token.
#[cold]
pub(crate) fn answer(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    if conn.take(token) {
        pay(conn);
        give(token);
    }
}

/// [`answer`] before the direction is shut down: waits for room in the kernel, within bounds.
#[cold]
pub(super) fn answer_at_last(conn: &Conn) {
    let token = &conn.pair.own.sending.token;
    for _ in 0..LAST_STEPS {
        if !conn.take(token) {
            return;
        }
        let paid = pay_and_wait(conn);
        give(token);
        if paid {
            return;
        }
    }
}

/// Sends what is owed before the direction is shut down, within the same bounds. With the sending
/// token, which it keeps.
#[cold]
pub(super) fn pay_at_last(conn: &Conn) {
    for _ in 0..LAST_STEPS {
        if pay_and_wait(conn) {
            return;
        }
    }
}

/// Whether TCP has all that is owed; if not, waits a little for room.
fn pay_and_wait(conn: &Conn) -> bool {
    if pay(conn) == Debt::Paid {
        return true;
    }
    if let Some(fd) = conn.base() {
        sys::poll_ms(fd, libc::POLLOUT, LAST_STEP_MS);
    }
    false
}

/// With the sending token.
pub(super) fn pay(conn: &Conn) -> Debt {
    if conn.is_mirrored() {
        return pay_by_record(conn);
    }
    let accepts = !is_owing(conn) && conn.sender().is_asked();
    if accepts && !accept(conn) {
        return Debt::Unsaid;
    }
    if !is_owing(conn) {
        return Debt::Paid;
    }
    send_owed(conn, if accepts { GROWTH_MS } else { 0 })
}

/// Takes note of a recall. With the sending token. `false`: the peer has not said yet which side sends what is unread.
fn accept(conn: &Conn) -> bool {
    // A thread of this process sleeps on the connection, but only a relative has descriptors of it:
    // that one answers.
    if conn.base().is_none() && conn.is_shared() {
        return true;
    }
    hesitate();
    let asked = match await_recaller(conn) {
        Some(Look::TakenBack) => return true,
        Some(look @ (Look::Asked | Look::Done)) => look == Look::Asked,
        // The peer has died in the middle of its recall.
        Some(Look::Wait) => {
            errors::reset_by_death(conn);
            conn.sender().agree();
            return true;
        }
        Some(Look::Nonsense) => {
            errors::abort(conn);
            conn.sender().agree();
            return true;
        }
        None => return false,
    };
    hesitate();
    if conn.socket.reason() == Reason::Pending {
        conn.socket.set_reason(Reason::PeerLeft);
    }
    conn.socket.note_downgrade();
    let written = || {
        conn.base()
            .and_then(|fd| tcp::written(fd, conn.socket.role()))
    };
    let unread = || Unread::of(conn.pair.peer).is_any(conn.pair.out);
    let answer = conn.sender().accept(asked, written, unread);
    if answer == Answer::Refused {
        // Nothing that would wake the peer comes by TCP.
        conn.tell_always(News::Data);
    }
    true
}

/// Finishes what a process had begun that died with the sending token, which the caller has now:
/// otherwise the peer would wait for it. `has_left`: the dead process has ended its ring.
pub(super) fn finish(conn: &Conn, has_left: bool) {
    if let Unfinished::Leaves(written) = conn.sender().finish(has_left) {
        end_ring(conn, written);
    }
    // The peer may have found the dead process in the middle of a withdrawal, and sleep until that
    // is over.
    conn.tell_always(News::Data);
}

/// Waits until the peer has got through with its recall, and says how far it is. `Wait`: it has died in the middle. `None`:
/// it is still in the middle, after this side has waited as long as it may.
fn await_recaller(conn: &Conn) -> Option<Look> {
    let token = &conn.pair.peer.receiving.token;
    let hints = &conn.socket.hints;
    let mut look = Look::Wait;
    let heard = await_peer(conn, token, !hints.recall_in_vain(), || {
        look = conn.sender().look();
        let died = look == Look::Wait && has_died_with(conn, token);
        if died {
            // It may have said so just before that.
            look = conn.sender().look();
        }
        died || look != Look::Wait
    });
    hints.note_recall(!heard);
    heard.then_some(look)
}
