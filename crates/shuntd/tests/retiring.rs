//! A client has forked, and the child has memory of a link.

mod common;

use common::{Client, Fixture, connection, paired};
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_NEW_LINK, FLAG_UNUSED, Kind, Message, Role};

fn retire(client: &Client, link: u64) {
    let mut message = Message::new(Kind::Retire);
    message.link = link;
    client.send(&message, None);
}

/// Two clients claim one more connection between them: its cookies.
fn claim_both(a: &Client, b: &Client) -> [u64; 2] {
    let (near, far) = connection();
    let cookies = [
        a.claim(&near, Role::Connector, 0),
        b.claim(&far, Role::Acceptor, 0),
    ];
    std::mem::forget((near, far)); // The descriptors must not be reused meanwhile.
    cookies
}

/// What two clients are told of one more connection between them.
fn pair_again(a: &Client, b: &Client) -> [Message; 2] {
    claim_both(a, b);
    [a.expect(Kind::Paired).0, b.expect(Kind::Paired).0]
}

/// Two clients with a connection, which have memory for one link more.
fn linked(daemon: &Fixture) -> ([Client; 2], [Message; 2]) {
    let (a, b) = (daemon.client(), daemon.client());
    for (client, arena) in [(&a, 1), (&b, 1)] {
        client.spare(arena);
    }
    let told = pair_again(&a, &b);
    for client in [&a, &b] {
        client.expect(Kind::NeedSpare);
        client.spare(2);
    }
    ([a, b], told)
}

#[test]
fn the_next_connection_lies_in_other_memory_whoever_has_forked() {
    for forked in [0, 1] {
        let daemon = Fixture::start();
        let (clients, first) = linked(&daemon);
        let [a, b] = &clients;
        retire(&clients[forked], first[0].link);
        for client in [a, b] {
            let (gone, _) = client.expect(Kind::Gone);
            assert_eq!((gone.link, gone.flags & FLAG_UNUSED), (first[0].link, 0));
        }
        let next = pair_again(a, b);
        assert_ne!(next[0].link, first[0].link);
        assert_eq!(next.map(|m| (m.flags, m.arena)), [(FLAG_NEW_LINK, 2); 2]);
    }
}

#[test]
fn a_retired_link_counts_until_its_connections_have_ended() {
    let daemon = Fixture::with("[limits.user]\nlinks = 2");
    let ([a, b], first) = linked(&daemon);
    let cookies = claim_both(&a, &b);
    let both = [&a, &b];
    for client in both {
        client.expect(Kind::Paired);
    }
    retire(&a, first[0].link);
    for client in both {
        client.expect(Kind::Gone);
    }
    let refused = || {
        claim_both(&a, &b);
        for client in both {
            let (answer, _) = client.expect(Kind::Unpaired);
            assert_eq!(answer.status, Reason::Quota as u8);
        }
    };
    refused();
    // One of two has ended, and one end of the other one.
    for (client, cookie) in both.into_iter().zip(cookies) {
        client.release(cookie);
        client.sync();
    }
    a.release(first[0].cookie);
    a.sync();
    refused();
    b.release(first[1].cookie);
    b.sync();
    pair_again(&a, &b);
}

#[test]
fn nobody_retires_what_is_anothers() {
    let daemon = Fixture::start();
    let ([a, b], first) = linked(&daemon);
    let stranger = daemon.client();
    retire(&stranger, first[0].link);
    stranger.sync();
    let next = pair_again(&a, &b);
    assert_eq!((next[0].link, next[0].slot), (first[0].link, 1));
    // Of a link that is not there nothing is said.
    retire(&a, u64::MAX);
    a.sync();
    a.expect_nothing();
}

/// A parent closes its copy: a child that has the slot, too, goes on with it.
#[test]
fn the_peer_of_a_retired_link_is_not_sent_elsewhere_by_a_close() {
    let daemon = Fixture::start();
    let (clients, connections) = paired(&daemon);
    let [near, far] = &clients;
    let cookie = |i: usize| rustix::net::sockopt::socket_cookie(&connections[i]).unwrap();
    // A close alone tells the connector to look for whoever has the other end now.
    let (other_near, other_far) = connection();
    near.claim(&other_near, Role::Connector, 0);
    let released = far.claim(&other_far, Role::Acceptor, 0);
    let link = near.expect(Kind::Paired).0.link;
    far.expect(Kind::Paired);
    far.release(released);
    assert_eq!(near.expect(Kind::Unpaired).0.link, link);
    retire(far, link);
    near.expect(Kind::Gone);
    far.expect(Kind::Gone);
    far.release(cookie(1));
    far.sync();
    near.expect_nothing();
}
