//! Datagrams with descriptors on a non-blocking `SOCK_SEQPACKET` socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Mode};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use shunt_abi::message::{MESSAGE_BYTES, Message};
use zerocopy::IntoBytes;

use crate::foreign::{Foreign, Lane};

/// The most clients that may wait until they are let in.
pub(crate) const BACKLOG: i32 = 4096;

/// Opens the socket at an abstract address that clients connect to.
///
/// # Errors
/// `EADDRINUSE` when another daemon has the address.
pub fn listen(name: &str) -> Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Opens a socket at a file that every user may connect to, in a directory that only its owner may
/// write to: made if it is not there, and left there, since containers mount it. What a daemon that
/// was killed has left is replaced.
///
/// # Errors
/// `EADDRINUSE` when another daemon listens there; `EACCES` when others may write to the directory;
/// `ENOTSOCK` when there is something else, which stays; `EINVAL` when the path is not absolute.
pub fn listen_at(path: &Path) -> Result<OwnedFd> {
    let directory = path.parent().filter(|_| path.is_absolute());
    let directory = directory.ok_or(Errno::INVAL)?;
    match rustix::fs::mkdir(directory, Mode::from(0o755)) {
        // A umask may have taken something away.
        Ok(()) => rustix::fs::chmod(directory, Mode::from(0o755))?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let about = rustix::fs::stat(directory)?;
    if about.st_uid != rustix::process::geteuid().as_raw() || about.st_mode & 0o022 != 0 {
        return Err(Errno::ACCESS);
    }
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let found = rustix::fs::lstat(path).map(|found| FileType::from_raw_mode(found.st_mode));
    match found {
        Err(Errno::NOENT) => {}
        Ok(FileType::Socket) => match rustix::net::connect(socket()?, &address) {
            Err(Errno::CONNREFUSED) => rustix::fs::unlink(path)?,
            Ok(()) | Err(Errno::AGAIN) => return Err(Errno::ADDRINUSE),
            Err(error) => return Err(error),
        },
        Ok(_) => return Err(Errno::NOTSOCK),
        Err(error) => return Err(error),
    }
    let socket = socket()?;
    rustix::net::bind(&socket, &address)?;
    rustix::fs::chmod(path, Mode::from(0o666))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The abstract name that a socket listens at.
pub(crate) fn name_of(listener: &OwnedFd) -> Result<Vec<u8>> {
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(listener)?)?;
    Ok(address.abstract_name().unwrap_or_default().to_vec())
}

/// The process and the user who listen at an abstract address.
#[must_use]
pub fn listener_of(name: &str) -> Option<(u32, u32)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    crate::sys::peer_credentials(&socket).ok()
}

/// `SCM_MAX_FD`: as many as one datagram can carry.
const MOST_FDS: usize = 253;

/// One datagram, not yet looked at.
#[derive(Debug)]
pub(crate) struct Datagram {
    bytes: [u8; MESSAGE_BYTES + 1],
    len: usize,
    /// What came with it. Descriptors are always taken, and all of them: the
    /// kernel closes those for which there is no room, in our thread.
    pub(crate) fds: Vec<Foreign>,
    /// Descriptors were attached for which there was no room.
    pub(crate) lost_fds: bool,
}

impl Datagram {
    /// Its bytes; at most one more than a message has, which is enough to see
    /// that it is none.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Takes the next datagram; `None` when the other side has closed.
pub(crate) fn receive(socket: BorrowedFd<'_>, lane: &Arc<Lane>) -> Result<Option<Datagram>> {
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    )?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.map(|fd| Foreign::new(fd, lane)));
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let lost_fds = got.flags.contains(ReturnFlags::CTRUNC);
    Ok(Some(Datagram {
        bytes,
        len: got.bytes,
        fds,
        lost_fds,
    }))
}

/// Sends a message, with a descriptor if there is one; `EAGAIN` when the other
/// side does not read.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &Message,
    fd: Option<BorrowedFd<'_>>,
) -> Result<()> {
    send_together(socket, std::slice::from_ref(message), fd)
}

/// Sends several messages in one datagram, with a descriptor if there is one.
pub(crate) fn send_together(
    socket: BorrowedFd<'_>,
    messages: &[Message],
    fd: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fd.is_some() {
        control.push(SendAncillaryMessage::ScmRights(fd.as_slice()));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(
        socket,
        &[IoSlice::new(messages.as_bytes())],
        &mut control,
        flags,
    )?;
    if sent == size_of_val(messages) {
        Ok(())
    } else {
        Err(Errno::MSGSIZE)
    }
}
