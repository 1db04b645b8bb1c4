//! Sockets at which the service manager listens for the daemon (`sd_listen_fds(3)`): it starts shuntd when
//! the first client comes, and who comes while shuntd is started anew waits for it.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketType, sockopt};

use crate::sys::adopt_descriptor;
use crate::wire::BACKLOG;

/// `SD_LISTEN_FDS_START`.
const FIRST: i32 = 3;

/// What was handed to this process, and not taken yet.
pub struct Given(Vec<(SocketAddrUnix, OwnedFd)>);

impl Given {
    /// What the environment says was handed to this process, if it was meant.
    ///
    /// # Errors
    /// When that is anything but a Unix socket of our kind that listens.
    pub fn new() -> io::Result<Self> {
        let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        let is_meant = number("LISTEN_PID") == Some(std::process::id());
        let count = number("LISTEN_FDS").filter(|_| is_meant).unwrap_or(0);
        let last = FIRST.saturating_add_unsigned(count);
        let all = (FIRST..last).map(|number| {
            let socket = adopt_descriptor(number)?;
            Ok((address(&socket)?, socket))
        });
        all.collect::<io::Result<_>>().map(Self)
    }

    /// The socket with this abstract name.
    ///
    /// # Errors
    /// When the kernel refuses to let us listen at it.
    pub fn named(&mut self, name: &str) -> io::Result<Option<OwnedFd>> {
        self.take(|address| address.abstract_name() == Some(name.as_bytes()))
    }

    /// The socket at this file.
    ///
    /// # Errors
    /// When the kernel refuses to let us listen at it.
    pub fn at(&mut self, path: &Path) -> io::Result<Option<OwnedFd>> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        self.take(|address| address.path().is_some_and(|found| *found == *path))
    }

    fn take(&mut self, is_it: impl Fn(&SocketAddrUnix) -> bool) -> io::Result<Option<OwnedFd>> {
        let Some(i) = self.0.iter().position(|(address, _)| is_it(address)) else {
            return Ok(None);
        };
        let (_, socket) = self.0.swap_remove(i);
        rustix::io::ioctl_fionbio(&socket, true)?;
        // Clients are told who has called this last (`SO_PEERCRED`): this process, not the manager.
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Some(socket))
    }

    /// The address of one that nobody has taken.
    #[must_use]
    pub fn left(&self) -> Option<String> {
        let (address, _) = self.0.first()?;
        Some(match (address.abstract_name(), address.path()) {
            (Some(name), _) => format!("@{}", String::from_utf8_lossy(name)),
            (None, path) => {
                path.map_or_else(String::new, |path| path.to_string_lossy().into_owned())
            }
        })
    }
}

/// Where a socket listens, if it is one of our kind.
fn address(socket: &OwnedFd) -> io::Result<SocketAddrUnix> {
    let listens = sockopt::socket_acceptconn(socket)?;
    if !listens || sockopt::socket_type(socket)? != SocketType::SEQPACKET {
        return Err(Errno::PROTOTYPE.into());
    }
    Ok(rustix::net::getsockname(socket)?.try_into()?)
}
