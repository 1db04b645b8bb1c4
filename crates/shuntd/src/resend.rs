//! Sends to a process what it has not read in shared memory, by the other end of its connection, which it
//! may not have itself (`daemon/lending.rs`).
//!
//! The bytes come in a memory file. Its last seal (`F_SEAL_SEAL`) can be set once only, and decides what becomes of
//! them:
//!
//! ```text
//! this daemon sets it    sends the bytes, and answers
//! the process sets it    it has waited long enough: nothing is sent any more
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use shunt_abi::Reason;
use shunt_abi::layout::RING_BYTES;
use shunt_abi::message::{Kind, Message};

use crate::foreign::Foreign;
use crate::stretched::Stretched;
use crate::wire;

/// Bytes given to the kernel at a time.
const STEP: usize = 64 << 10;
/// How long the kernel may take to make room, each time and (`LONGEST`) in all. What it has not taken by
/// then, the other end's process sends with its next call.
const GROWTH: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
const LONGEST: Duration = Duration::from_millis(200);

/// What a thread is to send.
#[derive(Debug)]
pub(crate) struct Resend {
    /// The asker's name for its socket.
    cookie: u64,
    /// The other end.
    socket: Foreign,
    bytes: Foreign,
    /// A copy of the asker's control socket. The asker finds it closed only when this is over.
    answer: Foreign,
}

impl Resend {
    /// `None` unless the bytes are in a memory file: to read any other one may take as long as its maker
    /// likes.
    pub(crate) fn new(
        cookie: u64,
        socket: Foreign,
        bytes: Foreign,
        answer: Foreign,
    ) -> Option<Self> {
        let is_memory = rustix::fs::fcntl_get_seals(&bytes).is_ok();
        is_memory.then_some(Self {
            cookie,
            socket,
            bytes,
            answer,
        })
    }

    /// Sends what the kernel takes, unless the asker waits no longer.
    pub(crate) fn send(self) {
        let begins = rustix::fs::fcntl_add_seals(&self.bytes, SealFlags::SEAL).is_ok();
        if begins {
            send(self.socket.as_fd(), self.bytes.as_fd());
        }
        // First: the other end may be closed next.
        self.socket.close_now();
        let mut resent = Message::new(Kind::Resent);
        resent.cookie = self.cookie;
        if !begins {
            resent.status = Reason::NotEstablished as u8;
        }
        let _ = wire::send(self.answer.as_fd(), &resent, None);
    }
}

fn send(socket: BorrowedFd<'_>, bytes: BorrowedFd<'_>) {
    let until = Instant::now() + LONGEST;
    let mut step = vec![0; STEP];
    let (mut at, mut stretched) = (0, None);
    while let Some(left) = (RING_BYTES as u64).checked_sub(at).filter(|left| *left > 0) {
        let most = STEP.min(left as usize);
        let Ok(read @ 1..) = rustix::io::pread(bytes, &mut step[..most], at) else {
            break;
        };
        let mut sent = send_part(socket, &step[..read], until);
        if sent < read && stretched.is_none() {
            stretched = Some(Stretched::new(socket));
            sent += send_part(socket, &step[sent..read], until);
        }
        at += sent as u64;
        if sent < read {
            break;
        }
    }
    // The last segment waits for no acknowledgement (`tcp(7)`, `TCP_NODELAY`).
    if sockopt::tcp_nodelay(socket) == Ok(false) {
        let _ = sockopt::set_tcp_nodelay(socket, true);
        let _ = sockopt::set_tcp_nodelay(socket, false);
    }
}

/// How many of these the kernel has taken.
fn send_part(socket: BorrowedFd<'_>, part: &[u8], until: Instant) -> usize {
    let mut sent = 0;
    while sent < part.len() {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(socket, &part[sent..], flags) {
            Ok(n) => sent += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < until && gets_room(socket) => {}
            Err(_) => break,
        }
    }
    sent
}

/// Its buffers grow while what they hold is acknowledged.
fn gets_room(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
    rustix::event::poll(&mut polled, Some(&GROWTH)).is_ok_and(|ready| ready > 0)
}
