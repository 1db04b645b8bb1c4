//! Links and slots as the daemon asks for them.

use super::*;

/// What a client loses with a link of 16 slots, of which it has made `arenas` arenas.
fn lost(link: u64, client: u64, arenas: usize) -> Lost {
    let memory = arenas * arena_bytes(16);
    Lost {
        link,
        client,
        memory,
    }
}

fn opened(clients: [u64; 2]) -> Links {
    let mut links = Links::default();
    links.open(clients, [10, 20], 16);
    links
}

#[test]
fn the_slot_freed_last_is_used_first_with_a_new_generation() {
    let mut links = opened([1, 2]);
    let a = links.take([1, 2]).unwrap();
    let b = links.take([2, 1]).unwrap();
    assert_eq!((a[0].slot, b[0].slot), (0, 1));
    for seat in [a[0], a[1], b[1], b[0]] {
        links.release(seat);
    }
    let c = links.take([1, 2]).unwrap();
    assert_eq!(c[0].slot, 1);
    assert_ne!(c[0].generation, b[0].generation);
    assert_eq!(links.take([1, 2]).unwrap()[0].slot, 0);
}

#[test]
fn a_slot_is_held_until_both_sides_release_it() {
    let mut links = opened([1, 2]);
    let a = links.take([1, 2]).unwrap();
    links.release(a[0]);
    links.release(a[0]);
    assert_eq!(links.take([1, 2]).unwrap()[0].slot, 1);
}

#[test]
fn a_late_release_does_not_touch_the_slots_next_user() {
    let mut links = opened([1, 2]);
    let old = links.take([1, 2]).unwrap();
    links.release(old[0]);
    links.release(old[1]);
    let new = links.take([1, 2]).unwrap();
    links.release(old[0]);
    links.release(old[1]);
    assert_eq!(new[0].slot, old[0].slot);
    assert_ne!(links.take([1, 2]).unwrap()[0].slot, new[0].slot);
}

#[test]
fn seats_follow_the_order_in_which_clients_are_named() {
    let mut links = opened([1, 2]);
    let [two, one] = links.take([2, 1]).unwrap();
    assert_eq!((links.arena(one), links.arena(two)), (Some(10), Some(20)));
    let mut own = opened([7, 7]);
    let [first, second] = own.take([7, 7]).unwrap();
    assert_eq!((own.arena(first), own.arena(second)), (Some(10), Some(20)));
}

#[test]
fn a_full_link_asks_for_another() {
    let mut links = opened([1, 2]);
    assert_eq!(Links::default().next_slots([1, 2]), 16);
    for _ in 0..16 {
        assert!(links.take([1, 2]).is_some());
    }
    assert!(links.take([1, 2]).is_none());
    assert_eq!(links.next_slots([2, 1]), 32);
    links.open([1, 2], [11, 21], 32);
    assert_eq!(links.take([1, 2]).unwrap()[0].slot, 0);
    assert_eq!(links.next_slots([1, 2]), 64);
    assert_eq!(links.next_slots([1, 3]), 16);
}

#[test]
fn a_pair_is_short_of_slots_before_it_has_none() {
    let mut links = opened([1, 2]);
    let seats: Vec<_> = (0..12)
        .map(|_| {
            assert!(!links.is_short([1, 2]));
            links.take([1, 2]).unwrap()
        })
        .collect();
    assert!(links.is_short([2, 1]) && !links.is_short([1, 3]));
    links.release(seats[0][0]);
    assert!(links.is_short([1, 2]));
    links.release(seats[0][1]);
    assert!(!links.is_short([1, 2]));
}

#[test]
fn a_link_without_connections_is_taken_back_after_a_while() {
    let mut links = opened([1, 2]);
    links.open([3, 3], [7, 8], 16);
    let kept = links.take([1, 2]).unwrap();
    let own = links.take([3, 3]).unwrap();
    assert_eq!(links.left(), None);
    for seat in own {
        links.release(seat);
    }
    assert!(links.left().unwrap() <= UNUSED);
    let start = Instant::now();
    assert_eq!(links.take_back(start), []);
    // Used again meanwhile.
    let own = links.take([3, 3]).unwrap();
    assert_eq!(links.take_back(start + UNUSED), []);
    assert_eq!(links.left(), None);
    for seat in own.into_iter().chain(kept) {
        links.release(seat);
    }
    let (three, both) = ([lost(2, 3, 2)], [lost(1, 1, 1), lost(1, 2, 1)]);
    let all = [&three[..], &both[..]].concat();
    assert_eq!(links.take_back(Instant::now() + UNUSED), all);
    assert_eq!(links.take_freed(), all);
    assert_eq!((links.len(), links.left()), (0, None));
    assert!(links.of.is_empty() && links.pairs.is_empty());
    assert!(links.take([1, 2]).is_none());
    links.release(kept[0]);
}

#[test]
fn a_link_whose_memory_a_relative_has_gets_no_new_connection() {
    let mut links = opened([1, 2]);
    let seats = links.take([1, 2]).unwrap();
    assert_eq!(links.retire(3, 1), [], "not one of its links");
    let both = [lost(1, 1, 1), lost(1, 2, 1)];
    assert_eq!(
        (links.retire(2, 1), links.take_freed()),
        (both.to_vec(), vec![])
    );
    assert_eq!(links.retire(1, 1), []);
    assert!(links.take([1, 2]).is_none());
    assert_eq!(links.next_slots([1, 2]), 16);
    // The connection that is there ends later.
    links.open([1, 2], [11, 21], 16);
    links.release(seats[0]);
    links.release(seats[0]);
    assert_eq!(links.take_freed(), []);
    links.release(seats[1]);
    assert_eq!(links.take_freed(), both);
    links.release(seats[1]);
    assert!(links.take_freed().is_empty() && links.ending.is_empty());
    assert!(!links.is_short([1, 2]));
    assert_eq!(links.take([1, 2]).unwrap()[0].link, 2);
}

#[test]
fn a_link_that_is_used_now_and_then_stays() {
    let mut links = opened([1, 2]);
    let mut now = Instant::now();
    for _ in 0..100 {
        let seats = links.take([1, 2]).unwrap();
        links.release(seats[0]);
        links.release(seats[1]);
    }
    assert_eq!(links.unused.len(), 1);
    now += UNUSED;
    links.links.get_mut(&1).unwrap().unused_since = now - UNUSED / 2;
    assert_eq!(links.take_back(now), []);
    assert_eq!(links.take_back(now + UNUSED).len(), 2);
}

#[test]
fn a_dead_clients_links_go_and_late_releases_are_ignored() {
    let mut links = opened([1, 2]);
    links.open([3, 2], [0, 0], 16);
    links.open([1, 1], [0, 0], 16);
    let [left, seat] = links.take([1, 2]).unwrap();
    links.release(left);
    let (own, survivor) = (lost(3, 1, 2), lost(1, 2, 1));
    assert_eq!(links.drop_client(1), [own, survivor]);
    assert_eq!((links.len(), links.take_freed()), (1, vec![own]));
    links.release(seat);
    assert_eq!(links.take_freed(), [lost(1, 1, 1), survivor]);
    links.release(seat);
    assert!(links.take_freed().is_empty() && links.take([2, 1]).is_none());
    assert!(links.take([2, 3]).is_some());
}
