//! Processes of users whom a per-user daemon does not serve.

mod common;

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};

use common::region::region_of;
use common::{Client, Fixture, connection};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message, Role};
use zerocopy::IntoBytes as _;

/// Says hello as this user, which only root can.
fn hello_as(daemon: &Fixture, user: u32) -> (Client, Message) {
    let hello = || {
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(user), None).unwrap();
        let client = Client::raw(&daemon.name);
        // Whom the daemon turns away it may have told so before.
        let said = client.send_bytes(Message::new(Kind::Hello).as_bytes(), None);
        assert!(matches!(said, Ok(()) | Err(Errno::PIPE)), "{said:?}");
        let (welcome, board) = client.receive().expect("no Welcome");
        assert!(board.is_none());
        (client, welcome)
    };
    std::thread::scope(|scope| scope.spawn(hello).join().unwrap())
}

const NOBODY: u32 = 65534;

#[test]
fn roots_daemon_lists_them_and_hears_nothing_else() {
    if !geteuid().is_root() {
        return;
    }
    let daemon = Fixture::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pid = std::process::id();
    let region = region_of(pid, &daemon.name, 0, -1, listener.as_raw_fd());
    let (guest, welcome) = hello_as(&daemon, NOBODY);
    assert_eq!(welcome.status, Reason::OtherUser as u8);
    guest.send(&Message::new(Kind::Counters), Some(region.as_fd()));
    let root = daemon.client();
    root.send(&Message::new(Kind::List), None);
    let (row, _) = root.expect(Kind::Listener);
    assert_eq!(row.pids[0], pid);
    assert_eq!(row.ports[0], listener.local_addr().unwrap().port());
    root.expect(Kind::End);

    let (near, _far) = connection();
    for kind in [
        Kind::Claim,
        Kind::List,
        Kind::Listen,
        Kind::Spare,
        Kind::Report,
    ] {
        let (guest, _) = hello_as(&daemon, NOBODY);
        match kind {
            Kind::Claim => drop(guest.claim(&near, Role::Connector, 0)),
            _ => guest.send(&Message::new(kind), None),
        }
        assert!(guest.receive().is_none(), "{kind:?}");
    }
    root.sync();
}

#[test]
fn a_user_may_not_crowd_out_another() {
    if !geteuid().is_root() {
        return;
    }
    let daemon = Fixture::start();
    let mut guests = Vec::new();
    loop {
        let (guest, _) = hello_as(&daemon, NOBODY);
        // One who is turned away is closed; of the others nothing is heard.
        daemon.client().sync();
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let closed = rustix::net::recv(&guest.socket, &mut [0; 1][..], flags).is_ok();
        if closed {
            break;
        }
        guests.push(guest);
    }
    assert!((1..1000).contains(&guests.len()), "{}", guests.len());
    let (another, _) = hello_as(&daemon, NOBODY - 1);
    daemon.client().sync();
    another.expect_nothing();
}

#[test]
fn another_users_daemon_turns_them_away() {
    if !geteuid().is_root() {
        return;
    }
    let nobody = Uid::from_raw(NOBODY);
    let daemon = Fixture::start().succeed_confined(nobody);
    let (guest, welcome) = hello_as(&daemon, 0);
    assert_eq!(welcome.status, Reason::OtherUser as u8);
    guest.expect_closed();
}
