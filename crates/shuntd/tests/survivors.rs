//! Clients of a daemon that was killed, and its successor.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::region::{append, region_of, show};
use common::{Client, Fixture, WATCHDOG};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::Uid;
use shunt_abi::message::{Kind, Message};

const DAEMON: &str = "SHUNTD_TEST_SURVIVORS_OF";
const FILE: &str = "SHUNTD_TEST_SURVIVORS_FILE";
const OTHER: &str = "SHUNTD_TEST_SURVIVORS_OTHER";
const NOBODY: u32 = 65534;

/// Not a test by itself: a client that listens, and goes or comes back as it is told to.
#[test]
fn child() {
    let (Ok(daemon), Ok(path)) = (std::env::var(DAEMON), std::env::var(FILE)) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let lines = append(&path);
    let client = Client::hello(&daemon, "child");
    let netns = netns_cookie(&client);
    let pid = std::process::id();
    let (fd, file) = (listener.as_raw_fd(), lines.as_raw_fd());
    // As of one that has gone to the other daemon, if it is about to.
    let other = std::env::var(OTHER).unwrap_or_else(|_| daemon.clone());
    let region = region_of(pid, &other, netns, file, fd);
    show(&client, &region, &lines);
    client.sync();
    println!("ready");
    let order = std::io::stdin().lines().next().unwrap().unwrap();
    drop(client);
    if order == "back" {
        let client = Client::hello(&other, "child");
        show(&client, &region, &lines);
        client.sync();
        println!("back");
        std::thread::sleep(WATCHDOG);
    }
    println!("gone");
    std::thread::sleep(WATCHDOG);
}

fn netns_cookie(client: &Client) -> u64 {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as u32;
    // SAFETY: the option is a u64, for which there is room.
    let done = unsafe {
        libc::getsockopt(
            client.socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    assert_eq!(done, 0);
    cookie
}

struct Survivor {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
    path: String,
    /// Where its line arrives: a pipe, which ends when nobody can write another.
    lines: File,
}

impl Survivor {
    fn of(daemon: &Fixture, user: Option<u32>) -> Self {
        Self::of_two(daemon, daemon, user)
    }

    /// The client of a daemon which then is to go to the other.
    fn of_two(daemon: &Fixture, other: &Fixture, user: Option<u32>) -> Self {
        let name = daemon.name.replace('/', "-");
        let path = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
        let _ = std::fs::remove_file(&path);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::empty(), 0).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let lines = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .envs([(DAEMON, &daemon.name), (OTHER, &other.name), (FILE, &path)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user);
        }
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut survivor = Self {
            child,
            said,
            path,
            lines: lines.into(),
        };
        survivor.await_word("ready");
        survivor
    }

    /// Has it do something, and waits until it has.
    fn order(&mut self, order: &str, done: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        writeln!(stdin, "{order}").unwrap();
        self.await_word(done);
    }

    fn await_word(&mut self, word: &str) {
        assert!(
            self.said.any(|line| line.unwrap().ends_with(word)),
            "not {word}"
        );
    }

    /// Whether a list shows its listener.
    fn is_listed(&self, client: &Client) -> bool {
        client.send(&Message::new(Kind::List), None);
        let rows = std::iter::from_fn(|| client.receive().map(|(row, _)| row));
        let rows: Vec<_> = rows
            .take_while(|row| row.kind() != Some(Kind::End))
            .collect();
        rows.iter().any(|row| {
            row.kind() == Some(Kind::Listener)
                && row.pids[0] == self.child.id()
                && row.name.starts_with(b"we\"ird\0")
        })
    }

    /// Waits until a daemon has found it.
    fn await_found(&self, client: &Client) {
        let start = Instant::now();
        while !self.is_listed(client) {
            assert!(start.elapsed() < WATCHDOG, "not found");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it; it leaves one line.
    fn die(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut text = Vec::new();
        let rest = Timespec::try_from(WATCHDOG).unwrap();
        loop {
            let mut polled = [PollFd::new(&self.lines, PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut polled, Some(&rest)), Ok(1));
            let mut bytes = [0; 4096];
            match self.lines.read(&mut bytes).unwrap() {
                0 => break,
                n => text.extend_from_slice(&bytes[..n]),
            }
        }
        let text = String::from_utf8(text).unwrap();
        let own = format!("{{\"pid\":{},", self.child.id());
        assert!(
            text.starts_with(&own) && text.lines().count() == 1,
            "{text}"
        );
        std::fs::remove_file(&self.path).unwrap();
    }
}

/// Whether a daemon of ours finds them: root's, unlike a user's, only by copies of
/// their descriptors. If not, says that the test is skipped.
fn finds_survivors(test: &str) -> bool {
    !rustix::process::geteuid().is_root() || common::may_copy_descriptors(test)
}

#[test]
fn one_that_makes_no_more_call_is_listed_and_leaves_a_line() {
    if !finds_survivors("a survivor that makes no more call") {
        return;
    }
    let daemon = Fixture::start();
    let survivor = Survivor::of(&daemon, None);
    let daemon = daemon.succeed();
    survivor.await_found(&daemon.client());
    survivor.die();
}

#[test]
fn one_that_comes_back_leaves_one_line() {
    if !finds_survivors("a survivor that comes back") {
        return;
    }
    let daemon = Fixture::start();
    let mut survivor = Survivor::of(&daemon, None);
    let daemon = daemon.succeed();
    survivor.await_found(&daemon.client());
    survivor.order("back", "back");
    survivor.die();
}

#[test]
fn one_that_closes_its_connection_stays_in_the_list() {
    let daemon = Fixture::start();
    let mut survivor = Survivor::of(&daemon, None);
    survivor.order("go", "gone");
    survivor.await_found(&daemon.client());
    survivor.die();
}

#[test]
fn one_that_goes_to_another_daemon_is_that_ones() {
    let [first, other] = [Fixture::start(), Fixture::start()];
    let mut survivor = Survivor::of_two(&first, &other, None);
    survivor.order("back", "back");
    let client = first.client();
    client.sync(); // It has seen the end of the connection.
    assert!(!survivor.is_listed(&client));
    survivor.die();
}

#[test]
fn a_daemon_at_another_address_leaves_it_alone() {
    if !finds_survivors("survivors of two daemons") {
        return;
    }
    let [daemon, other] = [Fixture::start(), Fixture::start()];
    let survivors = [&daemon, &other].map(|daemon| Survivor::of(daemon, None));
    let daemons = [daemon, other].map(Fixture::succeed);
    let clients = daemons.each_ref().map(Fixture::client);
    for (survivor, client) in survivors.iter().zip(&clients) {
        survivor.await_found(client);
    }
    assert!(!survivors[0].is_listed(&clients[1]));
    assert!(!survivors[1].is_listed(&clients[0]));
    survivors.into_iter().for_each(Survivor::die);
}

#[test]
fn a_users_own_daemon_finds_it_where_descriptors_may_not_be_copied() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can run one as another user.
    }
    let nobody = Uid::from_raw(NOBODY);
    let daemon = Fixture::start().succeed_confined(nobody);
    let survivor = Survivor::of(&daemon, Some(NOBODY));
    let daemon = daemon.succeed_confined(nobody);
    let client = std::thread::scope(|scope| {
        let as_nobody = || {
            rustix::thread::set_thread_res_uid(None, nobody, None).unwrap();
            daemon.client()
        };
        scope.spawn(as_nobody).join().unwrap()
    });
    survivor.await_found(&client);
    survivor.die();
}
