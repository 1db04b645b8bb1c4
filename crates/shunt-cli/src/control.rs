//! A conversation with shuntd.

mod nobody;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use shunt_abi::detail::{Detail, FLAG_DETAILS, FLAG_TOGETHER, MOST_TOGETHER};
use shunt_abi::message::{FLAG_CROSSES, Kind, MESSAGE_BYTES, Message};
use shunt_abi::{PROTOCOL, Reason};
use zerocopy::IntoBytes;

use crate::{process, sys};
pub(crate) use nobody::{listening, neighbours, nobody};

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of one that has not answered for so long it is asked again and again whether its process is stopped.
const DOUBT: Duration = Duration::from_millis(200);

/// What a daemon knows.
#[derive(Debug, Default)]
pub(crate) struct Details {
    pub(crate) connections: Vec<(Message, Option<Detail>)>,
    pub(crate) listeners: Vec<Message>,
}

impl Details {
    /// Adds what a message tells; `true`: it is the last.
    fn add(&mut self, message: &Message) -> bool {
        match message.kind() {
            Some(Kind::Row) => self.connections.push((*message, None)),
            Some(Kind::Detail) => {
                if let Some((_, detail)) = self.connections.last_mut() {
                    *detail = Detail::of(message);
                }
            }
            Some(Kind::Listener) => self.listeners.push(*message),
            kind => return kind == Some(Kind::End),
        }
        false
    }
}

/// A connection to a daemon that may be trusted.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    /// The daemon's process; `None` if it lives in a process namespace that we cannot see.
    pub(crate) pid: Option<NonZeroU32>,
    /// It serves the whole host, not one user.
    pub(crate) host: bool,
    /// Room for a part of a list, kept from one list to the next.
    datagram: Vec<u8>,
}

impl Control {
    /// Connects to the host's daemon or, if `host` is false, the user's own.
    /// `None` if there is none that we may trust: anybody can take a name. As libshunt, we ask
    /// nobody but the daemon that is named, if one is.
    pub(crate) fn connect(host: bool) -> Option<Self> {
        if let Some(path) = Self::named() {
            return if host { Self::connect_at(&path) } else { None };
        }
        let user = rustix::process::geteuid().as_raw();
        if !host {
            let address = abstract_address(Some(user))?;
            return Self::connect_to(&address, host, |owner| owner == 0 || owner == user);
        }
        Self::connect_to(&abstract_address(None)?, host, |owner| owner == 0)
            .or_else(|| Self::connect_at(Path::new(&shunt_abi::host_socket())))
    }

    /// For tests: one that listens at the other end of this socket.
    #[cfg(test)]
    pub(crate) fn at_other_end(socket: OwnedFd) -> Self {
        Self {
            socket,
            pid: None,
            host: true,
            datagram: Vec::new(),
        }
    }

    /// The file that `SHUNT_SOCKET` names.
    pub(crate) fn named() -> Option<PathBuf> {
        let path = std::env::var_os(shunt_abi::SOCKET_VARIABLE);
        path.filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// The host's daemon by its file, as from another network namespace.
    fn connect_at(path: &Path) -> Option<Self> {
        let address = SocketAddrUnix::new(path).ok()?;
        // Root may be a user whom this user namespace does not know.
        let is_kept = || {
            let directory = path.parent().and_then(|path| path.metadata().ok());
            directory.is_some_and(|about| {
                matches!(about.uid(), 0 | sys::OVERFLOW_UID) && about.mode() & 0o022 == 0
            })
        };
        Self::connect_to(&address, true, |owner| {
            owner == 0 || owner == sys::OVERFLOW_UID && is_kept()
        })
    }

    /// Whether the host's daemon listens at this file.
    pub(crate) fn is_at(path: &Path) -> bool {
        Self::connect_at(path).is_some()
    }

    fn connect_to(
        address: &SocketAddrUnix,
        host: bool,
        is_trusted: impl FnOnce(u32) -> bool,
    ) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .ok()?;
        // A daemon that is stopped, with a full queue, must not stop us too.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).ok()?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(DOUBT)).ok()?;
        rustix::net::connect(&socket, address).ok()?;
        let (pid, owner) = sys::peer_credentials(&socket).ok()?;
        is_trusted(owner).then_some(Self {
            socket,
            pid,
            host,
            datagram: Vec::new(),
        })
    }

    /// Who has the address of the host's daemon, or of the user's own, without being it: user and
    /// process, where that can be seen. Any user may take any abstract name.
    pub(crate) fn usurper(host: bool) -> Option<(u32, Option<NonZeroU32>)> {
        let user = rustix::process::geteuid().as_raw();
        let socket = knock((!host).then_some(user)).ok()?;
        let (pid, owner) = sys::peer_credentials(&socket).ok()?;
        let trusted = owner == 0 || !host && owner == user;
        (!trusted).then_some((owner, pid))
    }

    /// Whether somebody listens at the address of the user's own daemon who has so many waiting that nobody
    /// can connect.
    pub(crate) fn is_full() -> bool {
        let user = rustix::process::geteuid().as_raw();
        matches!(knock(Some(user)), Err(Errno::AGAIN))
    }

    /// The address of the host's daemon, or of the user's own, if somebody listens there, whoever that is
    /// and even if he takes nobody: then a connection would not say who.
    pub(crate) fn listened_at(host: bool) -> Option<String> {
        let user = rustix::process::geteuid().as_raw();
        let name = shunt_abi::control_name((!host).then_some(user));
        listening(nobody::SELF).contains(&name).then_some(name)
    }

    /// Every daemon that serves this user.
    pub(crate) fn all() -> Vec<Self> {
        [true, false]
            .into_iter()
            .filter_map(Self::connect)
            .collect()
    }

    /// Introduces us. Whether the daemon finds the other end of a connection whatever its addresses.
    pub(crate) fn greet(&self, name: &str) -> Result<bool> {
        if self.is_stopped() {
            bail!(self.silence());
        }
        let mut hello = Message::new(Kind::Hello);
        hello.name[..name.len()].copy_from_slice(name.as_bytes());
        // Whom it refuses it closes at once; what it says before that may still be read.
        let sent = self.transmit(&hello);
        if !matches!(sent, Ok(()) | Err(Errno::PIPE | Errno::CONNRESET)) {
            sent.with_context(|| self.silence())?;
        }
        let welcome = self.receive()?.with_context(|| {
            let name = self.name();
            format!("{name} refuses us: it has closed the connection without a word")
        })?;
        ensure!(
            welcome.kind() == Some(Kind::Welcome),
            "shuntd answered out of turn"
        );
        if welcome.protocol != PROTOCOL {
            bail!(
                "{} speaks version {}, this is version {PROTOCOL}: restart it",
                self.name(),
                welcome.protocol
            );
        }
        if let Some(reason) = Reason::from_number(welcome.status) {
            bail!("{} refuses us: {}", self.name(), reason.text());
        }
        Ok(welcome.flags & FLAG_CROSSES != 0)
    }

    /// Whether the daemon answers, whatever that is; `false`: it ended while we knocked. An error says why one
    /// that is there is silent.
    pub(crate) fn answers(&self) -> Result<bool> {
        if self.is_stopped() {
            bail!(self.silence());
        }
        if self.send(&Message::new(Kind::Hello)).is_err() {
            return Ok(false);
        }
        Ok(self.take(&mut [0; 256])?.is_some())
    }

    /// Every connection and listener that the daemon knows. Needs [`Self::greet`] first.
    pub(crate) fn list(&self) -> Result<Vec<Message>> {
        self.send(&Message::new(Kind::List))?;
        let mut rows = Vec::new();
        loop {
            let message = self.next()?;
            match message.kind() {
                Some(Kind::Row | Kind::Listener) => rows.push(message),
                Some(Kind::End) => return Ok(rows),
                _ => {}
            }
        }
    }

    /// The same with the counters of each connection, if the daemon is new enough to tell them.
    pub(crate) fn list_details(&mut self) -> Result<Details> {
        let mut datagram = std::mem::take(&mut self.datagram);
        datagram.resize(MOST_TOGETHER * MESSAGE_BYTES, 0);
        let found = self.details(&mut datagram);
        self.datagram = datagram;
        found
    }

    fn details(&self, datagram: &mut [u8]) -> Result<Details> {
        let mut list = Message::new(Kind::List);
        (list.flags, list.index) = (FLAG_DETAILS | FLAG_TOGETHER, MOST_TOGETHER as u32);
        self.send(&list)?;
        let mut found = Details::default();
        loop {
            let length = self.take(datagram)?;
            let length = length.with_context(|| self.end())?;
            // Two messages tell of a connection.
            found.connections.reserve(length / (2 * MESSAGE_BYTES));
            for bytes in datagram[..length].chunks(MESSAGE_BYTES) {
                if found.add(&self.message(bytes)?) {
                    return Ok(found);
                }
            }
        }
    }

    /// Other hosts that the daemon has looked for, and whether it looks for any. Needs [`Self::greet`] first.
    pub(crate) fn hosts(&self) -> Result<(Vec<Message>, bool)> {
        self.send(&Message::new(Kind::Hosts))?;
        let mut rows = Vec::new();
        loop {
            let message = self.next()?;
            match message.kind() {
                Some(Kind::Host) => rows.push(message),
                Some(Kind::End) => return Ok((rows, message.index != 0)),
                _ => {}
            }
        }
    }

    /// Wishes the connection of a row back to TCP; returns how many of its ends have
    /// holders that hear of it. Needs [`Self::greet`] first.
    pub(crate) fn downgrade(&self, row: &Message) -> Result<u32> {
        let mut wish = Message::new(Kind::Downgrade);
        (wish.family, wish.ports, wish.addresses) = (row.family, row.ports, row.addresses);
        self.send(&wish)?;
        loop {
            let message = self.next()?;
            if message.kind() == Some(Kind::End) {
                return Ok(message.index);
            }
        }
    }

    /// The daemon in a message.
    fn name(&self) -> String {
        match self.pid {
            Some(pid) => format!("shuntd (pid {pid})"),
            None => "shuntd (of another PID namespace)".into(),
        }
    }

    /// Somebody has stopped the daemon's process, as far as can be seen from here.
    fn is_stopped(&self) -> bool {
        let state = self.pid.and_then(|pid| process::state(pid.get()));
        matches!(state, Some(b'T' | b't'))
    }

    /// Why the daemon does not answer, and what to do.
    fn silence(&self) -> String {
        let name = self.name();
        match self.pid {
            Some(pid) if self.is_stopped() => {
                format!("{name} is stopped: `kill -CONT {pid}` lets it go on")
            }
            Some(pid) => format!(
                "{name} does not answer: if it is not just busy, `kill {pid}` ends it \
                 and the next `shunt run` starts another"
            ),
            None => format!("{name} does not answer: look at it there"),
        }
    }

    fn send(&self, message: &Message) -> Result<()> {
        self.transmit(message).with_context(|| self.silence())
    }

    fn transmit(&self, message: &Message) -> rustix::io::Result<()> {
        let slices = [IoSlice::new(message.as_bytes())];
        let mut control = SendAncillaryBuffer::default();
        rustix::net::sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// The next message of a daemon that has let us in.
    fn next(&self) -> Result<Message> {
        self.receive()?.with_context(|| self.end())
    }

    /// What is to be said when there is none.
    fn end(&self) -> String {
        format!("{} closed the connection", self.name())
    }

    /// The next message; `None`: the daemon has closed the connection.
    fn receive(&self) -> Result<Option<Message>> {
        let mut bytes = [0; 256];
        let length = self.take(&mut bytes)?;
        length
            .map(|length| self.message(&bytes[..length]))
            .transpose()
    }

    fn message(&self, bytes: &[u8]) -> Result<Message> {
        let advice = || format!("{} is of another version: restart it", self.name());
        Message::parse(bytes).with_context(advice)
    }

    /// The length of the next datagram, which is in `bytes` then; `None`: the daemon has closed the connection.
    fn take(&self, bytes: &mut [u8]) -> Result<Option<usize>> {
        // The board comes with the welcome; dropping the buffer closes it.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let began = Instant::now();
        let got = loop {
            match rustix::net::recvmsg(&self.socket, slices, &mut control, flags) {
                Err(Errno::AGAIN) if began.elapsed() < PATIENCE && !self.is_stopped() => {}
                Err(Errno::AGAIN) => bail!(self.silence()),
                Err(Errno::CONNRESET) => return Ok(None),
                got => break got.with_context(|| format!("cannot hear {}", self.name()))?,
            }
        };
        Ok((got.bytes != 0).then_some(got.bytes))
    }
}

/// Connects to whoever listens there, if that can be done at once.
fn knock(user: Option<u32>) -> rustix::io::Result<OwnedFd> {
    let address = abstract_address(user).ok_or(Errno::INVAL)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// Where the host's daemon listens (`None`), or a user's, in this network namespace.
fn abstract_address(user: Option<u32>) -> Option<SocketAddrUnix> {
    let name = shunt_abi::control_name(user);
    SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()
}
