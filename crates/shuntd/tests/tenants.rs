//! Containers that do not trust each other, served by one daemon. The fake clients are all one process
//! of one user, but connect from different network namespaces.

mod common;

use std::os::fd::AsRawFd as _;

use common::place::{Namespace, file};
use common::{Client, Fixture, may_copy_descriptors, paired_with, skip, told, wish};
use rustix::net::sockopt::socket_cookie;
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Message};
use zerocopy::IntoBytes as _;

/// A daemon whose clients are called in their own namespaces only.
const APART: &str = "[policy]\ncross_namespace = false";

fn container(test: &str) -> Option<Namespace> {
    let made = Namespace::new();
    if made.is_err() {
        skip(&format!("{test}: no network namespaces"));
    }
    made.ok()
}

#[test]
fn root_of_a_container_sees_and_recalls_only_what_is_in_it() {
    let test = "root_of_a_container_sees_and_recalls";
    let Some(container) = container(test) else {
        return;
    };
    let file = file(test);
    let daemon = Fixture::crossing(APART, &file);
    let (of_host, [near, _far]) = common::paired(&daemon);
    let inside = container.within(|| [(); 2].map(|()| Client::at(&file)));
    let (_inside, [inner, _inner_far]) = paired_with(inside, container.within(common::connection));
    let tenant = container.within(|| Client::at(&file));

    let rows = tenant.rows();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0].ports[1], inner.local_addr().unwrap().port());
    let strange = wish([near.local_addr().unwrap(), near.peer_addr().unwrap()]);
    assert_eq!(told(&tenant, &strange), 0);
    for client in &of_host {
        client.expect_nothing();
    }
    let own = wish([inner.local_addr().unwrap(), inner.peer_addr().unwrap()]);
    assert_eq!(told(&tenant, &own), 2);

    // Who administrates the host sees both.
    let administrator = daemon.client();
    assert_eq!(administrator.rows().len(), 2);
    assert_eq!(told(&administrator, &strange), 2);
    for client in &of_host {
        client.expect(Kind::Downgrade);
    }
}

/// What a client is told that has just connected: why it is turned away, or 0.
fn status(client: &Client) -> u8 {
    // Who is turned away may be closed by now.
    let _ = client.send_bytes(Message::new(Kind::Hello).as_bytes(), None);
    client.expect(Kind::Welcome).0.status
}

#[test]
fn one_process_is_not_let_in_without_end() {
    let daemon = Fixture::host();
    let mut clients = Vec::new();
    let mut come = || {
        clients.push(Client::raw(&daemon.name));
        status(&clients[clients.len() - 1])
    };
    let refused = (0..1000).map(|_| come()).find(|&status| status != 0);
    assert_eq!(refused, Some(Reason::NoResources as u8));
    clients.truncate(1);
    while status(&Client::raw(&daemon.name)) != 0 {
        std::thread::yield_now(); // Until it has seen that the others have gone.
    }
}

#[test]
fn root_of_a_container_does_not_take_the_places_of_the_hosts() {
    let test = "root_of_a_container_does_not_take";
    let (Some(one), Some(other)) = (container(test), container(test)) else {
        return;
    };
    let file = file(test);
    let config = format!("{APART}\n[limits]\nclients_per_user = 8");
    let daemon = Fixture::crossing(&config, &file);
    let come = |place: &Namespace| {
        let client = place.within(|| Client::knock(&file));
        let status = status(&client);
        (client, status)
    };
    let full = Reason::NoResources as u8;
    let inside = [(); 3].map(|()| come(&one));
    assert_eq!(inside.each_ref().map(|(_, status)| *status), [0, 0, full]);
    let (_client, status) = come(&other);
    assert_eq!(status, 0, "another container has places of its own");
    daemon.client().sync();
}

#[test]
fn nobody_is_lent_a_socket_of_a_namespace_that_he_is_not_in() {
    let test = "nobody_is_lent_a_socket_of_a_namespace";
    let Some(container) = container(test).filter(|_| may_copy_descriptors(test)) else {
        return;
    };
    let file = file(test);
    let daemon = Fixture::crossing(APART, &file);
    let inside = container.within(|| [(); 2].map(|()| Client::at(&file)));
    let (inside, [near, _far]) = paired_with(inside, container.within(common::connection));
    let mut lend = Message::new(Kind::Lend);
    (lend.fd, lend.cookie) = (near.as_raw_fd(), socket_cookie(&near).unwrap());
    let status = |client: &Client| {
        client.send(&lend, None);
        client.expect(Kind::Lent).0.status
    };
    assert_eq!(status(&inside[0]), 0);
    // A process of the host's that has been passed this socket.
    assert_eq!(status(&daemon.client()), Reason::NotEstablished as u8);
}
