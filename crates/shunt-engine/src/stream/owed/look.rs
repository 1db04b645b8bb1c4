//! What is owed, and for how long a peer in the middle of a change of way is waited for.

use std::sync::atomic::Ordering;

use shunt_shm::slot;
use shunt_shm::token::Token;

use crate::control;
use crate::stream::conn::Conn;
use crate::stream::holder::Stopped;
use crate::sys;

/// How long a call waits for a peer that is in the middle of a change of way, in nanoseconds. The change takes the peer, or shuntd,
/// a few system calls, unless it is stopped there or gets no processor. After this time a call which may sleep does so, and one
/// which may not finds nothing, as with any silent peer. (It is longer in tests, so that a busy machine does not decide their
/// outcome.)
pub(in crate::stream) const PATIENCE: u64 = if cfg!(test) {
    1_000_000_000
} else {
    10_000_000
};

/// For how much longer it waits while the peer lacks nothing but a processor (nanoseconds).
pub(in crate::stream) const CROWDED: u64 = if cfg!(test) {
    2_000_000_000
} else {
    200_000_000
};

/// Nanoseconds between two looks at a process, each of which takes some system calls.
const STEP: u64 = 1_000_000;

/// Whether a wait whose patience ends at `until` (of [`sys::now`]) continues. After `until` it does so as long as
/// `only_lacks_processor` says so, but not for ever. This asks now and then only, and sleeps until the next look is due.
pub(in crate::stream) fn goes_on(until: u64, only_lacks_processor: impl FnOnce() -> bool) -> bool {
    let now = sys::now();
    if now < until {
        return true;
    }
    let goes_on = now < until + CROWDED && only_lacks_processor();
    if goes_on {
        sys::nap(STEP);
    }
    goes_on
}

/// Waits until `is_over`, if the caller is `patient`: within bounds, and not for a process that is stopped with the peer's
/// `token`.
pub(super) fn await_peer(
    conn: &Conn,
    token: &Token,
    patient: bool,
    mut is_over: impl FnMut() -> bool,
) -> bool {
    let until = sys::now() + PATIENCE;
    let lasts = || goes_on(until, || conn.is_held_by_running(token));
    let mut stopped = Stopped::new(conn);
    loop {
        if is_over() {
            return true;
        }
        if !(patient && lasts()) || stopped.is_holder_of(token) {
            return false;
        }
        stopped.turn();
    }
}

/// How long the kernel's socket is given to make room, in milliseconds.
pub(in crate::stream) const GROWTH_MS: i64 = 10;

/// Whether the peer reads our ring no more.
#[inline(always)]
pub(crate) fn is_recalled(conn: &Conn) -> bool {
    conn.sender().is_recalled()
}

/// Whether a recall is to be answered, or something to be sent again.
#[inline(always)]
pub(crate) fn is_due(conn: &Conn) -> bool {
    conn.sender().is_due()
}

/// Whether something is still to be sent again.
#[inline(always)]
pub(crate) fn is_owing(conn: &Conn) -> bool {
    conn.sender().is_owing()
}

/// Whether the peer's last process died with one of its tokens, or the connection is over.
pub(in crate::stream) fn has_died_with(conn: &Conn, token: &Token) -> bool {
    const OVER: i16 = libc::POLLHUP | libc::POLLERR;
    let ended = sys::ready(conn.fd, libc::POLLRDHUP) & (libc::POLLRDHUP | OVER);
    // In this order: a peer's word of its end comes before its kernel's.
    let said = conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) != 0;
    let unsaid = !said && !has_shut_receiving(conn);
    let died = ended != 0 && (unsaid || conn.is_held_by_dead(token) || has_died_elsewhere(conn));
    // Where this side has shut down its own half, the kernel also reports this when the peer has only shut down its sending.
    died || ended & OVER != 0 && !conn.is_shut()
}

/// Whether shuntd has said that the peer's process has died, with which no other one shared the connection.
pub(in crate::stream) fn has_died_elsewhere(conn: &Conn) -> bool {
    control::check_mail();
    let is_sole = conn.pair.peer.options.forked.load(Ordering::Relaxed) == slot::UNFORKED;
    is_sole && conn.pair.link.has_peer_died()
}

/// Whether this side has shut down its receiving half: after that the kernel reports the end of a peer that has not ended.
fn has_shut_receiving(conn: &Conn) -> bool {
    conn.pair.own.face.state.load(Ordering::Relaxed) & slot::SHUT_RD != 0
}

/// Whether a peer that was withdrawing what is unread has ended. It sends nothing by TCP before it has withdrawn, and does not
/// end in the middle of that unless it dies.
pub(super) fn has_died_withdrawing(conn: &Conn) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let ended = sys::ready(conn.fd, libc::POLLRDHUP) & ENDED != 0;
    let token = &conn.pair.peer.sending.token;
    ended && (!has_shut_receiving(conn) || conn.is_held_by_dead(token))
}

/// Whether the peer has withdrawn what this side has not read, or is about to.
#[inline(always)]
pub(crate) fn is_withdrawn(conn: &Conn) -> bool {
    conn.receiver().is_withdrawn()
}

/// Whether the peer is in the middle of withdrawing what this side has not read.
#[inline(always)]
pub(in crate::stream) fn is_being_withdrawn(conn: &Conn) -> bool {
    let path = conn.receiver();
    path.is_being_withdrawn() && !path.stays_in_ring()
}

/// Whether a call has waited in vain for a peer in the middle of a withdrawal: until that is over, what lies in the ring
/// is not to be received.
pub(in crate::stream) fn is_held_up(conn: &Conn) -> bool {
    is_being_withdrawn(conn) && conn.socket.hints.withdrawal_in_vain() == mark(conn)
}

/// A wait for the peer's withdrawal or recall that came to nothing is forgotten once that withdrawal or recall is over: then calls
/// wait for the next one again. To be called before the program is told that something is there, or that there is room, since its
/// next call must find that so.
pub(in crate::stream) fn forget_waits_that_are_over(conn: &Conn) {
    let hints = &conn.socket.hints;
    if hints.is_any_in_vain() {
        if !is_being_withdrawn(conn) {
            hints.note_withdrawal(0);
        }
        if !cannot_send(conn) {
            hints.note_recall(false);
        }
    }
}

/// The place up to which the ring is read, in the form of `Hints::withdrawal_in_vain`.
pub(super) fn mark(conn: &Conn) -> u64 {
    let read = conn.pair.own.progress.bytes.load(Ordering::Relaxed);
    read.wrapping_add(1)
}

/// Whether the peer is in the middle of its recall, so that nothing can be sent before it has said how it goes on.
#[inline]
pub(crate) fn cannot_send(conn: &Conn) -> bool {
    is_recalled(conn) && conn.sender().cannot_answer()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use shunt_abi::message;
    use shunt_shm::publish;

    use super::*;
    use crate::both_ends::BothEnds;
    use crate::link::Link;
    use crate::stream::owed::follow_withdrawal;
    use crate::stream::{mask, receive, unread};
    use crate::{Outcome, thread};

    #[test]
    fn a_process_that_is_waited_for_is_looked_at_once_in_a_step() {
        const STEPS: u64 = 20;
        let until = sys::now() + STEPS * STEP - CROWDED;
        let mut looks = 0;
        while goes_on(until, || {
            looks += 1;
            true
        }) {}
        assert!(looks <= STEPS, "{looks}");
        assert!(!goes_on(sys::now(), || false) && goes_on(sys::now() + CROWDED, || false));
    }

    #[test]
    fn what_shuntd_says_of_a_death_is_believed_where_no_relative_shares_the_connection() {
        const LINK: u64 = 4711;
        let ends = BothEnds::attached();
        let [conn, peer] = &ends.conns();
        let forked = &peer.pair.own.options.forked;
        conn.pair.link.number_as(LINK);
        forked.store(slot::UNFORKED, Ordering::Relaxed);
        Link::bury(LINK, 0);
        assert!(!has_died_elsewhere(conn));
        Link::bury(LINK, message::FLAG_DIED);
        assert!(has_died_elsewhere(conn));
        // What comes later takes nothing back.
        Link::bury(LINK, 0);
        assert!(has_died_elsewhere(conn));
        forked.store(slot::SHARED, Ordering::Relaxed);
        assert!(!has_died_elsewhere(conn));
    }

    #[test]
    fn a_peer_that_only_lacks_a_processor_is_waited_for_longer() {
        let mut running = Command::new("sleep").arg("60").spawn().unwrap();
        let ends = BothEnds::attached();
        let [conn, peer] = &ends.conns();
        let token = &peer.pair.own.receiving.token;
        let waits = || {
            let start = Instant::now();
            let late = Duration::from_nanos(PATIENCE + CROWDED / 8);
            await_peer(conn, token, true, || start.elapsed() > late)
        };
        assert!(!waits());
        assert!(token.try_take(thread::of_another(running.id())).is_ok());
        assert!(waits() && !await_peer(conn, token, false, || false));
        running.kill().unwrap();
        running.wait().unwrap();
        assert!(!waits());
        token.reset();
    }

    /// Whether a receive would wait for the end of the next withdrawal, after one that was waited for in vain and is over.
    fn waits_after(told: impl FnOnce(&Conn)) -> bool {
        let ends = BothEnds::attached();
        ends.send(b"unread");
        ends.receive::<1>();
        let [peer, conn] = &ends.conns();
        let state = &peer.pair.own.face.state;
        publish::set_bits(state, slot::WITHDRAWING);
        assert!(!follow_withdrawal(conn) && is_held_up(conn));
        publish::clear_bits(state, slot::WITHDRAWING);
        told(conn);
        publish::set_bits(state, slot::WITHDRAWING);
        let waits = !is_held_up(conn);
        publish::clear_bits(state, slot::WITHDRAWING);
        waits
    }

    #[test]
    fn who_is_told_that_something_is_there_waits_for_the_next_withdrawal() {
        const IN: u32 = libc::EPOLLIN as u32;
        let reads = |conn: &Conn, look| mask(conn, IN, look) & IN == IN;
        let peeks = |conn: &Conn| {
            let mut bytes = [0u8; 8];
            let part = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            // SAFETY: the part covers the array `bytes`.
            unsafe { receive(conn, &[part], libc::MSG_PEEK) }
        };
        assert!(waits_after(|conn| assert!(reads(conn, false))));
        assert!(waits_after(|conn| assert!(reads(conn, true))));
        assert!(waits_after(|conn| assert_eq!(unread(conn), 5)));
        assert!(waits_after(|conn| assert_eq!(
            peeks(conn),
            Outcome::Done(5)
        )));
        assert!(!waits_after(|_| ()));
    }

    #[test]
    fn who_is_told_that_there_is_room_waits_for_the_next_recall() {
        const OUT: u32 = libc::EPOLLOUT as u32;
        for look in [false, true] {
            let ends = BothEnds::on_rings();
            let [peer, conn] = &ends.conns();
            let token = &conn.pair.own.receiving.token;
            let hints = &peer.socket.hints;
            assert!(conn.take(token));
            conn.receiver().recall();
            assert_eq!(mask(peer, OUT, look) & OUT, 0);
            assert!(hints.recall_in_vain());
            conn.receiver().take_back();
            thread::give(token);
            assert_eq!(mask(peer, OUT, look) & OUT, OUT);
            assert!(!hints.is_any_in_vain());
        }
    }
}
