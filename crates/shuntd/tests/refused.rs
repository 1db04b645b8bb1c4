//! A daemon that may not use `pidfd_getfd`.

mod common;

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use common::{ANSWER, Client, Fixture, connection, named};
use rustix::net::sockopt;
use rustix::process::Uid;
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_ADOPTED, Kind, Role};

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
        .map(|host| {
            let listener = TcpListener::bind(format!("{host}:0")).unwrap();
            let port = listener.local_addr().unwrap().port();
            let to = if host == "[::]" { "127.0.0.1" } else { host };
            let near = TcpStream::connect(format!("{to}:{port}")).unwrap();
            (near, listener.accept().unwrap().0)
        })
        .collect()
}

#[test]
fn a_users_own_daemon_pairs_by_address() {
    for (near, far) in connections() {
        let daemon = Fixture::confined(false);
        let [a, b] = clients(&daemon);
        a.claim_named(&near, Role::Connector, 0);
        b.claim_named(&far, Role::Acceptor, 0);
        a.expect(Kind::Paired);
        b.expect(Kind::Paired);
    }
}

#[test]
fn a_claim_ahead_of_connect_is_found_by_its_peers() {
    for (near, far) in connections() {
        let daemon = Fixture::confined(false);
        let [a, b] = clients(&daemon);
        a.claim(&near, Role::Connector, 0); // Names no addresses.
        a.sync();
        b.claim_named(&far, Role::Acceptor, ANSWER);
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
    a.claim(&near, Role::Connector, 0);
    b.claim_named(&far, Role::Acceptor, 0);
    let (told, _) = b.expect(Kind::Unpaired);
    assert_eq!(told.status, Reason::NoProof as u8);
    a.sync();
}

#[test]
fn the_hosts_daemon_believes_nobody_and_says_why() {
    let daemon = Fixture::confined(true);
    let [a, _] = clients(&daemon);
    let (near, _far) = connection();
    a.claim_named(&near, Role::Connector, 0);
    let (told, _) = a.expect(Kind::Unpaired);
    assert_eq!(told.status, Reason::NoProof as u8);
}

#[test]
fn an_adopted_connection_is_paired_too() {
    let daemon = Fixture::confined(false);
    let [a, b] = clients(&daemon);
    let (near, far) = connection();
    a.claim_named(&near, Role::Connector, 0);
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
    a.claim_named(&near, Role::Connector, 0);
    assert_eq!(a.rows().len(), 1);
}
