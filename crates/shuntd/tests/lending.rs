//! Who is lent the other end of a connection, and who is not.

mod common;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use common::{ARENA_SEALS, Client, Fixture, arena_file, connection, may_copy_descriptors, paired};
use rustix::net::sockopt::socket_cookie;
use shunt_abi::message::{Kind, Message, Role};
use shunt_abi::{Reason, layout};
use zerocopy::IntoBytes;

/// Two clients, and a connection between them that has been paired.
struct Pair {
    daemon: Fixture,
    clients: [Client; 2],
    ends: [TcpStream; 2],
}

impl Pair {
    fn new() -> Self {
        let daemon = Fixture::start();
        let (clients, ends) = paired(&daemon);
        Self {
            daemon,
            clients,
            ends,
        }
    }

    /// Closes one end: the other must hear of it, so nobody may have a copy left.
    fn closing_one_is_heard(self) {
        let [near, mut far] = self.ends;
        far.set_read_timeout(Some(common::WATCHDOG)).unwrap();
        drop(near);
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "a copy holds it open");
    }
}

fn ask(client: &Client, socket: &impl AsFd, cookie: u64) -> (Message, Option<OwnedFd>) {
    client.send(&lend(socket.as_fd().as_raw_fd(), cookie), None);
    client.expect(Kind::Lent)
}

fn lend(fd: i32, cookie: u64) -> Message {
    let mut lend = Message::new(Kind::Lend);
    (lend.fd, lend.cookie) = (fd, cookie);
    lend
}

fn is_refused(client: &Client, socket: &impl AsFd, cookie: u64) {
    let (lent, fd) = ask(client, socket, cookie);
    assert_eq!(lent.status, Reason::NotEstablished as u8);
    assert_eq!(lent.cookie, cookie);
    assert!(fd.is_none(), "lent after all");
}

fn cookie(socket: &impl AsFd) -> u64 {
    socket_cookie(socket).unwrap()
}

#[test]
fn the_holder_of_one_end_of_a_pair_is_lent_the_other() {
    if !may_copy_descriptors("the other end of a pair is lent") {
        return;
    }
    let pair = Pair::new();
    for (asker, wanted) in [(0, 1), (1, 0)] {
        let own = &pair.ends[asker];
        let (lent, fd) = ask(&pair.clients[asker], own, cookie(own));
        assert_eq!(lent.status, 0);
        let fd = fd.expect("no descriptor");
        assert_eq!(cookie(&fd), cookie(&pair.ends[wanted]));
    }
    pair.closing_one_is_heard();
}

#[test]
fn a_child_is_lent_the_other_end_after_both_that_were_paired_have_gone() {
    if !may_copy_descriptors("the other end of a pair is lent to a child") {
        return;
    }
    let Pair {
        daemon,
        clients,
        ends: [near, far],
    } = Pair::new();
    // Another process goes on with it.
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let held = Stdio::from(OwnedFd::from(far.try_clone().unwrap()));
    let mut child = sleep.stdin(held).spawn().unwrap();
    let never_paired = connection();
    drop(clients);
    let client = daemon.client();
    client.sync();
    let (lent, fd) = ask(&client, &near, cookie(&near));
    assert_eq!(lent.status, 0);
    assert_eq!(cookie(&fd.expect("no descriptor")), cookie(&far));
    is_refused(&client, &never_paired.0, cookie(&never_paired.0));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_wrong_name_gets_nothing() {
    let pair = Pair::new();
    let client = &pair.clients[0];
    let [near, far] = &pair.ends;
    let pipe = rustix::pipe::pipe().unwrap().0;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (other, _other_far) = connection();
    // Another socket's cookie, none, and one that no socket has.
    for wrong in [cookie(far), cookie(&other), 0, u64::MAX] {
        is_refused(client, near, wrong);
    }
    // No socket, one that is not connected, and one that nobody has claimed.
    is_refused(client, &pipe, cookie(near));
    is_refused(client, &listener, cookie(&listener));
    is_refused(client, &other, cookie(&other));
    for fd in [-1, i32::MIN, i32::MAX] {
        client.send(&lend(fd, cookie(near)), None);
        let (lent, none) = client.expect(Kind::Lent);
        assert!(lent.status != 0 && none.is_none());
    }
    pair.closing_one_is_heard();
}

#[test]
fn an_end_that_waits_for_its_peer_or_has_been_given_back_is_not_lent() {
    let pair = Pair::new();
    let client = &pair.clients[0];
    let (waits, far) = connection();
    client.claim(&waits, Role::Connector, 0);
    client.sync();
    is_refused(client, &far, cookie(&far));
    pair.clients[1].release(cookie(&pair.ends[1]));
    pair.clients[1].sync();
    client.expect(Kind::Unpaired); // It was let go unused.
    is_refused(client, &pair.ends[0], cookie(&pair.ends[0]));
    pair.closing_one_is_heard();
}

#[test]
fn what_only_the_daemon_says_ends_a_client() {
    let pair = Pair::new();
    let liar = pair.daemon.client();
    let mut lent = Message::new(Kind::Lent);
    lent.cookie = cookie(&pair.ends[0]);
    liar.send(&lent, Some(pair.ends[0].as_fd()));
    liar.expect_closed();
    // One who has not been introduced asks for nothing.
    let stranger = Client::raw(&pair.daemon.name);
    stranger.send(&lend(pair.ends[0].as_raw_fd(), lent.cookie), None);
    stranger.expect_closed();
    pair.closing_one_is_heard();
}

#[test]
fn an_attached_descriptor_changes_nothing() {
    if !may_copy_descriptors("a descriptor attached to a request for the other end") {
        return;
    }
    let pair = Pair::new();
    let client = &pair.clients[0];
    let arena = arena_file(layout::arena_bytes(layout::FIRST_SLOTS) as u64, ARENA_SEALS);
    let near = &pair.ends[0];
    client.send(&lend(near.as_raw_fd(), cookie(near)), Some(arena.as_fd()));
    let (lent, fd) = client.expect(Kind::Lent);
    assert_eq!(lent.status, 0);
    drop(fd);
    pair.closing_one_is_heard();
}

#[test]
fn who_asks_and_goes_leaves_no_copy() {
    let pair = Pair::new();
    let near = &pair.ends[0];
    for _ in 0..50 {
        let hasty = pair.daemon.client();
        hasty.send(&lend(near.as_raw_fd(), cookie(near)), None);
    }
    pair.daemon.client().sync();
    pair.closing_one_is_heard();
}

#[test]
fn who_asks_without_end_and_does_not_read_is_dropped() {
    let pair = Pair::new();
    let near = &pair.ends[0];
    let deaf = pair.daemon.client();
    let message = lend(near.as_raw_fd(), cookie(near));
    while deaf.send_bytes(message.as_bytes(), None).is_ok() {}
    drop(deaf);
    // Newcomers of its user may have to wait until all that it was lent is closed.
    for client in &pair.clients {
        client.sync();
    }
    pair.closing_one_is_heard();
}
