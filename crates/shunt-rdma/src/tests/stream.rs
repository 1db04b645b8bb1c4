//! Streams over rings that stay whole.

use proptest::prelude::*;

use super::ends::Ends;
use super::store::Store;
use crate::fabric::Manners;
use crate::link::News;
use crate::port::Found;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Send(usize, usize, usize),
    Receive(usize, usize, usize),
    Progress(usize),
    Advance,
}

pub(super) const CONNECTIONS: usize = 3;

pub(super) fn step() -> impl Strategy<Value = Step> {
    let end = || 0..2_usize;
    let slot = || 0..CONNECTIONS;
    prop_oneof![
        4 => (end(), slot(), 1..100_usize).prop_map(|(e, s, n)| Step::Send(e, s, n)),
        2 => (end(), slot(), 100..6000_usize).prop_map(|(e, s, n)| Step::Send(e, s, n)),
        4 => (end(), slot(), 1..6000_usize).prop_map(|(e, s, n)| Step::Receive(e, s, n)),
        4 => end().prop_map(Step::Progress),
        2 => Just(Step::Advance),
    ]
}

pub(super) fn take(ends: &mut Ends, step: &Step) {
    match *step {
        Step::Send(from, slot, n) => {
            ends.send(from, slot, n);
        }
        Step::Receive(to, slot, n) => {
            ends.receive(to, slot, n);
        }
        Step::Progress(side) => ends.progress(side),
        Step::Advance => ends.advance(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_sent_arrives_in_order_whatever_the_nic_does(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let store = Store::new(CONNECTIONS);
        let mut ends = Ends::new(&store, Manners::bad(seed));
        ends.settle();
        for step in &steps {
            take(&mut ends, step);
        }
        ends.finish();
        prop_assert_eq!(ends.broken(0).or(ends.broken(1)), None);
    }
}

#[test]
fn a_full_ring_takes_nothing_more_and_its_sender_hears_of_room() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, Manners::bad(1));
    ends.enter();
    while ends.send(0, 0, 1000) > 0 {}
    assert!(ends.by_ring(0, 0) > 14_000, "{}", ends.by_ring(0, 0));
    ends.settle();
    ends.news = [Vec::new(), Vec::new()];
    assert_eq!(ends.send(0, 0, 1000), 0);
    while ends.receive(1, 0, 1000) > 0 {}
    ends.settle();
    let room = Found::News(ends.links[0], 0, News::Room);
    assert!(ends.news[0].contains(&room));
    assert_eq!(ends.send(0, 0, 1000), 1000);
    ends.finish();
}

#[test]
fn a_peer_that_takes_no_completions_stops_a_sender_of_many_small_messages_and_loses_none() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, Manners::bad(2));
    ends.enter();
    // The peer's receives run out before the ring does.
    let mut taken = 0;
    while ends.send(0, 0, 1) > 0 {
        taken += 1;
        ends.advance();
        ends.progress(0);
    }
    assert!((200..256).contains(&taken), "{taken}");
    ends.finish();
    ends.settle();
    assert_eq!(ends.send(0, 0, 1), 1);
    ends.finish();
}

#[test]
fn an_end_is_known_to_have_arrived() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, Manners::bad(3));
    ends.enter();
    ends.send(0, 0, 100);
    let (nic, link) = ends.link(0);
    link.end(nic, 0);
    assert!(!ends.link(0).1.has_ended(0));
    ends.settle();
    assert!(ends.link(0).1.has_ended(0));
    let ended = Found::News(ends.links[1], 0, News::Ended);
    assert!(ends.news[1].contains(&ended));
    assert_eq!(ends.receive(1, 0, 1000), 100);
}
