//! What processes have counted in all: those that live, and those that have ended.

mod common;

use std::io::{BufRead, BufReader, Write as _};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::region::{SEALS, region, show_region};
use common::{Client, Fixture, WATCHDOG};
use rustix::process::Uid;
use shunt_abi::counters::{Counts, Header, RECORDS_AT, Record, SIZE};
use shunt_abi::message::{Kind, Message};
use shunt_abi::totals::{FLAG_TOTALS, Total, Totals};

const DAEMON: &str = "SHUNTD_TEST_TOTALS_OF";

/// A region in which so many records are in use.
fn with_records(used: u32) -> OwnedFd {
    region(0, used, SIZE as u64, SEALS)
}

/// Not a test by itself: a client that counts as it is told to.
#[test]
fn child() {
    let Ok(daemon) = std::env::var(DAEMON) else {
        return;
    };
    let region = with_records(0);
    let mut client = Client::hello(&daemon, "child");
    let show = |client: &Client| {
        show_region(client, &region);
        client.sync();
    };
    show(&client);
    println!("ready");
    let write = |bytes: &[u8], at: usize| {
        assert_eq!(
            rustix::io::pwrite(&region, bytes, at as u64),
            Ok(bytes.len())
        );
    };
    let sent = RECORDS_AT + offset_of!(Record, tx) + offset_of!(Counts, ring_bytes);
    for order in std::io::stdin().lines() {
        match order.unwrap().as_str() {
            "move" => write(&1_u32.to_ne_bytes(), offset_of!(Header, used)),
            "fall" => write(&2_u64.to_ne_bytes(), sent),
            "back" => {
                drop(client);
                client = Client::hello(&daemon, "child");
                show(&client);
            }
            order => panic!("{order}"),
        }
        println!("done");
    }
}

struct Counting {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Counting {
    fn begin(daemon: &Fixture) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DAEMON, &daemon.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().ends_with("ready")));
        Self { child, said }
    }

    fn tell(&mut self, order: &str) {
        let orders = self.child.stdin.as_mut().unwrap();
        writeln!(orders, "{order}").unwrap();
        assert_eq!(self.said.next().unwrap().unwrap(), "done");
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the daemon tells a client of the processes of its own user; `None`: nothing.
fn totals(viewer: &Client) -> Option<Totals> {
    let mut list = Message::new(Kind::List);
    list.flags = FLAG_TOTALS;
    viewer.send(&list, None);
    let next = || viewer.receive().expect("the daemon has closed").0;
    let all = std::iter::from_fn(|| Some(next()).filter(|m| m.kind() != Some(Kind::End)));
    let user = rustix::process::geteuid().as_raw();
    let mut known = None;
    for part in all.filter(|part| Totals::user_of(part) == Some(user)) {
        known.get_or_insert_with(Totals::default).note(&part);
    }
    known
}

const TOLD: [Total; 3] = [Total::SentByRings, Total::Ended, Total::EndedShunted];

fn told(viewer: &Client) -> [u64; 3] {
    let totals = totals(viewer).expect("nobody has counted anything");
    TOLD.map(|total| totals.get(total))
}

/// Waits until the daemon has noticed that a connection has ended.
fn told_of_an_end(viewer: &Client) -> [u64; 3] {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let told = told(viewer);
        if told[1] > 0 {
            return told;
        }
        assert!(Instant::now() < deadline, "{told:?}");
    }
}

#[test]
fn what_a_process_has_counted_stays_when_it_is_gone_and_never_falls() {
    let daemon = Fixture::start();
    let viewer = daemon.client();
    assert_eq!(totals(&viewer), None, "nobody has counted anything");
    let mut counting = Counting::begin(&daemon);
    assert_eq!(told(&viewer), [0, 0, 0]);
    counting.tell("move");
    assert_eq!(told(&viewer), [5, 0, 0], "its connection is open");
    counting.tell("fall");
    assert_eq!(told(&viewer), [5, 0, 0]);
    counting.tell("back");
    assert_eq!(told(&viewer), [5, 0, 0]);
    drop(counting);
    assert_eq!(told_of_an_end(&viewer), [5, 1, 1]);
}

#[test]
fn what_was_counted_under_another_daemon_is_not_told() {
    let daemon = Fixture::start();
    let viewer = daemon.client();
    let before = daemon.client();
    show_region(&before, &with_records(1));
    before.sync();
    assert_eq!(told(&viewer), [0, 0, 0]);
}

#[test]
fn the_hosts_daemon_tells_who_administrates_it_and_nobody_else() {
    if !rustix::process::geteuid().is_root() {
        common::skip("totals of the host for another user than root");
        return;
    }
    let daemon = Fixture::host();
    let counting = daemon.client();
    show_region(&counting, &with_records(0));
    counting.sync();
    assert_eq!(told(&daemon.client()), [0, 0, 0]);
    let guest = std::thread::scope(|scope| {
        let ask = || {
            let user = Uid::from_raw(54321);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let client = daemon.client();
            show_region(&client, &with_records(0));
            client.sync();
            totals(&client)
        };
        scope.spawn(ask).join().unwrap()
    });
    assert_eq!(guest, None);
}
