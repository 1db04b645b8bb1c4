//! Two ends of real loopback connections meet.

mod common;

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use common::{ANSWER, Client, Fixture, connection, linked, pair, same_file};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType};
use shunt_abi::Reason;
use shunt_abi::layout::FIRST_SLOTS;
use shunt_abi::message::{FLAG_NEW_LINK, FLAG_UNUSED, Kind, Message, Role};

#[test]
fn the_first_pair_of_two_clients_gets_each_others_memory() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let (file_a, file_b) = (a.spare(11), b.spare(22));
    let (near, far) = connection();
    let near_cookie = a.claim(&near, Role::Connector, 0);
    let far_cookie = b.claim(&far, Role::Acceptor, 0);
    let (for_a, got_a) = a.expect(Kind::Paired);
    let (for_b, got_b) = b.expect(Kind::Paired);
    assert_eq!((for_a.cookie, for_b.cookie), (near_cookie, far_cookie));
    assert_eq!((for_a.arena, for_b.arena), (11, 22));
    assert_eq!((for_a.fd, for_b.fd), (near.as_raw_fd(), far.as_raw_fd()));
    assert_eq!((for_a.flags, for_b.flags), (FLAG_NEW_LINK, FLAG_NEW_LINK));
    assert_eq!(
        (for_a.link, for_a.slot, for_a.generation),
        (for_b.link, for_b.slot, for_b.generation)
    );
    assert_ne!(for_a.generation, 0);
    assert!(same_file(got_a.unwrap(), &file_b) && same_file(got_b.unwrap(), &file_a));
    // Both used their spare and are asked for another.
    a.expect(Kind::NeedSpare);
    b.expect(Kind::NeedSpare);
}

#[test]
fn clients_of_a_user_get_one_page_of_the_cores_before_their_first_link() {
    let daemon = Fixture::start();
    let [a, b, c] = [daemon.client(), daemon.client(), daemon.client()];
    for (spare, client) in [&a, &b, &c].into_iter().enumerate() {
        client.spare(spare as u32);
    }
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    b.claim(&far, Role::Acceptor, 0);
    let page = |client: &Client| {
        let (message, page) = client.receive_any().unwrap();
        assert_eq!(message.kind(), Some(Kind::Cores), "{message:?}");
        client.expect(Kind::Paired);
        page.unwrap()
    };
    let [of_a, of_b] = [page(&a), page(&b)];
    assert!(same_file(&of_a, of_b));
    assert!(rustix::fs::ftruncate(&of_a, 0).is_err());
    // It comes once.
    a.expect(Kind::NeedSpare);
    a.spare(3);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    c.claim(&far, Role::Acceptor, 0);
    assert_eq!(a.receive_any().unwrap().0.kind(), Some(Kind::Paired));
    assert!(same_file(page(&c), &of_a));
}

#[test]
fn later_connections_share_the_link_and_reuse_the_slot_freed_last() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let first = linked(&a, &b);
    let second = pair(&b, &a);
    assert_eq!((second[0].link, second[0].flags), (first[0].link, 0));
    assert_eq!((first[0].slot, second[0].slot), (0, 1));
    a.release(first[0].cookie);
    b.release(second[0].cookie);
    a.sync();
    b.sync();
    assert_eq!(pair(&a, &b)[0].slot, 2, "one end still holds each slot");
    b.release(first[1].cookie);
    b.sync();
    a.release(second[1].cookie);
    a.sync();
    let third = pair(&a, &b);
    assert_eq!((third[0].slot, third[1].slot), (1, 1));
    assert_ne!(third[0].generation, second[0].generation);
    assert_eq!(pair(&a, &b)[0].slot, 0);
}

/// Pairs until the clients are asked for the memory of their next link; both are told how many
/// slots it is to have.
fn asked_for_more(a: &Client, b: &Client) -> [u32; 2] {
    for _ in 1..FIRST_SLOTS * 3 / 4 {
        pair(a, b);
    }
    [a, b].map(|client| client.expect(Kind::NeedSpare).0.slot)
}

#[test]
fn the_next_link_is_larger_and_asked_for_before_it_is_needed() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let first = linked(&a, &b);
    a.spare(2);
    b.spare(2);
    assert_eq!(asked_for_more(&a, &b), [32, 32]);
    let (file_a, file_b) = (a.spare_with(3, 32, 32), b.spare_with(4, 32, 32));
    for _ in 0..FIRST_SLOTS / 4 {
        assert_eq!(pair(&a, &b)[0].link, first[0].link);
    }
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    b.claim(&far, Role::Acceptor, 0);
    let (for_a, got_a) = a.expect(Kind::Paired);
    let (for_b, got_b) = b.expect(Kind::Paired);
    assert_eq!((for_a.arena, for_b.arena), (3, 4));
    assert_ne!(for_a.link, first[0].link);
    assert!(same_file(got_a.unwrap(), &file_b) && same_file(got_b.unwrap(), &file_a));
    // What is in stock for another peer has not been used; the connections go to the new link.
    for slot in 1..20 {
        let pair = pair(&a, &b)[0];
        assert_eq!((pair.link, pair.slot), (for_a.link, slot));
    }
    assert_eq!(a.expect(Kind::NeedSpare).0.slot, 64);
}

#[test]
fn who_can_make_less_memory_than_asked_for_gets_smaller_links() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    linked(&a, &b);
    a.spare(2);
    b.spare(2);
    assert_eq!(asked_for_more(&a, &b), [32, 32]);
    let mut refusal = Message::new(Kind::Spare);
    (refusal.slot, refusal.status) = (32, Reason::NoResources as u8);
    a.send(&refusal, None);
    b.spare_with(3, 32, 32);
    a.sync();
    b.sync();
    for _ in 0..FIRST_SLOTS / 4 {
        pair(&a, &b);
    }
    let last = pair(&a, &b);
    // Of what was in stock; nobody was kept waiting.
    assert_eq!((last[0].flags, last[0].arena), (FLAG_NEW_LINK, 2));
    for client in [&a, &b] {
        assert_eq!(client.expect(Kind::NeedSpare).0.slot, FIRST_SLOTS);
    }
    for slot in 1..FIRST_SLOTS {
        let pair = pair(&a, &b)[0];
        assert_eq!((pair.link, pair.slot), (last[0].link, slot));
    }
    a.expect_nothing();
}

#[test]
fn a_link_that_nobody_uses_any_more_is_taken_back() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let [first, second] = linked(&a, &b);
    a.spare(2);
    b.spare(2);
    a.release(first.cookie);
    a.sync();
    a.expect_nothing();
    b.release(second.cookie);
    for client in [&a, &b] {
        let (gone, _) = client.expect(Kind::Gone);
        assert_eq!((gone.link, gone.flags), (first.link, FLAG_UNUSED));
    }
    let [next, _] = pair(&a, &b);
    assert_eq!((next.flags, next.slot), (FLAG_NEW_LINK, 0));
    assert_ne!(next.link, first.link);
}

#[test]
fn both_ends_in_one_client_use_two_arenas_and_keep_their_sides() {
    let daemon = Fixture::start();
    let a = daemon.client();
    let files = [a.spare(0), a.spare(1)];
    for round in 0..2 {
        let (near, far) = connection();
        // Whoever claims first, the connector's side is the same.
        let (near_cookie, far_cookie) = if round == 0 {
            let far_cookie = a.claim(&far, Role::Acceptor, 0);
            (a.claim(&near, Role::Connector, 0), far_cookie)
        } else {
            (
                a.claim(&near, Role::Connector, 0),
                a.claim(&far, Role::Acceptor, 0),
            )
        };
        let (for_near, got_near) = a.expect(Kind::Paired);
        let (for_far, got_far) = a.expect(Kind::Paired);
        assert_eq!((for_near.cookie, for_far.cookie), (near_cookie, far_cookie));
        assert_eq!(for_near.slot, for_far.slot);
        assert_eq!((for_near.arena, for_far.arena), (1, 0));
        if round == 0 {
            assert!(same_file(got_near.unwrap(), &files[0]));
            assert!(same_file(got_far.unwrap(), &files[1]));
            a.expect(Kind::NeedSpare);
            a.expect(Kind::NeedSpare);
        } else {
            assert!(got_near.is_none() && got_far.is_none());
        }
    }
}

#[test]
fn a_pair_waits_for_memory_and_nobody_waits_for_another_process() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    b.spare(0);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    a.sync();
    b.claim(&far, Role::Acceptor, ANSWER);
    assert_eq!(b.expect(Kind::Unpaired).0.status, 0);
    a.expect(Kind::NeedSpare);
    a.spare(0);
    a.expect(Kind::Paired);
    b.expect(Kind::Paired);
}

#[test]
fn a_client_that_cannot_make_memory_stays_on_tcp_with_its_peer() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    b.spare(0);
    let (near, far) = connection();
    a.claim(&near, Role::Connector, 0);
    b.claim(&far, Role::Acceptor, 0);
    let mut none = Message::new(Kind::Spare);
    none.slot = a.expect(Kind::NeedSpare).0.slot;
    none.status = Reason::NoResources as u8;
    a.send(&none, None);
    assert_eq!(a.expect(Kind::Unpaired).0.status, Reason::NoResources as u8);
    assert_eq!(b.expect(Kind::Unpaired).0.status, Reason::NoResources as u8);
}

#[test]
fn a_claim_ahead_of_connect_is_found_by_the_acceptors() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    a.spare(0);
    b.spare(0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    a.claim(&near, Role::Connector, 0);
    a.sync();
    rustix::net::connect(&near, &listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    b.claim(&far, Role::Acceptor, ANSWER);
    b.expect(Kind::Paired);
    a.expect(Kind::Paired);
}

#[test]
fn many_hanging_connects_of_one_client_do_not_hide_anothers() {
    let daemon = Fixture::start();
    let (a, b, busy) = (daemon.client(), daemon.client(), daemon.client());
    a.spare(1);
    b.spare(1);
    let socket = || rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let near = socket();
    a.claim(&near, Role::Connector, 0);
    a.sync();
    let hanging: Vec<_> = (0..300).map(|_| socket()).collect();
    for socket in &hanging {
        busy.claim(socket, Role::Connector, 0);
    }
    busy.sync();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddrAny = listener.local_addr().unwrap().into();
    rustix::net::connect(&near, &address).unwrap();
    let far = listener.accept().unwrap().0;
    b.claim(&far, Role::Acceptor, ANSWER);
    b.expect(Kind::Paired);
    a.expect(Kind::Paired);
}

#[test]
fn an_ipv6_listener_meets_an_ipv4_client() {
    let daemon = Fixture::start();
    let Ok(listener) = TcpListener::bind("[::]:0") else {
        return;
    };
    let (a, b) = (daemon.client(), daemon.client());
    a.spare(0);
    b.spare(0);
    let port = listener.local_addr().unwrap().port();
    let near = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let far = listener.accept().unwrap().0;
    a.claim(&near, Role::Connector, 0);
    b.claim(&far, Role::Acceptor, ANSWER);
    b.expect(Kind::Paired);
}

#[test]
fn a_plain_peer_is_answered_at_once_and_may_still_come() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    a.spare(0);
    b.spare(0);
    let (near, far) = connection();
    b.claim(&far, Role::Acceptor, ANSWER);
    assert_eq!(b.expect(Kind::Unpaired).0.status, 0);
    a.claim(&near, Role::Connector, 0);
    b.expect(Kind::Paired);
}

#[test]
fn a_queued_claim_of_another_client_is_seen_before_the_answer() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    a.spare(0);
    b.spare(0);
    for _ in 0..200 {
        let (near, far) = connection();
        // Queued before the acceptor's claim, behind a crowd of other messages.
        for _ in 0..100 {
            a.report(1, 1);
        }
        let near_cookie = a.claim(&near, Role::Connector, 0);
        let far_cookie = b.claim(&far, Role::Acceptor, ANSWER);
        loop {
            let (answer, _) = b.receive().unwrap();
            if answer.kind() == Some(Kind::NeedSpare) {
                continue;
            }
            assert_eq!(answer.kind(), Some(Kind::Paired), "{answer:?}");
            break;
        }
        a.release(near_cookie);
        b.release(far_cookie);
        a.sync();
    }
}

#[test]
fn a_claim_for_a_socket_that_one_does_not_hold_is_refused() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let (near, far) = connection();
    let (other, _other_far) = connection();
    b.claim(&far, Role::Acceptor, 0);
    // The descriptor is ours, the cookie is that of a connection we do not name.
    let cookie = sockopt::socket_cookie(&near).unwrap();
    a.claim_as(&other, cookie, Role::Connector, ANSWER);
    // Without `pidfd_getfd` the daemon cannot tell what a descriptor names.
    let looks = common::copies_descriptors();
    let told = |by_name| {
        if looks {
            Reason::NotEstablished as u8
        } else {
            by_name
        }
    };
    let wrong_socket = told(Reason::NoProof as u8);
    assert_eq!(a.expect(Kind::Unpaired).0.status, wrong_socket);
    // Not TCP at all.
    let unix = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    a.claim(&unix, Role::Connector, ANSWER);
    let not_yet = 0; // It names no addresses: it might connect later.
    assert_eq!(a.expect(Kind::Unpaired).0.status, told(not_yet));
    b.sync();
    b.expect_nothing();
}

#[test]
fn a_socket_connected_to_itself_is_told_so() {
    let daemon = Fixture::start();
    let a = daemon.client();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let own: SocketAddrAny = rustix::net::getsockname(&socket).unwrap();
    rustix::net::connect(&socket, &own).unwrap();
    a.claim(&socket, Role::Connector, ANSWER);
    assert_eq!(
        a.expect(Kind::Unpaired).0.status,
        Reason::SelfConnected as u8
    );
}

#[test]
fn survivors_are_told_which_link_is_gone() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let [of_a, _] = linked(&a, &b);
    drop(b);
    assert_eq!(a.expect(Kind::Gone).0.link, of_a.link);
    a.release(of_a.cookie); // Too late, and harmless.
    let c = daemon.client();
    a.spare(2);
    c.spare(1);
    assert_ne!(pair(&a, &c)[0].link, of_a.link);
}

#[test]
fn every_message_raises_the_mail_count() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    linked(&a, &b);
    a.sync();
    // Welcome, Cores, Paired, NeedSpare, Row, End; the count follows the message.
    let deadline = std::time::Instant::now() + common::WATCHDOG;
    while a.mail_count() != 6 {
        assert!(std::time::Instant::now() < deadline, "{}", a.mail_count());
    }
}

#[test]
fn a_listeners_port_is_on_the_board_until_the_last_one_goes() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    a.listen(1, 6379);
    b.listen(2, 6379);
    a.sync();
    b.sync();
    assert!(a.port_is_set(6379));
    let mut unlisten = Message::new(Kind::Unlisten);
    unlisten.cookie = 1;
    a.send(&unlisten, None);
    a.sync();
    assert!(a.port_is_set(6379));
    drop(b);
    while a.port_is_set(6379) {
        a.sync();
    }
}

/// Its listener may be closed by then.
#[test]
fn a_port_is_listed_while_an_accepted_connection_waits_for_its_connector() {
    let daemon = Fixture::start();
    let (a, b) = (daemon.client(), daemon.client());
    let _memory = [a.spare(1), b.spare(1)];
    let (near, far) = connection();
    let port = far.local_addr().unwrap().port();
    let is_listed = || {
        b.sync();
        a.port_is_set(port)
    };
    assert!(!is_listed());
    let cookie = b.claim(&far, Role::Acceptor, 0);
    assert!(is_listed());
    // It was closed.
    b.release(cookie);
    assert!(!is_listed());
    b.claim(&far, Role::Acceptor, 0);
    assert!(is_listed());
    a.claim(&near, Role::Connector, 0);
    a.expect(Kind::Paired);
    b.expect(Kind::Paired);
    assert!(!a.port_is_set(port));
    // Of one that has connected nobody need know the port.
    let (near, _far) = connection();
    b.claim(&near, Role::Connector, 0);
    b.expect(Kind::NeedSpare);
    b.sync();
    assert!(!a.port_is_set(near.local_addr().unwrap().port()));
}
