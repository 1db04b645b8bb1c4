//! Queue pairs that fail at any time, in any way; and rings that are left for other reasons.

use proptest::prelude::*;

use super::ends::Ends;
use super::store::Store;
use super::stream::{CONNECTIONS, step, take};
use crate::fabric::{Failure, Manners};
use crate::link::Broken;
use crate::port::Found;

/// Runs of each way to fail.
const RUNS: u64 = 100;

fn failure() -> impl Strategy<Value = Failure> {
    prop::sample::select(Failure::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_byte_is_lost_or_doubled_when_the_queue_pair_fails(
        seed in any::<u64>(),
        side in 0..2_usize,
        how in failure(),
        before in prop::collection::vec(step(), 1..200),
        after in prop::collection::vec(step(), 1..100),
    ) {
        let store = Store::new(CONNECTIONS);
        let mut ends = Ends::new(&store, Manners::bad(seed));
        ends.settle();
        for step in &before {
            take(&mut ends, step);
        }
        let queue = ends.links[side];
        ends.fabric.fail(queue, how);
        for step in &after {
            take(&mut ends, step);
            ends.answer();
        }
        // Something is posted for sure, so that it does fail.
        ends.send(side, 0, 1);
        ends.finish();
    }

    #[test]
    fn a_ring_is_left_and_entered_again_any_number_of_times(
        seed in any::<u64>(),
        rounds in prop::collection::vec((prop::collection::vec(step(), 1..60), 0..2_usize, 0..CONNECTIONS), 1..6),
    ) {
        let store = Store::new(CONNECTIONS);
        let mut ends = Ends::new(&store, Manners::bad(seed));
        for (steps, side, slot) in rounds {
            ends.settle();
            for step in &steps {
                take(&mut ends, step);
            }
            ends.leave(side, slot);
            ends.finish();
            ends.come_back();
        }
        ends.enter();
        prop_assert!(ends.send(0, 0, 10) == 10 && ends.by_ring(0, 0) == 10);
        ends.finish();
    }
}

/// One line of the matrix: something goes wrong in the middle of two streams, which ends the link or not.
fn matrix(ends_link: bool, break_it: impl Fn(&mut Ends, u64)) {
    for run in 0..RUNS {
        let store = Store::new(2);
        let mut ends = Ends::new(&store, Manners::bad(run + 1));
        ends.enter();
        for i in 0..40_u64 {
            let n = 1 + (run * 37 + i * 101) as usize % 3000;
            for (from, slot) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                ends.send(from, slot, n);
                ends.receive(1 - from, slot, n / 2);
            }
            if i == run % 40 {
                break_it(&mut ends, run);
            }
            ends.advance();
            (0..2).for_each(|side| ends.progress(side));
            ends.answer();
        }
        for side in 0..2 {
            ends.send(side, 0, 1);
        }
        ends.finish();
        let is_broken = (0..2).any(|side| ends.broken(side).is_some());
        assert_eq!(is_broken, ends_link);
        // The device and the link come back, and the streams with them.
        (0..2).for_each(|side| ends.plug(side, true));
        ends.come_back();
        ends.enter();
        assert!(ends.send(0, 0, 10) == 10 && ends.by_ring(0, 0) == 10);
        ends.finish();
    }
}

#[test]
fn matrix_retry_exceeded() {
    for how in Failure::ALL {
        matrix(true, |ends, run| {
            let queue = ends.links[run as usize % 2];
            ends.fabric.fail(queue, how);
        });
    }
}

#[test]
fn matrix_both_directions_fail_at_once() {
    matrix(true, |ends, run| {
        for side in 0..2 {
            let how = Failure::ALL[(run as usize + side) % 4];
            let queue = ends.links[side];
            ends.fabric.fail(queue, how);
        }
    });
}

#[test]
fn matrix_one_side_loses_its_queue_pair_without_a_word() {
    matrix(true, |ends, run| {
        // As with its device: what the peer sends is not answered any more.
        let queue = ends.links[run as usize % 2];
        ends.fabric.lose(queue);
    });
}

#[test]
fn matrix_recalled_by_the_receiver() {
    matrix(false, |ends, run| {
        let side = run as usize % 2;
        for slot in 0..2 {
            let (nic, link) = ends.link(side);
            link.recall(nic, slot);
        }
    });
}

#[test]
fn matrix_a_sender_leaves_by_itself() {
    matrix(false, |ends, run| ends.leave(run as usize % 2, 0));
}

#[test]
fn matrix_a_device_is_removed() {
    matrix(true, |ends, run| ends.plug(run as usize % 2, false));
}

#[test]
fn matrix_a_peer_has_no_receive() {
    matrix(true, |ends, run| {
        let queue = ends.links[run as usize % 2];
        ends.fabric.starve(queue);
    });
}

#[test]
fn matrix_a_registration_is_refused() {
    for run in 0..RUNS {
        let store = Store::new(2);
        let mut ends = Ends::new(&store, Manners::bad(run + 1));
        let of_two = ends.fabric.regions();
        // Neither of one more connection's rings, or only the first.
        ends.fabric.limit_regions(run as usize % 2);
        let refused = ends.open_more(run as usize % 4 / 2, 2, store.lines(0, 0));
        assert_eq!(refused.map_err(|refused| refused.errno), Err(libc::ENOMEM));
        assert_eq!(ends.fabric.regions(), of_two, "something stays pinned");
        // The others go on.
        ends.enter();
        assert!(ends.send(0, 0, 10) == 10 && ends.by_ring(0, 0) == 10);
        ends.finish();
    }
}

#[test]
fn a_port_whose_device_is_removed_says_once_of_each_link_that_it_is_broken() {
    let store = Store::new(1);
    let mut ends = Ends::new(&store, Manners::bad(1));
    ends.enter();
    ends.news[0].clear();
    ends.plug(0, false);
    (0..2).for_each(|_| ends.progress(0));
    let broken = Found::Broken(ends.links[0], Broken::Queue(0));
    assert_eq!(ends.news[0], [broken]);
}
