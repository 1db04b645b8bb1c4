//! A relative has written nonsense into the private words of an end.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

const SIZE: u32 = 4096;
/// Memory on both sides of the ring, which nobody may touch.
const MARGIN: usize = 128 << 10;
const CANARY: u64 = 0x5ca1_ab1e_5ca1_ab1e;

/// A ring in the middle of other memory.
fn surrounded() -> (Pair, Memory) {
    let mut pair = Pair::new(SIZE);
    let words = MARGIN / 8 * 2 + SIZE as usize / 8;
    pair.words = (0..words).map(|_| AtomicU64::new(CANARY)).collect();
    // SAFETY: inside the vector, which lives as long as the pair.
    let memory = unsafe { Memory::new(pair.words.as_ptr().add(MARGIN / 8), SIZE) };
    begin(memory, &pair.sending);
    (pair, memory)
}

fn is_untouched(pair: &Pair) -> bool {
    let (before, rest) = pair.words.split_at(MARGIN / 8);
    let behind = &rest[SIZE as usize / 8..];
    before
        .iter()
        .chain(behind)
        .all(|w| w.load(Relaxed) == CANARY)
}

/// A half of a word: in the ring, near its end, beside it, or anywhere.
fn half() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..u64::from(SIZE),
        u64::from(SIZE) - 64..u64::from(SIZE) + 64,
        0..MARGIN as u64,
        any::<u32>().prop_map(u64::from),
    ]
}

fn words(n: usize) -> impl Strategy<Value = Vec<u64>> {
    let lap = prop_oneof![3 => 0u64..6, 1 => any::<u32>().prop_map(u64::from)];
    let word = (lap, half()).prop_map(|(lap, offset)| lap << 32 | offset);
    proptest::collection::vec(word, n)
}

proptest! {
    #[test]
    fn the_sending_half_stays_in_its_ring(
        w in words(6), halves in proptest::collection::vec(half(), 3), credit in words(1), length in 1usize..6000,
    ) {
        let (pair, memory) = surrounded();
        let producer = Producer {
            memory,
            sending: &pair.sending,
            output: &pair.output,
            peer: &pair.progress,
            // Now and then there is no memory for more.
            populate: |bytes| bytes % 3 != 0,
        };
        let s = &pair.sending;
        let bytes = vec![7; length];
        let forge = || {
            s.write.store(w[0], Relaxed);
            s.credit.store(w[1], Relaxed);
            for (segment, word) in s.segments.iter().zip(&w[2..]) {
                segment.store(*word, Relaxed);
            }
            for (word, half) in [&s.allocated, &s.check, &s.clear].iter().zip(&halves) {
                word.store(*half as u32, Relaxed);
            }
            pair.progress.read.store(credit[0], Relaxed);
        };
        // SAFETY: the vector is readable as far as its length.
        unsafe {
            forge();
            let _ = producer.write_short(bytes.as_ptr(), length as u32);
            forge();
            let _ = producer.write(bytes.as_ptr(), length);
        }
        forge();
        let _ = producer.leave(1);
        forge();
        producer.repair();
        let _ = producer.room(length);
        forge();
        let _ = (producer.has_room(), producer.had_room(), producer.lacks_memory());
        prop_assert!(is_untouched(&pair));
    }

    #[test]
    fn the_receiving_half_takes_nothing_from_elsewhere(
        read in words(1), left in half(), header in any::<u16>(), length in 1usize..6000,
    ) {
        let (pair, memory) = surrounded();
        for at in 0..SIZE / 8 {
            memory.word(at * 8).store(1 << 32 | u64::from(header), Relaxed);
        }
        let consumer = Consumer {
            memory,
            receiving: &pair.receiving,
            progress: &pair.progress,
        };
        let mut bytes = vec![0_u8; length];
        let r = &pair.receiving;
        let forge = || {
            r.read.store(read[0], Relaxed);
            r.left.store(left as u32, Relaxed);
            r.mark.store(read[0], Relaxed);
        };
        let is_clean = |bytes: &[u8]| !bytes.windows(8).any(|b| b == CANARY.to_ne_bytes());
        // SAFETY: the vector has room for its length.
        unsafe {
            forge();
            let _ = consumer.read_short(bytes.as_mut_ptr(), length);
            prop_assert!(is_clean(&bytes));
            forge();
            let _ = consumer.read(bytes.as_mut_ptr(), length, false);
            prop_assert!(is_clean(&bytes));
        }
        forge();
        let end = pair.words.as_ptr().wrapping_add((MARGIN + SIZE as usize) / 8) as usize;
        let _ = consumer.drain(length, |from, n| {
            assert!(from as usize + n <= end && from as usize >= memory.at(0) as usize);
            Ok::<_, ()>(n)
        });
        forge();
        let _ = (consumer.end(), consumer.is_ready(), consumer.at_hand(), consumer.repair());
    }
}
