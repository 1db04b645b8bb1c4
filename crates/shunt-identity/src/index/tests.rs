use super::*;
use crate::program::{ACTIVE_ESTABLISHED, PASSIVE_ESTABLISHED};
use proptest::prelude::*;

/// A log as the kernel writes it.
struct Written {
    records: Vec<Found>,
    capacity: u64,
}

impl Records for Written {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn last(&self) -> u64 {
        self.records.len() as u64
    }

    fn read(&self, serial: u64) -> Found {
        if serial + self.capacity <= self.last() {
            return Found::Gone;
        }
        self.records[serial as usize - 1]
    }
}

type Scene = Index<Written>;

/// The numbers of the connection that most tests are about, as its connector has them.
const OURS: (u32, u32) = (7000, 9000);

fn scene(capacity: u64) -> Scene {
    Index::new(Written {
        records: Vec::new(),
        capacity,
    })
}

impl Scene {
    /// Writes a record of a socket. Each is a millisecond later than the one before.
    fn write(&mut self, side: Side, cookie: u64, (sent, received): (u32, u32)) -> u64 {
        let serial = self.records.last() + 1;
        let (op, sent, received) = match side {
            Side::Connector => (ACTIVE_ESTABLISHED, sent, received),
            Side::Acceptor => (PASSIVE_ESTABLISHED, received, sent),
        };
        self.records.records.push(Found::Complete(Record {
            serial,
            cookie,
            netns: 1,
            established: serial * 1_000_000,
            sent,
            received,
            op,
            remote_port: 0,
        }));
        cookie
    }

    fn connector(&mut self, cookie: u64, numbers: (u32, u32)) -> u64 {
        self.write(Side::Connector, cookie, numbers)
    }

    fn acceptor(&mut self, cookie: u64, numbers: (u32, u32)) -> u64 {
        self.write(Side::Acceptor, cookie, numbers)
    }

    /// Others' connections.
    fn others(&mut self, count: u32) {
        for number in 0..count {
            let cookie = 1_000_000 + self.records.last();
            self.connector(cookie, (1, number));
        }
    }

    /// The cookie of the other end.
    fn found(&mut self, cookie: u64) -> Option<u64> {
        self.catch_up();
        let identity = self.of(cookie)?;
        Some(self.mirror(&identity)?.0)
    }
}

#[test]
fn ends_with_mirrored_numbers_find_each_other() {
    let mut scene = scene(8);
    let (connector, acceptor) = (scene.connector(1, OURS), scene.acceptor(2, OURS));
    assert_eq!(scene.found(connector), Some(acceptor));
    assert_eq!(scene.found(acceptor), Some(connector));
}

#[test]
fn of_two_on_one_side_none_has_a_mirror() {
    for side in [Side::Connector, Side::Acceptor] {
        let mut scene = scene(8);
        let (connector, acceptor) = (scene.connector(1, OURS), scene.acceptor(2, OURS));
        let forged = scene.write(side, 3, OURS);
        for cookie in [connector, acceptor, forged] {
            assert_eq!(scene.found(cookie), None);
        }
    }
}

/// The true connector's record had to go for newer ones. (The other forgeries are in `tests/forged.rs`.)
#[test]
fn a_connector_that_is_later_than_its_acceptor_has_no_mirror() {
    for at_once in [true, false] {
        let mut scene = scene(4);
        scene.connector(1, OURS);
        scene.others(2);
        let acceptor = scene.acceptor(2, OURS);
        if !at_once {
            assert_eq!(scene.found(acceptor), Some(1));
        }
        scene.others(1);
        let forged = scene.connector(3, OURS);
        assert_eq!(scene.found(forged), None);
        assert_eq!(scene.found(acceptor), None);
    }
}

/// Nobody takes the place of one beside the other.
#[test]
fn both_ends_are_forgotten_with_the_first() {
    let mut scene = scene(4);
    scene.connector(1, OURS);
    scene.others(1);
    let acceptor = scene.acceptor(2, OURS);
    assert_eq!(scene.found(acceptor), Some(1));
    scene.others(2);
    scene.catch_up();
    assert_eq!(
        scene.places(Side::Acceptor, Numbers::of(Side::Connector, OURS.0, OURS.1)),
        None
    );
    assert!(scene.of(acceptor).is_some());
}

#[test]
fn an_acceptor_follows_its_connector_soon() {
    let at = |side, milliseconds| Identity {
        netns: 1,
        side,
        remote_port: 1,
        sent: 1,
        received: 2,
        established: Duration::from_millis(milliseconds),
    };
    let connector = at(Side::Connector, 5000);
    let acceptor = |milliseconds| at(Side::Acceptor, milliseconds);
    for (then, is_one) in [(4999, false), (5000, true), (7000, true), (7001, false)] {
        assert_eq!(
            is_one_handshake(&connector, &acceptor(then)),
            is_one,
            "{then}"
        );
        assert_eq!(
            is_one_handshake(&acceptor(then), &connector),
            is_one,
            "{then}"
        );
    }
    assert!(!is_one_handshake(&connector, &connector));
}

/// One processor is slower than another.
#[test]
fn a_record_in_work_is_read_later() {
    let mut scene = scene(8);
    let (connector, acceptor) = (scene.connector(1, OURS), scene.acceptor(2, OURS));
    let complete = std::mem::replace(&mut scene.records.records[0], Found::InWork);
    assert_eq!(scene.found(acceptor), None);
    scene.records.records[0] = complete;
    assert_eq!(scene.found(acceptor), Some(connector));
}

#[test]
fn a_record_in_work_is_not_awaited_for_ever() {
    let mut scene = scene(4);
    scene.connector(1, OURS);
    scene.records.records[0] = Found::InWork;
    scene.catch_up();
    assert_eq!(scene.in_work, [1]);
    scene.others(4);
    scene.catch_up();
    assert!(scene.in_work.is_empty());
}

#[test]
fn a_socket_that_has_connected_anew_is_no_mirror() {
    let mut scene = scene(8);
    let (connector, acceptor) = (scene.connector(1, OURS), scene.acceptor(2, OURS));
    scene.connector(connector, (5, 6));
    assert_eq!(scene.found(acceptor), None);
    assert_eq!(scene.found(connector), None);
}

/// Records of few sockets and numbers: what is kept is what the last ones say, however often somebody looks.
fn records() -> impl Strategy<Value = Vec<(bool, u64, u32, bool)>> {
    proptest::collection::vec((any::<bool>(), 1..6u64, 0..4u32, any::<bool>()), 0..60)
}

proptest! {
    #[test]
    fn no_more_is_kept_than_the_log_has(records in records()) {
        const CAPACITY: usize = 8;
        let mut scene = scene(CAPACITY as u64);
        for (connects, cookie, number, looks) in records {
            let side = if connects { Side::Connector } else { Side::Acceptor };
            scene.write(side, cookie, (number, number));
            if looks {
                scene.catch_up();
                prop_assert!(scene.entered.len() <= CAPACITY);
                let gone = scene.records.last().saturating_sub(CAPACITY as u64);
                prop_assert!(scene.ends.values().all(|serial| *serial > gone));
                prop_assert!(scene.pairs.values().all(|pair| pair.first > gone));
            }
        }
    }

    /// Whoever is found is the only other one with these numbers since it came.
    #[test]
    fn a_mirror_is_the_only_one(records in records()) {
        let mut scene = scene(8);
        for (connects, cookie, number, looks) in records {
            let side = if connects { Side::Connector } else { Side::Acceptor };
            scene.write(side, cookie, (number, number));
            if !looks {
                continue;
            }
            let Some(other) = scene.found(cookie) else {
                continue;
            };
            let numbers = Numbers::of(side, number, number);
            let since = scene.pairs[&numbers].first..=scene.records.last();
            let cookies: Vec<u64> = since
                .filter_map(|serial| match scene.records.read(serial) {
                    Found::Complete(record) if record.sent == number => Some(record.cookie),
                    _ => None,
                })
                .collect();
            prop_assert_eq!(cookies, [other, cookie]);
        }
    }
}
