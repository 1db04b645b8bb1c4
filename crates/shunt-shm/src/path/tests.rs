//! Single decisions, each in a scene of its own: what the models, which judge by the stream that comes out, do not tell apart.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use super::death::Unfinished;
use super::recall::Answer;
use super::withdrawal::{Look, Withdrawal};
use super::{Receiver, Sender, pause_with};
use crate::publish;
use crate::slot::{READY, RECALLED, Recall, SHUT_RD, SHUT_WR, Slot, WITHDRAWING, Way, first_life};

const LIFE: u32 = first_life(1);
/// Bytes of TCP before the ring, and before the stream goes back there.
const BEFORE: u64 = 5;
const WRITTEN: u64 = 7;

/// Both slots of a connection of which one side sends and the other one receives.
struct Scene {
    sends: Slot,
    receives: Slot,
}

impl Scene {
    /// Both are attached, and TCP carries the stream.
    fn begun() -> Self {
        let slot = || {
            let slot = Slot::default();
            slot.face.state.store(READY, Ordering::Relaxed);
            slot.face.generation.store(LIFE, Ordering::Release);
            slot
        };
        Self {
            sends: slot(),
            receives: slot(),
        }
    }

    /// The stream is in the ring.
    fn on_ring() -> Self {
        let scene = Self::begun();
        scene.sender().switch(BEFORE);
        scene
            .receives
            .receiving
            .kernel_bytes
            .store(BEFORE, Ordering::Relaxed);
        assert!(scene.receiver().follow_switch());
        scene
    }

    fn sender(&self) -> Sender<'_> {
        Sender {
            own: &self.sends,
            peer: &self.receives,
            life: LIFE,
        }
    }

    fn receiver(&self) -> Receiver<'_> {
        Receiver {
            own: &self.receives,
            peer: &self.sends,
            life: LIFE,
        }
    }

    fn is_answered_by(&self, answer: u32) {
        publish::half(&self.sends.recall.answered, answer);
    }
}

thread_local! {
    /// What a test does between two steps of a change of path.
    static BETWEEN: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs `change`, and `look` at each place between two of its steps.
fn between_steps<T>(look: impl FnMut() + 'static, change: impl FnOnce() -> T) -> T {
    pause_with(|| {
        // A look takes steps of its own.
        if let Some(mut look) = BETWEEN.take() {
            look();
            BETWEEN.set(Some(look));
        }
    });
    BETWEEN.set(Some(Box::new(look)));
    let changed = change();
    BETWEEN.set(None);
    changed
}

#[test]
fn a_stream_that_was_recalled_before_it_came_to_its_ring_does_not_go_there() {
    let scene = Scene::begun();
    assert!(scene.sender().may_switch());
    publish::set_bits(&scene.receives.face.state, RECALLED);
    assert!(!scene.sender().may_switch());
}

#[test]
fn who_finds_a_stream_withdrawn_finds_from_where_tcp_brings_it() {
    let scene: &'static Scene = Box::leak(Box::new(Scene::on_ring()));
    let found = std::rc::Rc::new(RefCell::new(Vec::new()));
    let looks = found.clone();
    let withdrawal = between_steps(
        move || {
            looks
                .borrow_mut()
                .push(scene.receiver().look_at_withdrawal())
        },
        || scene.sender().withdraw(|| Some(WRITTEN)),
    );
    assert_eq!(withdrawal, Withdrawal::Owing);
    let withdrawn = Look::Withdrawn { from: WRITTEN };
    assert_eq!(scene.receiver().look_at_withdrawal(), withdrawn);
    let found = found.borrow();
    assert!(found.contains(&Look::Wait));
    assert!(
        found
            .iter()
            .all(|look| [Look::Wait, withdrawn].contains(look)),
        "{found:?}"
    );
}

#[test]
fn a_receiver_sends_nothing_itself_once_its_peer_has_answered_or_left() {
    let scene = Scene::on_ring();
    scene.receiver().recall();
    assert!(scene.receiver().take_part(|| true));
    scene.is_answered_by(Recall::AGREED);
    assert!(!scene.receiver().take_part(|| true) && scene.receiver().asks());

    let scene = Scene::on_ring();
    publish::word(&scene.sends.output.back_at, WRITTEN + 1);
    scene.receiver().recall();
    assert!(!scene.receiver().take_part(|| true) && scene.receiver().asks());
}

#[test]
fn nothing_is_withdrawn_from_a_peer_that_has_shut_down_both_halves() {
    let scene = Scene::on_ring();
    publish::set_bits(&scene.receives.face.state, SHUT_RD | SHUT_WR);
    let withdrawal = scene.sender().withdraw(|| Some(WRITTEN));
    assert_eq!(withdrawal, Withdrawal::No);
    assert_eq!(scene.sender().way(), Way::Ring);
    assert_eq!(
        scene.sends.face.state.load(Ordering::Relaxed) & WITHDRAWING,
        0
    );
}

#[test]
fn a_sender_that_has_left_refuses_if_another_thread_sent_while_it_asked_what_tcp_has() {
    let answer = |threads| {
        let scene = Scene::on_ring();
        scene.sender().leave(WRITTEN, |_| ());
        scene.receiver().recall();
        assert!(!scene.receiver().take_part(|| false));
        let in_kernel = &scene.sends.sending.in_kernel;
        in_kernel.store(threads, Ordering::Relaxed);
        // The other thread sends and leaves the kernel just after this look.
        let written = || {
            in_kernel.store(0, Ordering::Relaxed);
            Some(WRITTEN)
        };
        scene.sender().accept(true, written, || true)
    };
    assert_eq!(answer(1), Answer::Refused);
    assert_eq!(answer(0), Answer::Owing);
}

#[test]
fn a_ring_that_a_dead_sender_has_left_is_not_gone_on_with() {
    let scene = Scene::on_ring();
    assert_eq!(scene.sender().finish(false), Unfinished::Nothing);
    assert_eq!(scene.sender().way(), Way::Ring);
    assert_eq!(scene.sender().finish(true), Unfinished::Nothing);
    assert_eq!(scene.sender().way(), Way::TcpAgain);
}

#[test]
fn a_connection_whose_peer_awaits_an_answer_is_not_plain() {
    let scene = Scene::begun();
    // The side that receives is looked at: it has recalled nothing, and its own stream is the kernel's.
    let plain = |of: &Slot| {
        Way::TcpAgain.store(&of.sending.way);
        Way::TcpAgain.store(&of.receiving.way);
    };
    plain(&scene.receives);
    assert!(scene.receiver().is_plain());
    publish::set_bits(&scene.sends.face.state, RECALLED);
    assert!(!scene.receiver().is_plain());
    publish::half(&scene.receives.recall.answered, Recall::AGREED);
    assert!(scene.receiver().is_plain());
}

#[test]
fn no_other_life_begins_while_tcp_brings_what_lay_in_the_ring() {
    let scene = Scene::begun();
    Way::TcpAgain.store(&scene.receives.sending.way);
    Way::TcpAgain.store(&scene.receives.receiving.way);
    scene
        .receiver()
        .note_brought(BEFORE, Some(WRITTEN - BEFORE));
    let taken = &scene.receives.receiving.kernel_bytes;
    taken.store(WRITTEN - 1, Ordering::Relaxed);
    assert!(!scene.receiver().may_begin_again());
    taken.store(WRITTEN, Ordering::Relaxed);
    assert!(scene.receiver().may_begin_again());
}
