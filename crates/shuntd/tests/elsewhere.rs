//! Where the other end of a connection is that no client has.

mod common;

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use common::{Client, Fixture, connection, may_copy_descriptors, named};
use rustix::net::sockopt;
use rustix::process::{Uid, geteuid};
use shunt_abi::Reason;
use shunt_abi::message::{Kind, Role};

const NOBODY: u32 = 65534;

/// Asks, and returns the reason that is found.
fn ask(client: &Client, socket: &TcpStream, cookie: u64) -> Option<Reason> {
    let mut question = named(socket, Role::Acceptor, 0);
    question.kind = Kind::Where as u16;
    (question.cookie, question.status) = (cookie, Reason::PeerPlain as u8);
    client.send(&question, None);
    let (answer, _) = client.expect(Kind::Where);
    assert_eq!((answer.cookie, answer.fd), (cookie, socket.as_raw_fd()));
    assert_eq!(answer.index, Reason::PeerPlain as u32);
    Reason::from_number(answer.status)
}

/// A connection to `listener` made by this user, which only root can.
fn connect_as(listener: &TcpListener, user: u32) -> TcpStream {
    let address = listener.local_addr().unwrap();
    let connect = || {
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(user), None).unwrap();
        TcpStream::connect(address).unwrap()
    };
    std::thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

#[test]
fn nothing_is_found_of_ones_own_and_of_what_one_does_not_hold() {
    let daemon = Fixture::start();
    let client = daemon.client();
    let (near, far) = connection();
    let cookie = |socket| sockopt::socket_cookie(socket).unwrap();
    assert_eq!(ask(&client, &far, cookie(&far)), None);
    assert_eq!(ask(&client, &far, cookie(&near)), None);
    assert_eq!(ask(&client, &far, 0), None);
    client.sync();
}

#[test]
fn the_end_of_another_user_is_told_and_listed() {
    if !geteuid().is_root() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = connect_as(&listener, NOBODY);
    let far = listener.accept().unwrap().0;
    let cookie = sockopt::socket_cookie(&far).unwrap();
    for (config, host, found) in [
        ("", false, Some(Reason::OtherUser)),
        ("", true, Some(Reason::OtherUser)),
        ("[policy]\ncross_user = true", true, None),
    ] {
        if host && !may_copy_descriptors("another user's end, for the host's daemon") {
            break; // It believes nothing that it cannot see.
        }
        let daemon = Fixture::of(config, host);
        let client = daemon.client();
        client.claim(&far, Role::Acceptor, 0);
        let listed = client.rows()[0].status;
        let known = Reason::from_number(listed).filter(|&r| r == Reason::OtherUser);
        assert_eq!(known, found, "{config} {host}: {listed}");
        assert_eq!(ask(&client, &far, cookie), found, "{config} {host}");
    }
    drop(near);
}
