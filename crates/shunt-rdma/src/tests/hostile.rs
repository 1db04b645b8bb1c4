//! A peer that sends what it likes: the link fails, and nothing else does.

use proptest::prelude::*;

use shunt_shm::atomic::{AtomicU64, Ordering};

use super::store::{RING, Store};
use crate::endpoint::Endpoint;
use crate::fabric::{Fabric, Manners, Nic, Queue};
use crate::link::{Broken, Link};
use crate::note::Note;
use crate::port::{Found, Port};
use crate::transport::{
    Access, BATCH, Completion, Post, QueueId, Region, Target, Transport, Write,
};

struct Hostile<'a> {
    port: Port<'a, Nic>,
    id: QueueId,
    nic: Nic,
    queue: Queue,
}

impl<'a> Hostile<'a> {
    /// An honest side with one open slot, connected to a queue pair that a test drives.
    fn new(store: &'a Store) -> Self {
        let fabric = Fabric::new(Manners {
            manual: true,
            ..Manners::GOOD
        });
        let mut port = Port::new(fabric.nic().unwrap());
        let nic = fabric.nic().unwrap();
        let (own, queue) = (port.transport().queue().unwrap(), nic.queue().unwrap());
        let ends = [port.transport().endpoint(&own), nic.endpoint(&queue)];
        port.transport().connect(&own, &ends[1]).unwrap();
        nic.connect(&queue, &ends[0]).unwrap();
        let mut link = Link::new(port.transport(), own, &ends[0], &ends[1]);
        let lines = store.lines(0, 0);
        lines.own.begin(1, lines.out);
        // SAFETY: the store outlives the port.
        unsafe { link.open(port.transport(), 0, 1, lines) }.unwrap();
        let id = port.add(link);
        let mut hostile = Self {
            port,
            id,
            nic,
            queue,
        };
        hostile.note(Note::Begin { slot: 0, life: 1 });
        hostile
    }

    fn note(&mut self, note: Note) {
        let _ = self
            .nic
            .post(&self.queue, &Post::Note(note.pack(0).bytes()), None);
        let _ = self.port.progress(|_| {});
    }

    /// What the honest side has found.
    fn look(&mut self) -> Option<Broken> {
        let mut broken = None;
        let note = |found: Found| {
            if let Found::Broken(_, why) = found {
                broken = Some(why);
            }
        };
        self.port.progress(note).unwrap();
        let (nic, link) = self.port.link(self.id).unwrap();
        let mut bytes = [0; 100];
        for _ in 0..10 {
            let _ = link.receive(nic, 0, &mut bytes);
        }
        broken.or(link.broken())
    }
}

fn note() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        (1..10_u8, prop::collection::vec(any::<u8>(), 24)).prop_map(|(kind, mut bytes)| {
            bytes[0] = kind;
            bytes[1] = 0;
            bytes[4..8].fill(0);
            bytes
        }),
    ]
}

proptest! {
    #[test]
    fn any_notes_and_any_immediates_end_the_link_at_most(
        notes in prop::collection::vec(note(), 1..20),
        words in prop::collection::vec((any::<u32>(), 0..200_u32, any::<bool>()), 1..20),
        garbage in any::<u64>(),
    ) {
        let store = Store::new(1);
        let mut hostile = Hostile::new(&store);
        let view = store.lines(0, 0).inward;
        let source: Vec<AtomicU64> = (0..64).map(|i| AtomicU64::new(garbage.rotate_left(i))).collect();
        // SAFETY: the words outlive the region.
        let region = unsafe {
            hostile.nic.register(source.as_ptr().cast_mut().cast(), 512, Access::Source)
        }.unwrap();
        // The view's region is the second one of the honest side.
        let target = Target { key: 2, address: view.at(0) as u64 };
        for (word, length, sane) in words {
            // Half of them name a place that there is.
            let immediate = if sane { (1 << 29) | (word % (RING as u32 / 8)) } else { word };
            let post = Post::Write(Write {
                region: &region,
                offset: 0,
                length,
                trailer: None,
                target,
                immediate,
            });
            let _ = hostile.nic.post(&hostile.queue, &post, None);
            hostile.look();
        }
        for note in notes {
            let _ = hostile.nic.post(&hostile.queue, &Post::Note(&note), None);
            hostile.look();
        }
        // Its own words are as they were.
        prop_assert_eq!(store.lines(0, 0).own.sending.write.load(Ordering::Relaxed), 0);
        drop(region);
    }
}

#[test]
fn more_than_was_granted_ends_the_link() {
    let store = Store::new(1);
    let mut hostile = Hostile::new(&store);
    let mut found = None;
    let mut completions = [Completion::Failed {
        queue: hostile.id,
        status: 0,
    }; BATCH];
    for tag in 0..40_000 {
        // It never says that it has received, so at last this side cannot grant any more.
        let note = Note::Grant.pack(0);
        let post = Post::Note(note.bytes());
        hostile.nic.post(&hostile.queue, &post, Some(tag)).unwrap();
        found = hostile.look();
        if found.is_some() {
            break;
        }
        hostile.nic.poll(&mut completions).unwrap();
    }
    assert_eq!(found, Some(Broken::Peer));
}

#[test]
fn a_credit_for_what_was_not_sent_ends_the_link() {
    let store = Store::new(1);
    let mut hostile = Hostile::new(&store);
    hostile.note(Note::Credit {
        slot: 0,
        read: 0,
        bytes: 1,
        left: 0,
    });
    assert_eq!(hostile.look(), Some(Broken::Peer));
}

#[test]
fn a_write_outside_of_the_view_fails_the_queue_pair_and_touches_nothing() {
    let store = Store::new(1);
    let mut hostile = Hostile::new(&store);
    let source: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(u64::MAX)).collect();
    // SAFETY: the words outlive the region.
    let region = unsafe {
        hostile
            .nic
            .register(source.as_ptr().cast_mut().cast(), 64, Access::Source)
    }
    .unwrap();
    let view = store.lines(0, 0).inward;
    let post = Post::Write(Write {
        region: &region,
        offset: 0,
        length: 16,
        trailer: None,
        target: Target {
            key: 2,
            address: view.at(0) as u64 + RING as u64 - 8,
        },
        immediate: 0,
    });
    hostile.nic.post(&hostile.queue, &post, None).unwrap();
    assert!(matches!(hostile.look(), Some(Broken::Queue(_))));
    // Nor does a key of memory that is only read.
    assert_eq!(region.target().key, 3);
    let endpoint = hostile.nic.endpoint(&hostile.queue);
    assert_eq!(Endpoint::parse(&endpoint.to_bytes()), Some(endpoint));
}
