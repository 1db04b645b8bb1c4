//! Both streams of a connection, from TCP to the rings and back: this library's end at one side, the tests at the other.

use std::sync::atomic::Ordering;

use libc::iovec;
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};
use shunt_rdma::link::{Link, Resumed};
use shunt_rdma::resume::BYTES;
use shunt_rdma::wire::Wire;
use shunt_shm::ring::Found;
use shunt_shm::slot::{RECALLED, Way};

use super::{GENERATION, SLOT, Scene, both_are_ready};
use crate::stream::{self, Conn, leave_ring};
use crate::{Outcome, reach, sys};

/// From this library's end, and to it.
const OUT: u64 = 1;
const IN: u64 = 2;

/// The byte of a stream at that place.
fn byte(direction: u64, at: u64) -> u8 {
    ((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ direction) >> 56) as u8
}

/// A random number below that.
fn below(state: &mut u64, most: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % most
}

/// Both ends, and how far their streams are.
struct Both {
    scene: Scene,
    conn: Conn<'static>,
    /// By direction: sent, received.
    streams: [[u64; 2]; 2],
    /// What the other end has given to TCP, and taken from it; how much of what comes there it is to drop.
    given: u64,
    taken: u64,
    doubled: u64,
    /// Whether it sends by its ring, and reads this end's.
    out_ring: bool,
    in_ring: bool,
    /// It has left its ring, and this end has.
    has_left: bool,
    is_left: bool,
    /// What TCP had no room for.
    backlog: Vec<u8>,
    /// Bytes by rings.
    by_rings: [u64; 2],
}

fn index(direction: u64) -> usize {
    (direction - 1) as usize
}

impl Both {
    fn new(link: u64) -> Self {
        let (scene, conn) = both_are_ready(link, link.is_multiple_of(2));
        Self {
            scene,
            conn,
            streams: [[0; 2]; 2],
            given: 0,
            taken: 0,
            doubled: 0,
            out_ring: false,
            in_ring: false,
            has_left: false,
            is_left: false,
            backlog: Vec::new(),
            by_rings: [0; 2],
        }
    }

    fn link(&mut self) -> (&Wire, &mut Link<'static, Wire>) {
        let peer = &mut self.scene.peer;
        peer.port.link(peer.queue).unwrap()
    }

    fn next(&self, direction: u64, length: usize) -> Vec<u8> {
        let at = self.streams[index(direction)][0];
        (at..at + length as u64)
            .map(|at| byte(direction, at))
            .collect()
    }

    fn compare(&mut self, direction: u64, bytes: &[u8]) {
        let received = &mut self.streams[index(direction)][1];
        for &got in bytes {
            assert_eq!(got, byte(direction, *received), "{direction}: {received}");
            *received += 1;
        }
    }

    /// This end sends `length` bytes, or as many as fit, by a call that does not wait.
    fn send(&mut self, length: usize) -> usize {
        let bytes = self.next(OUT, length);
        let parts = [iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: length,
        }];
        let before = self.conn.socket.tx.ring_bytes.load(Ordering::Relaxed);
        // SAFETY: the bytes are there.
        let sent = match unsafe { stream::send(&self.conn, &parts, libc::MSG_DONTWAIT) } {
            Outcome::Done(n) => n as usize,
            Outcome::Kernel => sys::write_now(self.conn.fd, bytes.as_ptr(), length).unwrap_or(0),
            Outcome::Fail(libc::EAGAIN) => 0,
            Outcome::Fail(errno) => panic!("{errno}"),
        };
        let after = self.conn.socket.tx.ring_bytes.load(Ordering::Relaxed);
        self.by_rings[0] += after - before;
        self.streams[0][0] += sent as u64;
        sent
    }

    /// It receives what is there, likewise.
    fn receive(&mut self, most: usize) -> usize {
        let mut bytes = vec![0; most];
        let parts = [iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: most,
        }];
        let now = libc::MSG_DONTWAIT;
        // SAFETY: the part covers `bytes`.
        let received = match unsafe { stream::receive(&self.conn, &parts, now) } {
            Outcome::Done(n) => n as usize,
            Outcome::Kernel => sys::recv(self.conn.fd, bytes.as_mut_ptr(), most, now).unwrap_or(0),
            Outcome::Fail(libc::EAGAIN) => 0,
            Outcome::Fail(errno) => panic!("{errno}"),
        };
        self.compare(IN, &bytes[..received]);
        received
    }

    /// The other end takes completions, and what it can of what it owes TCP.
    fn progress_there(&mut self) {
        self.scene.peer.is_parted();
        let fd = self.scene.fds[1];
        let n = sys::write_now(fd, self.backlog.as_ptr(), self.backlog.len()).unwrap_or(0);
        self.backlog.drain(..n);
    }

    fn give(&mut self, bytes: &[u8]) {
        self.backlog.extend(bytes);
        self.given += bytes.len() as u64;
        self.progress_there();
    }

    /// It proposes its ring, or enters it where that was agreed to.
    fn enter_there(&mut self) {
        let given = self.given;
        if self.out_ring || self.has_left || !self.backlog.is_empty() {
            return;
        }
        let (wire, link) = self.link();
        let enters = link.agreed(SLOT) == Some(given) && link.enter(SLOT);
        if !enters {
            link.propose(wire, SLOT, given);
        }
        self.out_ring = enters;
    }

    /// The other end sends `length` bytes, or as many as its ring has room for.
    fn send_there(&mut self, length: usize) -> usize {
        let bytes = self.next(IN, length);
        let sent = if self.out_ring {
            let before = self.written_there();
            let (wire, link) = self.link();
            let sent = link.send(wire, SLOT, &bytes);
            let n = self.written_there() - before;
            self.by_rings[1] += n;
            if sent.is_err() {
                self.leave_there();
            }
            n as usize
        } else {
            self.give(&bytes);
            length
        };
        self.streams[1][0] += sent as u64;
        sent
    }

    fn written_there(&self) -> u64 {
        let own = self.scene.peer.lines.own;
        own.output.bytes.load(Ordering::Relaxed)
    }

    /// It leaves its ring, whatever has become of the queue pair, or never enters it.
    fn leave_there(&mut self) {
        let ring = self.scene.peer.lines.out;
        self.has_left = true;
        self.out_ring = false;
        if let Some(leave) = self.link().1.leave(SLOT) {
            let unread = leave.unread.read_by(ring, |consumer| {
                let (mut all, mut part) = (Vec::new(), [0; 999]);
                loop {
                    // SAFETY: there is room.
                    let found = unsafe { consumer.read(part.as_mut_ptr(), part.len(), false) };
                    let Ok(Found::Bytes(n)) = found else {
                        break;
                    };
                    all.extend_from_slice(&part[..n]);
                }
                all
            });
            self.give(&leave.record);
            self.give(&unread.unwrap());
        }
    }

    /// It receives what is there.
    fn receive_there(&mut self) -> usize {
        self.progress_there();
        let fd = self.scene.fds[1];
        let view = self.scene.peer.lines.view;
        let look = |most: usize| {
            let mut bytes = vec![0; most];
            let now = libc::MSG_DONTWAIT | libc::MSG_PEEK;
            let n = sys::recv(fd, bytes.as_mut_ptr(), most, now).unwrap_or(0);
            bytes.truncate(n);
            bytes
        };
        let switch_at = view.output.switch_at.load(Ordering::Relaxed);
        if switch_at == self.taken + 1 && self.doubled == 0 && !self.is_left {
            self.in_ring = true;
        }
        let mut bytes = vec![0; 5000];
        if self.in_ring {
            let (wire, link) = self.link();
            let n = link.receive(wire, SLOT, &mut bytes).unwrap_or(0);
            bytes.truncate(n);
            if n > 0 {
                self.compare(OUT, &bytes);
                return n;
            }
            let bytes = look(BYTES);
            if bytes.is_empty() {
                return 0;
            }
            match self.link().1.resume(SLOT, &bytes) {
                Resumed::Record(doubled) => {
                    self.doubled = doubled;
                    self.is_left = true;
                    self.drop_there(BYTES);
                }
                Resumed::Plain => {}
                Resumed::Begins => return 0,
                Resumed::Wrong => panic!("wrong"),
            }
            self.in_ring = false;
            let at = &view.output.switch_at;
            let _ = at.compare_exchange(switch_at, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        // Not beyond where the ring may begin.
        let switch_at = view.output.switch_at.load(Ordering::Relaxed);
        let most = match switch_at.checked_sub(1 + self.taken) {
            Some(first) if !self.is_left => 5000.min(first as usize),
            _ => 5000,
        };
        let bytes = look(most);
        let doubled = self.doubled.min(bytes.len() as u64);
        self.doubled -= doubled;
        self.drop_there(bytes.len());
        self.compare(OUT, &bytes[doubled as usize..]);
        bytes.len()
    }

    fn drop_there(&mut self, bytes: usize) {
        let mut nowhere = vec![0; bytes];
        let got = sys::recv(
            self.scene.fds[1],
            nowhere.as_mut_ptr(),
            bytes,
            libc::MSG_DONTWAIT,
        );
        if bytes > 0 {
            assert_eq!(got, Ok(bytes));
        }
        self.taken += bytes as u64;
    }

    /// Both streams come to their ends, whatever has happened; this end makes calls on its connection alone.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            self.receive(4000);
            self.receive_there();
            let view = self.scene.peer.lines.view;
            if self.out_ring && view.face.state.load(Ordering::Relaxed) & RECALLED != 0 {
                self.leave_there();
            }
            if stream::recall_is_due(&self.conn) {
                stream::answer_recall(&self.conn);
            }
            let is_over = |stream: &[u64; 2]| stream[0] == stream[1];
            if self.streams.iter().all(is_over) {
                return;
            }
        }
        panic!("{:?} of {:?}", self.streams, self.conn.pair.own);
    }

    /// Both directions come to their rings.
    fn enter(&mut self) {
        for _ in 0..100 {
            self.send(1);
            self.send_there(usize::from(!self.out_ring));
            self.enter_there();
            self.receive_there();
            self.receive(100);
            self.progress_there();
            self.enter_there();
            if self.out_ring && self.conn.is_on_ring() {
                return;
            }
        }
        panic!("they do not: {}", self.out_ring);
    }
}

#[test]
fn what_is_sent_by_rings_arrives() {
    let mut both = Both::new(200);
    both.enter();
    for n in [1, 8, 100, 3000, 40_000] {
        assert_eq!(both.send(n), n);
        assert_eq!(both.send_there(n), n);
        both.finish();
    }
    assert!(both.by_rings.iter().all(|&n| n > 43_000));
    assert!(both.conn.is_on_ring() && both.out_ring);
}

#[test]
fn rings_go_round_as_both_sides_say_how_far_they_have_read() {
    let mut both = Both::new(210);
    both.enter();
    for _ in 0..300 {
        both.send(9000);
        both.send_there(9000);
        both.finish();
    }
    assert!(both.by_rings.iter().all(|&n| n >= 2_700_000));
}

#[test]
fn a_sender_that_leaves_its_ring_sends_again_what_is_unread() {
    let mut both = Both::new(220);
    both.enter();
    both.send(5000);
    leave_ring(&both.conn, Reason::Requested);
    assert!(!both.conn.is_on_ring());
    both.send(100);
    both.send_there(5000);
    both.receive(2000);
    both.leave_there();
    both.send_there(100);
    both.finish();
}

#[test]
fn what_is_unread_is_counted_across_the_record_by_which_the_peer_has_left() {
    let mut both = Both::new(340);
    both.enter();
    both.send_there(5000);
    both.receive(1000);
    assert_eq!(stream::unread(&both.conn), 4000);
    both.leave_there();
    both.send_there(100);
    // The kernel may keep it back behind the record until that is acknowledged.
    let all = Ok(BYTES as i32 + 5000 + 100);
    while sys::ioctl_int(both.conn.fd, libc::FIONREAD) != all {}
    assert_eq!(stream::unread(&both.conn), 4100);
    both.receive(3000);
    assert_eq!(stream::unread(&both.conn), 1100);
    both.finish();
}

#[test]
fn a_full_ring_goes_to_tcp() {
    let mut both = Both::new(230);
    both.enter();
    while both.conn.is_on_ring() {
        both.send(10_000);
    }
    both.send(10_000);
    both.finish();
}

#[test]
fn bytes_that_were_put_into_the_ring_and_do_not_go_out_go_by_tcp() {
    let mut both = Both::new(240);
    both.enter();
    let (wire, link) = both.link();
    link.abandon(wire);
    assert_eq!(both.send(100), 100);
    assert!(!both.conn.is_on_ring());
    both.finish();
}

#[test]
fn a_connection_whose_peer_has_proposed_its_ring_comes_home_once_the_peer_has_heard_that() {
    let mut both = Both::new(250);
    both.send_there(10);
    both.enter_there();
    (0..2).for_each(|_| {
        both.receive(100);
    });
    assert_eq!(both.conn.way_in(), Way::Ring);
    assert!(!stream::downgrade(&both.conn, Reason::Requested));
    both.progress_there();
    assert!(stream::downgrade(&both.conn, Reason::Requested));
    both.send_there(100);
    both.send(100);
    both.finish();
}

#[test]
fn a_byte_that_may_begin_a_record_is_taken_once_its_sender_says_that_it_stays_on_tcp() {
    let mut both = Both::new(280);
    both.send_there(10);
    both.enter_there();
    (0..2).for_each(|_| {
        both.receive(100);
    });
    let tag = both.link().1.record(SLOT, 0).unwrap()[0];
    sys::write(both.scene.fds[1], &raw const tag, 1).unwrap();
    let receive = || {
        let mut byte = 0_u8;
        let part = iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        // SAFETY: there is room for it.
        let received = unsafe { stream::receive(&both.conn, &[part], libc::MSG_DONTWAIT) };
        (received, byte)
    };
    assert_eq!(receive().0, Outcome::Fail(libc::EAGAIN));
    let peer = &mut both.scene.peer;
    let (wire, link) = peer.port.link(peer.queue).unwrap();
    assert!(link.leave(SLOT).is_none());
    link.flush(wire);
    assert_eq!(receive(), (Outcome::Done(1), tag));
}

#[test]
fn a_proposal_is_answered_only_once_what_came_by_tcp_before_it_is_looked_for_there() {
    let mut both = Both::new(290);
    both.send_there(10);
    both.enter_there();
    (0..2).for_each(|_| {
        both.receive(100);
    });
    assert_eq!(both.conn.way_in(), Way::Ring);
    both.send_there(1);
    both.enter_there();
    reach::progress();
    both.progress_there();
    assert_eq!(both.link().1.agreed(SLOT), None);
    both.receive(100);
    both.progress_there();
    let given = both.given;
    assert_eq!(both.link().1.agreed(SLOT), Some(given));
    both.enter_there();
    both.send_there(100);
    both.finish();
}

#[test]
fn a_connection_in_both_rings_comes_home_and_tcp_brings_what_is_unread() {
    let mut both = Both::new(260);
    both.enter();
    both.send_there(5000);
    both.receive(1000);
    assert!(!stream::downgrade(&both.conn, Reason::Requested));
    both.progress_there();
    both.leave_there();
    // The kernel may keep it back behind the record until that is acknowledged.
    while !stream::downgrade(&both.conn, Reason::Requested) {}
    let queued = sys::ioctl_int(both.conn.fd, libc::FIONREAD);
    assert_eq!(queued, Ok(4000));
    both.send(100);
    both.finish();
}

#[test]
fn what_was_published_before_an_end_arrives_and_nothing_comes_by_tcp_but_the_end() {
    let mut both = Both::new(270);
    both.enter();
    both.send(5000);
    let taken = both.taken;
    assert_eq!(
        stream::shutdown(&both.conn, libc::SHUT_WR),
        Outcome::Done(0)
    );
    both.finish();
    let mut byte = 0;
    let fd = both.scene.fds[1];
    assert_eq!(sys::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT), Ok(0));
    assert_eq!(both.taken, taken);
}

/// The other end's process ends without a word, and the daemon says how far it had come.
fn die(both: &mut Both, link: u64) {
    let own = both.scene.peer.lines.own;
    let bytes = [&own.progress.bytes, &own.output.bytes];
    let (wire, of_peer) = both.link();
    of_peer.abandon(wire);
    sys::shutdown(both.scene.fds[1], libc::SHUT_WR).unwrap();
    let mut died = Message::new(Kind::Died);
    (died.cookie, died.fd) = (both.conn.socket.cookie(), both.scene.fds[0]);
    (died.link, died.slot, died.generation) = (link, SLOT, GENERATION);
    died.bytes[0] = bytes.map(|count| count.load(Ordering::Relaxed));
    both.scene.hear(&died);
}

/// What this end finds of its stream.
fn found(both: &Both) -> Outcome {
    let mut byte = 0_u8;
    let part = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: there is room for it.
    unsafe { stream::receive(&both.conn, &[part], libc::MSG_DONTWAIT) }
}

fn tells(both: &Both) -> u32 {
    stream::mask(&both.conn, libc::EPOLLIN as u32, true)
}

#[test]
fn a_peer_that_has_died_having_read_everything_gets_nothing_again_and_is_no_reset() {
    let mut both = Both::new(300);
    both.enter();
    both.send(5000);
    both.finish();
    assert!(both.conn.in_flight() > 0);
    die(&mut both, 300);
    reach::progress();
    stream::answer_recall(&both.conn);
    let ends = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    assert_eq!(tells(&both) & ends, libc::EPOLLRDHUP as u32);
    assert_eq!(found(&both), Outcome::Done(0));
    let mut byte = 0;
    let came = sys::recv(both.scene.fds[1], &raw mut byte, 1, libc::MSG_DONTWAIT);
    assert_eq!(came, Err(libc::EAGAIN));
}

#[test]
fn a_peer_that_has_died_with_bytes_unread_is_a_reset() {
    for calls_first in [false, true] {
        let mut both = Both::new(310 + u64::from(calls_first));
        both.enter();
        both.finish();
        both.send(5000);
        die(&mut both, 310 + u64::from(calls_first));
        if calls_first {
            assert_ne!(tells(&both) & libc::EPOLLERR as u32, 0);
        }
        assert_eq!(found(&both), Outcome::Fail(libc::ECONNRESET));
    }
}

#[test]
fn a_peer_that_says_its_end_having_read_everything_gets_nothing_again() {
    let mut both = Both::new(320);
    both.enter();
    both.send(5000);
    both.finish();
    let (wire, link) = both.link();
    link.end(wire, SLOT);
    link.abandon(wire);
    reach::progress();
    assert!(!stream::recall_is_due(&both.conn) && both.conn.in_flight() == 0);
    // It may go on receiving.
    both.send(100);
    both.finish();
}

#[test]
fn of_a_peer_of_which_nobody_says_anything_nothing_is_believed() {
    let mut both = Both::new(330);
    both.enter();
    both.send(5000);
    let (wire, link) = both.link();
    link.abandon(wire);
    sys::shutdown(both.scene.fds[1], libc::SHUT_WR).unwrap();
    reach::progress();
    stream::answer_recall(&both.conn);
    assert!(!both.conn.is_on_ring());
    both.finish();
    let in_vain = both.conn.pair.link.is_waited_for_in_vain();
    assert!(in_vain.load(Ordering::Relaxed));
}

/// One thing that happens.
fn step(both: &mut Both, random: &mut u64, may_break: bool) {
    match below(random, if may_break { 100 } else { 98 }) {
        0..25 => {
            let length = 1 + below(random, 4000) as usize;
            both.send(length);
        }
        25..45 => {
            let length = 1 + below(random, 4000) as usize;
            if both.backlog.is_empty() {
                both.send_there(length);
            }
        }
        45..60 => {
            both.receive(1 + below(random, 8000) as usize);
        }
        60..75 => {
            both.receive_there();
        }
        75..85 => both.enter_there(),
        85..90 => both.progress_there(),
        90..95 => reach::progress(),
        95 => both.leave_there(),
        96 => leave_ring(&both.conn, Reason::Requested),
        97 => {
            let (wire, link) = both.link();
            link.recall(wire, SLOT);
        }
        _ => {
            let (wire, link) = both.link();
            link.abandon(wire);
        }
    }
}

#[test]
fn no_byte_is_lost_or_doubled_whatever_happens_when() {
    let mut by_rings = [0; 2];
    for seed in 0..200 {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1);
        let mut both = Both::new(1000 + seed);
        let may_break = seed % 2 == 1;
        for _ in 0..200 {
            step(&mut both, &mut random, may_break);
        }
        both.finish();
        for (all, one) in by_rings.iter_mut().zip(both.by_rings) {
            *all += one;
        }
    }
    assert!(by_rings.iter().all(|&n| n > 100_000), "{by_rings:?}");
}
