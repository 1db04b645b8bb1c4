//! The parent of a family: it makes the connections, has children that use
//! them, and kills, stops and replaces these.

use super::member::{FIRST, Plan, live};
use super::pass;
use super::shared::{CONNECTIONS, Shared};
use super::way::nap;
use crate::random::Random;
use crate::system::{self, checked};
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

const CHILDREN: usize = 4;
/// Of these; some are killed now and then.
const MORTALS: usize = 2;

/// How much happens in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mischief {
    /// Senders are killed, and all are stopped now and then.
    pub(super) kills: bool,
    /// Receivers are killed as well.
    pub(super) receivers: bool,
    /// Those who are killed also send in parts (`sendmsg`).
    pub(super) parts: bool,
    /// Members by exec and by passing descriptors.
    pub(super) strangers: bool,
    /// Some of them without libshunt, and streams.
    pub(super) plain: bool,
}

impl Mischief {
    pub(super) fn bits(self) -> u64 {
        u64::from(self.kills)
            | u64::from(self.strangers) << 1
            | u64::from(self.plain) << 2
            | u64::from(self.receivers) << 3
            | u64::from(self.parts) << 4
    }

    fn from_bits(bits: u64) -> Self {
        Self {
            kills: bits & 1 != 0,
            strangers: bits & 2 != 0,
            plain: bits & 4 != 0,
            receivers: bits & 8 != 0,
            parts: bits & 16 != 0,
        }
    }
}

struct Parent<'a> {
    file: &'a str,
    shared: &'static Shared,
    side: usize,
    mischief: Mischief,
    random: Random,
    content: u64,
    sockets: Vec<OwnedFd>,
    children: [libc::pid_t; CHILDREN],
    killed: [bool; CHILDREN],
    /// All have been born once.
    grown: bool,
}

/// `family-parent FILE SIDE SEED MISCHIEF`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    const USAGE: &str = "family-parent FILE SIDE SEED MISCHIEF";
    let [file, numbers @ ..] = arguments else {
        return Err(USAGE.into());
    };
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|word| word.parse().map_err(|_| USAGE))
        .collect::<Result<_, _>>()?;
    let [side, seed, mischief] = numbers[..] else {
        return Err(USAGE.into());
    };
    let side = usize::from(side != 0);
    system::ignore_sigpipe();
    // SAFETY: integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
        .map_err(|error| error.to_string())?;
    let shared = Shared::open(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
    let mut parent = Parent {
        file,
        shared,
        side,
        mischief: Mischief::from_bits(mischief),
        random: Random::new(seed ^ (side as u64 + 1)),
        content: seed,
        sockets: connect(shared, side)
            .and_then(limit)
            .and_then(|sockets| warm_up(sockets, side))
            .map_err(|error| format!("connect: {error}"))?,
        children: [0; CHILDREN],
        killed: [false; CHILDREN],
        grown: false,
    };
    parent.raise()?;
    parent.part()
}

fn connect(shared: &Shared, side: usize) -> std::io::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    if side == 0 {
        let (listener, port) = system::listener(0, Ipv4Addr::LOCALHOST)?;
        shared.port.store(u32::from(port), SeqCst);
        while sockets.len() < CONNECTIONS {
            sockets.extend(system::accept(listener.as_raw_fd(), 0)?);
        }
        return Ok(sockets);
    }
    while shared.port.load(SeqCst) == 0 {
        nap(500);
    }
    let port = u16::try_from(shared.port.load(SeqCst)).unwrap_or(0);
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    for _ in 0..CONNECTIONS {
        let socket = system::socket(0)?;
        system::connect(socket.as_raw_fd(), to)?;
        sockets.push(socket);
    }
    Ok(sockets)
}

/// A connection that is forked before it was used stays on TCP.
fn warm_up(sockets: Vec<OwnedFd>, side: usize) -> std::io::Result<Vec<OwnedFd>> {
    for round in 0..64_u8 {
        for socket in &sockets {
            exchange(socket, side, [round; 16])?;
        }
    }
    Ok(sockets)
}

/// One message there and back, or back and there.
fn exchange(socket: &OwnedFd, side: usize, message: [u8; 16]) -> std::io::Result<()> {
    let mut bytes = message;
    for step in 0..2 {
        if step == side {
            receive_all(socket, &mut bytes)?;
        } else {
            send_at_once(socket, &bytes)?;
        }
    }
    if bytes != message {
        return Err(Error::other("other bytes came than were sent"));
    }
    Ok(())
}

fn send_at_once(socket: &OwnedFd, bytes: &[u8]) -> std::io::Result<()> {
    let (fd, data) = (socket.as_raw_fd(), bytes.as_ptr().cast());
    // SAFETY: the bytes live through the call and have the size given.
    let sent = system::counted(unsafe { libc::send(fd, data, bytes.len(), libc::MSG_NOSIGNAL) })?;
    if sent != bytes.len() {
        return Err(Error::other("a small send was short"));
    }
    Ok(())
}

fn receive_all(socket: &OwnedFd, mut buffer: &mut [u8]) -> std::io::Result<()> {
    while !buffer.is_empty() {
        // SAFETY: the buffer lives through the call and has the size given.
        let got = system::counted(unsafe {
            let data = buffer.as_mut_ptr().cast();
            libc::recv(socket.as_raw_fd(), data, buffer.len(), 0)
        });
        match got {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => buffer = &mut buffer[got..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Nobody sleeps in a receive for ever, so that no way is without a receiver.
fn limit(sockets: Vec<OwnedFd>) -> std::io::Result<Vec<OwnedFd>> {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: 50_000,
    };
    for socket in &sockets {
        // SAFETY: the time lives through the call and its size is right.
        checked(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const time).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        })?;
    }
    Ok(sockets)
}

impl Parent<'_> {
    fn fds(&self) -> [RawFd; CONNECTIONS] {
        std::array::from_fn(|i| self.sockets[i].as_raw_fd())
    }

    /// Until the round is over and all children have ended.
    fn raise(&mut self) -> Result<(), String> {
        loop {
            let draining = self.shared.draining();
            self.bury()?;
            let alone = self.children.iter().all(|&pid| pid == 0);
            if draining && alone && self.shared.side_has_ended(self.side) {
                return Ok(());
            }
            if self.shared.failures.load(SeqCst) > 0 {
                return Err("a failure".into());
            }
            for place in 0..CHILDREN {
                // At the end one that is not killed brings it all to its end.
                if self.children[place] == 0 && (!draining || (alone && place == MORTALS)) {
                    self.bear(place)?;
                }
            }
            self.grown = true;
            if !draining {
                self.disturb();
            }
            nap(self.random.magnitude(500, 8000));
        }
    }

    fn bury(&mut self) -> Result<(), String> {
        for place in 0..CHILDREN {
            let pid = self.children[place];
            let mut status = 0;
            // SAFETY: the status lives through the call.
            if pid == 0 || unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } != pid {
                continue;
            }
            self.children[place] = 0;
            let by_us = libc::WIFSIGNALED(status)
                && libc::WTERMSIG(status) == libc::SIGKILL
                && self.killed[place];
            if !by_us && status != 0 {
                return Err(format!("child {pid} ended with {status:#x}"));
            }
        }
        Ok(())
    }

    fn bear(&mut self, place: usize) -> Result<(), String> {
        // The first ones are born here, so that the connection is busy before it
        // has to become plain.
        let stranger = self.grown && self.mischief.strangers && self.random.one_in(2);
        let passed = stranger && self.random.one_in(2);
        let plain = stranger && self.mischief.plain && self.random.one_in(2);
        let plan = Plan {
            side: self.side,
            mortal: place < MORTALS,
            parts: self.mischief.parts,
            only_sends: place == 0 && !self.mischief.receivers,
            streams: self.mischief.plain,
            passed,
            life: self.random.magnitude(4, 800),
            seed: self.random.next(),
            content: self.content,
        };
        self.killed[place] = false;
        self.shared.events.fetch_add(1, SeqCst);
        self.children[place] = if stranger {
            self.start(&plan, plain)
                .map_err(|error| format!("start: {error}"))?
        } else {
            self.fork(&plan)
        };
        Ok(())
    }

    /// One that goes on in our memory.
    fn fork(&self, plan: &Plan) -> libc::pid_t {
        // SAFETY: this process has one thread, so its child may do what it likes.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = match live(self.shared, plan, self.fds()) {
                Ok(()) => 0,
                Err(text) => {
                    self.shared.fail(&text);
                    1
                }
            };
            // SAFETY: no destructor of the parent's must run here.
            unsafe { libc::_exit(code) };
        }
        pid
    }

    /// One that inherits the connections, or is given them.
    fn start(&self, plan: &Plan, plain: bool) -> std::io::Result<libc::pid_t> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("family-member")
            .arg(self.file)
            .args(plan.words());
        if plain {
            command.env_remove("LD_PRELOAD");
        }
        let (ours, theirs) = pass::pair()?;
        let fds = self.fds();
        if plan.passed {
            command.stdin(Stdio::from(theirs));
        } else {
            // SAFETY: dup2 is safe between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    for (i, &fd) in fds.iter().enumerate() {
                        checked(libc::dup2(fd, FIRST + i as RawFd))?;
                    }
                    Ok(())
                });
            }
        }
        let child = command.spawn()?;
        drop(command);
        if plan.passed {
            pass::send(ours.as_raw_fd(), &fds)?;
        }
        // Not waited for by the standard library.
        Ok(child.id().cast_signed())
    }

    /// Kills a child, or stops one for a moment.
    fn disturb(&mut self) {
        let place = self.random.below(CHILDREN);
        let pid = self.children[place];
        if pid == 0 || !self.mischief.kills || self.random.one_in(3) {
            return;
        }
        self.shared.events.fetch_add(1, SeqCst);
        // SAFETY: integers only; the child is ours and not yet waited for.
        unsafe {
            let may_die = place == 0 || (place < MORTALS && self.mischief.receivers);
            if may_die && self.random.one_in(2) {
                self.killed[place] = true;
                libc::kill(pid, libc::SIGKILL);
            } else {
                self.shared.stops.fetch_add(1, SeqCst);
                libc::kill(pid, libc::SIGSTOP);
                nap(self.random.magnitude(100, 10_000));
                libc::kill(pid, libc::SIGCONT);
            }
        }
    }

    /// Each side says that it has no more to send, and finds the same of the other.
    fn part(&self) -> Result<(), String> {
        for (connection, socket) in self.sockets.iter().enumerate() {
            system::shutdown(socket.as_raw_fd(), libc::SHUT_WR);
            let mut rest = vec![0_u8; 4096];
            loop {
                // SAFETY: the buffer lives through the call and has the size given.
                let got = system::counted(unsafe {
                    libc::recv(socket.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), 0)
                });
                match got {
                    Ok(0) => break,
                    // What a killed process had sent and its successor sent again.
                    Ok(_) if connection < super::shared::MORTAL => {}
                    Ok(got) => {
                        return Err(format!("connection {connection}: {got} bytes too many"));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => {
                        return Err(format!("connection {connection}, at its end: {error}"));
                    }
                }
            }
        }
        Ok(())
    }
}
