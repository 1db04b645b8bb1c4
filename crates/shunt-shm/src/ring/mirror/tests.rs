//! A ring and its view against a reference stream; the NIC between them is an array copy in random order.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::{Consumer, Found, Producer, SMALL, begin};
use super::*;
use crate::atomic::AtomicU64;
use crate::slot::{Output, Progress, Receiving, Sending};

const SIZE: u32 = 16 << 10;

struct Mirrored {
    ring: Vec<AtomicU64>,
    view: Vec<AtomicU64>,
    sending: Sending,
    output: Output,
    receiving: Receiving,
    progress: Progress,
    runs: Runs,
    arrivals: Arrivals,
}

fn memory(words: &[AtomicU64]) -> Memory {
    // SAFETY: the words outlive the use of it, in the test that has them.
    unsafe { Memory::new(words.as_ptr(), words.len() as u32 * 8) }
}

impl Mirrored {
    fn new() -> Self {
        let garbage = || (0..SIZE / 8).map(|_| AtomicU64::new(u64::MAX)).collect();
        let (ring, view): (Vec<_>, Vec<_>) = (garbage(), garbage());
        let sending = Sending::default();
        begin(memory(&ring), &sending);
        sending.check.store(SMALL, Ordering::Relaxed);
        let arrivals = Arrivals::begin(memory(&view));
        Self {
            ring,
            view,
            sending,
            output: Output::default(),
            receiving: Receiving::default(),
            progress: Progress::default(),
            runs: Runs::new(),
            arrivals,
        }
    }

    fn write(&self, bytes: &[u8]) -> usize {
        let producer = Producer {
            memory: memory(&self.ring),
            sending: &self.sending,
            output: &self.output,
            peer: &self.progress,
            populate: |_| true,
        };
        // SAFETY: the slice is readable.
        unsafe { producer.write(bytes.as_ptr(), bytes.len()) }.unwrap()
    }

    fn read(&self, most: usize) -> Vec<u8> {
        let consumer = Consumer {
            memory: memory(&self.view),
            receiving: &self.receiving,
            progress: &self.progress,
        };
        let mut bytes = vec![0; most];
        // SAFETY: the vector is writable.
        let found = unsafe { consumer.read(bytes.as_mut_ptr(), most, false) }.unwrap();
        bytes.truncate(match found {
            Found::Bytes(n) => n,
            _ => 0,
        });
        bytes
    }

    /// One run goes over; payload first, as a NIC does it.
    fn carry(&mut self) -> bool {
        let write = self.sending.write.load(Ordering::Relaxed);
        let view = memory(&self.view);
        let Some(run) = self.runs.next(memory(&self.ring), write).unwrap() else {
            return false;
        };
        let copy = |offset: u32, bytes: u32| {
            for word in offset / 8..(offset + bytes).div_ceil(8) {
                let value = self.ring[word as usize].load(Ordering::Relaxed);
                self.view[word as usize].store(value, Ordering::Relaxed);
            }
        };
        match run {
            Run::Frame { offset, length } => {
                copy(offset + 8, length);
                self.arrivals.frame(view, offset, length).unwrap();
            }
            Run::Frames { offset, length } => {
                copy(offset + 8, length);
                let first = self.ring[offset as usize / 8].load(Ordering::Relaxed);
                let behind = (offset + 8 + length) as usize / 8;
                self.view[behind].store(first, Ordering::Relaxed);
                self.arrivals.frames(view, offset, length).unwrap();
            }
            Run::Jump { offset } => self.arrivals.jump(view, offset).unwrap(),
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Carry,
    Read(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..200usize).prop_map(Step::Write),
        1 => (200..20_000usize).prop_map(Step::Write),
        3 => Just(Step::Carry),
        2 => (1..300usize).prop_map(Step::Read),
        1 => (300..20_000usize).prop_map(Step::Read),
    ]
}

proptest! {
    #[test]
    fn a_view_brings_the_stream_and_nothing_before_it_was_carried(steps in prop::collection::vec(step(), 1..400)) {
        let mut both = Mirrored::new();
        let (mut next, mut expected) = (0_u64, VecDeque::new());
        for step in steps {
            match step {
                Step::Write(n) => {
                    let bytes: Vec<u8> = (next..next + n as u64).map(|i| ((i * 31) >> 3) as u8).collect();
                    let n = both.write(&bytes);
                    next += n as u64;
                    expected.extend(&bytes[..n]);
                }
                Step::Carry => {
                    both.carry();
                }
                Step::Read(n) => {
                    for byte in both.read(n) {
                        prop_assert_eq!(expected.pop_front(), Some(byte));
                    }
                }
            }
        }
        while both.carry() {}
        loop {
            let bytes = both.read(4096);
            if bytes.is_empty() {
                break;
            }
            for byte in bytes {
                prop_assert_eq!(expected.pop_front(), Some(byte));
            }
        }
        prop_assert!(expected.is_empty());
        // The laps agree, or the producer would find the credit impossible.
        prop_assert_eq!(both.progress.read.load(Ordering::Relaxed) >> 32, both.sending.write.load(Ordering::Relaxed) >> 32);
    }

    #[test]
    fn arrivals_outside_of_the_ring_are_faults_and_touch_nothing(offset in any::<u32>(), length in any::<u32>()) {
        let both = Mirrored::new();
        let mut arrivals = both.arrivals;
        let before = arrivals;
        let fits = offset % 8 == 0 && length > 0
            && u64::from(offset) + 8 + u64::from(length).next_multiple_of(8) + 8 <= u64::from(SIZE);
        prop_assert_eq!(arrivals.frame(memory(&both.view), offset, length).is_ok(), fits);
        if !fits {
            prop_assert_eq!(arrivals, before);
            let touched = both.view[1..].iter().any(|word| word.load(Ordering::Relaxed) != u64::MAX);
            prop_assert!(!touched);
        }
    }
}

#[test]
fn small_frames_of_one_call_go_in_one_run() {
    let mut both = Mirrored::new();
    for _ in 0..3 {
        both.write(b"12345");
    }
    let write = both.sending.write.load(Ordering::Relaxed);
    let run = Runs::new().next(memory(&both.ring), write).unwrap();
    let expected = Run::Frames {
        offset: 0,
        length: 3 * 16 - 8,
    };
    assert_eq!(run, Some(expected));
    assert!(both.carry() && !both.carry());
    assert_eq!(both.read(100), b"123451234512345");
}

#[test]
fn a_copy_that_is_no_header_is_a_fault() {
    let both = Mirrored::new();
    for wrong in [
        0,
        u64::MAX,
        header(Kind::Data, 0),
        header(Kind::Data, 40),
        header(Kind::Jump, 8),
    ] {
        both.view[(8 + 40) / 8].store(wrong, Ordering::Relaxed);
        let mut arrivals = both.arrivals;
        assert_eq!(arrivals.frames(memory(&both.view), 0, 40), Err(Fault));
        assert!(both.read(100).is_empty());
    }
}
