//! What `shunt ss` is told of pairs, and of connections with one end.

mod common;

use std::time::Instant;

use common::region::{region_with, show_region};
use common::{Client, Fixture, WATCHDOG, connection, linked, may_copy_descriptors, named};
use rustix::net::RecvFlags;
use shunt_abi::Reason;
use shunt_abi::detail::{Detail, FLAG_DETAILS, FLAG_TOGETHER, MOST_TOGETHER, TOGETHER, UNKNOWN};
use shunt_abi::message::{FLAG_SHUNTED, Kind, MESSAGE_BYTES, Message, Role};

#[test]
fn the_list_shows_pairs_once_and_reports_of_unclaimed_connections() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), Client::hello(&daemon.name, "server"));
    let [of_a, of_b] = linked(&a, &b);
    a.report(of_a.cookie, 0);
    b.report(of_b.cookie, 0);
    let (near, _far) = connection();
    let mut report = named(&near, Role::Connector, 0);
    report.kind = Kind::Report as u16;
    report.status = Reason::PeerPlain as u8;
    a.send(&report, None);
    b.sync();
    let rows = a.rows();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let (shm, tcp): (Vec<Message>, Vec<Message>) = rows
        .iter()
        .copied()
        .partition(|r| r.flags & FLAG_SHUNTED != 0);
    assert_eq!(&shm[0].name[..6], b"server");
    assert_eq!(&shm[0].peer_name[..4], b"test");
    assert_eq!(shm[0].pids, [std::process::id(); 2]);
    assert_eq!(
        (tcp[0].status, tcp[0].pids[0]),
        (Reason::PeerPlain as u8, 0)
    );
    assert_eq!(tcp[0].ports[1], near.local_addr().unwrap().port());
    drop(near);
    if may_copy_descriptors("a reported connection that was closed without a word") {
        assert_eq!(a.rows().len(), 1, "a closed connection is forgotten");
    }
}

#[test]
fn the_list_shows_what_the_regions_say_of_pairs() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    a.spare(1);
    b.spare(1);
    let (near, far) = connection();
    let of_a = a.claim(&near, Role::Connector, 0);
    let of_b = b.claim(&far, Role::Acceptor, 0);
    a.expect(Kind::Paired);
    a.expect(Kind::NeedSpare);
    let status = || {
        a.sync();
        let row = a.rows()[0];
        (row.flags & FLAG_SHUNTED != 0, row.status)
    };
    assert_eq!(status(), (false, Reason::Pending as u8));
    show_region(&a, &region_with(&near, of_a, Role::Connector));
    if !may_copy_descriptors("what regions show of pairs") {
        return;
    }
    assert_eq!(status(), (true, 0));
    show_region(&b, &region_with(&far, of_b, Role::Acceptor));
    b.sync();
    assert_eq!(status(), (true, 0));
    // What it says of itself since goes before what it has said.
    b.report(of_b, 0);
    a.report(of_a, Reason::Requested as u8);
    b.sync();
    assert!(status().0);
}

#[test]
fn one_end_alone_cannot_say_that_a_connection_is_shunted() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let (near, far) = connection();
    let report = |client: &Client, socket: &std::net::TcpStream| {
        let mut report = named(socket, Role::Connector, 0);
        report.kind = Kind::Report as u16;
        client.send(&report, None);
        client.sync();
    };
    report(&a, &near);
    let row = a.rows()[0];
    assert_eq!(
        (row.flags & FLAG_SHUNTED, row.status),
        (0, Reason::Pending as u8)
    );
    // Both ends do after the daemon that paired them has been replaced.
    report(&b, &far);
    assert_eq!(a.rows()[0].flags & FLAG_SHUNTED, FLAG_SHUNTED);
}

#[test]
fn counters_follow_the_rows_for_whoever_asks_for_them() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    a.spare(1);
    b.spare(1);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    let of_b = b.claim(&far, Role::Acceptor, 0);
    a.expect(Kind::Paired);
    a.expect(Kind::NeedSpare);
    let details = || {
        let mut list = Message::new(Kind::List);
        list.flags = FLAG_DETAILS;
        a.send(&list, None);
        let next = || a.receive().expect("the daemon has closed").0;
        let all = std::iter::from_fn(|| Some(next()).filter(|m| m.kind() != Some(Kind::End)));
        all.collect::<Vec<_>>()
    };
    b.sync();
    let rows = details();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let detail = Detail::of(&rows[1]).expect("a detail follows its row");
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(detail.ends.map(|end| end.uid), [user; 2]);
    // Nobody has shown a region.
    assert_eq!(detail.ends.map(|end| end.counted), [0; 2]);
    assert_eq!(detail.age, UNKNOWN);
    if !may_copy_descriptors("counters of a region") {
        return;
    }
    show_region(&b, &region_with(&far, of_b, Role::Acceptor));
    b.sync();
    let detail = Detail::of(&details()[1]).unwrap();
    assert_eq!(detail.ends.map(|end| end.counted), [1, 0]);
    assert_eq!(a.rows().len(), 1, "who does not ask gets none");
}

#[test]
fn rows_share_datagrams_for_whoever_takes_them_so() {
    const CONNECTIONS: usize = 150;
    let daemon = Fixture::start();
    let a = daemon.client();
    let open: Vec<_> = (0..CONNECTIONS).map(|_| connection()).collect();
    for (near, _) in &open {
        let mut report = named(near, Role::Connector, 0);
        report.kind = Kind::Report as u16;
        report.status = Reason::PeerPlain as u8;
        a.send(&report, None);
    }
    let ask = |flags, takes| {
        let mut list = Message::new(Kind::List);
        (list.flags, list.index) = (flags, takes);
        a.send(&list, None);
        let mut lengths = Vec::new();
        let mut messages = Vec::new();
        while messages.last().and_then(Message::kind) != Some(Kind::End) {
            let mut bytes = [0; (MOST_TOGETHER + 1) * MESSAGE_BYTES];
            let length = rustix::net::recv(&a.socket, &mut bytes[..], RecvFlags::empty())
                .unwrap()
                .0;
            let parts = bytes[..length].chunks(MESSAGE_BYTES);
            lengths.push(parts.len());
            messages.extend(parts.map(|bytes| Message::parse(bytes).expect("whole messages")));
        }
        (lengths, messages)
    };
    const ALL: usize = 2 * CONNECTIONS + 1;
    let (apart, singly) = ask(FLAG_DETAILS, 0);
    assert_eq!(apart, [1; ALL]);
    let kinds = |messages: &[Message]| messages.iter().map(Message::kind).collect::<Vec<_>>();
    // Nobody takes fewer than has been so since there was no number, nor more than there is room for in a socket.
    for (takes, most) in [
        (0, TOGETHER),
        (1, TOGETHER),
        (100, 100),
        (u32::MAX, MOST_TOGETHER),
    ] {
        let (together, same) = ask(FLAG_DETAILS | FLAG_TOGETHER, takes);
        let (last, others) = together.split_last().unwrap();
        assert!(others.iter().all(|length| *length == most), "{together:?}");
        assert_eq!(*last, ALL - most * others.len());
        assert!(*last <= most);
        assert_eq!(kinds(&same), kinds(&singly));
    }
    // Who asks for them singly again gets them so.
    assert_eq!(ask(FLAG_DETAILS, 0).0, apart);
    a.send(&Message::new(Kind::Hosts), None);
    a.expect(Kind::End);
}

#[test]
fn a_socket_in_shared_memory_is_looked_at_now_and_then() {
    if !may_copy_descriptors("how often a socket is looked at") {
        return;
    }
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let (near, far) = connection();
    let cookie = rustix::net::sockopt::socket_cookie(&far).unwrap();
    show_region(&b, &region_with(&far, cookie, Role::Acceptor));
    b.sync();
    assert_eq!(a.rows().len(), 1);
    // Its process says still that it has it, which a library does not.
    drop(far);
    let began = Instant::now();
    let mut shown = 0;
    while a.rows().len() == 1 {
        assert!(began.elapsed() < WATCHDOG, "it is not looked at again");
        shown += 1;
    }
    assert!(shown > 0, "it was looked at again at once");
    drop(near);
}
