//! `shunt downgrade`: whom the daemon tells, and whom it hears.

mod common;

use common::{Fixture, paired, told, wish};
use shunt_abi::message::{Kind, Message};

#[test]
fn both_holders_are_told_once_whoever_comes_first_in_the_wish() {
    let daemon = Fixture::start();
    let (clients, [near, _far]) = paired(&daemon);
    let ends = [near.local_addr().unwrap(), near.peer_addr().unwrap()];
    let asker = daemon.client();
    assert_eq!(told(&asker, &wish(ends)), 2);
    assert_eq!(told(&asker, &wish([ends[1], ends[0]])), 2);
    for client in &clients {
        client.expect(Kind::Downgrade);
        client.sync();
        client.expect_nothing();
    }
}

#[test]
fn other_addresses_name_nobody() {
    let daemon = Fixture::start();
    let (clients, [near, far]) = paired(&daemon);
    let asker = daemon.client();
    let own = near.local_addr().unwrap();
    assert_eq!(told(&asker, &wish([own, own])), 0);
    let mut elsewhere = far.local_addr().unwrap();
    elsewhere.set_port(1);
    assert_eq!(told(&asker, &wish([own, elsewhere])), 0);
    for client in &clients {
        client.sync();
        client.expect_nothing();
    }
}

#[test]
fn a_wish_without_a_family_ends_its_client() {
    let daemon = Fixture::start();
    let asker = daemon.client();
    asker.send(&Message::new(Kind::Downgrade), None);
    asker.expect_closed();
}
