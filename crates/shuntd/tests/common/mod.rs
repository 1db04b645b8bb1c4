//! A daemon in a thread and fake clients that speak its protocol.
#![allow(dead_code, unreachable_pub)] // Each test file uses its part of this.

mod client;
pub mod place;
pub mod region;
pub mod scene;

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::sockopt;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Uid};
use shunt_abi::message::{FLAG_ANSWER, Kind, Message, Role};
use shuntd::{Config, Daemon, Scope, Source};

pub use client::Client;

/// How long a test waits for what must come: a watchdog, not a measure.
pub const WATCHDOG: Duration = Duration::from_secs(20);

/// A running daemon; stopped and checked for panics when dropped.
pub struct Fixture {
    pub name: String,
    stop: OwnedFd,
    reload: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Fixture {
    pub fn start() -> Self {
        Self::with("")
    }

    /// With the text of a configuration file.
    pub fn with(config: &str) -> Self {
        Self::begin(config, own_user(), || ())
    }

    /// Its thread runs as this user, which only root can have it do.
    pub fn of_user(user: Uid) -> Self {
        Self::begin("", own_user(), move || {
            rustix::thread::set_thread_res_uid(None, user, None).unwrap();
        })
    }

    /// With the text of a configuration file, perhaps for every user's processes.
    pub fn of(config: &str, host: bool) -> Self {
        Self::begin(config, if host { Scope::Host } else { own_user() }, || ())
    }

    /// For every user's processes.
    pub fn host() -> Self {
        Self::begin("", Scope::Host, || ())
    }

    /// It listens, and hears nobody before this says so.
    pub fn late(begin: std::sync::mpsc::Receiver<()>) -> Self {
        Self::begin("", own_user(), move || begin.recv().unwrap())
    }

    /// A seccomp filter refuses `pidfd_getfd` to it, as Docker's does.
    pub fn confined(host: bool) -> Self {
        let scope = if host { Scope::Host } else { own_user() };
        Self::begin("", scope, refuse_pidfd_getfd)
    }

    /// `first`: what its thread does before all else.
    fn begin(config: &str, scope: Scope, first: impl FnOnce() + Send + 'static) -> Self {
        Self::at(new_name(), config, scope, first)
    }

    /// Ends it and starts another one at its address.
    pub fn succeed(self) -> Self {
        let name = self.name.clone();
        drop(self);
        Self::at(name, "", own_user(), || ())
    }

    /// The same with one of this user, whom the kernel refuses `pidfd_getfd`.
    pub fn succeed_confined(self, user: Uid) -> Self {
        let name = self.name.clone();
        drop(self);
        Self::at(name, "", Scope::User(user.as_raw()), move || {
            rustix::thread::set_thread_res_uid(None, user, None).unwrap();
            refuse_pidfd_getfd();
        })
    }

    fn at(name: String, config: &str, scope: Scope, first: impl FnOnce() + Send + 'static) -> Self {
        Self::set_up(name, config, scope, first, |_| ())
    }

    /// For every user's processes, of all network namespaces: it listens at this file, too.
    pub fn crossing(config: &str, file: &Path) -> Self {
        let listener = shuntd::listen_at(file).unwrap();
        Self::set_up(
            new_name(),
            config,
            Scope::Host,
            || (),
            |daemon| {
                daemon.listen_too(listener).unwrap();
                daemon.find_by_mirrors();
            },
        )
    }

    /// For every user's processes on a host of its own, which is a network namespace here: it talks to other hosts, and
    /// finds RDMA devices in this directory.
    pub fn on(host: &place::Namespace, config: &str, devices: &Path) -> Self {
        let devices = devices.to_owned();
        let last = move |daemon: &mut Daemon| {
            daemon.set_devices(devices);
            daemon.talk_to_hosts().unwrap();
        };
        let name = new_name();
        // Its address means something there only.
        let listener = host.within(|| listen(&name));
        Self::listening(name, listener, config, Scope::Host, host.enter(), last)
    }

    /// Its configuration is in this file.
    pub fn reading(path: &Path) -> Self {
        Self::reading_as(path, own_user(), |_| ())
    }

    /// The same of one like [`Self::crossing`].
    pub fn crossing_as_read(path: &Path, file: &Path) -> Self {
        let listener = shuntd::listen_at(file).unwrap();
        Self::reading_as(path, Scope::Host, |daemon| {
            daemon.listen_too(listener).unwrap();
            daemon.find_by_mirrors();
        })
    }

    fn reading_as(
        path: &Path,
        scope: Scope,
        last: impl FnOnce(&mut Daemon) + Send + 'static,
    ) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let reload = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (signal, source) = (reload.try_clone().unwrap(), path.to_owned());
        let mut fixture = Self::set_up(
            new_name(),
            &text,
            scope,
            || (),
            |daemon| {
                let source = Source {
                    path: source,
                    required: true,
                };
                daemon.reload_by(signal, source).unwrap();
                last(daemon);
            },
        );
        fixture.reload = Some(reload);
        fixture
    }

    /// Has it read its file again.
    pub fn reload(&self) {
        let reload = self.reload.as_ref().unwrap();
        rustix::io::write(reload, &1_u64.to_ne_bytes()).unwrap();
        // It has been read when what was seen together with it has been handled.
        self.client().sync();
    }

    /// `last`: what is done with the daemon before it runs.
    fn set_up(
        name: String,
        config: &str,
        scope: Scope,
        first: impl FnOnce() + Send + 'static,
        last: impl FnOnce(&mut Daemon) + Send + 'static,
    ) -> Self {
        let listener = listen(&name);
        Self::listening(name, listener, config, scope, first, last)
    }

    fn listening(
        name: String,
        listener: OwnedFd,
        config: &str,
        scope: Scope,
        first: impl FnOnce() + Send + 'static,
        last: impl FnOnce(&mut Daemon) + Send + 'static,
    ) -> Self {
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (config, stopped) = (Config::parse(config).unwrap(), stop.try_clone().unwrap());
        let thread = std::thread::spawn(move || {
            first();
            let mut daemon = Daemon::new(listener, scope, config, false).unwrap();
            daemon.stop_by(stopped).unwrap();
            last(&mut daemon);
            daemon.run().unwrap();
        });
        Self {
            name,
            stop,
            reload: None,
            thread: Some(thread),
        }
    }

    /// A client that has said Hello.
    pub fn client(&self) -> Client {
        Client::hello(&self.name, "test")
    }
}

/// An address that no other test has.
pub fn new_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("shuntd-test/{}/{number}", std::process::id())
}

/// The address may be in use for a moment: what another test starts has copies of our
/// descriptors between its fork and its exec.
fn listen(name: &str) -> OwnedFd {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        match shuntd::listen(name) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < deadline =>
            {
                std::thread::yield_now();
            }
            listener => return listener.unwrap(),
        }
    }
}

/// A claim with the addresses that its client sees, as libshunt makes them.
pub fn named(socket: impl AsFd, role: Role, flags: u32) -> Message {
    let mut claim = unnamed(&socket, role, flags);
    let ends = [
        rustix::net::getsockname(&socket).ok(),
        rustix::net::getpeername(&socket).ok().flatten(), // None before `connect`.
    ];
    for (i, end) in ends.into_iter().enumerate() {
        let Some(end) = end.and_then(|end| SocketAddr::try_from(end).ok()) else {
            continue;
        };
        claim.ports[i] = end.port();
        match end.ip() {
            IpAddr::V4(ip) => {
                claim.family = libc::AF_INET as u16;
                claim.addresses[i][..4].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                claim.family = libc::AF_INET6 as u16;
                claim.addresses[i] = ip.octets();
            }
        }
    }
    claim
}

/// A claim ahead of `connect`, which cannot name addresses.
pub fn unnamed(socket: impl AsFd, role: Role, flags: u32) -> Message {
    let mut claim = Message::new(Kind::Claim);
    claim.fd = socket.as_fd().as_raw_fd();
    claim.cookie = sockopt::socket_cookie(&socket).unwrap();
    (claim.role, claim.flags) = (role as u8, flags);
    claim
}

/// Whether the kernel lets us copy descriptors of processes of our own user
/// (`pidfd_getfd`); a container may refuse it. If not, says that the test is skipped.
pub fn may_copy_descriptors(test: &str) -> bool {
    let may = copies_descriptors();
    if !may {
        skip(&format!("{test}: pidfd_getfd is refused"));
    }
    may
}

/// Says so also where the harness captures what tests print.
pub fn skip(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// Whether the kernel lets us copy descriptors of processes of our own user.
pub fn copies_descriptors() -> bool {
    let flags = PidfdFlags::empty();
    let own = rustix::process::pidfd_open(rustix::process::getpid(), flags).unwrap();
    let copied = rustix::process::pidfd_getfd(&own, own.as_raw_fd(), PidfdGetfdFlags::empty());
    copied.is_ok()
}

fn own_user() -> Scope {
    Scope::User(rustix::process::geteuid().as_raw())
}

/// Of this thread.
fn refuse_pidfd_getfd() {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // The call's number.
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_pidfd_getfd as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the filter, which lives until then.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

impl Drop for Fixture {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.expect("the daemon panicked");
        }
    }
}

pub const ARENA_SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);
pub const ANSWER: u32 = FLAG_ANSWER;

pub fn arena_file(size: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("arena", flags).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// Both ends of a loopback connection: the connecting and the accepted one.
pub fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Whether two descriptors name the same file.
pub fn same_file(a: impl AsFd, b: impl AsFd) -> bool {
    rustix::fs::fstat(a).unwrap().st_ino == rustix::fs::fstat(b).unwrap().st_ino
}

/// Two clients, and a connection between them that has been paired: the connecting
/// end is the first one's.
pub fn paired(daemon: &Fixture) -> ([Client; 2], [TcpStream; 2]) {
    paired_with([daemon.client(), daemon.client()], connection())
}

/// The same with these clients and this connection.
pub fn paired_with(
    clients: [Client; 2],
    (near, far): (TcpStream, TcpStream),
) -> ([Client; 2], [TcpStream; 2]) {
    for (n, client) in clients.iter().enumerate() {
        drop(client.spare(n as u32 + 1));
    }
    clients[0].claim(&near, Role::Connector, 0);
    clients[1].claim(&far, Role::Acceptor, 0);
    for client in &clients {
        client.expect(Kind::Paired);
        client.sync(); // It is asked for more memory, too.
    }
    (clients, [near, far])
}

/// Two clients with an arena each, and a paired connection of theirs.
pub fn pair(a: &Client, b: &Client) -> [Message; 2] {
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    b.claim(&far, Role::Acceptor, 0);
    let paired = [a.expect(Kind::Paired).0, b.expect(Kind::Paired).0];
    std::mem::forget((near, far)); // The descriptors must not be reused meanwhile.
    paired
}

/// The first pair of two clients, with the requests for new spares taken away.
pub fn linked(a: &Client, b: &Client) -> [Message; 2] {
    a.spare(1);
    b.spare(1);
    let first = pair(a, b);
    a.expect(Kind::NeedSpare);
    b.expect(Kind::NeedSpare);
    first
}

/// The wish that the connection between two addresses go back to TCP.
pub fn wish(ends: [SocketAddr; 2]) -> Message {
    let mut wish = Message::new(Kind::Downgrade);
    wish.family = libc::AF_INET as u16;
    for (n, end) in ends.into_iter().enumerate() {
        let SocketAddr::V4(end) = end else {
            panic!("IPv4")
        };
        wish.addresses[n][..4].copy_from_slice(&end.ip().octets());
        wish.ports[n] = end.port();
    }
    wish
}

/// How many of its ends have holders that are told of a wish.
pub fn told(client: &Client, wish: &Message) -> u32 {
    client.send(wish, None);
    client.expect(Kind::End).0.index
}
