//! Quotas: what a tenant may hold, and what it is told who wants more.

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Client, Fixture, connection};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Role};

/// A connection between two clients, and what these are told of it: a reason, or that they are paired.
fn connect(a: &Client, b: &Client) -> ((TcpStream, TcpStream), [Option<Reason>; 2]) {
    let ends = connection();
    a.claim(&ends.0, Role::Connector, 0);
    b.claim(&ends.1, Role::Acceptor, 0);
    let told = [a, b].map(|client| {
        loop {
            let (answer, _) = client.receive().expect("the daemon has closed");
            match answer.kind() {
                Some(Kind::Paired) => return None,
                Some(Kind::Unpaired) => return Reason::from_number(answer.status),
                Some(Kind::NeedSpare) => {}
                _ => panic!("{answer:?}"),
            }
        }
    });
    (ends, told)
}

/// Clients with memory for a link each.
fn clients<const N: usize>(daemon: &Fixture) -> [Client; N] {
    [(); N].map(|()| {
        let client = daemon.client();
        drop(client.spare(1));
        client.sync();
        client
    })
}

const REFUSED: [Option<Reason>; 2] = [Some(Reason::Quota); 2];
const PAIRED: [Option<Reason>; 2] = [None; 2];

#[test]
fn slots_are_bounded_and_free_again_when_a_connection_or_its_process_ends() {
    for of in ["user", "host"] {
        let daemon = Fixture::with(&format!("[limits.{of}]\nslots = 2"));
        let [a, b] = clients(&daemon);
        let (first, told) = connect(&a, &b);
        assert_eq!(told, PAIRED);
        let (_second, told) = connect(&a, &b);
        assert_eq!(told, REFUSED);
        let cookie = |end| rustix::net::sockopt::socket_cookie(end).unwrap();
        a.release(cookie(&first.0));
        a.sync();
        let (_third, told) = connect(&a, &b);
        assert_eq!(told, REFUSED, "the other end has its slot still");
        b.release(cookie(&first.1));
        b.sync();
        let (_fourth, told) = connect(&a, &b);
        assert_eq!(told, PAIRED);
        drop([a, b]);
        let [c, d] = clients(&daemon);
        let (_fifth, told) = connect(&c, &d);
        assert_eq!(told, PAIRED);
    }
}

#[test]
fn links_are_bounded_and_those_that_are_there_go_on() {
    let daemon = Fixture::with("[limits.user]\nlinks = 2");
    let [a, b, c] = clients(&daemon);
    let (first, told) = connect(&a, &b);
    assert_eq!(told, PAIRED);
    let (_second, told) = connect(&a, &c);
    assert_eq!(told, REFUSED);
    let (third, told) = connect(&b, &a);
    assert_eq!(told, PAIRED, "by the same link");
    drop(b);
    a.expect(Kind::Gone);
    drop(a.spare(2));
    let (_fourth, told) = connect(&a, &c);
    assert_eq!(told, REFUSED, "it has the memory of both connections still");
    for end in [&first.0, &third.1] {
        a.release(rustix::net::sockopt::socket_cookie(end).unwrap());
    }
    a.sync();
    let (_fifth, told) = connect(&a, &c);
    assert_eq!(told, PAIRED);
}

#[test]
fn memory_is_bounded() {
    for (config, expected) in [
        ("[limits.user]\nmemory = 0", REFUSED),
        ("[limits.host]\nmemory = 0", REFUSED),
        ("[limits.container]\nmemory = 0", PAIRED), // They are in none.
        ("[limits.user]\nmemory = 1024", PAIRED),
    ] {
        let daemon = Fixture::with(config);
        let [a, b] = clients(&daemon);
        assert_eq!(connect(&a, &b).1, expected, "{config}");
    }
}

#[test]
fn who_says_more_than_allowed_is_heard_later() {
    const RATE: u16 = 20;
    let daemon = Fixture::with(&format!("[limits.user]\nmessages = {RATE}"));
    let client = daemon.client();
    let start = Instant::now();
    for port in 0..2 * RATE {
        client.listen(u64::from(port) + 1, 7000 + port);
    }
    client.sync();
    assert!(client.port_is_set(7000 + 2 * RATE - 1), "nothing is lost");
    // The first ones as a burst, the others at their rate.
    assert!(start.elapsed() >= Duration::from_millis(900));
}
