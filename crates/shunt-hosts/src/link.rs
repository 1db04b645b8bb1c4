//! One conversation with another host.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use rustls::Connection;

use crate::Fault;
use crate::bucket::Bucket;
use crate::frame::{Frame, HostId};
use crate::tls::{self, Tls};

/// How long a host may take to connect and say Hello.
pub(crate) const GREETING: Duration = Duration::from_secs(5);
/// How long it may take to answer a frame.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// What may wait to be sent to a host. One that takes nothing is given up.
const ROOM: usize = 4 << 20;
/// What may wait when one more word of a process is added: processes that talk much to others there do not lose them the host.
const ROOM_FOR_WORDS: usize = ROOM / 4;
/// Frames of a host that are heard in a second, and at once.
const RATE: [u32; 2] = [10_000, 20_000];
/// Reads of a turn, each of some KiB.
const READS: usize = 16;

/// How far a conversation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// TCP's handshake.
    Connecting,
    /// TLS's, and both Hellos.
    Greeting,
    /// With one who has only asked whether this host is there. It goes, or is sent away.
    Asked,
    /// With this host.
    Up(HostId),
}

#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    tls: Connection,
    /// Where the other host is.
    pub(crate) peer: IpAddr,
    /// This host has called that one.
    pub(crate) is_ours: bool,
    pub(crate) stage: Stage,
    /// What epoll watches.
    pub(crate) watched: EventFlags,
    /// In clear, to be sent.
    out: Vec<u8>,
    /// In clear, and not a whole frame, or not due to be heard.
    input: Vec<u8>,
    rate: Bucket,
    /// When it is heard again, if it has said too much.
    hushed: Option<Instant>,
    /// By when the other host must have answered.
    until: Option<Instant>,
    /// The number of the last question.
    asked: u32,
}

impl Link {
    /// Calls the host at an address.
    pub(crate) fn call(address: SocketAddr, tls: &Tls, now: Instant) -> Result<Self, Fault> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::STREAM;
        let socket = rustix::net::socket_with(family, kind, flags, Some(ipproto::TCP));
        let socket = socket.map_err(|_| Fault::Busy)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(_) => return Err(Fault::Silent),
        }
        let talk = tls.call(address.ip()).map_err(|_| Fault::Protocol)?;
        let mut link = Self::new(socket.into(), talk, address.ip(), now);
        (link.is_ours, link.stage) = (true, Stage::Connecting);
        Ok(link)
    }

    /// A host has called.
    pub(crate) fn answer(
        stream: TcpStream,
        peer: IpAddr,
        tls: &Tls,
        now: Instant,
    ) -> Result<Self, Fault> {
        stream.set_nonblocking(true).map_err(|_| Fault::Busy)?;
        let talk = tls.answer().map_err(|_| Fault::Protocol)?;
        Ok(Self::new(stream, talk, peer, now))
    }

    fn new(stream: TcpStream, tls: Connection, peer: IpAddr, now: Instant) -> Self {
        // Without these a host that vanishes is noticed later.
        let _ = keep_alive(&stream);
        Self {
            stream,
            tls,
            peer,
            is_ours: false,
            stage: Stage::Greeting,
            watched: EventFlags::empty(),
            out: Vec::new(),
            input: Vec::new(),
            rate: Bucket::new(RATE[0], RATE[1], now),
            hushed: None,
            until: Some(now + GREETING),
            asked: 0,
        }
    }

    /// Has something sent at the next turn. Of one who takes nothing for long, nothing more is kept.
    pub(crate) fn say(&mut self, frame: &Frame) {
        let room = match frame {
            Frame::Word { .. } => ROOM_FOR_WORDS,
            _ => ROOM,
        };
        if self.out.len() < room {
            frame.write(&mut self.out);
        }
    }

    /// Something was said for which the other host must show, within a while, that it has heard it.
    pub(crate) fn ask(&mut self, now: Instant) {
        if self.until.is_none() {
            self.asked = self.asked.wrapping_add(1);
            self.say(&Frame::Ping(self.asked));
            self.until = Some(now + ANSWER);
        }
    }

    /// It has.
    pub(crate) fn answered(&mut self, number: u32) {
        if number == self.asked {
            self.until = None;
        }
    }

    /// Whether TLS's handshake says that what is spoken inside is this.
    pub(crate) fn speaks_ours(&self) -> bool {
        self.tls.alpn_protocol() == Some(tls::INSIDE)
    }

    /// Hello has been said by both.
    pub(crate) fn rise(&mut self, host: HostId) {
        (self.stage, self.until) = (Stage::Up(host), None);
    }

    /// When something is to be done about it though nothing comes.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.until.into_iter().chain(self.hushed).min()
    }

    /// Whether the other host has had its time, or its room.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now) || self.out.len() >= ROOM
    }

    /// What is to be watched. `hears`: there is room for what it says.
    pub(crate) fn wanted(&self, hears: bool) -> EventFlags {
        let is_connecting = self.stage == Stage::Connecting;
        let mut flags = EventFlags::empty();
        flags.set(
            EventFlags::IN,
            hears && self.hushed.is_none() && !is_connecting,
        );
        flags.set(EventFlags::OUT, is_connecting || self.tls.wants_write());
        flags
    }

    /// Goes on as far as it can without waiting; the frames that have come.
    ///
    /// # Errors
    /// When it has ended. What was said before that is among the frames.
    pub(crate) fn turn(
        &mut self,
        flags: EventFlags,
        hears: bool,
        frames: &mut Vec<Frame>,
        now: Instant,
    ) -> Result<(), Fault> {
        if self.stage == Stage::Connecting {
            let is_done = EventFlags::OUT | EventFlags::ERR | EventFlags::HUP;
            if !flags.intersects(is_done) {
                return Ok(());
            }
            if !matches!(self.stream.take_error(), Ok(None)) {
                return Err(Fault::Silent);
            }
            self.stage = Stage::Greeting;
        }
        if self.hushed.is_some_and(|until| until <= now) {
            self.hushed = None;
        }
        let heard = if hears {
            self.hear(frames, now)
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            Err(Fault::Silent)
        } else {
            Ok(())
        };
        // Also what says why it is over.
        let sent = self.send();
        heard.and(sent)
    }

    fn hear(&mut self, frames: &mut Vec<Frame>, now: Instant) -> Result<(), Fault> {
        for _ in 0..READS {
            self.take(frames, now)?;
            if self.hushed.is_some() {
                return Ok(());
            }
            match self.tls.read_tls(&mut self.stream) {
                Ok(0) => return Err(Fault::Silent),
                Ok(_) => self.decrypt()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Fault::Silent),
            }
        }
        self.take(frames, now)
    }

    fn decrypt(&mut self) -> Result<(), Fault> {
        let state = self.tls.process_new_packets();
        let state = state.map_err(|error| Fault::of_tls(&error))?;
        let at = self.input.len();
        self.input.resize(at + state.plaintext_bytes_to_read(), 0);
        let read = self.tls.reader().read_exact(&mut self.input[at..]);
        read.map_err(|_| Fault::Protocol)
    }

    /// Takes the frames that are there, as fast as they may come.
    fn take(&mut self, frames: &mut Vec<Frame>, now: Instant) -> Result<(), Fault> {
        let mut at = 0;
        while let Some((frame, length)) =
            Frame::read(&self.input[at..]).map_err(|_| Fault::Protocol)?
        {
            if !self.rate.take(now) {
                self.hushed = Some(now + self.rate.rest(now));
                break;
            }
            at += length;
            frames.push(frame);
        }
        self.input.drain(..at);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Fault> {
        loop {
            let taken = self.tls.writer().write(&self.out).unwrap_or(0);
            self.out.drain(..taken);
            if !self.tls.wants_write() {
                return Ok(());
            }
            match self.tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Fault::Silent),
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A host that has vanished is noticed by the kernel, without a word of ours.
fn keep_alive(socket: impl AsFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(&socket, 3)?;
    sockopt::set_tcp_user_timeout(&socket, 30_000)
}
