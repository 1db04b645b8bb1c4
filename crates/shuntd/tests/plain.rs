//! What is said of a connection whose other end nobody claims.

mod common;

use std::process::{Child, Command, Stdio};

use common::{ANSWER, Fixture, connection};
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_SHUNTED, Kind, Role};

/// Holds a copy of a socket and is no client.
fn stranger(socket: std::net::TcpStream) -> Child {
    let mut sleep = Command::new("sleep");
    let socket = std::os::fd::OwnedFd::from(socket);
    sleep.arg("60").stdin(Stdio::from(socket)).spawn().unwrap()
}

#[test]
fn the_peer_of_an_eager_acceptor_is_plain_until_it_claims() {
    let daemon = Fixture::start();
    let [a, b] = [daemon.client(), daemon.client()];
    drop([a.spare(1), b.spare(1)]);
    let (near, far) = connection();
    b.claim(&far, Role::Acceptor, ANSWER);
    assert_eq!(b.expect(Kind::Unpaired).0.status, 0);
    // Listed, it is known that a client has it: it may claim it yet.
    assert_eq!(b.rows()[0].status, Reason::Pending as u8);
    a.claim(&near, Role::Connector, 0);
    a.expect(Kind::Paired);
    b.expect(Kind::Paired);
}

#[test]
fn a_peer_that_no_client_holds_is_plain_in_the_list() {
    let daemon = Fixture::start();
    let a = daemon.client();
    let (near, far) = connection();
    let mut other = stranger(near);
    a.claim(&far, Role::Acceptor, 0); // As in adaptive mode.
    let row = a.rows().remove(0);
    assert_eq!(row.status, Reason::PeerPlain as u8);
    assert_eq!(row.flags & FLAG_SHUNTED, 0);
    other.kill().unwrap();
    other.wait().unwrap();
}
