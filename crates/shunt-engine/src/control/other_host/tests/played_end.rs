//! A connection whose one end is this library's, and whose other end, on another host, is played here: each sends, receives,
//! enters its ring and leaves it by a call of the test's.

use std::sync::atomic::Ordering;

use libc::iovec;
use shunt_rdma::link::{Link, Resumed};
use shunt_rdma::resume::BYTES;
use shunt_rdma::wire::Wire;
use shunt_shm::ring::Found;
use shunt_shm::slot::RECALLED;

use super::{SLOT, Scene, both_are_ready};
use crate::stream::{self, Conn};
use crate::{Outcome, sys};

/// The direction from this library's end, and the one to it.
const OUT: u64 = 1;
const IN: u64 = 2;

/// The byte of a direction's stream at this offset.
fn byte(direction: u64, at: u64) -> u8 {
    ((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ direction) >> 56) as u8
}

/// Both ends, and how far their streams are.
pub(super) struct Both {
    pub(super) scene: Scene,
    pub(super) conn: Conn<'static>,
    /// By direction: sent, received.
    streams: [[u64; 2]; 2],
    /// Bytes that the other end has given to TCP, and taken from it; how many of the next ones there it has read in the ring
    /// already, and drops.
    pub(super) given: u64,
    pub(super) taken: u64,
    doubled: u64,
    /// Whether the other end sends by its ring, and reads this end's ring.
    pub(super) out_ring: bool,
    in_ring: bool,
    /// Whether the other end has left its ring, and whether this end has.
    has_left: bool,
    is_left: bool,
    /// What the other end is to give to TCP, which had no room for it.
    pub(super) backlog: Vec<u8>,
    /// Bytes that went by rings, by direction.
    pub(super) by_rings: [u64; 2],
}

fn index(direction: u64) -> usize {
    (direction - 1) as usize
}

impl Both {
    pub(super) fn new(link: u64) -> Self {
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

    pub(super) fn link(&mut self) -> (&Wire, &mut Link<'static, Wire>) {
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
    pub(super) fn send(&mut self, length: usize) -> usize {
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

    /// This end receives what is there, up to `most` bytes, by a call that does not wait.
    pub(super) fn receive(&mut self, most: usize) -> usize {
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
    pub(super) fn progress_there(&mut self) {
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

    /// The other end proposes its ring, or enters it where this end has agreed to that.
    pub(super) fn enter_there(&mut self) {
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
    pub(super) fn send_there(&mut self, length: usize) -> usize {
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

    /// The other end leaves its ring, whatever has become of the queue pair, or never enters it.
    pub(super) fn leave_there(&mut self) {
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

    /// The other end receives what is there, from TCP or from this end's ring.
    pub(super) fn receive_there(&mut self) -> usize {
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
    pub(super) fn finish(&mut self) {
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
    pub(super) fn enter(&mut self) {
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
