//! Model checking: every interleaving of the ring and of the sleep/wake
//! handshake, on small rings.

use loom::sync::Arc;
use loom::thread;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, full, heavy, light};
use crate::ring::{Consumer, Found, Memory, Producer, begin};
use crate::slot::{FENCED, Face, Output, Progress, Receiving, Sending, WAIT_RX};
use crate::token::{Holder, Token};
use crate::wake::{Address, Door, Entry, Log, Tail};

struct Shared {
    words: Vec<AtomicU64>,
    sending: Sending,
    output: Output,
    receiving: Receiving,
    progress: Progress,
    wait: AtomicU32,
    /// Models a wake channel: calls in its queue.
    calls: AtomicU32,
}

impl Shared {
    fn new(size: u32) -> Arc<Self> {
        let shared = Arc::new(Self {
            words: (0..size / 8).map(|_| AtomicU64::new(0)).collect(),
            sending: Sending::default(),
            output: Output::default(),
            receiving: Receiving::default(),
            progress: Progress::default(),
            wait: AtomicU32::new(0),
            calls: AtomicU32::new(0),
        });
        begin(shared.memory(), &shared.sending);
        shared.sending.check.store(u32::MAX, Ordering::Relaxed);
        shared.sending.allocated.store(size, Ordering::Relaxed);
        shared
    }

    fn memory(&self) -> Memory {
        // SAFETY: the vector lives as long as what uses it.
        unsafe { Memory::new(self.words.as_ptr(), self.words.len() as u32 * 8) }
    }

    fn write(&self, bytes: &[u8]) -> usize {
        let producer = Producer {
            memory: self.memory(),
            sending: &self.sending,
            output: &self.output,
            peer: &self.progress,
            populate: |_| true,
        };
        // SAFETY: a slice is readable as far as its length.
        unsafe { producer.write(bytes.as_ptr(), bytes.len()) }.unwrap()
    }

    fn consumer(&self) -> Consumer<'_> {
        Consumer {
            memory: self.memory(),
            receiving: &self.receiving,
            progress: &self.progress,
        }
    }

    fn read(&self, bytes: &mut [u8]) -> usize {
        // SAFETY: the slice has room for its own length.
        match unsafe { self.consumer().read(bytes.as_mut_ptr(), bytes.len(), false) }.unwrap() {
            Found::Bytes(n) => n,
            _ => 0,
        }
    }
}

/// No torn frame: whatever the consumer sees is whole and in order.
#[test]
fn frames_arrive_whole_and_in_order() {
    loom::model(|| {
        let shared = Shared::new(512);
        let producer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                assert_eq!(shared.write(&[1, 2, 3]), 3);
                assert_eq!(shared.write(&[4, 5, 6, 7, 8, 9, 10, 11, 12]), 9);
            })
        };
        let mut seen = Vec::new();
        let mut bytes = [0; 16];
        for _ in 0..2 {
            let n = shared.read(&mut bytes);
            seen.extend_from_slice(&bytes[..n]);
        }
        producer.join().unwrap();
        let n = shared.read(&mut bytes);
        seen.extend_from_slice(&bytes[..n]);
        assert_eq!(seen, (1..=12).collect::<Vec<u8>>());
    });
}

/// What the producer's count promises (`FIONREAD`) can be read.
#[test]
fn counted_bytes_can_be_read() {
    loom::model(|| {
        let shared = Shared::new(512);
        let producer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.write(&[1, 2, 3]);
                shared.write(&[4]);
            })
        };
        let counted = shared.output.bytes.load(Ordering::Acquire) as usize;
        let mut bytes = [0; 8];
        assert!(
            shared.read(&mut bytes) >= counted,
            "{counted} were promised"
        );
        producer.join().unwrap();
    });
}

/// The producer reuses bytes only after the consumer has copied them out.
#[test]
fn freed_bytes_are_reused_safely() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new(512);
        // 440 bytes and headers: the next write must jump into freed space.
        assert_eq!(shared.write(&[9; 440]), 440);
        let producer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.write(&[5; 32]))
        };
        let mut bytes = [0; 440];
        assert_eq!(shared.read(&mut bytes), 440);
        assert!(bytes.iter().all(|&b| b == 9), "overwritten while read");
        let written = producer.join().unwrap();
        let mut rest = [0; 64];
        let n = shared.read(&mut rest);
        assert_eq!(n, written);
        assert!(rest[..n].iter().all(|&b| b == 5));
    });
}

/// No lost wake-up: a consumer that decides to sleep is called for
/// anything published before or after.
#[test]
fn a_sleeper_is_called() {
    loom::model(|| {
        let shared = Shared::new(512);
        let producer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.write(&[1]);
                light();
                if shared.wait.load(Ordering::Relaxed) & WAIT_RX != 0 {
                    shared.calls.fetch_add(1, Ordering::Release);
                }
            })
        };
        shared.wait.store(WAIT_RX, Ordering::Relaxed);
        heavy();
        let asleep = !shared.consumer().is_ready();
        producer.join().unwrap();
        if asleep {
            assert_ne!(shared.calls.load(Ordering::Acquire), 0, "asleep for ever");
        }
    });
}

/// The same where the sleeper issues no heavy barrier any more, so that the light
/// one, which is not modelled here, means nothing.
#[test]
fn a_sleeper_behind_a_fence_is_called() {
    loom::model(|| {
        let (shared, face) = (Shared::new(512), Arc::new(Face::default()));
        face.wait.store(FENCED, Ordering::Relaxed);
        let producer = {
            let (shared, face) = (Arc::clone(&shared), Arc::clone(&face));
            thread::spawn(move || {
                shared.write(&[1]);
                if face.look_again(face.wait.load(Ordering::Relaxed)) & WAIT_RX != 0 {
                    shared.calls.fetch_add(1, Ordering::Release);
                }
            })
        };
        face.say_asleep(true);
        let asleep = !shared.consumer().is_ready();
        producer.join().unwrap();
        if asleep {
            let calls = shared.calls.load(Ordering::Acquire);
            assert_ne!(calls, 0, "asleep for ever");
        }
    });
}

/// The same through a group's door and log: the sleeper finds the slot in the
/// log, or is rung.
#[test]
fn a_sleeping_set_is_rung_or_finds_the_log() {
    loom::model(|| {
        let door = Arc::new(Door::default());
        let tail = Arc::new(Tail::default());
        let entries = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let rung = Arc::new(AtomicU32::new(0));
        let waker = {
            let (door, tail, entries, rung) =
                (door.clone(), tail.clone(), entries.clone(), rung.clone());
            thread::spawn(move || {
                Log::new(&tail, &*entries).append(7);
                full();
                if door.sleepers.load(Ordering::Relaxed) != 0 {
                    rung.fetch_add(1, Ordering::Release);
                }
            })
        };
        let mut head = 0;
        door.sleepers.fetch_add(1, Ordering::AcqRel);
        full();
        let found = Log::new(&tail, &*entries).next(&mut head);
        waker.join().unwrap();
        if found == Entry::Empty {
            assert_ne!(rung.load(Ordering::Acquire), 0, "asleep for ever");
        } else {
            assert_eq!(found, Entry::Slot(7));
        }
    });
}

/// A door that one set leaves and two others want: whoever has the name has its own secret beside
/// it, and a waker that finds the taker asleep calls it by both.
#[test]
fn a_door_that_changes_hands_says_its_holders_secret() {
    loom::model(|| {
        let secret = |name: u64| name * 11;
        let door = Arc::new(Door::default());
        assert!(door.address.take(Address::NOWHERE, 1, secret(1)));
        let leaver = {
            let door = door.clone();
            thread::spawn(move || door.address.leave(1))
        };
        let taker = {
            let door = door.clone();
            thread::spawn(move || {
                let taken = door.address.take(Address::NOWHERE, 2, secret(2));
                if taken {
                    door.sleepers.store(1, Ordering::Release);
                }
                taken
            })
        };
        if door.sleepers.load(Ordering::Acquire) != 0 {
            assert_eq!(door.address.look(), (2, secret(2)), "not heard");
        }
        let taken = door.address.take(Address::NOWHERE, 3, secret(3));
        leaver.join().unwrap();
        let others = taker.join().unwrap();
        assert!(!(taken && others), "two holders");
        match door.address.look() {
            (Address::NOWHERE, _) => {}
            (name, said) => assert_eq!(said, secret(name), "{name} is not heard"),
        }
    });
}

/// Two appenders never hide each other's entry.
#[test]
fn a_log_keeps_every_entry() {
    loom::model(|| {
        let tail = Arc::new(Tail::default());
        let entries: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
        let appenders: Vec<_> = [3, 4]
            .into_iter()
            .map(|slot| {
                let (tail, entries) = (tail.clone(), entries.clone());
                thread::spawn(move || Log::new(&tail, &entries).append(slot))
            })
            .collect();
        for appender in appenders {
            appender.join().unwrap();
        }
        let mut head = 0;
        let log = Log::new(&tail, &entries);
        let (Entry::Slot(a), Entry::Slot(b)) = (log.next(&mut head), log.next(&mut head)) else {
            panic!("entry lost")
        };
        assert_eq!(a + b, 7);
        assert_eq!(log.next(&mut head), Entry::Empty);
    });
}

/// A token admits one at a time.
#[test]
fn a_token_excludes() {
    loom::model(|| {
        let token = Arc::new(Token::new());
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = [1, 2]
            .into_iter()
            .map(|me| {
                let (token, inside) = (token.clone(), inside.clone());
                thread::spawn(move || {
                    if token.try_take(Holder(me)).is_ok() {
                        assert_eq!(inside.load(Ordering::Relaxed), 0);
                        inside.store(1, Ordering::Relaxed);
                        inside.store(0, Ordering::Relaxed);
                        token.give();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Who takes the token of a dead receiver, whose stores ended somewhere, and the
/// producer, which goes on meanwhile, see one stream.
#[test]
fn a_receive_is_finished_under_a_producer() {
    for stores in 0..=6 {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let shared = Shared::new(512);
            assert_eq!(shared.write(&[1, 2, 3]), 3);
            let mut bytes = [0; 2];
            assert_eq!(shared.read(&mut bytes), 2);
            let (r, p) = (&shared.receiving, &shared.progress);
            let o = Ordering::Relaxed;
            let old = (
                p.bytes.load(o),
                r.left.load(o),
                r.read.load(o),
                p.read.load(o),
            );
            let (total, mark) = (r.total.load(o), r.mark.load(o));
            assert_eq!(shared.read(&mut bytes), 1);
            // The dead one's last stores are not made.
            let undo: [&dyn Fn(); 6] = [
                &|| r.total.store(total, o),
                &|| r.mark.store(mark, o),
                &|| p.bytes.store(old.0, o),
                &|| r.left.store(old.1, o),
                &|| r.read.store(old.2, o),
                &|| p.read.store(old.3, o),
            ];
            undo[stores..].iter().for_each(|undo| undo());
            let producer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || assert_eq!(shared.write(&[4; 8]), 8))
            };
            assert!(shared.consumer().repair());
            let mut seen = Vec::new();
            let mut bytes = [0; 16];
            let n = shared.read(&mut bytes);
            seen.extend_from_slice(&bytes[..n]);
            producer.join().unwrap();
            let n = shared.read(&mut bytes);
            seen.extend_from_slice(&bytes[..n]);
            let taken = if stores < 2 { 0 } else { 1 };
            assert_eq!(seen, [3, 4, 4, 4, 4, 4, 4, 4, 4][taken..]);
            assert_eq!(shared.progress.bytes.load(o), 11);
        });
    }
}
