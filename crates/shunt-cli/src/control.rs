//! A conversation with shuntd.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use shunt_abi::message::{Kind, Message};
use shunt_abi::{PROTOCOL, Reason};
use zerocopy::IntoBytes;

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to a daemon that may be trusted.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    /// The daemon's process.
    pub(crate) pid: i32,
    /// It serves the whole host, not one user.
    pub(crate) host: bool,
}

impl Control {
    /// Connects to the host's daemon or, if `host` is false, the user's own.
    /// `None` if there is none that we may trust: anybody can take a name.
    pub(crate) fn connect(host: bool) -> Option<Self> {
        let user = rustix::process::geteuid();
        let name = shunt_abi::control_name((!host).then_some(user.as_raw()));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .ok()?;
        // A daemon that is stopped, with a full queue, must not stop us too.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).ok()?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        let owner = sockopt::socket_peercred(&socket).ok()?;
        let trusted = owner.uid.is_root() || (!host && owner.uid == user);
        trusted.then_some(Self {
            socket,
            pid: owner.pid.as_raw_nonzero().get(),
            host,
        })
    }

    /// Who has the address of the user's own daemon without being it: user and
    /// process. Any user may take any abstract name.
    pub(crate) fn usurper() -> Option<(u32, i32)> {
        let user = rustix::process::geteuid();
        let name = shunt_abi::control_name(Some(user.as_raw()));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        let owner = sockopt::socket_peercred(&socket).ok()?;
        let trusted = owner.uid.is_root() || owner.uid == user;
        (!trusted).then(|| (owner.uid.as_raw(), owner.pid.as_raw_nonzero().get()))
    }

    /// Every daemon that serves this user.
    pub(crate) fn all() -> Vec<Self> {
        [true, false]
            .into_iter()
            .filter_map(Self::connect)
            .collect()
    }

    /// Introduces us.
    pub(crate) fn greet(&self, name: &str) -> Result<()> {
        if self.is_stopped() {
            bail!(self.silence());
        }
        let mut hello = Message::new(Kind::Hello);
        hello.name[..name.len()].copy_from_slice(name.as_bytes());
        self.send(&hello)?;
        let welcome = self.receive()?;
        ensure!(
            welcome.kind() == Some(Kind::Welcome),
            "shuntd answered out of turn"
        );
        if welcome.protocol != PROTOCOL {
            bail!(
                "shuntd (pid {}) speaks version {}, this is version {PROTOCOL}: restart it",
                self.pid,
                welcome.protocol
            );
        }
        if let Some(reason) = Reason::from_number(welcome.status) {
            bail!("shuntd (pid {}) refuses us: {}", self.pid, reason.text());
        }
        Ok(())
    }

    /// Whether the daemon ended while we knocked. One that is only slow has not.
    pub(crate) fn has_gone(&self) -> bool {
        let patience = Some(Duration::from_millis(200));
        if sockopt::set_socket_timeout(&self.socket, Timeout::Recv, patience).is_err()
            || self.send(&Message::new(Kind::Hello)).is_err()
        {
            return true;
        }
        let mut bytes = [0; 256];
        let got = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty());
        matches!(got, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
    }

    /// Every connection that the daemon knows. Needs [`Self::greet`] first.
    pub(crate) fn list(&self) -> Result<Vec<Message>> {
        self.send(&Message::new(Kind::List))?;
        let mut rows = Vec::new();
        loop {
            let message = self.receive()?;
            match message.kind() {
                Some(Kind::Row) => rows.push(message),
                Some(Kind::End) => return Ok(rows),
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
            let message = self.receive()?;
            if message.kind() == Some(Kind::End) {
                return Ok(message.index);
            }
        }
    }

    /// Somebody has stopped the daemon's process.
    fn is_stopped(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        // The name before it is in parentheses and may contain some.
        status.is_ok_and(|text| {
            let state = text
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            matches!(state, Some('T' | 't'))
        })
    }

    /// Why the daemon does not answer, and what to do.
    fn silence(&self) -> String {
        let pid = self.pid;
        if self.is_stopped() {
            format!("shuntd (pid {pid}) is stopped: `kill -CONT {pid}` lets it go on")
        } else {
            format!(
                "shuntd (pid {pid}) does not answer: if it is not just busy, `kill {pid}` ends it \
                 and the next `shunt run` starts another"
            )
        }
    }

    fn send(&self, message: &Message) -> Result<()> {
        let slices = [IoSlice::new(message.as_bytes())];
        let mut control = SendAncillaryBuffer::default();
        rustix::net::sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL)
            .with_context(|| self.silence())?;
        Ok(())
    }

    fn receive(&self) -> Result<Message> {
        let mut bytes = [0; 256];
        // The board comes with the welcome; dropping the buffer closes it.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match rustix::net::recvmsg(&self.socket, slices, &mut control, flags) {
            Err(rustix::io::Errno::AGAIN) => bail!(self.silence()),
            got => got.with_context(|| format!("cannot hear shuntd (pid {})", self.pid))?,
        };
        ensure!(
            got.bytes != 0,
            "shuntd (pid {}) closed the connection",
            self.pid
        );
        Message::parse(&bytes[..got.bytes]).with_context(|| {
            format!(
                "shuntd (pid {}) is of another version: restart it",
                self.pid
            )
        })
    }
}
