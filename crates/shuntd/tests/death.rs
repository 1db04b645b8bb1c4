//! Clients that die, and the program itself.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Client, Fixture, region};
use rustix::net::sockopt;
use rustix::process::{Signal, WaitOptions};
use shunt_abi::counters::SIZE;
use shunt_abi::message::{FLAG_DIED, Kind, Message, Role};

const DAEMON_NAME: &str = "SHUNTD_TEST_CHILD_OF";

/// Not a test by itself: the client that the next test kills. It leaves a child
/// behind that holds its control socket, as a forked worker would.
#[test]
fn child() {
    let Ok(name) = std::env::var(DAEMON_NAME) else {
        return;
    };
    let client = Client::hello(&name, "child");
    client.listen(1, 4711);
    client.sync();
    rustix::io::fcntl_setfd(&client.socket, rustix::io::FdFlags::empty()).unwrap();
    let script = format!("read line <&0; : {}", client.socket.as_raw_fd());
    let mut heir = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    println!("ready");
    heir.wait().unwrap();
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn_child(daemon: &Fixture) -> Killed {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(DAEMON_NAME, &daemon.name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")));
    Killed(child)
}

#[test]
fn a_killed_client_is_forgotten_though_its_child_holds_the_socket() {
    let daemon = Fixture::start();
    let watcher = daemon.client();
    let mut child = spawn_child(&daemon);
    assert!(watcher.port_is_set(4711));
    child.0.kill().unwrap();
    // No clock: the daemon has seen the end of the process (its pidfd) before
    // it handles what we send after it is a zombie, or in one of the next passes.
    let deadline = std::time::Instant::now() + common::WATCHDOG;
    while watcher.port_is_set(4711) {
        watcher.sync();
        assert!(
            std::time::Instant::now() < deadline,
            "the dead client is still known"
        );
    }
}

const ADDRESS: &str = "SHUNTD_TEST_LINKED_TO";

/// Not a test by itself: the client that the next test kills. It has a link, and closes its connection to the daemon before that.
#[test]
fn linked_child() {
    let (Ok(name), Ok(address)) = (std::env::var(DAEMON_NAME), std::env::var(ADDRESS)) else {
        return;
    };
    let client = Client::hello(&name, "child");
    region::show_region(&client, &region::region(0, 1, SIZE as u64, region::SEALS));
    let socket = TcpStream::connect(address).unwrap();
    client.spare(1);
    client.claim(&socket, Role::Connector, 0);
    client.expect(Kind::Paired);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    drop(client);
    std::thread::sleep(common::WATCHDOG);
}

#[test]
fn a_peer_is_told_of_the_death_of_a_process_and_not_of_one_that_has_closed_its_socket() {
    let daemon = Fixture::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = daemon.client();
    client.spare(1);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "linked_child", "--nocapture"])
        .envs([(DAEMON_NAME, &daemon.name), (ADDRESS, &address)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Killed)
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    client.claim(&socket, Role::Acceptor, 0);
    let (paired, _) = client.expect(Kind::Paired);
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("ready")));
    client.expect(Kind::NeedSpare);
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (gone, _) = client.expect(Kind::Gone);
    assert_eq!((gone.link, gone.flags), (paired.link, 0));
    client.sync();
    client.expect_nothing();
    child.0.kill().unwrap();
    let (gone, _) = client.expect(Kind::Gone);
    assert_eq!((gone.link, gone.flags), (paired.link, FLAG_DIED));
}

fn program(name: &str) -> Command {
    let mut command = Command::new("sh");
    // Its standard output becomes the descriptor that it reports on.
    let script = "exec \"$0\" \"$@\" --ready-fd 3 3>&1 >/dev/null";
    command.args(["-c", script, env!("CARGO_BIN_EXE_shuntd")]);
    command.args(["--name", name, "--verbose", "--config", "/dev/null"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts the program and waits until it says that it is ready.
fn started(name: &str) -> Killed {
    let mut child = program(name).stderr(Stdio::null()).spawn().unwrap();
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    assert_eq!(said, b"1");
    Killed(child)
}

#[test]
fn the_program_says_when_it_is_ready_and_stops_on_sigterm() {
    let name = format!("shuntd-test/{}/program", std::process::id());
    let mut child = started(&name);
    let client = Client::hello(&name, "test");
    client.sync();
    let second = program(&name).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(
        text.contains("another shuntd already serves user"),
        "{text}"
    );
    let pid = rustix::process::Pid::from_child(&child.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    assert!(client.receive().is_none());
}

/// A socket whose last `close` takes ten minutes, unless the other end goes.
fn lingering() -> (TcpStream, TcpStream) {
    let (near, far) = common::connection();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 65536]).is_ok() {}
    sockopt::set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
    (near, far)
}

#[test]
fn descriptors_that_are_slow_to_close_stop_nobody() {
    let name = format!("shuntd-test/{}/slow", std::process::id());
    let child = started(&name);
    let pid = rustix::process::Pid::from_child(&child.0);
    let mut far_ends = Vec::new();
    // The second message is dropped unread with its client's socket.
    for kinds in [
        &[Kind::Spare][..],
        &[Kind::List],
        &[Kind::Paired, Kind::List],
    ] {
        let client = Client::hello(&name, "test");
        // Ours must not be the last copy.
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        for &kind in kinds {
            let (near, far) = lingering();
            client.send(&Message::new(kind), Some(near.as_fd()));
            far_ends.push(far);
        }
        rustix::process::kill_process(pid, Signal::CONT).unwrap();
        Client::hello(&name, "test").sync();
    }
    // Nor does it stop other connections of the same user.
    let client = Client::hello(&name, "test");
    let (near, far) = common::connection();
    client.claim(&near, Role::Connector, 0);
    client.claim(&far, Role::Acceptor, 0);
    client.expect(Kind::NeedSpare);
}

#[test]
fn a_clients_name_cannot_write_to_the_terminal() {
    let name = format!("shuntd-test/{}/escape", std::process::id());
    let mut child = program(&name).spawn().unwrap();
    let mut said = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut child = Killed(child);
    Client::hello(&name, "a\x1b[2J\nb").sync();
    child.0.kill().unwrap();
    let lines: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(lines[0].contains(r"(a\u{1b}[2J\nb) connected"), "{lines:?}");
    assert!(lines.iter().all(|l| !l.contains('\x1b')), "{lines:?}");
}

#[test]
fn a_daemon_that_lingers_ends_after_its_last_client() {
    let name = format!("shuntd-test/{}/linger", std::process::id());
    let mut command = program(&name);
    command.args(["--linger", "1"]).stderr(Stdio::null());
    let mut child = Killed(command.spawn().unwrap());
    let mut said = Vec::new();
    child
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut said)
        .unwrap();
    let client = Client::hello(&name, "test");
    // Longer than it lingers.
    std::thread::sleep(Duration::from_millis(1500));
    client.sync();
    let left = std::time::Instant::now();
    drop(client);
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    assert!(left.elapsed() >= Duration::from_secs(1));
    drop(started(&name)); // The address is free.
}

#[test]
fn a_wrong_configuration_is_reported_with_its_file() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shuntd"));
    let ended = command
        .args(["--config", "/nonexistent/shunt.toml"])
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        String::from_utf8(ended.stderr)
            .unwrap()
            .contains("/nonexistent/shunt.toml")
    );
}

#[test]
fn out_of_descriptors_new_clients_are_turned_away_and_old_ones_served() {
    let name = format!("shuntd-test/{}/full", std::process::id());
    let _child = {
        let mut shell = Command::new("sh");
        let path = env!("CARGO_BIN_EXE_shuntd");
        shell.args([
            "-c",
            &format!("ulimit -n 24; exec {path} --name {name} --config /dev/null"),
        ]);
        Killed(
            shell
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    };
    let deadline = std::time::Instant::now() + common::WATCHDOG;
    while try_connect(&name).is_none() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    let clients: Vec<_> = (0..30).filter_map(|_| try_connect(&name)).collect();
    let served = clients.iter().filter(|client| client.is_greeted()).count();
    assert!((2..12).contains(&served), "{served}");
    clients[0].sync();
    drop(clients);
    // Room again.
    while !try_connect(&name).is_some_and(|client| client.is_greeted()) {
        assert!(std::time::Instant::now() < deadline);
    }
}

fn try_connect(name: &str) -> Option<Client> {
    std::panic::catch_unwind(|| Client::raw(name)).ok()
}

trait Greeted {
    fn is_greeted(&self) -> bool;
}

impl Greeted for Client {
    fn is_greeted(&self) -> bool {
        use zerocopy::IntoBytes;
        let hello = shunt_abi::message::Message::new(Kind::Hello);
        self.send_bytes(hello.as_bytes(), None).is_ok()
            && self
                .receive()
                .is_some_and(|(welcome, _)| welcome.status == 0)
    }
}

#[test]
fn a_service_manager_hears_that_the_daemon_is_ready() {
    let path = format!(
        "{}/notify-{}",
        env!("CARGO_TARGET_TMPDIR"),
        std::process::id()
    );
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(common::WATCHDOG)).unwrap();
    let name = format!("shuntd-notify-{}", std::process::id());
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_shuntd"))
        .args(["--name", &name, "--config", "/dev/null"])
        .env("NOTIFY_SOCKET", &path)
        .spawn()
        .unwrap();
    let mut text = [0; 16];
    let heard = socket.recv(&mut text);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(&text[..heard.unwrap()], b"READY=1");
}
