//! Two processes on two hosts move their connections to rings that a NIC mirrors, and back. The hosts are network namespaces, each with
//! its daemon, to which the processes speak as libshunt is to do; the NICs are emulated ([`Wire`]).

mod common;
#[path = "../../shunt-rdma/tests/trial/mod.rs"]
mod trial;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use common::Client;
use common::scene::Scene;
use shunt_abi::message::{FLAG_REACHES, Kind, Message, Role};
use shunt_rdma::wire::Wire;
use trial::{CONNECTIONS, Memory, Plan, Side, Words};

const BYTES: u64 = 300_000;
const ADDRESS: &str = "10.77.0.2:7000";
/// What a process is told: which side it is, its daemon's name, where the NICs are, and what it is to do.
const ASKED: &str = "SHUNT_TEST_REACHING";

/// By way of the daemons.
struct Relayed {
    client: Client,
    link: u64,
}

impl Words for Relayed {
    fn say(&mut self, word: &[u8; 96]) {
        let mut message = Message::new(Kind::Word);
        message.link = self.link;
        message.set_text(word);
        self.client.send(&message, None);
    }

    fn hear(&mut self) -> [u8; 96] {
        let (message, _) = self.client.expect(Kind::Word);
        assert_eq!(message.link, self.link);
        message.text()
    }
}

/// Connections to the other process, by the numbers with which they begin.
fn connections(side: usize) -> Vec<TcpStream> {
    let numbers = 0..=CONNECTIONS as u8;
    if side == 0 {
        let connect = |number| {
            let mut socket = TcpStream::connect(ADDRESS).unwrap();
            socket.write_all(&[number]).unwrap();
            socket
        };
        return numbers.map(connect).collect();
    }
    let listener = TcpListener::bind(ADDRESS).unwrap();
    println!("listens");
    let accept = |_| {
        let mut socket = listener.accept().unwrap().0;
        let mut number = [0];
        socket.read_exact(&mut number).unwrap();
        (number, socket)
    };
    let mut sockets: Vec<_> = numbers.map(accept).collect();
    sockets.sort_by_key(|(number, _)| *number);
    sockets.into_iter().map(|(_, socket)| socket).collect()
}

/// Claims all connections, one after the other, and waits until each has met its other end; the link.
fn claim(client: &Client, side: usize, bases: &[TcpStream]) -> u64 {
    let role = [Role::Connector, Role::Acceptor][side];
    let mut link = 0;
    for (slot, base) in bases.iter().enumerate() {
        let cookie = client.claim(base, role, FLAG_REACHES);
        let (meet, _) = client.expect(Kind::Meet);
        // A trial counts its slots from 0, as the daemons do.
        assert_eq!((meet.cookie, meet.slot as usize), (cookie, slot));
        link = meet.link;
    }
    link
}

/// Not a test of its own: what the others begin as a process.
#[test]
fn process() {
    let Ok(asked) = std::env::var(ASKED) else {
        return;
    };
    let [side, daemon, directory, what] = asked.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{asked}");
    };
    let side = side.parse().unwrap();
    let mut bases = connections(side);
    let control = bases.remove(0);
    let client = Client::hello(daemon, "test");
    let link = claim(&client, side, &bases);
    let words = Relayed { client, link };
    let wire = Wire::open(Path::new(directory)).unwrap();
    let memory = Memory::new(CONNECTIONS);
    let mut side = Side::new(side, wire, control, words, bases, &memory);
    if what == "all" {
        let rounds = 100;
        side.run(
            Plan {
                bytes: BYTES,
                rounds,
            },
            |what| println!("held: {what}"),
        );
        return;
    }
    side.connect();
    println!("entered");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    side.stream(BYTES, false);
    // Nor does a stream that goes back to TCP.
    side.stream(BYTES, true);
}

/// A process of this test's; killed when it is dropped.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn begin(scene: &Scene, side: usize, what: &str) -> Self {
        let daemon = &scene.daemons[side].as_ref().unwrap().name;
        let directory = nics(scene);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "process", "--nocapture"])
            .env(
                ASKED,
                format!("{side} {daemon} {} {what}", directory.display()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = scene.places[side].within(|| command.spawn()).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Waits until it has printed a line that ends so.
    fn expect(&mut self, what: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(what) {
            line.clear();
            let n = self.output.read_line(&mut line).unwrap();
            assert_ne!(n, 0, "it has ended before it has said {what:?}");
        }
    }

    fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"\n").unwrap();
    }

    /// It must succeed.
    fn end(mut self) {
        std::io::copy(&mut self.output, &mut std::io::stderr()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the emulated NICs of both hosts are.
fn nics(scene: &Scene) -> PathBuf {
    scene.files.0.join("nics")
}

/// Two hosts with a device each, and a process on each.
fn begin(test: &str, what: &str) -> Option<(Scene, [Process; 2])> {
    let scene = Scene::alike(test)?;
    scene.files.make_device();
    std::fs::create_dir(nics(&scene)).unwrap();
    let mut second = Process::begin(&scene, 1, what);
    second.expect("listens");
    let first = Process::begin(&scene, 0, what);
    Some((scene, [first, second]))
}

#[test]
fn streams_between_hosts_go_by_rings_and_by_tcp_and_by_rings_again() {
    let Some((_scene, mut processes)) = begin("reaching", "all") else {
        return;
    };
    for process in &mut processes {
        process.expect("held: streams over the rings of a new queue pair");
    }
    processes.into_iter().for_each(Process::end);
}

#[test]
fn rings_between_hosts_need_no_daemon_once_they_are_entered() {
    let Some((mut scene, mut processes)) = begin("orphans", "streams") else {
        return;
    };
    for process in &mut processes {
        process.expect("entered");
    }
    scene
        .daemons
        .iter_mut()
        .for_each(|daemon| drop(daemon.take()));
    processes.iter_mut().for_each(Process::go_on);
    processes.into_iter().for_each(Process::end);
}
