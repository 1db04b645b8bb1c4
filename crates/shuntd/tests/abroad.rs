//! Sockets by which clients call peers in other network namespaces, and are called there: who is given how many.

mod common;

use common::place::{Namespace, crossing, file};
use common::{Client, Fixture, skip};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix};
use shunt_abi::message::{FLAG_ANSWER, FLAG_CROSSES, Kind, MOST_SOCKETS, Message, Role, SOCKETS};

fn ask_for_sockets(client: &Client, count: u32) {
    let mut question = Message::new(Kind::Abroad);
    question.index = count;
    client.send(&question, None);
}

/// Takes an answer: sockets to be called at, and the message that says how many there are. Returns
/// how many.
fn given(client: &Client) -> u32 {
    let mut count = 0;
    loop {
        let (message, socket) = client.expect(Kind::Abroad);
        assert_eq!(message.role, Role::Acceptor as u8);
        if socket.is_none() {
            assert_eq!((message.flags, message.index), (FLAG_ANSWER, count));
            return count;
        }
        count += 1;
    }
}

#[test]
fn two_of_one_namespace_are_given_no_more_than_a_socket_to_call_by() {
    let test = "two_of_one_namespace";
    let Some((_daemon, file)) = crossing(test, "") else {
        return;
    };
    let (a, b) = (Client::at(&file), Client::at(&file));
    let _memory = [a.spare(1), b.spare(2)];
    b.sync();
    let (near, far) = common::connection();
    a.claim(&near, Role::Connector, 0);
    b.claim(&far, Role::Acceptor, 0);
    for client in [&a, &b] {
        assert_eq!(client.expect(Kind::Abroad).0.role, Role::Connector as u8);
        assert_eq!(client.expect(Kind::Paired).0.flags & FLAG_CROSSES, 0);
        client.expect(Kind::NeedSpare);
        // Who has peers elsewhere, or had by a former daemon's word, asks for more.
        ask_for_sockets(client, SOCKETS);
        assert_eq!(given(client), SOCKETS);
    }
}

#[test]
fn a_client_is_not_given_sockets_without_end() {
    let test = "a_client_is_not_given_sockets";
    let Some((_daemon, file)) = crossing(test, "") else {
        return;
    };
    let client = Client::at(&file);
    ask_for_sockets(&client, 1);
    assert_eq!(client.expect(Kind::Abroad).0.role, Role::Connector as u8);
    assert_eq!(given(&client), 1);
    let mut left = 2047;
    while left > 0 {
        // No more at a time, whatever it asks for.
        ask_for_sockets(&client, u32::MAX);
        assert_eq!(given(&client), left.min(MOST_SOCKETS));
        left -= left.min(MOST_SOCKETS);
    }
    ask_for_sockets(&client, 1);
    assert_eq!(given(&client), 0);
    client.sync();
    client.expect_nothing();
}

#[test]
fn each_question_for_sockets_has_one_answer_which_says_where_it_ends() {
    let test = "each_question_for_sockets";
    let Some((_daemon, file)) = crossing(test, "") else {
        return;
    };
    let client = Client::at(&file);
    let wanted = [50, 0, 3];
    for count in wanted {
        ask_for_sockets(&client, count);
    }
    assert_eq!(client.expect(Kind::Abroad).0.role, Role::Connector as u8);
    assert_eq!(wanted.map(|_| given(&client)), wanted);
    client.sync();
    client.expect_nothing();
}

#[test]
fn where_namespaces_are_kept_apart_nobody_waits_for_sockets() {
    let test = "where_namespaces_are_kept_apart_nobody_waits";
    let file = file(test);
    let _daemon = Fixture::crossing("[policy]\ncross_namespace = false", &file);
    let client = Client::at(&file);
    ask_for_sockets(&client, 8);
    assert_eq!(given(&client), 0);
}

#[test]
fn who_had_sockets_of_a_former_daemon_is_given_one_to_call_by_before_others() {
    let test = "who_had_sockets_of_a_former_daemon";
    let Some((_daemon, file)) = crossing(test, "") else {
        return;
    };
    let client = Client::at(&file);
    for _ in 0..2 {
        ask_for_sockets(&client, SOCKETS);
    }
    assert_eq!(client.expect(Kind::Abroad).0.role, Role::Connector as u8);
    for _ in 0..2 {
        assert_eq!(given(&client), SOCKETS);
    }
    client.sync();
    client.expect_nothing();
}

#[test]
fn what_a_client_makes_where_they_are_from_changes_no_call() {
    let test = "what_a_client_makes";
    let Some((_daemon, file)) = crossing(test, "") else {
        return;
    };
    let sockets_of = |client: &Client| {
        ask_for_sockets(client, 1);
        let sockets = [Role::Connector, Role::Acceptor].map(|role| {
            let (message, socket) = client.expect(Kind::Abroad);
            assert_eq!(message.role, role as u8);
            socket.unwrap()
        });
        assert_eq!(client.expect(Kind::Abroad).0.flags, FLAG_ANSWER);
        sockets
    };
    let clients = [Client::at(&file), Client::at(&file)];
    let [caller, _] = sockets_of(&clients[0]);
    let place = match Namespace::of(&caller) {
        Ok(place) => place,
        Err(error) => return skip(&format!("{test}: {error}")),
    };
    place.run(
        "test $(ip -o link | wc -l) = 1
         ip link set lo up
         ip link add made type veth peer name other
         ip addr add 10.77.0.1/24 dev made
         ip link set made up",
    );
    let [_, called] = sockets_of(&clients[1]);
    let name = SocketAddrUnix::new_abstract_name(b"called").unwrap();
    rustix::net::bind(&called, &name).unwrap();
    let sent = rustix::net::sendto(&caller, b"wake", SendFlags::empty(), &name);
    assert_eq!(sent, Ok(4));
    let mut got = [0; 8];
    let (length, _) = rustix::net::recv(&called, &mut got[..], RecvFlags::empty()).unwrap();
    assert_eq!(&got[..length], b"wake");
}
