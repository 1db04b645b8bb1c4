//! The table of connection ends.

use super::*;

fn id(client: u64, cookie: u64) -> EndId {
    EndId { client, cookie }
}

fn tuple(local: u16, peer: u16) -> Tuple {
    let address = |port| ([127, 0, 0, 1], port).into();
    Tuple::new(1, address(local), address(peer))
}

fn claim(ends: &mut Ends, id: EndId, tuple: Option<Tuple>) {
    ends.insert(id, 7, End::new(3, Role::Connector, State::Unresolved));
    if let Some(tuple) = tuple {
        ends.resolve(id, Connected { tuple, inode: 1 });
    }
}

#[test]
fn the_two_ends_of_a_connection_find_each_other() {
    let mut ends = Ends::default();
    claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
    assert_eq!(ends.partner(id(1, 100)), None);
    claim(&mut ends, id(2, 200), Some(tuple(80, 4000)));
    assert_eq!(ends.partner(id(1, 100)), Some(id(2, 200)));
    assert_eq!(ends.partner(id(2, 200)), Some(id(1, 100)));
}

#[test]
fn another_connection_or_namespace_does_not_match() {
    let mut ends = Ends::default();
    claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
    claim(&mut ends, id(2, 200), Some(tuple(80, 4001)));
    claim(
        &mut ends,
        id(2, 201),
        Some(Tuple {
            netns: 2,
            ..tuple(80, 4000)
        }),
    );
    assert_eq!(ends.partner(id(1, 100)), None);
}

#[test]
fn a_self_connected_socket_has_no_partner_even_when_two_processes_hold_it() {
    let mut ends = Ends::default();
    claim(&mut ends, id(1, 100), Some(tuple(80, 80)));
    claim(&mut ends, id(2, 100), Some(tuple(80, 80)));
    assert_eq!(ends.partner(id(1, 100)), None);
}

#[test]
fn a_connection_is_found_by_its_addresses_in_any_namespace() {
    let mut ends = Ends::default();
    let there = |netns, local, peer| {
        let tuple = tuple(local, peer);
        Some(Tuple { netns, ..tuple })
    };
    for (name, tuple) in [
        (id(1, 100), there(1, 4000, 80)),
        (id(2, 200), there(2, 80, 4000)),
        (id(2, 201), there(2, 80, 4001)),
        // Behind address translation; two processes have it.
        (id(3, 300), there(3, 80, 5000)),
        (id(4, 300), there(3, 80, 5000)),
    ] {
        claim(&mut ends, name, tuple);
    }
    claim(&mut ends, id(5, 500), None);
    let mate = |ends: &Ends, of| ends.mate(of);
    for (of, other) in [
        (id(1, 100), id(4, 300)),
        (id(3, 300), id(1, 100)),
        (id(4, 300), id(1, 100)),
    ] {
        ends.get_mut(of).unwrap().mate = mate(&ends, other);
    }
    let found = |ends: &Ends, local, peer| {
        let tuple = tuple(local, peer);
        let found = ends.between([tuple.local, tuple.peer]);
        found.into_iter().collect::<Vec<_>>()
    };
    let all = [id(1, 100), id(2, 200), id(3, 300), id(4, 300)];
    assert_eq!(found(&ends, 4000, 80), all);
    assert_eq!(found(&ends, 80, 4000), all);
    assert_eq!(found(&ends, 4001, 80), [id(2, 201)]);
    assert_eq!(found(&ends, 1, 2), []);
    ends.remove(id(1, 100));
    assert_eq!(found(&ends, 4000, 80), [id(2, 200)]);
}

#[test]
fn an_end_matches_only_while_it_waits() {
    let mut ends = Ends::default();
    claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
    claim(&mut ends, id(2, 200), None);
    assert_eq!(ends.unresolved(7, false, 9), [id(2, 200)]);
    assert_eq!(ends.unresolved_of(1, 9), []);
    let socket = Connected {
        tuple: tuple(80, 4000),
        inode: 1,
    };
    ends.resolve(id(2, 200), socket);
    assert!(ends.unresolved(7, false, 9).is_empty());
    ends.refuse(id(2, 200));
    assert_eq!(ends.partner(id(1, 100)), None);
    assert_eq!(ends.with_tuple(tuple(80, 4000)), [id(2, 200)]);
    claim(&mut ends, id(2, 201), None);
    ends.refuse(id(2, 201));
    assert!(ends.unresolved(7, false, 9).is_empty());
}

#[test]
fn many_unresolved_ends_of_one_client_hide_nobody_elses() {
    let mut ends = Ends::default();
    claim(&mut ends, id(1, 100), None);
    claim(&mut ends, id(3, 300), None);
    for cookie in 1000..2000 {
        claim(&mut ends, id(2, cookie), None);
    }
    let found = [id(2, 1999), id(3, 300), id(1, 100), id(2, 1998)];
    assert_eq!(ends.unresolved(7, false, 4), found);
    assert_eq!(ends.unresolved_of(1, 4), [id(1, 100)]);
    assert_eq!(ends.unresolved(8, false, 4), []);
    assert_eq!(ends.unresolved(8, true, 4), found);
}

#[test]
fn a_removed_end_leaves_nothing_behind() {
    let mut ends = Ends::default();
    claim(&mut ends, id(1, 100), Some(tuple(4000, 80)));
    claim(&mut ends, id(1, 101), None);
    assert_eq!(ends.of(1), [id(1, 100), id(1, 101)]);
    assert_eq!(ends.count(1), 2);
    for id in ends.of(1) {
        ends.remove(id);
    }
    assert_eq!(ends.count(1), 0);
    assert!(ends.ends.is_empty() && ends.by_tuple.is_empty());
    assert!(ends.unresolved.of.is_empty() && ends.unresolved.newest.is_empty());
    assert!(ends.per_client.is_empty() && ends.by_cookie.is_empty());
    assert!(ends.per_namespace.is_empty());
}

#[test]
fn a_way_to_tcp_is_counted_with_its_reason() {
    let mut end = End::new(3, Role::Acceptor, State::Waiting);
    let mut tell = |reason: u8, used, now| {
        end.tell(reason, used, now);
        end.left.map(|left| (left.count, left.reason, left.at))
    };
    let [blocked, requested] = [Reason::Blocked, Reason::Requested].map(|r| r as u8);
    // It was never in memory.
    assert_eq!(tell(Reason::Pending as u8, false, 1), None);
    assert_eq!(tell(0, false, 2), None);
    assert_eq!(tell(blocked, true, 3), Some((1, blocked, 3)));
    assert_eq!(
        tell(requested, true, 4),
        Some((1, blocked, 3)),
        "it is there already"
    );
    assert_eq!(tell(0, false, 5), Some((1, blocked, 3)));
    assert_eq!(tell(requested, true, 6), Some((2, requested, 6)));
    tell(0, false, 7);
    assert_eq!(tell(Reason::Ended as u8, true, 8), Some((2, requested, 6)));
    // What it tells of first may be that it has left.
    let mut end = End::new(4, Role::Acceptor, State::Waiting);
    end.tell(blocked, true, 9);
    assert_eq!(end.left.map(|left| left.count), Some(1));
}
