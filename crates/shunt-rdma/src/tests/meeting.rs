//! Two processes that meet over an emulated wire: what each says reaches the other late, but in order.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::endpoint::{Endpoint, Layer};
use crate::fabric::{Fabric, Manners, Nic, Queue};
use crate::link::{Link, News};
use crate::meeting::{Connected, Heard, Meeting, Nonsense};
use crate::port::{Found, Port};
use crate::transport::{Access, Completion, Post, QueueId, Refused, Transport};
use crate::word::Word;

use super::store::Store;

/// An emulated NIC that refuses to connect.
struct Unconnected(Nic);

impl Transport for Unconnected {
    type Region = <Nic as Transport>::Region;
    type Queue = Queue;

    unsafe fn register(
        &self,
        at: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Self::Region, Refused> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(at, bytes, access) }
    }
    fn queue(&self) -> Result<Queue, Refused> {
        self.0.queue()
    }
    fn id(&self, queue: &Queue) -> QueueId {
        self.0.id(queue)
    }
    fn endpoint(&self, queue: &Queue) -> Endpoint {
        self.0.endpoint(queue)
    }
    fn connect(&self, _: &Queue, _: &Endpoint) -> Result<(), Refused> {
        Err(REFUSED)
    }
    fn end(&self, queue: &Queue) {
        self.0.end(queue);
    }
    fn post(
        &self,
        queue: &Queue,
        post: &Post<'_, Self::Region>,
        tag: Option<u64>,
    ) -> Result<(), Refused> {
        self.0.post(queue, post, tag)
    }
    fn poll(&self, into: &mut [Completion; crate::transport::BATCH]) -> Result<usize, Refused> {
        self.0.poll(into)
    }
    fn arm(&self) -> Result<(), Refused> {
        self.0.arm()
    }
    fn events(&self) -> i32 {
        self.0.events()
    }
    fn take_events(&self) {
        self.0.take_events();
    }
}

const REFUSED: Refused = Refused {
    what: "a test's peer",
    errno: libc::EPROTOTYPE,
};

/// A process: its port, and how far it is with the other.
struct Process<'a> {
    port: Port<'a, Nic>,
    meeting: Meeting<Nic>,
    /// The link that it has, its ends, and whether it may send.
    link: Option<(QueueId, [Endpoint; 2], bool)>,
    /// What it has been told, and has not looked at.
    inbox: VecDeque<Word>,
}

impl Process<'_> {
    fn new(fabric: &Fabric) -> Self {
        Self {
            port: Port::new(fabric.nic().unwrap()),
            meeting: Meeting::new(),
            link: None,
            inbox: VecDeque::new(),
        }
    }

    fn drop_link(&mut self) {
        if let Some((id, ..)) = self.link.take() {
            self.port.remove(id);
        }
    }

    /// What it says as it begins a round.
    fn begin(&mut self) -> Word {
        self.drop_link();
        self.meeting.begin(self.port.transport()).unwrap()
    }

    fn take_in(&mut self, connected: Connected<Queue>) {
        self.drop_link();
        let [own, peer] = connected.ends;
        let link = Link::new(self.port.transport(), connected.queue, &own, &peer);
        let id = self.port.add(link);
        self.link = Some((id, connected.ends, false));
    }

    /// Looks at the first of what it has been told, and says what it says to that.
    fn look(&mut self) -> Vec<Word> {
        let Some(word) = self.inbox.pop_front() else {
            return Vec::new();
        };
        match self.meeting.heard(self.port.transport(), &word) {
            Ok(Heard::Nothing) => Vec::new(),
            Ok(Heard::Connected(connected)) => {
                let words = connected.words().collect();
                self.take_in(connected);
                words
            }
            Ok(Heard::Met) => {
                let (.., may_send) = self.link.as_mut().expect("a link that is connected");
                *may_send = true;
                Vec::new()
            }
            Ok(Heard::Gone | Heard::Refused(..)) => panic!("nobody refuses here"),
            Err(Nonsense) => panic!("{word:?} at round {:?}", self.link),
        }
    }
}

/// Two of them. By turns they look at what they have been told, until there is nothing.
fn settle(both: &mut [Process<'_>; 2]) {
    while both.iter().any(|process| !process.inbox.is_empty()) {
        for side in 0..2 {
            let words = both[side].look();
            both[1 - side].inbox.extend(words);
        }
    }
}

fn both<'a>() -> [Process<'a>; 2] {
    let fabric = Fabric::new(Manners::GOOD);
    [Process::new(&fabric), Process::new(&fabric)]
}

fn assert_met(both: &[Process<'_>; 2]) {
    let [Some((_, one, true)), Some((_, other, true))] = [both[0].link, both[1].link] else {
        panic!("{:?} and {:?}", both[0].link, both[1].link);
    };
    assert_eq!(one, [other[1], other[0]], "they are connected to others");
}

#[test]
fn one_that_begins_is_answered() {
    let mut both = both();
    let offer = both[0].begin();
    both[1].inbox.push_back(offer);
    settle(&mut both);
    assert_met(&both);
}

#[test]
fn a_round_follows_another_whoever_finds_out_first() {
    let mut both = both();
    for side in [0, 1, 1] {
        let offer = both[side].begin();
        both[1 - side].inbox.push_back(offer);
        settle(&mut both);
        assert_met(&both);
    }
}

#[test]
fn what_is_sent_after_linked_finds_the_link_of_one_that_has_not_met_yet() {
    let store = Store::new(1);
    let mut both = both();
    let offer = both[0].begin();
    both[1].inbox.push_back(offer);
    let words = both[1].look();
    both[0].inbox.extend(words);
    while !both[0].inbox.is_empty() {
        // What this one says is still on its way.
        both[0].look();
    }
    let [(one, _, true), (other, _, false)] = both.each_ref().map(|process| process.link.unwrap())
    else {
        panic!("one of both has met");
    };
    let (transport, link) = both[0].port.link(one).unwrap();
    let lines = store.lines(0, 0);
    lines.own.begin(1, lines.out);
    // SAFETY: the store outlives the ports.
    unsafe { link.open(transport, 0, 1, lines) }.unwrap();
    let mut news = Vec::new();
    both[1].port.progress(|found| news.push(found)).unwrap();
    assert_eq!(news, [Found::News(other, 0, News::Ready)]);
}

proptest! {
    #[test]
    fn whatever_they_begin_when_they_end_up_with_the_same_queue_pair(
        steps in prop::collection::vec((0..2_usize, any::<bool>()), 1..60),
    ) {
        let mut both = both();
        let mut begun = false;
        for (side, begins) in steps {
            let words = if begins {
                begun = true;
                vec![both[side].begin()]
            } else {
                both[side].look()
            };
            both[1 - side].inbox.extend(words);
        }
        settle(&mut both);
        if begun {
            assert_met(&both);
        } else {
            prop_assert!(both.iter().all(|process| process.link.is_none()));
        }
    }
}

#[test]
fn a_side_that_cannot_connect_says_so_and_both_may_try_again() {
    let fabric = Fabric::new(Manners::GOOD);
    let nic = fabric.nic().unwrap();
    let unconnected = Unconnected(fabric.nic().unwrap());
    let (mut one, mut other) = (Meeting::new(), Meeting::new());
    let offers = [one.begin(&nic).unwrap(), other.begin(&unconnected).unwrap()];
    let Ok(Heard::Refused(REFUSED, gone)) = other.heard(&unconnected, &offers[0]) else {
        panic!("it has connected");
    };
    assert_eq!(gone, Word::Gone(1));
    let Ok(Heard::Connected(connected)) = one.heard(&nic, &offers[1]) else {
        panic!("it has not connected");
    };
    // Said before it has heard of that.
    for word in connected.words() {
        assert!(matches!(
            other.heard(&unconnected, &word),
            Ok(Heard::Nothing)
        ));
    }
    assert!(matches!(one.heard(&nic, &gone), Ok(Heard::Gone)));
    let again = other.begin(&unconnected).unwrap();
    assert_eq!(again.round(), 2);
    assert!(matches!(one.heard(&nic, &again), Ok(Heard::Connected(_))));
}

#[test]
fn nonsense_is_found_out_and_changes_nothing() {
    let fabric = Fabric::new(Manners::GOOD);
    let nics = [fabric.nic().unwrap(), fabric.nic().unwrap()];
    let (mut one, mut other) = (Meeting::new(), Meeting::new());
    for word in [Word::Linked(1), Word::Gone(1)] {
        assert!(
            matches!(one.heard(&nics[0], &word), Err(Nonsense)),
            "of no round"
        );
    }
    let offer = one.begin(&nics[0]).unwrap();
    for word in [Word::Linked(1), Word::Linked(2), Word::Gone(2)] {
        assert!(
            matches!(one.heard(&nics[0], &word), Err(Nonsense)),
            "{word:?} before an offer"
        );
    }
    let Ok(Heard::Connected(connected)) = other.heard(&nics[1], &offer) else {
        panic!("it has not connected");
    };
    assert!(
        matches!(other.heard(&nics[1], &offer), Err(Nonsense)),
        "twice"
    );
    let words: Vec<_> = connected.words().collect();
    assert!(matches!(
        one.heard(&nics[0], &words[0]),
        Ok(Heard::Connected(_))
    ));
    assert!(matches!(one.heard(&nics[0], &words[1]), Ok(Heard::Met)));
    assert!(
        matches!(one.heard(&nics[0], &words[1]), Err(Nonsense)),
        "twice"
    );
    let wrong = Endpoint {
        layer: Layer::Ethernet,
        ..connected.ends[0]
    };
    assert!(matches!(
        one.heard(&nics[0], &Word::Offer(1, wrong)),
        Err(Nonsense)
    ));
    assert!(matches!(
        one.heard(&nics[0], &Word::Gone(1)),
        Ok(Heard::Gone)
    ));
}
