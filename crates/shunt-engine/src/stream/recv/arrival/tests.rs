use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use libc::{c_int, iovec};
use shunt_abi::Reason;
use shunt_shm::path::withdrawal::Withdrawal;
use shunt_shm::publish;
use shunt_shm::slot::{self, LEAVING, WITHDRAWING, WITHDRAWN};

use super::*;
use crate::Outcome;
use crate::both_ends::BothEnds;
use crate::stream::downgrade::recall;
use crate::stream::owed::CROWDED;
use crate::stream::recv::by_kernel_now;
use crate::stream::{answer_recall, downgrade, mask, owed, receive, send, unread};
use crate::thread;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

/// Both are on their rings, and something lies unread in the accepted end's.
fn with_unread() -> BothEnds {
    let ends = BothEnds::on_rings();
    ends.send(b"unread");
    ends
}

/// The connecting end reads the ring no more, and asks its peer for what lies unread there.
fn recalled() -> BothEnds {
    let ends = with_unread();
    with_token(&ends, |conn| {
        conn.receiver().recall();
        assert!(!conn.receiver().take_part(|| false));
    });
    ends
}

/// Another program needs all of it from TCP.
fn needed_by_tcp() -> BothEnds {
    let ends = recalled();
    let again = &ends.conns()[1].socket.again;
    again.insists.store(true, Ordering::Relaxed);
    ends
}

fn with_token(ends: &BothEnds, act: impl FnOnce(&Conn)) {
    let conn = &ends.conns()[1];
    let token = &conn.pair.own.receiving.token;
    assert!(conn.take(token));
    act(conn);
    give(token);
}

/// The accepted end withdraws what is unread, and does the rest of it in `then`.
fn withdraw(conn: &Conn, then: impl FnOnce(&Conn)) {
    let token = &conn.pair.own.sending.token;
    assert!(conn.take(token));
    let written = || tcp::written(conn.fd, conn.socket.role());
    assert!(conn.sender().withdraw(written) == Withdrawal::Owing);
    then(conn);
    give(token);
}

/// What a receive that does not wait comes to, as the program sees it.
fn receive_now(conn: &Conn, flags: c_int) -> Result<Vec<u8>, c_int> {
    let mut bytes = [0u8; 8];
    let parts = [iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: the part covers `bytes`.
    let received = unsafe {
        match receive(conn, &parts, flags | libc::MSG_DONTWAIT) {
            Outcome::Kernel => by_kernel_now(conn, &parts, flags),
            outcome => outcome,
        }
    };
    match received {
        Outcome::Done(n) => Ok(bytes[..n as usize].to_vec()),
        Outcome::Fail(errno) => Err(errno),
        Outcome::Kernel => unreachable!("the kernel's own call has been made"),
    }
}

/// Waits for what another thread of the test does, unless that has failed.
fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() && start.elapsed() < Duration::from_secs(5) {
        std::thread::yield_now();
    }
}

/// Runs `call` with the connecting end, and beside it `peer` with the accepted one, which gets a function that waits until
/// the other one has looked at TCP in vain.
fn beside(ends: &BothEnds, peer: impl FnOnce(&Conn, &dyn Fn()) + Send, call: impl FnOnce(&Conn)) {
    let [fd, _] = ends.fds;
    let conn = &ends.conns()[1];
    let looks = &conn.socket.rx.kernel_calls;
    let before = looks.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let looked = || until(|| looks.load(Ordering::Relaxed) != before);
            peer(&Conn::of(fd).unwrap(), &looked);
        });
        call(conn);
    });
}

#[test]
fn what_is_recalled_stays_readable_and_a_receive_waits_for_it() {
    for (flags, left) in [(0, 0), (libc::MSG_PEEK, 6)] {
        // Nothing else ends the wait well.
        let ends = needed_by_tcp();
        let conn = &ends.conns()[1];
        assert_eq!((mask(conn, IN, false) & IN, unread(conn)), (IN, 6));
        let answer = |peer: &Conn, looked: &dyn Fn()| {
            looked();
            answer_recall(peer);
        };
        beside(&ends, answer, |conn| {
            assert_eq!(receive_now(conn, flags).as_deref(), Ok(&b"unread"[..]));
        });
        assert_eq!(unread(conn), left);
    }
}

#[test]
fn what_is_withdrawn_stays_readable_and_a_receive_waits_for_it() {
    let (ends, is_withdrawn) = (with_unread(), &AtomicBool::new(false));
    let pay_late = |peer: &Conn, looked: &dyn Fn()| {
        withdraw(peer, |peer| {
            is_withdrawn.store(true, Ordering::Release);
            looked();
            owed::pay(peer);
        });
    };
    beside(&ends, pay_late, |conn| {
        until(|| is_withdrawn.load(Ordering::Acquire));
        assert_eq!((mask(conn, IN, false) & IN, unread(conn)), (IN, 6));
        assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
    });
    assert_eq!(unread(&ends.conns()[1]), 0);
}

#[test]
fn what_the_kernel_has_and_brings_not_behind_unread_bytes_lacks_room_and_no_processor() {
    let ends = with_unread();
    let [peer, conn] = &ends.conns();
    withdraw(peer, |peer| {
        owed::pay(peer);
    });
    assert_eq!(unread(conn), 6);
    assert!(!conn.receiver().awaits() && !comes_soon_or_is_taken_back(conn));
    assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
    assert!(comes_soon_or_is_taken_back(conn));
}

#[test]
fn what_nobody_sends_in_time_is_not_readable_until_it_is_there() {
    let ends = needed_by_tcp();
    let conn = &ends.conns()[1];
    assert_eq!(receive_now(conn, 0), Err(libc::EAGAIN));
    assert_eq!(mask(conn, IN, false) & IN, 0);
    with_token(&ends, |conn| conn.receiver().take_back());
    assert_eq!(mask(conn, IN, false) & IN, IN);
    assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
}

#[test]
fn what_nobody_sends_in_time_is_read_in_the_ring_if_nothing_needs_it_from_tcp() {
    let ends = recalled();
    let conn = &ends.conns()[1];
    assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
    assert_eq!(conn.way_in(), Way::Ring);
}

#[test]
fn a_recall_that_may_be_a_relatives_is_not_taken_back() {
    let ends = recalled();
    let conn = &ends.conns()[1];
    let forked = &conn.pair.own.options.forked;
    forked.store(slot::SHARED, Ordering::Relaxed);
    assert!(conn.socket.share.before_fork());
    assert_eq!(receive_now(conn, 0), Err(libc::EAGAIN));
    assert!(conn.receiver().awaits());
    conn.socket.share.settle();
    forked.store(slot::INHERITED, Ordering::Relaxed);
}

#[test]
fn who_sleeps_for_what_is_recalled_is_called_when_another_thread_takes_the_recall_back() {
    let ends = recalled();
    let [_, fd] = ends.fds;
    let conn = &ends.conns()[1];
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || receive_asleep(&Conn::of(fd).unwrap()));
        until(|| conn.socket.rx.sleeps.load(Ordering::Relaxed) > 0);
        let _ = receive_now(conn, libc::MSG_PEEK);
        assert_eq!(sleeper.join().unwrap().as_deref(), Ok(&b"unread"[..]));
    });
}

#[test]
fn the_next_change_of_way_is_waited_for_although_one_was_too_late() {
    let ends = needed_by_tcp();
    let conn = &ends.conns()[1];
    assert_eq!(receive_now(conn, 0), Err(libc::EAGAIN));
    with_token(&ends, |conn| conn.receiver().take_back());
    assert!(!is_expected(conn));
    assert!(recall(conn, false));
    assert!(is_expected(conn));
}

#[test]
fn a_peer_that_has_no_processor_is_waited_for_longer() {
    let (ends, is_withdrawn) = (with_unread(), &AtomicBool::new(false));
    let pay_late = |peer: &Conn, _: &dyn Fn()| {
        withdraw(peer, |peer| {
            is_withdrawn.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_nanos(PATIENCE + CROWDED / 8));
            owed::pay(peer);
        });
    };
    beside(&ends, pay_late, |conn| {
        until(|| is_withdrawn.load(Ordering::Acquire));
        assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
    });
}

/// A process of the test's own, which ends with it.
struct Process(Child);

impl Process {
    fn start(script: &str) -> Self {
        Self(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_peer_that_is_stopped_or_dead_in_the_middle_is_not() {
    let stopped = Process::start("kill -STOP $$");
    until(|| sys::is_stopped(stopped.0.id()) == Some(true));
    let mut dead = Process::start("exit");
    dead.0.wait().unwrap();
    for process in [stopped.0.id(), dead.0.id()] {
        let ends = with_unread();
        let [peer, conn] = &ends.conns();
        withdraw(peer, |_| ());
        let token = &peer.pair.own.sending.token;
        assert!(token.try_take(thread::of_another(process)).is_ok());
        assert_eq!(receive_now(conn, 0), Err(libc::EAGAIN));
        assert!(on_its_way(conn) > 0 && !comes_soon_or_is_taken_back(conn));
        token.reset();
    }
}

#[test]
fn another_thread_of_the_same_process_is_waited_for_longer_too() {
    let (ends, is_over) = (recalled(), &AtomicBool::new(false));
    let [peer, conn] = &ends.conns();
    let [fd, _] = ends.fds;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let peer = Conn::of(fd).unwrap();
            let token = &peer.pair.own.sending.token;
            assert!(peer.take(token));
            until(|| is_over.load(Ordering::Acquire));
            give(token);
        });
        until(|| peer.pair.own.sending.token.is_taken());
        let over = &mut Some(sys::now().saturating_sub(1));
        let is_late = is_too_late(conn, over);
        is_over.store(true, Ordering::Release);
        assert!(!is_late && is_expected(conn));
    });
}

#[test]
fn what_tcp_has_no_room_for_is_not_waited_for() {
    let ends = with_unread();
    let [peer, conn] = &ends.conns();
    withdraw(peer, |_| ());
    assert_eq!(mask(conn, IN, false) & IN, 0);
    assert_eq!(
        (on_its_way(conn), receive_now(conn, 0)),
        (0, Err(libc::EAGAIN))
    );
    answer_recall(peer);
    assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
}

#[test]
fn who_gets_the_connection_finds_what_could_be_read() {
    let (ends, is_withdrawn) = (with_unread(), &AtomicBool::new(false));
    let pay_late = |peer: &Conn, _: &dyn Fn()| {
        withdraw(peer, |peer| {
            is_withdrawn.store(true, Ordering::Release);
            // Longer than a change of way takes that does not wait.
            std::thread::sleep(Duration::from_millis(50));
            owed::pay(peer);
        });
    };
    beside(&ends, pay_late, |conn| {
        until(|| is_withdrawn.load(Ordering::Acquire));
        assert!(downgrade(conn, Reason::Passed));
        assert_eq!(sys::ioctl_int(conn.fd, libc::FIONREAD), Ok(6));
    });
}

/// What a receive that may sleep comes to.
fn receive_asleep(conn: &Conn) -> Result<Vec<u8>, c_int> {
    let mut bytes = [0u8; 8];
    let parts = [iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: the part covers `bytes`.
    match unsafe { receive(conn, &parts, 0) } {
        Outcome::Done(n) => Ok(bytes[..n as usize].to_vec()),
        Outcome::Fail(errno) => Err(errno),
        Outcome::Kernel => {
            sys::recv(conn.fd, bytes.as_mut_ptr(), bytes.len(), 0).map(|n| bytes[..n].to_vec())
        }
    }
}

/// Makes it one that ends by itself after half a second.
fn limit_time(conn: &Conn) {
    let limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 500_000,
    };
    sys::setsockopt(conn.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit).unwrap();
    conn.socket.settings.timeouts.store(0, Ordering::Relaxed);
}

/// The processor's time that this thread has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock's time goes there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The accepted end is in the middle of a withdrawal, before its look at the other one's token, while `then` runs.
fn while_withdrawing(ends: &BothEnds, then: impl FnOnce(&Conn, &Conn)) {
    let [peer, conn] = &ends.conns();
    let token = &peer.pair.own.sending.token;
    assert!(peer.take(token));
    publish::set_bits(&peer.pair.own.face.state, WITHDRAWING);
    then(peer, conn);
    give(token);
}

/// One call waits for it, and not for ever; then nothing is there.
fn finds_nothing(conn: &Conn) {
    assert_eq!(receive_now(conn, 0), Err(libc::EAGAIN));
    assert_eq!(mask(conn, IN, false) & IN, 0);
    let start = Instant::now();
    for flags in [0, libc::MSG_PEEK, 0] {
        assert_eq!(receive_now(conn, flags), Err(libc::EAGAIN));
    }
    assert!(start.elapsed() < Duration::from_nanos(PATIENCE));
}

/// It sleeps, for as long as it may.
fn sleeps(conn: &Conn) {
    limit_time(conn);
    let used = processor_time();
    assert_eq!(receive_asleep(conn), Err(libc::EAGAIN));
    assert!(processor_time() - used < Duration::from_millis(250));
}

#[test]
fn who_meets_a_withdrawal_that_is_held_up_waits_as_for_a_silent_peer() {
    let ends = with_unread();
    let hints = &ends.sockets[1].hints;
    while_withdrawing(&ends, |peer, conn| {
        finds_nothing(conn);
        sleeps(conn);
        assert_ne!(hints.withdrawal_in_vain(), 0);
        assert!(owed::withdraw(peer) == Withdrawal::Owing);
    });
    let conn = &ends.conns()[1];
    assert_eq!(mask(conn, IN, false) & IN, IN);
    assert_eq!(receive_now(conn, 0).as_deref(), Ok(&b"unread"[..]));
    assert!(!hints.is_any_in_vain());
    assert_ne!(conn.socket.reason(), Reason::Protocol);
}

#[test]
fn a_receiver_is_called_when_a_withdrawal_was_in_vain() {
    let ends = with_unread();
    let [_, fd] = ends.fds;
    std::thread::scope(|scope| {
        while_withdrawing(&ends, |peer, conn| {
            let sleeper = scope.spawn(move || receive_asleep(&Conn::of(fd).unwrap()));
            until(|| conn.socket.rx.sleeps.load(Ordering::Relaxed) > 0);
            let receiving = &conn.pair.own.receiving.token;
            assert!(conn.take(receiving));
            assert!(owed::withdraw(peer) == Withdrawal::PeerReceives);
            give(receiving);
            assert_eq!(sleeper.join().unwrap().as_deref(), Ok(&b"unread"[..]));
        });
    });
}

#[test]
fn who_sends_in_the_middle_of_a_recall_that_is_held_up_waits_as_for_a_full_peer() {
    let ends = with_unread();
    let [peer, conn] = &ends.conns();
    let send_now = || {
        let parts = [iovec {
            iov_base: c"more".as_ptr().cast_mut().cast(),
            iov_len: 4,
        }];
        // SAFETY: the bytes are there.
        unsafe { send(peer, &parts, libc::MSG_DONTWAIT) }
    };
    with_token(&ends, |conn| {
        conn.receiver().recall();
        assert_eq!(send_now(), Outcome::Fail(libc::EAGAIN));
        let start = Instant::now();
        assert_eq!(mask(peer, OUT, false) & OUT, 0);
        assert_eq!(send_now(), Outcome::Fail(libc::EAGAIN));
        assert!(start.elapsed() < Duration::from_nanos(PATIENCE));
        assert!(!conn.receiver().take_part(|| false));
    });
    assert_eq!(mask(peer, OUT, false) & OUT, OUT);
    assert_eq!(send_now(), Outcome::Done(4));
    let mut come = receive_now(conn, 0).unwrap();
    come.extend(receive_now(conn, 0).unwrap_or_default());
    assert_eq!(come, b"unreadmore");
    assert_ne!(peer.socket.reason(), Reason::Protocol);
}

#[test]
fn who_gets_the_connection_does_not_overtake_what_a_recall_that_is_held_up_leaves_unread() {
    let ends = with_unread();
    let peer = &ends.conns()[0];
    with_token(&ends, |conn| {
        conn.receiver().recall();
        assert!(downgrade(peer, Reason::SocketOption) || peer.is_on_ring());
        let ended = libc::POLLERR | libc::POLLHUP;
        assert_eq!(sys::ready(peer.fd, 0) & ended, 0);
        downgrade(peer, Reason::Passed);
        assert_ne!(sys::ready(peer.fd, 0) & ended, 0);
    });
}

#[test]
fn a_peer_that_names_bytes_which_never_come_is_waited_for_once() {
    for back_at in [1, 1 << 40, u64::MAX - 7] {
        let ends = with_unread();
        let [peer, conn] = &ends.conns();
        let own = peer.pair.own;
        // In the middle of an operation for ever.
        assert!(peer.take(&own.sending.token));
        Way::Owing.store(&own.sending.way);
        publish::word(&own.output.back_at, back_at);
        publish::set_bits(&own.face.state, LEAVING | WITHDRAWING | WITHDRAWN);
        assert!(unread(conn) <= RING_BYTES as u64);
        finds_nothing(conn);
        sleeps(conn);
        give(&own.sending.token);
    }
}

#[test]
fn a_peer_that_changes_its_word_for_ever_holds_no_call_up() {
    let (ends, ended) = (with_unread(), &AtomicBool::new(false));
    let changes = |peer: &Conn, _: &dyn Fn()| {
        let own = peer.pair.own;
        publish::word(&own.output.back_at, 1 << 40);
        publish::set_bits(&own.face.state, LEAVING | WITHDRAWING | WITHDRAWN);
        while !ended.load(Ordering::Relaxed) {
            for way in [Way::Owing, Way::TcpAgain] {
                way.store(&own.sending.way);
                std::thread::yield_now();
            }
        }
    };
    beside(&ends, changes, |conn| {
        for flags in [0, libc::MSG_PEEK, 0, 0] {
            let start = Instant::now();
            let came = receive_now(conn, flags);
            // Until it has seen the first of it, the bytes are there.
            assert!(
                came == Err(libc::EAGAIN) || came.as_deref() == Ok(b"unread"),
                "{came:?}"
            );
            assert!(start.elapsed() < 5 * Duration::from_nanos(PATIENCE));
            assert!(unread(conn) <= RING_BYTES as u64);
        }
        sleeps(conn);
        ended.store(true, Ordering::Relaxed);
    });
}
