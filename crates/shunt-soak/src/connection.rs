//! One connection: what it sends, what it must receive, and how it ends.

use crate::random::Random;
use crate::system;
use crate::watch::Watch;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

mod header;
mod receiver;
mod sender;

use header::{HEADER, Header, LEAVES_EARLY};
use receiver::Receiver;
use sender::Sender;

/// The most that one call moves.
const CHUNK: u64 = 256 << 10;

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
    sender: Option<Sender>,
    receiver: Receiver,
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
