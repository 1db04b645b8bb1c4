//! Sockets with sequence numbers that somebody has chosen (`TCP_REPAIR`): he may do so in a network namespace of his own.
//! He knows here what he would have to guess: the numbers of a connection of others.

mod common;

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use common::socket::{connection, forge, set_tcp_option};
use common::{Namespace, PLENTY, assert_ends, attach_or_skip, identity, mirror};
use shunt_identity::{Identity, Side};

/// Says `None` and why if the test is skipped.
fn scene(test: &str) -> Option<(shunt_identity::Identities, Namespace)> {
    let identities = attach_or_skip(test, PLENTY)?;
    let [elsewhere] = Namespace::several(test)?;
    Some((identities, elsewhere))
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
    let forged = elsewhere.within(|| forge(0x1234_5678, 0x9abc_def0));
    let identity = identity(&identities, &forged);
    assert_eq!(numbers(&identity), (0x1234_5678, 0x9abc_def0));
    assert_eq!(identity.side, Side::Connector);
    assert_eq!(identities.mirror(&identity), None);
}

/// The numbers that another host tells of its end are this one's, mirrored. (A forged connector has no acceptor here, as one
/// that is connected to another host.)
#[test]
fn the_end_of_a_connection_to_another_host_is_found_by_the_mirrored_numbers() {
    let name = "the_end_of_a_connection_to_another_host";
    let Some((identities, elsewhere)) = scene(name) else {
        return;
    };
    let (sent, received) = (0x2345_6789, 0xabcd_ef01);
    let find = || identities.opposite(Side::Connector, received, sent);
    assert_eq!(find(), None);
    let leaving = elsewhere.within(|| forge(sent, received));
    let own = identity(&identities, &leaving);
    assert_eq!(find(), Some((common::socket::cookie(&leaving), own)));
    assert_eq!(identities.opposite(Side::Connector, sent, received), None);
    assert_eq!(identities.opposite(Side::Acceptor, received, sent), None);
    // Of a connection whose two ends are here, no end is another host's.
    let (connector, acceptor) = ends();
    let (connector, acceptor) = (
        identity(&identities, &connector),
        identity(&identities, &acceptor),
    );
    let (sent, received) = numbers(&acceptor);
    assert_eq!(identities.opposite(Side::Connector, sent, received), None);
    let (sent, received) = numbers(&connector);
    assert_eq!(identities.opposite(Side::Acceptor, sent, received), None);
    // Nor is one of two that have the same numbers.
    let _other = elsewhere.within(|| forge(own.sent, own.received));
    assert_eq!(find(), None);
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
    let forged = elsewhere.within(|| forge(sent, received));
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
    let forged = elsewhere.within(|| forge(sent, received));
    connector.write_all(b"x").unwrap();
    let acceptor = listener.accept().unwrap().0;
    let moment = |socket: &dyn AsFd| identity(&identities, socket).established;
    assert!(moment(&connector) < moment(&forged) && moment(&forged) < moment(&acceptor));
    assert_eq!(mirror(&identities, &acceptor), None);
    assert_eq!(mirror(&identities, &forged), None);
    assert_eq!(mirror(&identities, &connector), None);
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
    let forged = elsewhere.within(|| forge(sent, received));
    assert_eq!(mirror(&identities, &forged), None);
    assert_ends(&identities, &connector, &acceptor);
}
