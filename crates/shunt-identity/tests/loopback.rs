//! Connections within one network namespace, and what becomes of records.

mod common;

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener, TcpStream};

use shunt_identity::{Identities, Unavailable};

use common::socket::{connection, cookie};
use common::{Namespace, PLENTY, assert_ends, attach_or_skip, identity, mirror};

/// The program is attached, and somebody listens.
fn begin(test: &str) -> Option<(Identities, TcpListener)> {
    let identities = attach_or_skip(test, PLENTY)?;
    Some((identities, TcpListener::bind("127.0.0.1:0").unwrap()))
}

#[test]
fn ends_mirror_each_other() {
    let Some((identities, listener)) = begin("ends_mirror_each_other") else {
        return;
    };
    let (connector, acceptor) = connection(&listener);
    assert_ends(&identities, &connector, &acceptor);
    let (one, other) = (
        identity(&identities, &connector),
        identity(&identities, &acceptor),
    );
    assert_eq!((one.sent, one.received), (other.received, other.sent));
    assert!(one.established <= other.established);
}

#[test]
fn ends_of_two_families_mirror_each_other() {
    let name = "ends_of_two_families_mirror_each_other";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let Some([place]) = Namespace::several(name) else {
        return;
    };
    let listener = place.listen("[::]:80");
    for address in ["[::1]:80", "127.0.0.1:80"] {
        let connector = place.connect(address);
        let acceptor = listener.accept().unwrap().0;
        assert_ends(&identities, &connector, &acceptor);
    }
}

#[test]
fn each_of_many_finds_its_own() {
    let Some((identities, listener)) = begin("each_of_many_finds_its_own") else {
        return;
    };
    let many: Vec<_> = (0..200).map(|_| connection(&listener)).collect();
    for (connector, acceptor) in &many {
        assert_ends(&identities, connector, acceptor);
    }
}

/// Processors write at the same time, and somebody reads meanwhile.
#[test]
fn each_of_many_at_once_finds_its_own() {
    let name = "each_of_many_at_once_finds_its_own";
    let Some((identities, _)) = begin(name) else {
        return;
    };
    let many = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (0..300).map(|_| connection(&listener)).collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(many)).collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        identities.of(0);
    }
    for thread in threads {
        for (connector, acceptor) in &thread.join().unwrap() {
            assert_ends(&identities, connector, acceptor);
        }
    }
}

#[test]
fn a_connection_that_began_before_is_unknown() {
    let name = "a_connection_that_began_before_is_unknown";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (connector, acceptor) = connection(&listener);
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    assert_eq!(identities.of(cookie(&connector)), None);
    assert_eq!(identities.of(cookie(&acceptor)), None);
}

/// A socket may connect again; only its last connection counts.
#[test]
fn a_socket_that_connects_anew_is_its_new_connection() {
    use rustix::net;
    let name = "a_socket_that_connects_anew_is_its_new_connection";
    let Some((identities, listener)) = begin(name) else {
        return;
    };
    let (connector, former) = connection(&listener);
    let before = identity(&identities, &connector);
    net::connect_unspec(&connector).unwrap();
    net::connect(&connector, &listener.local_addr().unwrap()).unwrap();
    let acceptor = listener.accept().unwrap().0;
    assert_ends(&identities, &connector, &acceptor);
    assert_eq!(mirror(&identities, &former), None);
    assert_eq!(identities.mirror(&before), None);
}

#[test]
fn a_socket_that_is_connected_to_itself_has_no_other_end() {
    use rustix::net::{self, AddressFamily, SocketType};
    let name = "a_socket_that_is_connected_to_itself_has_no_other_end";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = net::getsockname(&socket).unwrap();
    net::connect(&socket, &address).unwrap();
    let identity = identity(&identities, &socket);
    assert_eq!(identity.sent, identity.received);
    assert_eq!(mirror(&identities, &socket), None);
}

/// The connector has counted its first bytes when the program is asked.
#[test]
fn data_in_the_first_segment_leaves_no_mirror() {
    use common::socket::set_tcp_option;
    let name = "data_in_the_first_segment_leaves_no_mirror";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let Some([place]) = Namespace::several(name) else {
        return;
    };
    // Both sides, without cookies.
    place.run("echo $((1 | 2 | 4 | 0x200)) > /proc/sys/net/ipv4/tcp_fastopen");
    let listener = place.listen("127.0.0.1:80");
    set_tcp_option(&listener, libc::TCP_FASTOPEN, 1);
    let connector = place.within(|| {
        use rustix::net::{self, AddressFamily, SendFlags, SocketType};
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let fast_open = SendFlags::from_bits_retain(libc::MSG_FASTOPEN as u32);
        net::sendto(&socket, b"12", fast_open, &listener.local_addr().unwrap()).unwrap();
        socket
    });
    let acceptor = listener.accept().unwrap().0;
    let (one, other) = (
        identity(&identities, &connector),
        identity(&identities, &acceptor),
    );
    assert_eq!(one.sent, other.received.wrapping_add(2));
    assert_eq!(mirror(&identities, &connector), None);
    assert_eq!(mirror(&identities, &acceptor), None);
}

/// A daemon that has attached needs its capabilities no more (Linux 5.19).
#[test]
fn records_can_be_read_without_capabilities() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let name = "records_can_be_read_without_capabilities";
    let Some(identities) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).unwrap(); // of this thread
    let refused = Identities::attach(PLENTY).unwrap_err();
    assert!(matches!(refused, Unavailable::NotPermitted), "{refused}");
    let (connector, acceptor) = connection(&TcpListener::bind("127.0.0.1:0").unwrap());
    assert_ends(&identities, &connector, &acceptor);
}

#[test]
fn the_number_of_records_is_bounded() {
    const CAPACITY: u32 = 512;
    let Some(identities) = attach_or_skip("the_number_of_records_is_bounded", CAPACITY) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let many: Vec<_> = (0..CAPACITY)
        .flat_map(|_| <[TcpStream; 2]>::from(connection(&listener)))
        .collect();
    let is_known = |socket: &&TcpStream| identities.of(cookie(*socket)).is_some();
    let known = many.iter().filter(is_known).count();
    assert!(known <= CAPACITY as usize, "{known}");
    // The newest are there, also after others have gone for them.
    let (connector, acceptor) = connection(&listener);
    assert_ends(&identities, &connector, &acceptor);
}

#[test]
fn two_beside_each_other_know_the_same() {
    let name = "two_beside_each_other_know_the_same";
    let Some(one) = attach_or_skip(name, PLENTY) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = connection(&listener);
    let other = attach_or_skip(name, PLENTY).unwrap();
    let second = connection(&listener);
    assert_ends(&one, &first.0, &first.1);
    assert_eq!(other.of(cookie(&first.0)), None);
    for identities in [&one, &other] {
        assert_ends(identities, &second.0, &second.1);
    }
    let cookies: HashSet<u64> = [&first, &second]
        .into_iter()
        .flat_map(|(a, b)| [cookie(a), cookie(b)])
        .collect();
    assert_eq!(cookies.len(), 4);
    drop(one);
    let third = connection(&listener);
    assert_ends(&other, &third.0, &third.1);
}
