//! One connection: what it sends, what it must receive, and how it ends.

use crate::call;
use crate::random::{Random, fill};
use crate::system;
use crate::watch::Watch;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAGIC: u64 = u64::from_le_bytes(*b"shntsoak");
/// Bytes of the header that begins each direction.
pub(crate) const HEADER: usize = 64;
const LARGEST: u64 = 8 << 20;
const CHUNK: u64 = 256 << 10;

const HALF_CLOSE: u64 = 1;
const REPLY_HALF_CLOSE: u64 = 2;
const LEAVES_EARLY: u64 = 4;
const ANSWERS: u64 = 8;

/// What a direction announces of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header {
    seed: u64,
    length: u64,
    pid: u32,
    flags: u64,
    /// The client's: how long the answer shall be.
    reply: u64,
    /// Nobody sends further than this beyond what it has received; 0 = no limit.
    window: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [
            MAGIC,
            self.seed,
            self.length,
            u64::from(self.pid),
            self.flags,
            self.reply,
            self.window,
            !MAGIC,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(word)
        };
        (word(0) == MAGIC && word(7) == !MAGIC).then(|| Self {
            seed: word(1),
            length: word(2),
            pid: u32::try_from(word(3)).unwrap_or(0),
            flags: word(4),
            reply: word(5),
            window: word(6),
        })
    }

    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// A client's choice.
    pub(crate) fn choose(random: &mut Random) -> Self {
        let length = |random: &mut Random| {
            if random.one_in(12) {
                0
            } else {
                random.magnitude(1, LARGEST)
            }
        };
        let window = if random.one_in(3) {
            random.magnitude(1, 32 << 10)
        } else {
            0
        };
        // In lockstep small windows make many turns: keep them bounded.
        let limit = if window == 0 {
            LARGEST
        } else {
            (window * 2000).min(LARGEST)
        };
        let mut flags = 0;
        for (flag, odds) in [(HALF_CLOSE, 2), (REPLY_HALF_CLOSE, 2), (LEAVES_EARLY, 10)] {
            flags |= if random.one_in(odds) { flag } else { 0 };
        }
        Self {
            seed: random.next(),
            length: length(random).min(limit),
            pid: std::process::id(),
            flags,
            reply: length(random).min(limit),
            window,
        }
    }

    fn answer(&self) -> Self {
        Self {
            seed: self.seed ^ 0x5555_5555,
            length: self.reply,
            pid: std::process::id(),
            flags: ANSWERS
                | if self.has(REPLY_HALF_CLOSE) {
                    HALF_CLOSE
                } else {
                    0
                },
            reply: 0,
            window: self.window,
        }
    }
}

/// Why a connection did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The other end is gone: right only if it was killed or left early.
    Broken(String),
    /// Never right.
    Wrong(String),
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Moved,
    Blocked,
}

/// The sending half.
pub(crate) struct Sender {
    fd: RawFd,
    header: Header,
    sent: u64,
    ahead: Vec<u8>,
    used: usize,
    closed: bool,
    smallest: u64,
    random: Random,
    watch: Arc<Watch>,
}

impl Sender {
    fn new(fd: RawFd, header: Header, random: Random, watch: Arc<Watch>) -> Self {
        let smallest = header.length / 4096;
        Self {
            fd,
            header,
            sent: 0,
            ahead: Vec::new(),
            used: 0,
            closed: false,
            smallest,
            random,
            watch,
        }
    }

    fn total(&self) -> u64 {
        HEADER as u64 + self.header.length
    }

    /// Everything sent, and the half close made if there is to be one.
    pub(crate) fn finished(&self) -> bool {
        self.sent == self.total() && (self.closed || !self.header.has(HALF_CLOSE))
    }

    /// How many bytes may be sent now, the other direction having brought
    /// `received` and being `complete` or not.
    fn allowance(&self, received: u64, complete: bool) -> u64 {
        let rest = self.total() - self.sent;
        if self.header.window == 0 || complete {
            return rest;
        }
        let limit = HEADER as u64 + received + self.header.window;
        rest.min(limit.saturating_sub(self.sent))
    }

    /// One call, or the half close.
    pub(crate) fn step(&mut self, allowance: u64) -> Result<Step, Failure> {
        let allowance = allowance.min(self.total() - self.sent);
        if self.sent < self.total() && allowance == 0 {
            return Ok(Step::Blocked);
        }
        if self.sent < self.total() {
            let size = self.random.magnitude(self.smallest, CHUNK).min(allowance);
            let size = usize::try_from(size).unwrap_or(0);
            self.prepare(size);
            let end = (self.used + size).min(self.ahead.len());
            match call::send(self.fd, &self.ahead[self.used..end], &mut self.random) {
                Ok(count) => {
                    self.used += count;
                    self.sent += count as u64;
                    self.watch.sent.store(self.sent, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failure("send", &error)),
            }
        }
        if self.sent == self.total() && self.header.has(HALF_CLOSE) && !self.closed {
            system::shutdown(self.fd, libc::SHUT_WR);
            self.closed = true;
        }
        Ok(Step::Moved)
    }

    /// Makes the next `size` bytes lie ready.
    fn prepare(&mut self, size: usize) {
        if self.ahead.len() - self.used >= size {
            return;
        }
        let mut next = vec![0; size];
        let head = if self.sent < HEADER as u64 {
            HEADER - usize::try_from(self.sent).unwrap_or(0)
        } else {
            0
        };
        let head = head.min(size);
        if head > 0 {
            let from = usize::try_from(self.sent).unwrap_or(0);
            next[..head].copy_from_slice(&self.header.to_bytes()[from..from + head]);
        }
        let offset = (self.sent + head as u64).saturating_sub(HEADER as u64);
        fill(self.header.seed, offset, &mut next[head..]);
        (self.ahead, self.used) = (next, 0);
    }
}

/// The receiving half.
pub(crate) struct Receiver {
    fd: RawFd,
    head: [u8; HEADER],
    header: Option<Header>,
    received: u64,
    ended: bool,
    buffer: Vec<u8>,
    expected: Vec<u8>,
    random: Random,
    watch: Arc<Watch>,
}

impl Receiver {
    fn new(fd: RawFd, random: Random, watch: Arc<Watch>) -> Self {
        Self {
            fd,
            head: [0; HEADER],
            header: None,
            received: 0,
            ended: false,
            buffer: Vec::new(),
            expected: Vec::new(),
            random,
            watch,
        }
    }

    fn complete(&self) -> bool {
        self.header
            .is_some_and(|header| self.received == HEADER as u64 + header.length)
    }

    /// Everything received, and the end seen if it was announced.
    pub(crate) fn finished(&self) -> bool {
        self.complete() && (self.ended || self.header.is_some_and(|header| !header.has(HALF_CLOSE)))
    }

    /// One call and the check of what it brought. With `waits` it may wait for
    /// a full buffer.
    pub(crate) fn step(&mut self, waits: bool) -> Result<Step, Failure> {
        let rest = match self.header {
            Some(header) => HEADER as u64 + header.length - self.received,
            None => HEADER as u64 - self.received,
        };
        let smallest = self.header.map_or(1, |header| header.length / 4096);
        let mut size = self.random.magnitude(smallest, CHUNK);
        let all = waits && rest > 0;
        if all {
            size = size.min(rest);
        }
        self.buffer.resize(usize::try_from(size).unwrap_or(1), 0);
        let count = match call::receive(self.fd, &mut self.buffer, all, &mut self.random) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Blocked),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Step::Moved),
            Err(error) => return Err(failure("receive", &error)),
        };
        if count == 0 {
            if !self.complete() {
                return Err(Failure::Broken(format!(
                    "end of stream after {} bytes",
                    self.received
                )));
            }
            self.ended = true;
            return Ok(Step::Moved);
        }
        self.check(count)?;
        Ok(Step::Moved)
    }

    /// Where the stream goes wrong, and where in it the wrong bytes belong.
    fn describe(&self, header: &Header, offset: u64, got: &[u8]) -> String {
        let at = got
            .iter()
            .zip(&self.expected)
            .position(|(a, b)| a != b)
            .unwrap_or(0);
        let mut text = format!(
            "wrong byte at offset {} of {}, {at} bytes into a piece of {}",
            offset + at as u64,
            header.length,
            got.len()
        );
        let wrong = &got[at..got.len().min(at + 16)];
        let mut whole = vec![0; usize::try_from(header.length).unwrap_or(0)];
        fill(header.seed, 0, &mut whole);
        match whole
            .windows(wrong.len())
            .position(|window| window == wrong)
        {
            Some(place) if wrong.len() >= 8 => text += &format!("; its bytes belong at {place}"),
            _ => text += &format!("; got {wrong:02x?}"),
        }
        text += &format!(
            "; window {}, peer is {}",
            header.window,
            if header.flags & ANSWERS == 0 {
                "client"
            } else {
                "server"
            }
        );
        text
    }

    fn check(&mut self, count: usize) -> Result<(), Failure> {
        let mut start = 0;
        if self.received < HEADER as u64 {
            let from = usize::try_from(self.received).unwrap_or(0);
            start = (HEADER - from).min(count);
            self.head[from..from + start].copy_from_slice(&self.buffer[..start]);
            if from + start == HEADER {
                let Some(header) = Header::parse(&self.head) else {
                    return Err(Failure::Wrong(format!("not a header: {:02x?}", self.head)));
                };
                self.watch.set_peer(header.pid);
                self.header = Some(header);
            }
        }
        if let Some(header) = self.header {
            let offset = self.received + start as u64 - HEADER as u64;
            let got = &self.buffer[start..count];
            if offset + got.len() as u64 > header.length {
                return Err(Failure::Wrong(format!(
                    "more bytes than the {} announced",
                    header.length
                )));
            }
            self.expected.resize(got.len(), 0);
            fill(header.seed, offset, &mut self.expected);
            if got != self.expected {
                return Err(Failure::Wrong(self.describe(
                    &header,
                    offset,
                    &self.buffer[start..count],
                )));
            }
        }
        self.received += count as u64;
        self.watch.received.store(self.received, Ordering::Relaxed);
        Ok(())
    }
}

fn failure(what: &str, error: &std::io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNREFUSED) => {
            Failure::Broken(format!("{what}: {error}"))
        }
        _ => Failure::Wrong(format!("{what}: {error}")),
    }
}

/// Both halves of one end.
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) sender: Option<Sender>,
    pub(crate) receiver: Receiver,
    /// The client's header, as chosen or as received.
    plan: Option<Header>,
    client: bool,
    peer: u32,
    random: Random,
    watch: Arc<Watch>,
    /// `connect` has not finished.
    pub(crate) connecting: bool,
    leaves_at: u64,
}

impl Connection {
    /// The end that chooses.
    pub(crate) fn client(
        socket: OwnedFd,
        connecting: bool,
        peer: u32,
        name: &str,
        mut random: Random,
    ) -> Self {
        let plan = Header::choose(&mut random);
        let mut this = Self::new(socket, true, peer, name, random);
        this.connecting = connecting;
        this.leaves_at = HEADER as u64 + this.random.magnitude(1, plan.reply.max(1));
        this.begin(plan, plan);
        this
    }

    /// The end that does as the other one says.
    pub(crate) fn server(socket: OwnedFd, name: &str, random: Random) -> Self {
        Self::new(socket, false, 0, name, random)
    }

    fn new(socket: OwnedFd, client: bool, peer: u32, name: &str, mut random: Random) -> Self {
        let fd = socket.as_raw_fd();
        let watch = Watch::new(format!("{name} fd {fd}"), peer);
        let receiver = Receiver::new(fd, Random::new(random.next()), watch.clone());
        Self {
            socket,
            sender: None,
            receiver,
            plan: None,
            client,
            peer,
            random,
            watch,
            connecting: false,
            leaves_at: u64::MAX,
        }
    }

    fn begin(&mut self, plan: Header, sends: Header) {
        let random = Random::new(self.random.next());
        self.plan = Some(plan);
        self.sender = Some(Sender::new(self.fd(), sends, random, self.watch.clone()));
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The process at the other end, 0 if it never said.
    pub(crate) fn peer(&self) -> u32 {
        self.receiver.header.map_or(self.peer, |header| header.pid)
    }

    /// Whether the client turns its back as it had announced.
    pub(crate) fn leaves_now(&self) -> bool {
        self.client
            && self.plan.is_some_and(|plan| plan.has(LEAVES_EARLY))
            && self.receiver.received >= self.leaves_at
    }

    /// Whether the other end had announced that it might be gone before its time.
    pub(crate) fn may_lose_peer(&self) -> bool {
        !self.client && self.plan.is_some_and(|plan| plan.has(LEAVES_EARLY))
    }

    /// Bytes in both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.receiver.received + self.sender.as_ref().map_or(0, |sender| sender.sent)
    }

    pub(crate) fn in_lockstep(&self) -> bool {
        self.plan.is_some_and(|plan| plan.window != 0)
    }

    pub(crate) fn finished(&self) -> bool {
        self.receiver.finished() && self.sender.as_ref().is_some_and(Sender::finished)
    }

    pub(crate) fn wants_read(&self) -> bool {
        !self.connecting && !self.receiver.finished()
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.connecting
            || self.sender.as_ref().is_some_and(|sender| {
                !sender.finished() && (sender.sent == sender.total() || self.allowance() > 0)
            })
    }

    fn allowance(&self) -> u64 {
        let payload = self.receiver.received.saturating_sub(HEADER as u64);
        self.sender.as_ref().map_or(0, |sender| {
            sender.allowance(payload, self.receiver.complete())
        })
    }

    pub(crate) fn read(&mut self, waits: bool) -> Result<Step, Failure> {
        // In lockstep the other end may wait for us before it sends the rest.
        let waits = waits && !self.in_lockstep();
        let step = self.receiver.step(waits)?;
        if let (None, Some(header)) = (&self.sender, self.receiver.header) {
            self.begin(header, header.answer());
        }
        Ok(step)
    }

    pub(crate) fn write(&mut self) -> Result<Step, Failure> {
        if self.connecting {
            system::take_error(self.fd()).map_err(|error| failure("connect", &error))?;
            self.connecting = false;
            return Ok(Step::Moved);
        }
        let allowance = self.allowance();
        match &mut self.sender {
            Some(sender) => sender.step(allowance),
            None => Ok(Step::Blocked),
        }
    }

    /// To the end, in blocking calls: in lockstep in one thread, else in two.
    pub(crate) fn run_blocking(&mut self) -> Result<(), Failure> {
        while self.sender.is_none() {
            self.read(false)?;
        }
        if self.in_lockstep() {
            while !self.finished() && !self.leaves_now() {
                while self.wants_write() {
                    self.write()?;
                }
                if self.wants_read() {
                    self.read(false)?;
                }
            }
            return Ok(());
        }
        let leaves_at = if self.plan.is_some_and(|plan| plan.has(LEAVES_EARLY)) {
            self.leaves_at
        } else {
            u64::MAX
        };
        let fd = self.fd();
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        let receiver = &mut self.receiver;
        let (sent, received) = std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                while !sender.finished() {
                    if let Err(failure) = sender.step(u64::MAX) {
                        // Wake the other half: nothing more will come of this.
                        system::shutdown(fd, libc::SHUT_RDWR);
                        return Err(failure);
                    }
                }
                Ok(())
            });
            let mut received = Ok(());
            while received.is_ok() && !receiver.finished() {
                if receiver.received >= leaves_at {
                    system::shutdown(fd, libc::SHUT_RDWR);
                    break;
                }
                received = receiver.step(true).map(|_| ());
            }
            if received.is_err() {
                system::shutdown(fd, libc::SHUT_RDWR);
            }
            (
                sending
                    .join()
                    .unwrap_or_else(|_| Err(Failure::Wrong("a thread panicked".into()))),
                received,
            )
        });
        match (sent, received) {
            (Err(Failure::Wrong(text)), _) | (_, Err(Failure::Wrong(text))) => {
                Err(Failure::Wrong(text))
            }
            // Our own shutdown broke the sending half.
            _ if self.leaves_now() => Ok(()),
            (_, Err(failure)) | (Err(failure), _) => Err(failure),
            _ => Ok(()),
        }
    }
}
