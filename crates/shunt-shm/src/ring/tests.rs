//! The ring against a reference byte stream.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Consumer, Fault, Found, Memory, Producer, begin};
use crate::atomic::AtomicU64;
use crate::slot::{Output, Progress, Receiving, Sending};

mod relatives;

/// Both ends of one ring in plain memory.
struct Pair {
    words: Vec<AtomicU64>,
    sending: Sending,
    output: Output,
    receiving: Receiving,
    progress: Progress,
}

impl Pair {
    fn new(size: u32) -> Self {
        let pair = Self {
            words: (0..size / 8).map(|_| AtomicU64::new(u64::MAX)).collect(),
            sending: Sending::default(),
            output: Output::default(),
            receiving: Receiving::default(),
            progress: Progress::default(),
        };
        begin(pair.memory(), &pair.sending);
        pair.sending
            .check
            .store(super::SMALL, std::sync::atomic::Ordering::Relaxed);
        pair
    }

    fn memory(&self) -> Memory {
        // SAFETY: the vector lives as long as the pair.
        unsafe { Memory::new(self.words.as_ptr(), self.words.len() as u32 * 8) }
    }

    fn producer(&self) -> Producer<'_, impl Fn(usize) -> bool> {
        Producer {
            memory: self.memory(),
            sending: &self.sending,
            output: &self.output,
            peer: &self.progress,
            populate: |_| true,
        }
    }

    fn consumer(&self) -> Consumer<'_> {
        Consumer {
            memory: self.memory(),
            receiving: &self.receiving,
            progress: &self.progress,
        }
    }

    /// An even number of bytes is written as a list of two halves where it can be.
    fn write(&self, bytes: &[u8]) -> usize {
        let (source, length) = (bytes.as_ptr(), bytes.len() as u32);
        let (front, back) = bytes.split_at(bytes.len() / 2);
        // SAFETY: a slice is readable as far as its length.
        let short = || unsafe {
            if length.is_multiple_of(2) {
                let halves = [part(front), part(&[]), part(back)];
                self.producer().write_short_list(&halves, length)
            } else {
                self.producer().write_short(source, length)
            }
        };
        if length < 3000 && short() == Some(Ok(())) {
            return bytes.len();
        }
        // SAFETY: as above.
        let written = unsafe { self.producer().write(bytes.as_ptr(), bytes.len()) }.unwrap();
        assert!(!self.producer().had_room() || self.producer().has_room());
        written
    }

    fn read(&self, length: usize, peek: bool) -> Vec<u8> {
        let mut bytes = vec![0; length];
        if !peek {
            // SAFETY: the vector has room for `length`.
            let short = unsafe { self.consumer().read_short(bytes.as_mut_ptr(), length) };
            if let Some(n) = short {
                bytes.truncate(n.unwrap());
                return bytes;
            }
        }
        // SAFETY: the vector has room for `length`.
        match unsafe { self.consumer().read(bytes.as_mut_ptr(), length, peek) }.unwrap() {
            Found::Bytes(n) => bytes.truncate(n),
            Found::Empty => bytes.clear(),
            Found::Back(_) => panic!("nobody left the ring"),
        }
        bytes
    }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Read(usize),
    Peek(usize),
    Drain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1usize..64, 1usize..5000, 1usize..200_000];
    proptest::collection::vec(
        prop_oneof![
            4 => size.clone().prop_map(Step::Write),
            4 => size.clone().prop_map(Step::Read),
            1 => size.prop_map(Step::Peek),
            1 => Just(Step::Drain),
        ],
        1..200,
    )
}

/// As many cases as are `usual`, unless `PROPTEST_CASES` says otherwise.
fn cases(usual: u32) -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = usual;
    }
    config
}

proptest! {
    #![proptest_config(cases(400))]
    /// Whatever is written and read in whatever portions, the stream is the
    /// stream, peeking changes nothing, and a drained ring takes nearly its size.
    #[test]
    fn behaves_like_a_byte_stream(steps in steps(), kib in prop_oneof![Just(4u32), Just(64), Just(1024)]) {
        let pair = Pair::new(kib << 10);
        let mut model = VecDeque::new();
        let mut next = 0u8;
        for step in steps {
            match step {
                Step::Write(n) => {
                    let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                    let was_empty = model.is_empty();
                    let written = pair.write(&bytes);
                    prop_assert!(!was_empty || written == n || written * 2 >= (kib as usize) << 9, "drained, yet only {written}");
                    model.extend(&bytes[..written]);
                    next = next.wrapping_add(written as u8);
                }
                Step::Read(n) => {
                    let got = pair.read(n, false);
                    let expected: Vec<u8> = model.drain(..n.min(model.len())).collect();
                    prop_assert_eq!(got, expected);
                }
                Step::Peek(n) => {
                    let got = pair.read(n, true);
                    let expected: Vec<u8> = model.iter().copied().take(n).collect();
                    prop_assert_eq!(got, expected);
                }
                Step::Drain => {
                    let got = pair.read(usize::MAX >> 40, false);
                    let expected: Vec<u8> = model.drain(..).collect();
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(pair.consumer().is_ready(), !model.is_empty() || pair.consumer().is_ready());
        }
    }

    /// A hostile producer can hand out garbage, never a bad access.
    #[test]
    fn survives_any_memory(words in proptest::collection::vec(any::<u64>(), 512), start in 0u32..512) {
        let pair = Pair::new(4096);
        for (at, word) in pair.words.iter().zip(words) {
            at.store(word, std::sync::atomic::Ordering::Relaxed);
        }
        pair.receiving.read.store(u64::from(start * 8), std::sync::atomic::Ordering::Relaxed);
        let mut bytes = vec![0; 8192];
        for _ in 0..4 {
            // SAFETY: the vector has room for its own length.
            let _ = unsafe { pair.consumer().read(bytes.as_mut_ptr(), bytes.len(), false) };
        }
    }

    /// A hostile consumer can claim any progress: an error or a garbled stream.
    #[test]
    fn survives_any_credit(credits in proptest::collection::vec(any::<u64>(), 1..40), small in any::<bool>()) {
        let pair = Pair::new(8192);
        for credit in credits {
            let credit = if small { credit & 0x3_0000_1fff } else { credit };
            pair.progress.read.store(credit, std::sync::atomic::Ordering::Relaxed);
            let bytes = [7u8; 900];
            // SAFETY: the array is readable as far as its length.
            let _ = unsafe { pair.producer().write(bytes.as_ptr(), bytes.len()) };
        }
    }
}

#[test]
fn a_quiet_connection_stays_in_its_first_page() {
    let pair = Pair::new(1 << 20);
    for i in 0..10_000u32 {
        let message = vec![i as u8; 1 + (i % 450) as usize];
        assert_eq!(pair.write(&message), message.len());
        assert_eq!(pair.read(500, false), message);
    }
    let untouched = pair.words[4096 / 8..]
        .iter()
        .all(|w| w.load(std::sync::atomic::Ordering::Relaxed) == u64::MAX);
    assert!(untouched);
}

#[test]
fn a_jump_alone_is_nothing_to_read() {
    let pair = Pair::new(1 << 20);
    while (pair
        .sending
        .write
        .load(std::sync::atomic::Ordering::Relaxed) as u32)
        < super::SMALL
    {
        assert_eq!(pair.write(&[1; 100]), 100);
        assert_eq!(pair.read(100, false).len(), 100);
    }
    // The producer goes back to the start, and has not written there yet.
    let (_, at) = pair.producer().room(100).unwrap();
    assert_eq!(at.offset, 0);
    assert!(!pair.consumer().is_ready());
    assert_eq!(pair.write(&[2; 100]), 100);
    assert!(pair.consumer().is_ready());
}

/// Through several laps, with what is there read at once, in part, or not at all.
#[test]
fn what_comes_behind_an_end_is_past_it() {
    let pair = Pair::new(64 << 10);
    let mut end = pair.consumer().end();
    for round in 0..20_000usize {
        assert!(!pair.consumer().is_past(end), "round {round}");
        assert_eq!(
            pair.write(&[1; 3000][..1 + round * 37 % 3000]),
            1 + round * 37 % 3000
        );
        assert!(pair.consumer().is_past(end), "round {round}");
        if round % 3 == 0 {
            while !pair.read(1 + round % 5000, false).is_empty() {}
            assert!(pair.consumer().is_past(end), "round {round}");
        } else {
            pair.read(round % 1000, false);
        }
        end = pair.consumer().end();
        if round % 2 == 0 {
            pair.read(round % 100, false);
        }
    }
    assert!(super::Position::unpack(end).lap > 20);
}

#[test]
fn an_end_is_some_frames_away_at_most() {
    let pair = Pair::new(64 << 10);
    (0..100).for_each(|_| assert_eq!(pair.write(&[1; 8]), 8));
    let end = pair.consumer().end();
    assert!(pair.consumer().is_past(end));
    assert_eq!(pair.read(800, false).len(), 800);
    let end = pair.consumer().end();
    assert!(!pair.consumer().is_past(end));
}

#[test]
fn a_ring_of_jumps_alone_is_a_fault() {
    let pair = Pair::new(4096);
    let jump = super::header(super::Kind::Jump, 0);
    pair.words[0].store(jump, std::sync::atomic::Ordering::Relaxed);
    let mut byte = 0u8;
    for peek in [true, false] {
        // SAFETY: one byte of our own.
        let found = unsafe { pair.consumer().read(&raw mut byte, 1, peek) };
        assert_eq!(found, Err(super::Stopped::Fault));
    }
    assert!(!pair.consumer().is_ready());
}

#[test]
fn takes_its_whole_size_again_after_any_pattern() {
    let pair = Pair::new(1 << 20);
    for round in 0..50usize {
        let mut total = 0;
        loop {
            let n = pair.write(&vec![1; 1000 + round * 777]);
            total += n;
            if n == 0 {
                break;
            }
        }
        assert!(total > 900 << 10, "round {round}: {total}");
        assert_eq!(pair.read(total, false).len(), total);
    }
}

#[test]
fn leaving_is_possible_when_full_and_says_where() {
    let pair = Pair::new(4096);
    while pair.write(&[3; 100]) > 0 {}
    pair.producer().leave(12345).unwrap();
    let mut bytes = vec![0; 8192];
    loop {
        // SAFETY: the vector has room for its own length.
        match unsafe { pair.consumer().read(bytes.as_mut_ptr(), bytes.len(), false) }.unwrap() {
            Found::Bytes(_) => {}
            Found::Empty => panic!("the end is missing"),
            Found::Back(offset) => {
                assert_eq!(offset, 12345);
                break;
            }
        }
    }
}

#[test]
fn an_impossible_credit_is_a_fault() {
    let pair = Pair::new(4096);
    pair.progress.read.store(
        super::Position { lap: 9, offset: 0 }.pack(),
        std::sync::atomic::Ordering::Relaxed,
    );
    while let Ok(n) = {
        // SAFETY: the array is readable as far as its length.
        unsafe { pair.producer().write([0u8; 64].as_ptr(), 64) }
    } {
        assert!(n > 0, "full before it looked at the credit");
    }
    assert_eq!(pair.producer().room(usize::MAX), Err(Fault));
}

/// A process may die between any two stores of a write.
#[test]
fn another_process_finishes_what_a_dead_one_began() {
    use std::sync::atomic::Ordering::Relaxed;
    let pair = Pair::new(64 << 10);
    let mut expected = Vec::new();
    let mut seen = Vec::new();
    for round in 0..400u32 {
        let bytes = vec![round as u8; 1 + (round as usize * 37) % 700];
        let before = (
            pair.sending.write.load(Relaxed),
            pair.output.bytes.load(Relaxed),
        );
        assert_eq!(pair.write(&bytes), bytes.len());
        expected.extend_from_slice(&bytes);
        let one_frame = super::Position::unpack(before.0).lap
            == super::Position::unpack(pair.sending.write.load(Relaxed)).lap;
        // The frame is published; the count and the position may not have moved.
        if one_frame && round % 3 != 0 {
            pair.sending.write.store(before.0, Relaxed);
            if round % 3 == 1 {
                pair.output.bytes.store(before.1, Relaxed);
            }
        }
        assert!(!pair.producer().repair());
        assert!(!pair.producer().repair(), "once is enough");
        assert_eq!(pair.output.bytes.load(Relaxed), expected.len() as u64);
        if round % 5 == 0 {
            seen.extend(pair.read(1 << 20, false));
        }
    }
    seen.extend(pair.read(1 << 20, false));
    assert_eq!(seen, expected);
}

/// What a receive stores, in this order.
fn receiver_words(pair: &Pair) -> [u64; 6] {
    use std::sync::atomic::Ordering::Relaxed;
    let (r, p) = (&pair.receiving, &pair.progress);
    [
        r.total.load(Relaxed),
        r.mark.load(Relaxed),
        p.bytes.load(Relaxed),
        u64::from(r.left.load(Relaxed)),
        r.read.load(Relaxed),
        p.read.load(Relaxed),
    ]
}

fn set_receiver_words(pair: &Pair, words: [u64; 6]) {
    use std::sync::atomic::Ordering::Relaxed;
    let (r, p) = (&pair.receiving, &pair.progress);
    r.total.store(words[0], Relaxed);
    r.mark.store(words[1], Relaxed);
    p.bytes.store(words[2], Relaxed);
    r.left.store(words[3] as u32, Relaxed);
    r.read.store(words[4], Relaxed);
    p.read.store(words[5], Relaxed);
}

/// A process may die between any two stores of a receive: before the second of
/// them nothing is taken, and after it all is.
#[test]
fn another_process_goes_on_where_a_dead_one_received() {
    let pair = Pair::new(64 << 10);
    let stream = |at: u64| (at % 251) as u8;
    let (mut sent, mut taken) = (0u64, 0u64);
    for round in 0..20_000usize {
        let bytes: Vec<u8> = (0..1 + round * 37 % 3000)
            .map(|i| stream(sent + i as u64))
            .collect();
        sent += pair.write(&bytes) as u64;
        let before = receiver_words(&pair);
        // At most one frame, so that all of it moves at once.
        let most = pair.consumer().at_hand() as usize;
        let length = if round % 2 == 0 { most } else { 1 + most / 2 };
        assert_eq!(pair.read(length, true).len(), length);
        assert_eq!(receiver_words(&pair), before, "a look takes nothing");
        assert_eq!(pair.read(length, false).len(), length);
        let after = receiver_words(&pair);
        let stores = round / 2 % 7;
        let mut words = before;
        words[..stores].copy_from_slice(&after[..stores]);
        set_receiver_words(&pair, words);
        assert!(pair.consumer().repair());
        if stores >= 2 {
            taken += length as u64;
            assert_eq!(receiver_words(&pair), after);
        } else {
            assert_eq!(receiver_words(&pair)[1..], before[1..]);
        }
        let repaired = receiver_words(&pair);
        assert!(pair.consumer().repair(), "once is enough");
        assert_eq!(receiver_words(&pair), repaired);
        assert_eq!(repaired[2], taken);
        if round % 3 == 0 {
            for byte in pair.read(10_000, false) {
                assert_eq!(byte, stream(taken));
                taken += 1;
            }
        }
    }
    assert!(super::Position::unpack(receiver_words(&pair)[4]).lap > 20);
}

/// Dying while the kernel takes bytes where they lie: nobody knows how many.
#[test]
fn what_a_dead_one_was_handing_on_is_not_known() {
    let pair = Pair::new(4096);
    pair.write(&[1; 100]);
    let consumer = pair.consumer();
    let took = |n: usize| {
        let consumer = pair.consumer();
        consumer.drain(100, move |_, _| if n == 0 { Err(()) } else { Ok(n) })
    };
    assert_eq!(took(30), Ok(Ok(30)));
    assert!(consumer.repair());
    assert_eq!(took(0), Ok(Err(())));
    assert!(consumer.repair());
    let dies = |_: *const u8, _: usize| {
        assert!(!pair.consumer().repair());
        Ok::<usize, ()>(10)
    };
    assert_eq!(consumer.drain(100, dies), Ok(Ok(10)));
    assert!(consumer.repair());
}

/// Where the system has no memory for more of the ring, that is told from a full ring.
#[test]
fn a_ring_without_memory_is_not_full() {
    let pair = Pair::new(64 << 10);
    let there = 4096;
    let producer = Producer {
        populate: move |bytes| bytes <= there,
        memory: pair.memory(),
        sending: &pair.sending,
        output: &pair.output,
        peer: &pair.progress,
    };
    assert!(!producer.lacks_memory());
    // SAFETY: the array is readable.
    let written = unsafe { producer.write([7; 10_000].as_ptr(), 10_000) }.unwrap();
    assert!(written < there && producer.lacks_memory());

    let full = Pair::new(4096);
    full.write(&[1; 5000]);
    assert!(!full.producer().lacks_memory());
}

/// Another thread may change a list between the two looks that a call takes at its lengths.
#[test]
fn a_list_that_changes_meanwhile_fills_its_frame_or_is_left_alone() {
    let pair = Pair::new(4096);
    // A first message learns how much is free.
    pair.write(&[0]);
    assert_eq!(pair.read(1, false), [0]);
    let list = [part(&[1; 5]), part(&[2; 100])];
    // SAFETY: the arrays are readable.
    let write = |length| unsafe { pair.producer().write_short_list(&list, length) };
    assert_eq!(write(8), Some(Ok(())));
    assert_eq!(write(106), None);
    assert_eq!(pair.read(1000, false), [1, 1, 1, 1, 1, 2, 2, 2]);
}
