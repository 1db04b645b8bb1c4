//! One side of one connection of a trial: its base socket, its rings, and how far both streams are.

use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use shunt_rdma::bond::Lines;
use shunt_rdma::link::{Link, Resumed};
use shunt_rdma::resume;
use shunt_rdma::transport::Transport;
use shunt_shm::ring::{Consumer, Found};

/// The most that one call sends.
const MOST: u64 = 9000;

pub(super) struct Connection<'a> {
    slot: usize,
    side: usize,
    base: TcpStream,
    lines: Lines<'a>,
    /// Whether the outgoing stream is in its ring, and the incoming one.
    out_ring: bool,
    in_ring: bool,
    /// The other side has left its ring.
    has_peer_left: bool,
    /// For the base socket, which could not take it yet.
    backlog: VecDeque<u8>,
    /// From the base socket, and not taken yet.
    arrived: VecDeque<u8>,
    /// Bytes given to TCP, and taken from it; those of the latter that are to be dropped.
    given: u64,
    taken: u64,
    doubled: u64,
    /// Bytes of the streams: how many there are to be, and are.
    to_send: u64,
    sent: u64,
    to_receive: u64,
    received: u64,
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{}: sent {} of {} (ring: {}), received {} of {} (ring: {})]",
            self.slot,
            self.sent,
            self.to_send,
            self.out_ring,
            self.received,
            self.to_receive,
            self.in_ring
        )
    }
}

/// The byte of a stream at that place.
fn byte(slot: usize, from: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (slot as u64 * 2 + from as u64 + 1));
    (mixed >> 56) as u8
}

impl<'a> Connection<'a> {
    pub(super) fn new(slot: usize, side: usize, base: TcpStream, lines: Lines<'a>) -> Self {
        base.set_nonblocking(true).expect("a base socket");
        base.set_nodelay(true).expect("a base socket");
        Self {
            slot,
            side,
            base,
            lines,
            out_ring: false,
            in_ring: false,
            has_peer_left: false,
            backlog: VecDeque::new(),
            arrived: VecDeque::new(),
            given: 0,
            taken: 0,
            doubled: 0,
            to_send: 0,
            sent: 0,
            to_receive: 0,
            received: 0,
        }
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    pub(super) fn base(&self) -> &TcpStream {
        &self.base
    }

    pub(super) fn is_in_ring(&self) -> bool {
        self.out_ring
    }

    /// Bytes given to TCP so far.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// Whether `given` bytes have been taken from TCP, and nothing waits for it.
    pub(super) fn has_taken(&self, given: u64) -> bool {
        self.taken == given && self.backlog.is_empty()
    }

    pub(super) fn left(&self) -> u64 {
        self.to_send - self.sent
    }

    pub(super) fn is_done(&self) -> bool {
        self.sent == self.to_send && self.received == self.to_receive && self.backlog.is_empty()
    }

    pub(super) fn extend(&mut self, bytes: u64) {
        self.extend_sent(bytes);
        self.extend_received(bytes);
    }

    pub(super) fn extend_sent(&mut self, bytes: u64) {
        self.to_send += bytes;
    }

    pub(super) fn extend_received(&mut self, bytes: u64) {
        self.to_receive += bytes;
    }

    /// A life of the rings begins; both directions are on TCP.
    pub(super) fn begin<T: Transport>(&mut self, transport: &T, link: &mut Link<'a, T>, life: u32) {
        assert!(!self.out_ring && self.arrived.is_empty());
        self.in_ring = false;
        self.has_peer_left = false;
        let lines = self.lines;
        if life == 1 {
            lines.own.begin(life, lines.out);
        } else {
            lines.own.begin_again(life, self.taken, lines.out);
        }
        // SAFETY: the memory of a trial outlives its links.
        unsafe { link.open(transport, self.slot as u32, life, lines) }.expect("pinned rings");
    }

    pub(super) fn try_enter<T: Transport>(&mut self, transport: &T, link: &mut Link<'a, T>) {
        let slot = self.slot as u32;
        if !self.out_ring && self.backlog.is_empty() {
            self.out_ring = link.enter(slot);
            if !self.out_ring {
                link.propose(transport, slot, self.given);
            }
        }
    }

    /// Sends something. `false`: there is nothing to send, or no room.
    pub(super) fn send<T: Transport>(&mut self, transport: &T, link: &mut Link<'a, T>) -> bool {
        self.flush();
        // Lengths of all kinds, the same in each run.
        let length = 1 + self.sent.wrapping_mul(0x9e37_79b9) % MOST;
        let end = self.to_send.min(self.sent + length);
        let bytes: Vec<_> = (self.sent..end)
            .map(|at| byte(self.slot, self.side, at))
            .collect();
        if bytes.is_empty() {
            return false;
        }
        if !self.out_ring {
            self.give(&bytes);
            self.sent = end;
            return true;
        }
        let before = self.written();
        let sent = link.send(transport, self.slot as u32, &bytes);
        let n = self.written() - before;
        self.sent += n;
        match sent {
            // A queue pair that the other side has ended says nothing to one that has nothing to post, or no receive for it.
            Ok(_) if n == 0 && self.has_peer_left => self.leave(link),
            Ok(_) if n == 0 => link.want_room(transport, self.slot as u32, before),
            Ok(_) => {}
            Err(_) => self.leave(link),
        }
        n > 0
    }

    /// Bytes that the ring has got in this life.
    fn written(&self) -> u64 {
        self.lines.own.output.bytes.load(Ordering::Relaxed)
    }

    /// Leaves the ring, if the stream is there.
    pub(super) fn leave<T: Transport>(&mut self, link: &mut Link<'a, T>) {
        if let Some(leave) = link.leave(self.slot as u32) {
            let unread = leave.unread.read_by(self.lines.out, all_of);
            self.give(&leave.record);
            self.give(&unread.expect("a ring"));
        }
        self.out_ring = false;
    }

    fn give(&mut self, bytes: &[u8]) {
        self.backlog.extend(bytes);
        self.given += bytes.len() as u64;
        self.flush();
    }

    fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let (first, _) = self.backlog.as_slices();
            match self.base.write(first) {
                Ok(n) => drop(self.backlog.drain(..n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("base socket of {}: {error}", self.slot),
            }
        }
    }

    /// Receives something, and compares it. `false`: there is nothing.
    pub(super) fn receive<T: Transport>(&mut self, transport: &T, link: &mut Link<'a, T>) -> bool {
        self.fetch();
        let switch_at = &self.lines.view.output.switch_at;
        if switch_at.load(Ordering::Acquire) == self.taken + 1 && self.doubled == 0 {
            self.in_ring = true;
        }
        if self.in_ring && !self.arrived.is_empty() {
            self.follow(link);
        }
        let bytes = if self.in_ring {
            let mut bytes = vec![0; MOST as usize];
            let received = link.receive(transport, self.slot as u32, &mut bytes);
            bytes.truncate(received.unwrap_or(0));
            bytes
        } else {
            self.take()
        };
        for &got in &bytes {
            let expected = byte(self.slot, 1 - self.side, self.received);
            assert_eq!(got, expected, "byte {} of {self:?}", self.received);
            self.received += 1;
        }
        !bytes.is_empty()
    }

    /// From the base socket.
    fn fetch(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.base.read(&mut bytes) {
                Ok(0) => panic!("base socket of {}: the other side has gone", self.slot),
                Ok(n) => self.arrived.extend(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("base socket of {}: {error}", self.slot),
            }
        }
    }

    /// TCP has brought something while the stream is in the ring. (Each side of a trial enters a ring before it sends on, so it is a record.)
    fn follow<T: Transport>(&mut self, link: &mut Link<'a, T>) {
        let bytes: Vec<u8> = self.arrived.iter().copied().take(resume::BYTES).collect();
        match link.resume(self.slot as u32, &bytes) {
            Resumed::Record(doubled) => {
                self.doubled = doubled;
                self.taken += resume::BYTES as u64;
                self.arrived.drain(..resume::BYTES);
                self.in_ring = false;
                self.has_peer_left = true;
                self.lines.view.output.switch_at.store(0, Ordering::Relaxed);
            }
            Resumed::Begins => {}
            other => panic!("{other:?} in {self:?}"),
        }
    }

    fn take(&mut self) -> Vec<u8> {
        let dropped = self.doubled.min(self.arrived.len() as u64);
        self.arrived.drain(..dropped as usize);
        self.doubled -= dropped;
        self.taken += dropped;
        let n = self.arrived.len().min(MOST as usize);
        self.taken += n as u64;
        self.arrived.drain(..n).collect()
    }
}

/// Everything that a consumer has to read.
fn all_of(consumer: &Consumer) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 1000];
    // SAFETY: the array is writable.
    while let Ok(Found::Bytes(n)) = unsafe { consumer.read(part.as_mut_ptr(), part.len(), false) } {
        all.extend_from_slice(&part[..n]);
    }
    all
}
