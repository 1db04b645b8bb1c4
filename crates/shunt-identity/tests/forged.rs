//! Sockets with sequence numbers that somebody has chosen (`TCP_REPAIR`): he may do so in a network namespace of his own.
//! He knows here what he would have to guess: the numbers of a connection of others.

mod common;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use common::{
    Namespace, PLENTY, assert_ends, attach_or_skip, connection, cookie, identity, mirror,
    set_tcp_option,
};
use rustix::net::{self, AddressFamily, SocketType};
use shunt_identity::{Identity, Side};

/// Says `None` and why if the test is skipped.
fn scene(test: &str) -> Option<(shunt_identity::Identities, Namespace)> {
    let identities = attach_or_skip(test, PLENTY)?;
    let [elsewhere] = Namespace::several(test)?;
    Some((identities, elsewhere))
}

/// A connector with these numbers, in another namespace, without any handshake.
fn forge(elsewhere: &Namespace, sent: u32, received: u32) -> OwnedFd {
    elsewhere.within(|| {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let option = |name, value| set_tcp_option(&socket, name, value);
        const RECEIVE_QUEUE: libc::c_int = 1;
        const SEND_QUEUE: libc::c_int = 2;
        option(libc::TCP_REPAIR, 1);
        option(libc::TCP_REPAIR_QUEUE, SEND_QUEUE);
        option(libc::TCP_QUEUE_SEQ, sent as i32);
        option(libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE);
        option(libc::TCP_QUEUE_SEQ, received as i32);
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        net::connect(&socket, &SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
        socket
    })
}

fn ends() -> (TcpStream, TcpStream) {
    connection(&TcpListener::bind("127.0.0.1:0").unwrap())
}

fn numbers(identity: &Identity) -> (u32, u32) {
    (identity.sent, identity.received)
}

/// So the other tests test something: the kernel takes the numbers, and records the socket.
#[test]
fn numbers_can_be_chosen() {
    let Some((identities, elsewhere)) = scene("numbers_can_be_chosen") else {
        return;
    };
    let forged = forge(&elsewhere, 0x1234_5678, 0x9abc_def0);
    let identity = identity(&identities, &forged);
    assert_eq!(numbers(&identity), (0x1234_5678, 0x9abc_def0));
    assert_eq!(identity.side, Side::Connector);
    assert_eq!(identities.mirror(&identity).unwrap(), None);
}

#[test]
fn of_two_connectors_with_the_same_numbers_none_has_a_mirror() {
    let name = "of_two_connectors_with_the_same_numbers_none_has_a_mirror";
    let Some((identities, elsewhere)) = scene(name) else {
        return;
    };
    let (connector, acceptor) = ends();
    assert_ends(&identities, &connector, &acceptor);
    let (sent, received) = numbers(&identity(&identities, &connector));
    let forged = forge(&elsewhere, sent, received);
    assert_eq!(mirror(&identities, &forged), None);
    assert_eq!(mirror(&identities, &acceptor), None);
    assert_eq!(mirror(&identities, &connector), None);
}

/// The only moment at which a forged connector is neither late nor alone. It is some microseconds long, but for
/// listeners that wait for data.
#[test]
fn a_connector_that_comes_between_both_ends_leaves_them_without_a_mirror() {
    let name = "a_connector_that_comes_between_both_ends_leaves_them_without_a_mirror";
    let Some((identities, elsewhere)) = scene(name) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_tcp_option(&listener, libc::TCP_DEFER_ACCEPT, 1);
    let mut connector = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (sent, received) = numbers(&identity(&identities, &connector));
    let forged = forge(&elsewhere, sent, received);
    connector.write_all(b"x").unwrap();
    let acceptor = listener.accept().unwrap().0;
    let moment = |socket: &dyn AsFd| identity(&identities, socket).established;
    assert!(moment(&connector) < moment(&forged) && moment(&forged) < moment(&acceptor));
    assert_eq!(mirror(&identities, &acceptor), None);
    assert_eq!(mirror(&identities, &forged), None);
    assert_eq!(mirror(&identities, &connector), None);
}

/// The record of the true one had to go for newer ones, or is forgotten.
#[test]
fn a_connector_that_is_later_than_its_acceptor_has_no_mirror() {
    let name = "a_connector_that_is_later_than_its_acceptor_has_no_mirror";
    let Some((identities, elsewhere)) = scene(name) else {
        return;
    };
    let (connector, acceptor) = ends();
    let (sent, received) = numbers(&identity(&identities, &connector));
    identities.forget(cookie(&connector));
    let forged = forge(&elsewhere, sent, received);
    assert_eq!(numbers(&identity(&identities, &forged)), (sent, received));
    assert_eq!(mirror(&identities, &forged), None);
    assert_eq!(mirror(&identities, &acceptor), None);
}

/// Nor does a forged connector disturb an acceptor of the same numbers, or pass for one.
#[test]
fn a_connector_takes_nothing_from_an_acceptors_place() {
    let name = "a_connector_takes_nothing_from_an_acceptors_place";
    let Some((identities, elsewhere)) = scene(name) else {
        return;
    };
    let (connector, acceptor) = ends();
    let (sent, received) = numbers(&identity(&identities, &acceptor));
    let forged = forge(&elsewhere, sent, received);
    assert_eq!(mirror(&identities, &forged), None);
    assert_ends(&identities, &connector, &acceptor);
}
