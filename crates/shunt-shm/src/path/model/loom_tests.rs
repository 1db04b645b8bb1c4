//! Every order of the steps of small scenes: one direction on its ring, a message or two, and a
//! change of its path beside them.

use std::sync::atomic::{AtomicU64 as RealU64, Ordering as RealOrdering};

use loom::sync::Arc;
use loom::thread;

use super::World;
use super::receives::Loan;
use crate::slot::Way;

/// Runs a scene in every order of its steps, and says how many there were.
fn in_all_orders(bound: usize, scene: impl Fn() + Send + Sync + 'static) {
    let orders = std::sync::Arc::new(RealU64::new(0));
    let counted = orders.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(bound);
    model.check(move || {
        counted.fetch_add(1, RealOrdering::Relaxed);
        scene();
    });
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    let name = name.rsplit("::").next().unwrap_or_default();
    println!("{name}: {} orders", orders.load(RealOrdering::Relaxed));
}

/// Runs what the receiver does beside a sender.
fn check(
    bound: usize,
    sender: impl Fn(super::End<'_>) + Send + Sync + Copy + 'static,
    receiver: impl Fn(super::End<'_>) + Send + Sync + 'static,
) {
    in_all_orders(bound, move || {
        let world = Arc::new(World::on_ring());
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || sender(world.end(0, 1)))
        };
        receiver(world.end(1, 2));
        other.join().unwrap();
        world.end(1, 2).has_everything();
    });
}

fn two(end: super::End<'_>) {
    end.send();
    end.send();
}

#[test]
fn an_answer_brings_everything() {
    check(3, two, |end| {
        end.recall(false, Loan::Refused);
        end.receive();
    });
}

#[test]
fn a_receiver_that_sends_to_itself_gets_everything() {
    check(3, two, |end| {
        end.recall(true, Loan::Lent);
        end.receive();
    });
}

#[test]
fn a_sender_is_asked_after_all_whose_part_could_not_be_taken() {
    check(3, two, |end| {
        end.recall(true, Loan::InVain);
        end.receive();
    });
}

#[test]
fn a_recall_is_taken_back_beside_an_answer() {
    check(3, two, |end| {
        end.recall(false, Loan::Refused);
        end.give_up();
        end.receive();
    });
}

#[test]
fn a_recall_that_was_taken_back_is_begun_again() {
    check(2, two, |end| {
        end.recall(false, Loan::Refused);
        end.give_up();
        end.recall(true, Loan::Lent);
        end.receive();
    });
}

#[test]
fn a_sender_that_leaves_is_followed() {
    let leaves = |end: super::End<'_>| {
        end.send();
        end.leave(false);
        assert_eq!(end.send(), Way::TcpAgain);
    };
    check(3, leaves, |end| {
        end.receive();
        end.receive();
    });
}

#[test]
fn what_is_withdrawn_comes_once() {
    let withdraws = |end: super::End<'_>| {
        end.send();
        end.leave(true);
        end.send();
    };
    check(3, withdraws, |end| {
        end.receive();
        end.receive();
    });
}

#[test]
fn a_withdrawal_beside_a_recall_loses_nothing() {
    let withdraws = |end: super::End<'_>| {
        end.send();
        end.leave(true);
    };
    check(3, withdraws, |end| {
        end.recall(true, Loan::Refused);
        end.receive();
    });
}

#[test]
fn an_end_beside_a_recall_loses_nothing() {
    let ends = |end: super::End<'_>| {
        end.send();
        end.shutdown();
    };
    check(3, ends, |end| {
        end.recall(true, Loan::Refused);
        end.receive();
    });
}

/// So its receiver, which reads on in the ring, gets nothing twice.
#[test]
fn a_sender_that_has_ended_unasked_never_answers() {
    in_all_orders(3, || {
        let world = Arc::new(World::on_ring());
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let end = world.end(0, 1);
                end.send();
                end.shutdown();
            })
        };
        let end = world.end(1, 2);
        end.recall(true, Loan::Refused);
        let has_ended = end.receiver().has_ended_unasked();
        other.join().unwrap();
        assert!(!has_ended || end.receiver().is_unanswered());
    });
}
