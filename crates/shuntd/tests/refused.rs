//! A daemon that may not use `pidfd_getfd`.

mod common;

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use common::region::{SEALS, region};
use common::{ANSWER, Client, Fixture, connection, named, skip, unnamed};
use rustix::net::sockopt;
use rustix::process::Uid;
use shunt_abi::Reason;
use shunt_abi::counters::SIZE;
use shunt_abi::message::{FLAG_ADOPTED, Kind, Message, Role};

fn clients(daemon: &Fixture) -> [Client; 2] {
    let clients = [daemon.client(), daemon.client()];
    for (n, client) in clients.iter().enumerate() {
        drop(client.spare(n as u32 + 1));
    }
    clients
}

fn connections() -> Vec<(TcpStream, TcpStream)> {
    // IPv4, IPv6, and an IPv4 client of an IPv6 listener.
    ["127.0.0.1", "[::1]", "[::]"]
        .into_iter()
        .filter_map(|host| {
            let listener = match TcpListener::bind(format!("{host}:0")) {
                // A container may have no IPv6 loopback.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    skip("pairing by address over IPv6: no ::1");
                    return None;
                }
                listener => listener.unwrap(),
            };
            let port = listener.local_addr().unwrap().port();
            let to = if host == "[::]" { "127.0.0.1" } else { host };
            let near = TcpStream::connect(format!("{to}:{port}")).unwrap();
            Some((near, listener.accept().unwrap().0))
        })
        .collect()
}

#[test]
fn a_users_own_daemon_pairs_by_address() {
    for (near, far) in connections() {
        let daemon = Fixture::confined(false);
        let [a, b] = clients(&daemon);
        a.claim(&near, Role::Connector, 0);
        b.claim(&far, Role::Acceptor, 0);
        a.expect(Kind::Paired);
        b.expect(Kind::Paired);
    }
}

#[test]
fn a_claim_ahead_of_connect_is_found_by_its_peers() {
    for (near, far) in connections() {
        let daemon = Fixture::confined(false);
        let [a, b] = clients(&daemon);
        a.send(&unnamed(&near, Role::Connector, 0), None);
        a.sync();
        b.claim(&far, Role::Acceptor, ANSWER);
        a.expect(Kind::Paired);
        b.expect(Kind::Paired);
    }
}

#[test]
fn a_socket_and_the_addresses_of_another_are_no_proof() {
    let daemon = Fixture::confined(false);
    let [a, _] = clients(&daemon);
    let ((near, _far), (other, _end)) = (connection(), connection());
    let mut lie = named(&near, Role::Connector, 0);
    lie.cookie = sockopt::socket_cookie(&other).unwrap();
    lie.fd = other.as_raw_fd();
    a.send(&lie, None);
    let (told, _) = a.expect(Kind::Unpaired);
    assert_eq!(told.status, Reason::NoProof as u8);
}

#[test]
fn another_users_socket_is_never_believed() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can make one.
    }
    let (near, far) = std::thread::spawn(|| {
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(65534), None).unwrap();
        connection()
    })
    .join()
    .unwrap();
    let daemon = Fixture::confined(false);
    let [a, b] = clients(&daemon);
    a.send(&unnamed(&near, Role::Connector, 0), None);
    b.claim(&far, Role::Acceptor, 0);
    let (told, _) = b.expect(Kind::Unpaired);
    assert_eq!(told.status, Reason::NoProof as u8);
    a.sync();
}

#[test]
fn the_hosts_daemon_believes_nobody_and_says_why() {
    let daemon = Fixture::confined(true);
    let [a, _] = clients(&daemon);
    let (near, _far) = connection();
    a.claim(&near, Role::Connector, 0);
    let (told, _) = a.expect(Kind::Unpaired);
    assert_eq!(told.status, Reason::NoProof as u8);
}

#[test]
fn an_adopted_connection_is_paired_too() {
    let daemon = Fixture::confined(false);
    let [a, b] = clients(&daemon);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    let mut adopted = named(&far, Role::Acceptor, FLAG_ADOPTED);
    adopted.index = 1;
    b.send(&adopted, None);
    a.expect(Kind::Paired);
    b.expect(Kind::Paired);
}

#[test]
fn the_list_knows_what_it_may_not_look_at() {
    let daemon = Fixture::confined(false);
    let [a, _] = clients(&daemon);
    let (near, _far) = connection();
    a.claim(&near, Role::Connector, 0);
    assert_eq!(a.rows().len(), 1);
}

#[test]
fn a_claim_that_the_region_does_not_show_is_listed_while_its_connection_is_open() {
    let daemon = Fixture::confined(false);
    let client = daemon.client();
    let empty = region(0, 0, SIZE as u64, SEALS);
    client.send(&Message::new(Kind::Counters), Some(empty.as_fd()));
    let (near, _far) = connection();
    client.claim(&near, Role::Acceptor, 0);
    assert_eq!(client.rows().len(), 1);
    drop(near);
    assert!(client.rows().is_empty());
}
