use std::collections::VecDeque;
use std::net::SocketAddr;

use shunt_hosts::{Numbers, Side};

use super::hearing::MOST;
use super::*;
use crate::config::PINNED;

const NAMES: [HostId; 2] = [HostId([1; 16]), HostId([2; 16])];
const PLENTY: Budget = Budget {
    process: 64 << 20,
    all: 1 << 30,
};

fn address(host: usize, port: u16) -> SocketAddr {
    ([10, 0, 0, host as u8 + 1], port).into()
}

fn id(client: u64, cookie: u64) -> EndId {
    EndId { client, cookie }
}

/// The claim of the connector (host 0) or the acceptor (host 1) of the connection with this number.
fn claim(host: usize, number: u32, obstacle: u8) -> Claim {
    let ports = [40_000 + number as u16, 80];
    Claim {
        end: 0,
        process: 10 + host as u64,
        side: [Side::Connector, Side::Acceptor][host],
        numbers: Some(Numbers {
            sent: number * 2 + host as u32,
            received: number * 2 + 1 - host as u32,
        }),
        local: address(host, ports[host]),
        peer: address(1 - host, ports[1 - host]),
        obstacle,
    }
}

/// Two hosts whose words to each other are on their way.
struct Scene {
    tables: [Table; 2],
    on_the_way: [VecDeque<Frame>; 2],
    /// What each has had done of its own.
    done: [Vec<Act>; 2],
    is_there: bool,
}

impl Scene {
    fn new(budgets: [Budget; 2]) -> Self {
        let table = |host: usize| Table::new(NAMES[host], budgets[host]);
        Self {
            tables: [table(0), table(1)],
            on_the_way: [VecDeque::new(), VecDeque::new()],
            done: [Vec::new(), Vec::new()],
            is_there: true,
        }
    }

    fn perform(&mut self, host: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Tell(to, frame) => {
                    assert_eq!(to, NAMES[1 - host]);
                    self.on_the_way[1 - host].push_back(frame);
                }
                Act::Find(at) if self.is_there => {
                    assert_eq!(at, address(1 - host, 0).ip());
                    let acts = self.tables[host].found(at, NAMES[1 - host]);
                    self.perform(host, acts);
                }
                Act::Refuse(id, _) => {
                    self.done[host].push(act);
                    let acts = self.tables[host].forget(id);
                    self.perform(host, acts);
                }
                act => self.done[host].push(act),
            }
        }
    }

    /// Delivers all, as far as it goes.
    fn settle(&mut self) {
        while let Some(host) = (0..2).find(|host| !self.on_the_way[*host].is_empty()) {
            let frame = self.on_the_way[host].pop_front().unwrap();
            let acts = self.tables[host].said(NAMES[1 - host], frame);
            self.perform(host, acts);
        }
    }

    fn claim(&mut self, host: usize, id: EndId, claim: Claim) {
        let acts = self.tables[host].claim(id, claim);
        self.perform(host, acts);
    }

    fn forget(&mut self, host: usize, id: EndId) {
        let acts = self.tables[host].forget(id);
        self.perform(host, acts);
    }

    /// A connection between one process on each host, met at both ends.
    fn meet(&mut self, number: u32) -> [Seat; 2] {
        let own = |host: usize| id(10 + host as u64, number.into());
        (0..2).for_each(|host| self.claim(host, own(host), claim(host, number, 0)));
        self.settle();
        [0, 1].map(|host| match self.done[host].pop() {
            Some(Act::Meet(at, seat)) if at == own(host) => seat,
            other => panic!("{other:?}"),
        })
    }
}

#[test]
fn a_death_is_told_to_the_end_that_the_dead_has_met_and_to_no_other() {
    let mut scene = Scene::new([PLENTY; 2]);
    let [own, _] = scene.meet(1);
    let dead = scene.tables[1].afar(id(11, 1)).unwrap();
    scene.forget(1, id(11, 1));
    let gone = scene.tables[1].forget_client(11);
    scene.perform(1, gone);
    scene.perform(1, vec![dead.died(5, 6)]);
    scene.settle();
    let told = Act::Died(id(10, 1), own, [5, 6]);
    assert_eq!(scene.done[0].last(), Some(&told));
    // Of another end of that host's.
    let forged = Frame::Died {
        to: 1,
        from: 99,
        received: 5,
        sent: 6,
    };
    assert_eq!(scene.tables[0].said(NAMES[1], forged), []);
    assert_eq!(scene.tables[1].afar(id(11, 1)), None);
}

#[test]
fn the_two_ends_meet_in_whatever_order_they_are_claimed() {
    for (first, name) in NAMES.into_iter().enumerate() {
        let mut scene = Scene::new([PLENTY; 2]);
        scene.claim(first, id(10 + first as u64, 7), claim(first, 1, 0));
        scene.settle();
        let other = 1 - first;
        let invited = matches!(scene.done[other][..], [Act::Invite(host, _)] if host == name);
        assert!(invited, "{:?}", scene.done);
        scene.done[other].clear();
        scene.claim(other, id(10 + other as u64, 8), claim(other, 1, 0));
        scene.settle();
        let seats = [0, 1].map(|host| match scene.done[host][..] {
            [Act::Meet(_, seat)] => seat,
            _ => panic!("{:?}", scene.done),
        });
        assert_eq!(seats[0].slot, seats[1].slot);
        assert_eq!(seats[0].generation, seats[1].generation);
        assert!(seats[0].is_ours && !seats[1].is_ours && seats.iter().all(|s| s.is_first));
    }
}

#[test]
fn an_obstacle_at_either_end_is_the_reason_at_both_if_it_can_be_one() {
    let obstacles = [
        (Reason::NoDevice as u8, Reason::NoDevice),
        (Reason::PeerLeft as u8, Reason::OtherHost),
        (255, Reason::OtherHost),
    ];
    for ((number, told), host) in obstacles.into_iter().flat_map(|of| [(of, 0), (of, 1)]) {
        let mut scene = Scene::new([PLENTY; 2]);
        let obstacle = |at: usize| if at == host { number } else { 0 };
        for at in 0..2 {
            scene.claim(at, id(10 + at as u64, 7), claim(at, 1, obstacle(at)));
        }
        scene.settle();
        for at in 0..2 {
            let end = id(10 + at as u64, 7);
            assert_eq!(scene.done[at], [Act::Refuse(end, told)]);
            assert!(scene.tables[at].ours.is_empty() && scene.tables[at].by_id.is_empty());
        }
    }
}

#[test]
fn a_slot_is_given_again_when_both_have_left_it() {
    let mut scene = Scene::new([PLENTY; 2]);
    let [first, _] = scene.meet(1);
    scene.forget(0, id(10, 1));
    scene.settle();
    assert!(
        matches!(scene.done[1].pop(), Some(Act::Left(at, seat)) if at == id(11, 1) && seat.slot == first.slot)
    );
    let [second, _] = scene.meet(2);
    assert_ne!(
        second.slot, first.slot,
        "the other end may still look at it"
    );
    scene.forget(1, id(11, 1));
    scene.settle();
    let [third, there] = scene.meet(3);
    assert_eq!((third.slot, there.slot), (first.slot, first.slot));
    assert_ne!(third.generation, first.generation);
    assert!(!third.is_first && third.link == first.link);
}

#[test]
fn what_is_pinned_is_bounded_for_a_process_and_for_all() {
    let few = Budget {
        process: 2 * PINNED,
        all: 3 * PINNED,
    };
    for budgets in [[few, PLENTY], [PLENTY, few]] {
        let mut scene = Scene::new(budgets);
        scene.meet(1);
        let seats = scene.meet(2);
        let side = usize::from(budgets[1] == few);
        assert_eq!(seats[side].left, 0);
        let own = |host: usize, cookie| id(10 + host as u64, cookie);
        (0..2).for_each(|host| scene.claim(host, own(host, 3), claim(host, 3, 0)));
        scene.settle();
        // Who has no room says so; the other end is refused, or has met an end that is gone.
        assert_eq!(
            scene.done[side],
            [Act::Refuse(own(side, 3), Reason::Pinned)]
        );
        scene.done.iter_mut().for_each(Vec::clear);
        // As before when one is closed.
        (0..2).for_each(|host| scene.forget(host, own(host, 1)));
        (0..2).for_each(|host| scene.forget(host, own(host, 3)));
        scene.settle();
        scene.done.iter_mut().for_each(Vec::clear);
        scene.meet(4);
    }
}

#[test]
fn a_host_has_connections_only_where_it_was_found() {
    let mut scene = Scene::new([PLENTY; 2]);
    scene.claim(1, id(11, 7), claim(1, 1, 0));
    scene.settle();
    // A third host that has the key claims the other end.
    let stranger = HostId([0; 16]);
    let forged = Claim {
        end: 1,
        ..claim(0, 1, 0)
    };
    let acts = scene.tables[1].said(stranger, Frame::Claim(forged));
    assert_eq!(acts, [Act::Invite(stranger, forged)]);
    let seat = Frame::Seat {
        to: 1,
        from: 1,
        slot: 0,
        generation: 1,
    };
    assert_eq!(scene.tables[1].said(stranger, seat), []);
    // Nor does who was found there have what it has not claimed.
    let seat = Frame::Seat {
        to: 1,
        from: 9,
        slot: 0,
        generation: 1,
    };
    assert_eq!(scene.tables[1].said(NAMES[0], seat), []);
}

#[test]
fn a_host_that_is_lost_is_looked_for_again_and_what_has_met_goes_on() {
    let mut scene = Scene::new([PLENTY; 2]);
    let seats = scene.meet(1);
    scene.claim(0, id(10, 2), claim(0, 2, 0));
    scene.settle();
    scene.done.iter_mut().for_each(Vec::clear);
    scene.is_there = false;
    let acts = scene.tables[0].lost(NAMES[1]);
    let link = seats[0].link;
    let at = address(1, 0).ip();
    assert_eq!(acts, [Act::Gone { client: 10, link }, Act::Find(at)]);
    assert_eq!(scene.tables[0].failed(at), [id(10, 2)]);
    let row = scene.tables[0].list()[&at];
    assert_eq!((row.is_found, row.met), (false, 1));
    assert_eq!(scene.tables[0].forget(id(10, 1)), []);
    assert_eq!(scene.tables[0].pairs.find(10, NAMES[1], 11), None);
}

#[test]
fn words_go_between_processes_with_a_link_and_no_others() {
    let mut scene = Scene::new([PLENTY; 2]);
    let [near, far] = scene.meet(1);
    let text = [7; 96];
    assert_eq!(scene.tables[0].word(9, near.link, text), None);
    let act = scene.tables[0].word(10, near.link, text).unwrap();
    scene.perform(0, vec![act]);
    scene.settle();
    let (client, link) = (11, far.link);
    assert_eq!(scene.done[1], [Act::Word { client, link, text }]);
    let word = |from| Frame::Word { to: 11, from, text };
    assert_eq!(scene.tables[1].said(NAMES[0], word(12)), []);
    // When one has ended the other is told, and is heard no more.
    let acts = scene.tables[0].forget_client(10);
    scene.perform(0, acts);
    scene.settle();
    assert_eq!(scene.done[1].last(), Some(&Act::Gone { client, link }));
    assert_eq!(scene.tables[1].said(NAMES[0], word(10)), []);
    assert_eq!(scene.tables[1].word(11, link, text), None);
}

#[test]
fn nothing_is_left_of_what_is_forgotten() {
    let mut scene = Scene::new([PLENTY; 2]);
    for number in 0..100 {
        scene.meet(number);
    }
    for number in 0..100 {
        (0..2).for_each(|host| scene.forget(host, id(10 + host as u64, number)));
    }
    scene.settle();
    for table in &scene.tables {
        assert!(table.ours.is_empty() && table.met.is_empty() && table.by_id.is_empty());
        let host = table.hosts.values().next().unwrap();
        assert_eq!((host.theirs.len(), host.told.len()), (0, 0));
    }
}

#[test]
fn a_host_that_claims_without_end_is_remembered_no_further() {
    let mut table = Table::new(NAMES[0], PLENTY);
    for end in 0..MOST as u64 + 100 {
        let claim = Claim {
            end,
            ..claim(1, end as u32 & 0x3fff, 0)
        };
        table.said(NAMES[1], Frame::Claim(claim));
    }
    assert_eq!(table.hosts[&NAMES[1]].theirs.len(), MOST);
}
