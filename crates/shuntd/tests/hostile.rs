//! Clients that do what they must not.

mod common;

use std::os::fd::AsFd;

use common::{ARENA_SEALS, Client, Fixture, arena_file, connection};
use proptest::prelude::*;
use rustix::fs::SealFlags;
use shunt_abi::message::{Kind, MESSAGE_BYTES, Message, Role};
use shunt_abi::{PROTOCOL, Reason, layout};
use zerocopy::IntoBytes;

/// A daemon is well when it serves the next client.
fn is_well(daemon: &Fixture) {
    daemon.client().sync();
}

#[test]
fn another_version_is_told_so_and_closed() {
    let daemon = Fixture::start();
    let client = Client::raw(&daemon.name);
    let mut hello = Message::new(Kind::Hello);
    hello.protocol = PROTOCOL + 1;
    // A later version's message may be longer, and more may be queued behind it.
    let mut long = hello.as_bytes().to_vec();
    long.extend([0; 64]);
    client.send_bytes(&long, None).unwrap();
    let _ = client.send_bytes(&long, None); // May come after the close.
    if let Some((welcome, _)) = client.receive() {
        assert_eq!(
            (welcome.kind(), welcome.status),
            (Some(Kind::Welcome), Reason::Version as u8)
        );
        assert_eq!(welcome.protocol, PROTOCOL);
    } else {
        panic!("closed without a word");
    }
    client.expect_closed();
    is_well(&daemon);
}

#[test]
fn a_malformed_message_ends_the_client_and_nobody_else() {
    let daemon = Fixture::start();
    let bystander = daemon.client();
    let mut strange = Message::new(Kind::Claim);
    strange.role = 9;
    let mut unknown = Message::new(Kind::Claim);
    unknown.kind = 99;
    let mut old = Message::new(Kind::Claim);
    old.protocol = PROTOCOL + 1;
    let whole = Message::new(Kind::List);
    for bytes in [
        &b"x"[..],
        &[0; MESSAGE_BYTES],
        &whole.as_bytes()[1..],
        &[whole.as_bytes(), b"x"].concat(),
        strange.as_bytes(),
        unknown.as_bytes(),
        old.as_bytes(),
        Message::new(Kind::Hello).as_bytes(),
        Message::new(Kind::Paired).as_bytes(),
    ] {
        let client = daemon.client();
        client.send_bytes(bytes, None).unwrap();
        client.expect_closed();
    }
    let silent = Client::raw(&daemon.name);
    silent.send(&Message::new(Kind::List), None);
    silent.expect_closed();
    bystander.sync();
}

#[test]
fn memory_that_could_change_under_the_peer_is_refused() {
    let daemon = Fixture::start();
    let size = layout::arena_bytes(layout::FIRST_SLOTS) as u64;
    let pipe = rustix::pipe::pipe().unwrap().0;
    for file in [
        arena_file(size, SealFlags::SHRINK | SealFlags::GROW),
        arena_file(size, SealFlags::SHRINK | SealFlags::FUTURE_WRITE),
        arena_file(size, SealFlags::GROW | SealFlags::FUTURE_WRITE),
        arena_file(4096, ARENA_SEALS),
        pipe,
    ] {
        let client = daemon.client();
        client.send(&Message::new(Kind::Spare), Some(file.as_fd()));
        client.expect_closed();
    }
    let client = daemon.client();
    client.send(&Message::new(Kind::Spare), None);
    client.expect_closed();
    is_well(&daemon);
}

#[test]
fn a_client_that_claims_too_much_is_refused_and_one_that_does_not_read_is_dropped() {
    let daemon = Fixture::with("[limits]\nconnections_per_client = 4");
    let client = daemon.client();
    let connections: Vec<_> = (0..5).map(|_| connection()).collect();
    for (near, _) in &connections {
        client.claim(near, Role::Connector, 0);
    }
    assert_eq!(
        client.expect(Kind::Unpaired).0.status,
        Reason::NoResources as u8
    );
    let deaf = daemon.client();
    let mut claim = Message::new(Kind::Claim);
    (claim.cookie, claim.fd) = (1, -1); // Each gets a refusal.
    while deaf.send_bytes(claim.as_bytes(), None).is_ok() {}
    is_well(&daemon);
}

#[test]
fn one_users_clients_share_what_they_may_leave_unread() {
    let daemon = Fixture::with("[limits]\nunread_per_user = 1000");
    let honest = daemon.client();
    let deaf: Vec<_> = (0..4).map(|_| daemon.client()).collect();
    let mut claim = Message::new(Kind::Claim);
    (claim.cookie, claim.fd) = (1, -1); // Each gets a refusal.
    let sent = (0..20_000).take_while(|i| {
        let client = &deaf[i % 4];
        client.send_bytes(claim.as_bytes(), None).is_ok()
    });
    // What the sockets hold comes on top.
    assert!(sent.count() < 8000, "nobody was dropped");
    honest.sync();
}

#[test]
fn one_users_clients_share_what_they_may_have_known() {
    let daemon = Fixture::with("[limits]\nconnections_per_user = 4");
    let clients = [daemon.client(), daemon.client()];
    let connections: Vec<_> = (0..5).map(|_| connection()).collect();
    for (i, (near, _)) in connections.iter().enumerate() {
        clients[i % 2].claim(near, Role::Connector, 0);
        clients[i % 2].sync();
    }
    let cookie = clients[0].claim(&connections[4].0, Role::Connector, 0);
    let (refused, _) = clients[0].expect(Kind::Unpaired);
    assert_eq!(
        (refused.cookie, refused.status),
        (cookie, Reason::NoResources as u8)
    );
    // What one client gives back another may have.
    drop(clients);
    let client = daemon.client();
    while !client.rows().is_empty() {}
    client.claim(&connections[0].0, Role::Connector, 0);
    assert_eq!(client.rows().len(), 1);
}

#[test]
fn more_clients_than_a_user_may_have_are_turned_away() {
    let daemon = Fixture::with("[limits]\nclients_per_user = 1");
    let first = daemon.client();
    let second = Client::raw(&daemon.name);
    let (welcome, _) = second.receive().unwrap();
    assert_eq!(welcome.status, Reason::NoResources as u8);
    second.expect_closed();
    first.sync();
}

/// A message of a known kind with otherwise random contents, or random bytes.
fn noise() -> impl Strategy<Value = (Vec<u8>, bool)> {
    let kinds = prop_oneof![1..=14_u16, 20..=22_u16, any::<u16>()];
    let shaped =
        (kinds, prop::collection::vec(any::<u8>(), MESSAGE_BYTES)).prop_map(|(kind, mut bytes)| {
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
            bytes[2..4].copy_from_slice(&PROTOCOL.to_ne_bytes());
            // Small descriptor numbers and cookies meet something now and then.
            let (fd, cookie) = (bytes[4] % 64, bytes[8] % 4);
            bytes[4..8].copy_from_slice(&i32::from(fd).to_ne_bytes());
            bytes[8..16].copy_from_slice(&u64::from(cookie).to_ne_bytes());
            bytes
        });
    let raw = prop::collection::vec(any::<u8>(), 1..300);
    (prop_oneof![8 => shaped, 1 => raw], any::<bool>())
}

#[test]
fn random_messages_never_hurt_the_daemon() {
    let daemon = Fixture::start();
    let arena = arena_file(layout::arena_bytes(layout::FIRST_SLOTS) as u64, ARENA_SEALS);
    let mut config = ProptestConfig {
        failure_persistence: None,
        ..Default::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 400;
    }
    proptest!(config, |(messages in prop::collection::vec(noise(), 1..24), greet in any::<bool>())| {
        let client = if greet { daemon.client() } else { Client::raw(&daemon.name) };
        for (bytes, attach) in &messages {
            if client.send_bytes(bytes, attach.then_some(arena.as_fd())).is_err() {
                break; // It has dropped us, as it may.
            }
        }
        is_well(&daemon);
    });
}
