use super::*;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::record::BYTES;
use crate::transport::Write;

/// A directory of a test's own.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("shunt-wire-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        Self(directory)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn connected(place: &Place) -> [(Wire, Queue); 2] {
    let nics = [(); 2].map(|()| Wire::open(&place.0).unwrap());
    let queues = nics.each_ref().map(|nic| nic.queue().unwrap());
    let ends = [0, 1].map(|side| nics[side].endpoint(&queues[side]));
    for side in 0..2 {
        nics[side].connect(&queues[side], &ends[1 - side]).unwrap();
    }
    let [one, other] = nics;
    let [of_one, of_other] = queues;
    [(one, of_one), (other, of_other)]
}

fn all(nic: &Wire) -> Vec<Completion> {
    let mut all = Vec::new();
    let queue = QueueId(0);
    let mut some = [Completion::Failed { queue, status: 0 }; BATCH];
    while let n @ 1.. = nic.poll(&mut some).unwrap() {
        all.extend_from_slice(&some[..n]);
    }
    all
}

fn is_readable(nic: &Wire) -> bool {
    let mut look = libc::pollfd {
        fd: nic.events(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one writable entry.
    unsafe { libc::poll(&raw mut look, 1, 0) == 1 }
}

fn write<'a>(region: &'a Registered, target: Target, length: u32) -> Post<'a, Registered> {
    Post::Write(Write {
        region,
        offset: 8,
        length,
        trailer: Some(0),
        target,
        immediate: 77,
    })
}

fn words<const N: usize>(words: [u64; N]) -> Box<[AtomicU64]> {
    words.map(AtomicU64::new).into()
}

/// Words as a NIC knows them.
fn region(nic: &Wire, words: &[AtomicU64], access: Access) -> Registered {
    // SAFETY: the words are atomic, and outlive the region in these tests.
    unsafe { nic.register(words.as_ptr().cast_mut().cast(), size_of_val(words), access) }.unwrap()
}

#[test]
fn a_write_is_there_before_the_peer_looks_and_its_completion_when_it_does() {
    let place = Place::new();
    let (from, to) = (words([9, 1, 2]), words([0; 4]));
    let [(one, of_one), (other, of_other)] = connected(&place);
    let (source, sink) = (
        region(&one, &from, Access::Source),
        region(&other, &to, Access::Target),
    );
    all(&other);
    assert!(!is_readable(&other));
    one.post(&of_one, &write(&source, sink.target(), 16), Some(3))
        .unwrap();
    let there: Vec<_> = to.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(there, [1, 2, 9, 0]);
    assert!(is_readable(&one) && is_readable(&other));
    let sent = Completion::Sent {
        queue: one.id(&of_one),
        tag: 3,
    };
    assert_eq!(all(&one), [sent]);
    let written = Completion::Written {
        queue: other.id(&of_other),
        immediate: 77,
        length: 24,
    };
    assert_eq!(all(&other), [written]);
    assert!(!is_readable(&one) && !is_readable(&other));
}

#[test]
fn as_many_notes_go_out_as_there_are_receives_and_arrive_in_order() {
    let place = Place::new();
    let [(one, of_one), (other, of_other)] = connected(&place);
    let notes = 0..RECEIVES;
    for number in notes.clone() {
        one.post(&of_one, &Post::Note(&number.to_le_bytes()), None)
            .unwrap();
    }
    let expected: Vec<_> = notes
        .map(|number| {
            let mut bytes = [0; crate::transport::NOTE_BYTES];
            bytes[..2].copy_from_slice(&number.to_le_bytes());
            let queue = other.id(&of_other);
            Completion::Note {
                queue,
                bytes,
                length: 2,
            }
        })
        .collect();
    assert_eq!(all(&other), expected);
    assert!(all(&one).is_empty());
}

fn failed(nic: &Wire, queue: &Queue) -> Completion {
    Completion::Failed {
        queue: nic.id(queue),
        status: 5,
    }
}

#[test]
fn what_was_sent_before_an_end_arrives_before_it() {
    let place = Place::new();
    let [(one, of_one), (other, of_other)] = connected(&place);
    one.post(&of_one, &Post::Note(b"last"), None).unwrap();
    one.end(&of_one);
    assert!(is_readable(&one) && is_readable(&other));
    assert_eq!(all(&one), [failed(&one, &of_one)]);
    assert!(one.post(&of_one, &Post::Note(b"more"), None).is_err());
    let found = all(&other);
    assert!(matches!(found[0], Completion::Note { .. }));
    assert_eq!(found[1..], [failed(&other, &of_other)]);
}

#[test]
fn what_has_come_of_a_peer_that_has_gone_is_there_for_who_sends_first_too() {
    let place = Place::new();
    let [(one, of_one), (other, of_other)] = connected(&place);
    // Each knows the other's connection.
    assert!(all(&one).is_empty() && all(&other).is_empty());
    one.post(&of_one, &Post::Note(b"last"), None).unwrap();
    one.end(&of_one);
    other.post(&of_other, &Post::Note(b"more"), None).unwrap();
    let found = all(&other);
    assert!(matches!(found[0], Completion::Note { .. }));
    assert_eq!(found[1..], [failed(&other, &of_other)]);
}

#[test]
fn a_peer_that_has_gone_is_found_out_by_who_sends_nothing() {
    let place = Place::new();
    let [(one, of_one), gone] = connected(&place);
    all(&one);
    drop(gone);
    assert!(is_readable(&one));
    assert_eq!(all(&one), [failed(&one, &of_one)]);
    assert!(!is_readable(&one));
}

#[test]
fn a_write_to_memory_that_is_no_target_is_found_out() {
    // Of no target; of more than a target has.
    for (access, length) in [(Access::Source, 8), (Access::Target, 16)] {
        let place = Place::new();
        let (from, to) = (words([9, 1, 2]), words([0; 4]));
        let [(one, of_one), (other, of_other)] = connected(&place);
        let source = region(&one, &from, Access::Source);
        let sink = region(&other, &to[..2], access);
        one.post(&of_one, &write(&source, sink.target(), length), None)
            .unwrap();
        assert_eq!(all(&other), [failed(&other, &of_other)]);
    }
}

#[test]
fn memory_that_nobody_has_breaks_the_writer() {
    let place = Place::new();
    let from = words([9, 1, 2]);
    let [(one, of_one), _other] = connected(&place);
    let source = region(&one, &from, Access::Source);
    let target = Target { key: 1, address: 8 };
    one.post(&of_one, &write(&source, target, 8), Some(1))
        .unwrap();
    assert_eq!(all(&one), [failed(&one, &of_one)]);
}

#[test]
fn its_descriptors_are_out_of_a_programs_way() {
    let place = Place::new();
    let nics = connected(&place);
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a place for one limit.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    assert_eq!(done, 0);
    let low = limit.rlim_cur.min(1024) / 2;
    assert!(nics.iter().all(|(nic, _)| nic.events() as u64 >= low));
}

#[test]
fn a_child_drops_a_copy_and_its_parents_stays() {
    let place = Place::new();
    let wire = Wire::open(&place.0).unwrap();
    let is_there = || std::fs::read_dir(&place.0).unwrap().count() == 1;
    assert!(is_there());
    wire.note_fork();
    drop(wire);
    assert!(is_there());
    let own = Wire::open(&place.0).unwrap();
    drop(own);
    assert!(is_there());
}

#[test]
fn a_record_comes_back_from_its_bytes() {
    let target = Target {
        key: 3,
        address: u64::MAX,
    };
    let written = Record::Written {
        immediate: 1,
        length: 2,
        target,
    };
    for record in [Record::Hello(7), written, Record::note(b"note")] {
        assert_eq!(Record::parse(&record.to_bytes()), Some(record));
    }
    assert_eq!(Record::parse(&[0; BYTES]), None);
}
