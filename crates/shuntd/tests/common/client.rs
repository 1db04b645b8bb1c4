//! A fake libshunt, which says to a daemon what a test wants said.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use shunt_abi::message::{FLAG_USED, Kind, Message, Role};
use shunt_abi::{board, layout};
use zerocopy::IntoBytes;

use super::{ARENA_SEALS, WATCHDOG, arena_file, named, unnamed};

/// A fake libshunt.
pub struct Client {
    pub socket: OwnedFd,
    pub board: Option<OwnedFd>,
    pub mail: u32,
}

impl Client {
    /// Connects, and says nothing.
    pub fn raw(name: &str) -> Self {
        Self::dial(&SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap())
    }

    pub fn dial(address: &SocketAddrUnix) -> Self {
        let kind = SocketType::SEQPACKET;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .unwrap();
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(WATCHDOG)).unwrap();
        rustix::net::connect(&socket, address).unwrap();
        Self {
            socket,
            board: None,
            mail: 0,
        }
    }

    pub fn hello(name: &str, comm: &str) -> Self {
        Self::introduced(Self::raw(name), comm).0
    }

    /// One that has said Hello, and the answer.
    pub fn introduced(mut client: Self, comm: &str) -> (Self, Message) {
        client.say_hello(comm);
        let (welcome, board) = client.receive().expect("no Welcome");
        assert_eq!((welcome.kind(), welcome.status), (Some(Kind::Welcome), 0));
        client.mail = welcome.index;
        client.board = board;
        (client, welcome)
    }

    /// Says Hello, and reads no answer.
    pub fn say_hello(&self, comm: &str) {
        let mut hello = Message::new(Kind::Hello);
        hello.name[..comm.len()].copy_from_slice(comm.as_bytes());
        self.send(&hello, None);
    }

    pub fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) {
        self.send_bytes(message.as_bytes(), fd).unwrap();
    }

    pub fn send_bytes(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if fd.is_some() {
            control.push(SendAncillaryMessage::ScmRights(fd.as_slice()));
        }
        let slices = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// The next message, or `None` when the daemon has closed. The page of the cores, which comes before the first link, is
    /// passed over.
    pub fn receive(&self) -> Option<(Message, Option<OwnedFd>)> {
        loop {
            let next = self.receive_any()?;
            if next.0.kind() != Some(Kind::Cores) {
                return Some(next);
            }
        }
    }

    /// The next message, whatever it is.
    pub fn receive_any(&self) -> Option<(Message, Option<OwnedFd>)> {
        let mut bytes = [0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_or(0, |got| got.bytes); // ECONNRESET: closed with data unread.
        let mut fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.next().and_then(|mut fds| fds.next());
        (got != 0).then(|| (Message::parse(&bytes[..got]).expect("a whole message"), fd))
    }

    /// The next message, which must be of this kind.
    pub fn expect(&self, kind: Kind) -> (Message, Option<OwnedFd>) {
        let (message, fd) = self.receive().expect("the daemon has closed");
        assert_eq!(message.kind(), Some(kind), "{message:?}");
        (message, fd)
    }

    /// Fails unless nothing has been sent to us. Exact after [`Self::sync`].
    pub fn expect_nothing(&self) {
        let mut byte = [0; 1];
        let got = rustix::net::recv(
            &self.socket,
            &mut byte[..],
            RecvFlags::DONTWAIT | RecvFlags::PEEK,
        );
        assert_eq!(got.err(), Some(rustix::io::Errno::AGAIN));
    }

    /// Returns when the daemon has handled everything sent so far.
    pub fn sync(&self) {
        self.send(&Message::new(Kind::List), None);
        while self.receive().expect("the daemon has closed").0.kind() != Some(Kind::End) {}
    }

    pub fn rows(&self) -> Vec<Message> {
        self.send(&Message::new(Kind::List), None);
        let next = || self.receive().expect("the daemon has closed").0;
        std::iter::from_fn(|| Some(next()).filter(|m| m.kind() == Some(Kind::Row))).collect()
    }

    pub fn expect_closed(&self) {
        while self.receive().is_some() {}
    }

    /// Sends an arena and keeps a descriptor for it.
    pub fn spare(&self, arena: u32) -> OwnedFd {
        self.spare_with(arena, layout::FIRST_SLOTS, layout::FIRST_SLOTS)
    }

    /// Gives the daemon a spare with `slots` slots, where it was asked for one with `asked`.
    pub fn spare_with(&self, arena: u32, slots: u32, asked: u32) -> OwnedFd {
        let file = arena_file(layout::arena_bytes(slots) as u64, ARENA_SEALS);
        let mut spare = Message::new(Kind::Spare);
        (spare.arena, spare.slot) = (arena, asked);
        self.send(&spare, Some(file.as_fd()));
        file
    }

    /// Claims as libshunt does; returns the socket's cookie.
    pub fn claim(&self, socket: impl AsFd, role: Role, flags: u32) -> u64 {
        let claim = named(socket, role, flags);
        self.send(&claim, None);
        claim.cookie
    }

    pub fn claim_as(&self, socket: impl AsFd, cookie: u64, role: Role, flags: u32) {
        let mut claim = named(socket, role, flags);
        claim.cookie = cookie;
        self.send(&claim, None);
    }

    /// As before its `connect`: the claim names no addresses.
    pub fn claim_ahead(&self, socket: impl AsFd, flags: u32) -> u64 {
        let claim = unnamed(&socket, Role::Connector, flags);
        self.send(&claim, None);
        claim.cookie
    }

    pub fn release(&self, cookie: u64) {
        self.with_cookie(Kind::Release, cookie, 0);
    }

    /// Of a connection that was attached at both ends.
    pub fn release_used(&self, cookie: u64) {
        let mut release = Message::new(Kind::Release);
        (release.cookie, release.flags) = (cookie, FLAG_USED);
        self.send(&release, None);
    }

    pub fn report(&self, cookie: u64, status: u8) {
        self.with_cookie(Kind::Report, cookie, status);
    }

    pub fn listen(&self, cookie: u64, port: u16) {
        let mut listen = Message::new(Kind::Listen);
        (listen.cookie, listen.port) = (cookie, port);
        self.send(&listen, None);
    }

    fn with_cookie(&self, kind: Kind, cookie: u64, status: u8) {
        let mut message = Message::new(kind);
        (message.cookie, message.status) = (cookie, status);
        self.send(&message, None);
    }

    pub fn mail_count(&self) -> u32 {
        self.board_word(board::MAIL_AT + self.mail as usize * 4)
    }

    pub fn port_is_set(&self, port: u16) -> bool {
        self.board_word(board::PORTS_AT + usize::from(port) / 32 * 4) >> (port % 32) & 1 == 1
    }

    /// Whether it is told that other ends are found in other network namespaces, too.
    pub fn crosses(&self) -> bool {
        self.board_word(board::CROSSES_AT) != 0
    }

    fn board_word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        let got = rustix::io::pread(self.board.as_ref().unwrap(), &mut word[..], at as u64);
        assert_eq!(got, Ok(4));
        u32::from_ne_bytes(word)
    }
}
