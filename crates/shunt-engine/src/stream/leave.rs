//! When and how does the outgoing direction leave the ring and go back to TCP?

use std::sync::atomic::Ordering;

use shunt_abi::Reason;
use shunt_shm::slot::{self, Way};
use shunt_shm::token::Token;

use super::Conn;
use super::errors::{resets_by_word, tells_of_reset};
use super::holder::Stopped;
use super::owed::{self, Debt, Withdrawal};
use super::ring_end::end_ring;
use super::wait::SELDOM;
use crate::config::hesitate;
use crate::socket::returning::is_wish;
use crate::thread::{Rest, give};
use crate::{reach, sys, tcp};

/// A sender that must wait for a peer which has shut down its sending half, or may be gone, goes back to TCP and waits
/// there: only the kernel learns what becomes of such a peer. `true`: the sender has gone back; or the peer has died with
/// bytes unread, of which TCP knows nothing, so the next attempt to send fails in place of the kernel's.
pub(crate) fn leave_if_ending(conn: &Conn) -> bool {
    const ENDED: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let kernel = sys::ready(conn.fd, libc::POLLRDHUP) & ENDED;
    // In this order: a peer's word of its end comes before its kernel's.
    let ends = conn.pair.peer_state() & (slot::SHUT_WR | slot::CLOSED) != 0 || kernel != 0;
    // A peer that has asked for the unread bytes by TCP may have handed the connection on: it lives.
    if kernel != 0 && !owed::is_due(conn) && tells_of_reset(conn, kernel)
        || kernel == 0 && owed::has_died_elsewhere(conn) && resets_by_word(conn)
    {
        return true;
    }
    if ends {
        leave_ring(conn, Reason::HalfClosed);
    }
    ends && conn.way_out() != Way::Ring
}

/// [`leave_if_ending`] for a thread that waits neither for data nor for the peer's FIN, if the peer has shut down its sending half and
/// has not read everything: only TCP resets the connection if that stays unread.
pub(crate) fn leave_to_half_closed(conn: &Conn) -> bool {
    conn.pair.peer_state() & slot::SHUT_WR != 0
        && conn.is_on_ring()
        && conn.in_flight() > 0
        && leave_if_ending(conn)
}

/// For a sender that finds its ring full, of which the peer reads nothing for [`SELDOM`]. Without a token. `true`: the direction has gone
/// back to TCP, for one of these reasons:
///
/// - The ring is full of small messages. Beside each lie eight bytes or more there, and TCP puts small messages together: it takes
///   more of them than the ring, and programs that all send before they receive count on that.
/// - The peer has read nothing for the connection's `TCP_USER_TIMEOUT` (tcp(7)): what comes next, the kernel times.
#[cold]
pub(crate) fn leave_full(conn: &Conn) -> bool {
    if conn.is_mirrored() || !conn.is_on_ring() || conn.has_room() {
        return false;
    }
    let read = conn.pair.peer.progress.bytes.load(Ordering::Acquire);
    let full_for = conn.socket.hints.note_full(read, sys::now());
    let is_of_small = || conn.in_flight() <= conn.most() / 4 * 3;
    if full_for < SELDOM || !is_of_small() && !is_timed_out(conn, full_for) {
        return false;
    }
    leave_ring(conn, Reason::Blocked);
    conn.way_out() != Way::Ring
}

/// Whether `waited` nanoseconds are as long as the program has bytes of this connection wait.
fn is_timed_out(conn: &Conn, waited: u64) -> bool {
    let set = |base| sys::getsockopt::<u32>(base, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).ok();
    let limit = conn.base().and_then(set).filter(|&limit| limit != 0);
    limit.is_some_and(|limit| waited >= u64::from(limit) * 1_000_000)
}

/// How long a sender that leaves its ring waits for a peer that is in the middle of a receive, in nanoseconds.
const LEAVING_PATIENCE: u64 = 5_000_000;

/// Moves the outgoing direction back to TCP: what follows is the kernel's.
pub(crate) fn leave_ring(conn: &Conn, reason: Reason) {
    leave_ring_within(conn, reason, LEAVING_PATIENCE);
}

/// Moves the outgoing direction back to TCP, and waits for a receiving peer for `patience`
/// nanoseconds. What the peer has not read is sent over TCP first, so that the peer may give the
/// connection to another program at any time. If the peer is receiving all this while, or TCP has
/// no room, the peer reads the ring to its end; or the direction stays in the ring, if nothing
/// needs TCP.
pub(super) fn leave_ring_within(conn: &Conn, reason: Reason, patience: u64) {
    conn.socket.again.begin(reason);
    let sending = &conn.pair.own.sending;
    let (mut until, rest) = (None, Rest::new());
    loop {
        hesitate();
        if !conn.take(&sending.token) {
            return;
        }
        let now = sys::now();
        let waits = leave(conn, reason, now < *until.get_or_insert(now + patience));
        give(&sending.token);
        if !waits {
            break;
        }
        let token = &conn.pair.peer.receiving.token;
        if !await_receiver(conn, || sys::now() < now + LEAVING_PATIENCE) && is_absent(conn, token) {
            // The next attempt waits for nobody.
            until = Some(now);
        } else {
            rest.turn();
        }
    }
}

/// Waits until the peer is not in the middle of a receive, or has recalled the stream. `false`: it
/// still receives, and the caller is not `patient` any more, or the peer is [absent](is_absent).
pub(super) fn await_receiver(conn: &Conn, mut patient: impl FnMut() -> bool) -> bool {
    let token = &conn.pair.peer.receiving.token;
    let mut stopped = Stopped::new(conn);
    while token.is_taken() && (!owed::is_recalled(conn) || owed::cannot_send(conn)) {
        if !patient() || stopped.is_look_due() && is_absent(conn, token) {
            return false;
        }
        stopped.turn();
    }
    true
}

/// Whether nobody knows when the peer's process that has this token continues: it is stopped; or it was killed there, and at most a
/// relative takes the token over, with a call of its own.
fn is_absent(conn: &Conn, token: &Token) -> bool {
    conn.is_held_by_stopped(token)
        || conn.is_held_by_dead(token)
        || owed::has_died_with(conn, token)
}

/// Tries once to leave. With the sending token. `true`: the peer is in the middle of a receive, or of a recall, for which the
/// caller should wait (only if it `may_wait`).
fn leave(conn: &Conn, reason: Reason, may_wait: bool) -> bool {
    let path = conn.sender();
    if owed::is_due(conn) && owed::pay(conn) == Debt::Unsaid {
        return may_wait;
    }
    match conn.way_out() {
        Way::Ring => return leave_for(conn, reason, may_wait),
        Way::Tcp => {
            if conn.is_mirrored() {
                owed::stay_out(conn);
            }
            path.stay_with_kernel();
        }
        Way::TcpAgain | Way::Owing => {}
    }
    false
}

/// [`leave`] for a direction that is in its ring.
fn leave_for(conn: &Conn, reason: Reason, may_wait: bool) -> bool {
    if conn.is_mirrored() {
        // Otherwise only a relative has the NIC, for this process, too.
        if reach::is_here() {
            owed::leave_by_record(conn, reason);
        }
        return false;
    }
    let path = conn.sender();
    // If the peer needed the unread bytes by TCP later, what this side sends by TCP now would come before them.
    let can_stay = is_wish(reason);
    if can_stay && is_too_much_for_tcp(conn) {
        return false;
    }
    path.say_leaving();
    let withdrawal = if conn.in_flight() > 0 {
        owed::withdraw(conn)
    } else {
        Withdrawal::No
    };
    match withdrawal {
        Withdrawal::Owing => {}
        Withdrawal::PeerReceives if may_wait => return true,
        _ if can_stay && conn.in_flight() > 0 => {
            path.stay_in_ring();
            return false;
        }
        Withdrawal::PeerReceives | Withdrawal::No => {
            let written = |base| tcp::written(base, conn.socket.role());
            let Some(offset) = conn.base().and_then(written) else {
                return false;
            };
            end_ring(conn, offset);
        }
    }
    conn.socket.settings.tell_cork(conn.fd);
    conn.socket.set_reason(reason);
    conn.socket.note_downgrade();
    false
}

/// Whether what the peer has not read of our ring is more than TCP takes at once.
pub(crate) fn is_too_much_for_tcp(conn: &Conn) -> bool {
    conn.is_on_ring() && conn.in_flight() > 0 && !owed::has_room(conn, conn.in_flight())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::process::Command;
    use std::sync::atomic::AtomicBool;

    use shunt_abi::message::FLAG_DIED;

    use super::*;
    use crate::Outcome;
    use crate::both_ends::BothEnds;
    use crate::link::Link;
    use crate::stream::close::shutdown;
    use crate::stream::errors::take_error;

    fn used() -> libc::rusage {
        // SAFETY: a C struct of integers, for which zero is a value; the kernel fills it.
        unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut used), 0);
            used
        }
    }

    /// How often this thread has given the processor away to sleep: a yield does not count.
    fn naps() -> i64 {
        used().ru_nvcsw
    }

    /// The processors on which this thread may run, until the value is dropped: one alone. Threads that it makes have the same.
    struct OneProcessor(libc::cpu_set_t);

    impl OneProcessor {
        fn begin() -> Self {
            // SAFETY: C structs of integers, for which zero is a value; the kernel fills one and reads the other.
            unsafe {
                let [mut before, mut one]: [libc::cpu_set_t; 2] = std::mem::zeroed();
                let size = size_of_val(&one);
                assert_eq!(libc::sched_getaffinity(0, size, &raw mut before), 0);
                libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap(), &mut one);
                assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
                Self(before)
            }
        }
    }

    impl Drop for OneProcessor {
        fn drop(&mut self) {
            // SAFETY: what the kernel has filled.
            unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
        }
    }

    /// A process that is stopped, and killed when the value is dropped.
    struct StoppedChild(std::process::Child);

    impl StoppedChild {
        fn begin() -> Self {
            let child = Self(Command::new("sleep").arg("60").spawn().unwrap());
            let pid = child.0.id();
            // SAFETY: takes no memory but for the status, which is not asked for.
            unsafe {
                assert_eq!(libc::kill(pid as _, libc::SIGSTOP), 0);
                let stopped = libc::waitpid(pid as _, std::ptr::null_mut(), libc::WUNTRACED);
                assert_eq!(stopped, pid as _);
            }
            child
        }
    }

    impl Drop for StoppedChild {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Nanoseconds.
    const PATIENCE: u64 = 500_000_000;

    #[test]
    fn a_sender_that_waits_for_long_for_a_peer_in_the_middle_of_a_recall_rests() {
        const LAST: u64 = 60_000_000_000;
        let ends = BothEnds::attached();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        ends.send(b"unread");
        let [conn, peer] = &ends.conns();
        // The peer has begun its recall, and holds no token: nobody can tell whether it is stopped. One call has waited for that.
        peer.receiver().recall();
        conn.socket.hints.note_recall(true);
        let (before, until) = (naps(), sys::now() + LAST);
        // A thread that seldom gets a processor rests seldom, too.
        while naps() - before <= 3 {
            assert!(sys::now() < until, "it does not rest");
            leave_ring_within(conn, Reason::SocketOption, PATIENCE);
        }
    }

    /// Whether the accepted end leaves its ring, which has been full of messages of this size for so many nanoseconds.
    fn leaves_full(ends: &BothEnds, size: usize, full_for: u64) -> bool {
        let message = vec![1; size];
        while matches!(ends.try_send(&message), Outcome::Done(_)) {}
        let [conn, peer] = &ends.conns();
        let read = peer.pair.own.progress.bytes.load(Ordering::Relaxed);
        let hints = &conn.socket.hints;
        // It was noted when the last message had no room.
        hints.note_full(read.wrapping_add(1), 0);
        hints.note_full(read, sys::now().saturating_sub(full_for));
        leave_full(conn)
    }

    #[test]
    fn a_ring_that_stays_full_of_small_messages_is_left() {
        for (size, full_for, leaves) in [(1, SELDOM, true), (1, 0, false), (60_000, SELDOM, false)]
        {
            let ends = BothEnds::attached();
            ends.send(b"x");
            assert_eq!(ends.receive::<1>(), b"x");
            assert_eq!(
                leaves_full(&ends, size, full_for),
                leaves,
                "{size} {full_for}"
            );
            let is_on_ring = ends.conns()[0].way_out() == Way::Ring;
            assert_eq!(is_on_ring, !leaves);
        }
    }

    #[test]
    fn a_ring_that_stays_full_is_left_after_the_time_that_the_program_has_set_for_unread_bytes() {
        const TIMEOUT: u64 = 300_000_000;
        for (full_for, leaves) in [(TIMEOUT - SELDOM / 3, false), (TIMEOUT, true)] {
            let ends = BothEnds::attached();
            ends.send(b"x");
            assert_eq!(ends.receive::<1>(), b"x");
            let limit = (TIMEOUT / 1_000_000) as u32;
            let option = libc::TCP_USER_TIMEOUT;
            sys::setsockopt(ends.fds[0], libc::IPPROTO_TCP, option, &limit).unwrap();
            assert_eq!(leaves_full(&ends, 60_000, full_for), leaves, "{full_for}");
        }
    }

    #[test]
    fn a_sender_without_room_takes_shuntds_word_that_its_peer_has_died_with_bytes_unread() {
        const LINK: u64 = 4712;
        let ends = BothEnds::attached();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        let [conn, peer] = &ends.conns();
        conn.pair.link.number_as(LINK);
        let forked = &peer.pair.own.options.forked;
        forked.store(slot::UNFORKED, Ordering::Relaxed);
        Link::bury(LINK, FLAG_DIED);
        assert!(!leave_if_ending(conn) && take_error(conn).is_none());
        ends.send(b"unread");
        peer.receiver().recall();
        assert!(!leave_if_ending(conn) && take_error(conn).is_none());
        peer.receiver().take_back();
        assert!(leave_if_ending(conn));
        assert_eq!(take_error(conn), Some(libc::ECONNRESET));
    }

    #[test]
    fn a_sender_that_waits_for_the_end_leaves_its_ring_once_its_peer_has_shut_down_its_half() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        ends.send(b"unread");
        let [conn, peer] = &ends.conns();
        assert!(!leave_to_half_closed(conn) && conn.is_on_ring());
        assert_eq!(shutdown(peer, libc::SHUT_WR), Outcome::Done(0));
        assert!(leave_to_half_closed(conn) && !conn.is_on_ring());
        // The unread bytes come by TCP.
        assert_ne!(sys::poll_ms(peer.fd, libc::POLLIN, 10_000), 0);
    }

    #[test]
    fn a_sender_gives_no_processor_away_for_a_peer_that_is_stopped() {
        const TIMES: i64 = 50;
        let ends = BothEnds::attached();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        ends.send(b"unread");
        let [conn, peer] = &ends.conns();
        let child = StoppedChild::begin();
        let token = &peer.pair.own.receiving.token;
        let holder = crate::thread::of_another(child.0.id());
        assert!(token.try_take(holder).is_ok());
        let place = OneProcessor::begin();
        let is_over = AtomicBool::new(false);
        let switches = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let before = used();
            for _ in 0..TIMES {
                leave_ring_within(conn, Reason::Requested, PATIENCE);
            }
            let after = used();
            is_over.store(true, Ordering::Relaxed);
            after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
        });
        token.reset();
        drop((child, place));
        assert!(conn.is_on_ring());
        // The kernel takes it away, now and then.
        assert!(switches < TIMES / 2, "{switches}");
    }

    #[test]
    fn a_direction_that_need_not_leave_stays_in_the_ring_of_a_peer_that_is_receiving() {
        let ends = BothEnds::attached();
        ends.send(b"x");
        assert_eq!(ends.receive::<1>(), b"x");
        ends.send(b"unread");
        let [conn, peer] = &ends.conns();
        let token = &peer.pair.own.receiving.token;
        let process = crate::thread::pid() + 1;
        assert!(token.try_take(crate::thread::of_another(process)).is_ok());
        leave_ring_within(conn, Reason::Requested, 0);
        token.give();
        // And it says no more that it leaves.
        let state = conn.pair.own.face.state.load(Ordering::Relaxed);
        assert!(conn.is_on_ring() && state & slot::LEAVING == 0);
        assert_eq!(ends.receive::<8>(), b"unread");
    }
}
