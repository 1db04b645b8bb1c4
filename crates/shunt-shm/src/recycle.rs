//! A connection that both sides have closed in order, and whose base socket and slot they use again for the next one.
//!
//! ```text
//!              connector                                     acceptor
//!   InUse ── closes ──> Aside ── connects ──> Offered    InUse ── closes ──> Aside ── accepts ──> Waits
//!     ^                   ^  └─ the peer does not │        ^                   ^ └── waits no more ─┘ │
//!     │                   │     wait any more     │        │                   │                      │
//!     │                   └── Withdrawn <─────────┤        │                   └─ it is withdrawn ─ Taking
//!     └──── the next life: it is taken ───────────┘        └──────── the next life: taken ────────────┘
//! ```
//!
//! Each side has one word, [`Turn`] and life, which it alone writes. From `InUse` and `Aside` a side may give up at any time
//! (`Away`): then it closes its base socket, and the kernel tells the peer.
//!
//! What is offered is honoured, though nobody answers it: the connector's program goes on at once. So three pairs of a
//! store and a look, each with a full barrier between them, decide who sees whom:
//!
//! * `Offered`, then a look whether the peer still `Waits`; against *waits no more*, then a look at the offer. Either the
//!   connector withdraws, or the acceptor takes.
//! * `Withdrawn`, then a look whether the peer is `Taking`; against `Taking`, then a look whether the offer still stands. A
//!   connector that sees `Taking` offers anew: whichever of both words the acceptor has seen, it takes.
//! * `Taking` is left for `Waits` or `Aside`, then a look for another offer.
//!
//! An acceptor's word is changed by the thread that accepts, or with a lock of the process; likewise a connector's. Nothing
//! here makes a system call or waits, so the same code runs in models (`recycle/model.rs`).

use crate::atomic::{AtomicU64, Ordering, full};
use crate::path::step;
use crate::publish;
use crate::slot::recycled_life;

#[cfg(all(test, model))]
mod model;

/// How often both sides may meet in the middle of an offer before one gives up: an honest peer has its turn long before.
const TRIES: u32 = 1000;

/// How far a side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Turn {
    /// It keeps nothing: the kernel tells of its end.
    Away = 0,
    /// The connection is the program's; the side may put it aside.
    InUse = 1,
    /// The program has closed it in order, and the base socket is kept.
    Aside = 2,
    /// The acceptor's: a thread waits for the next connection here.
    Waits = 3,
    /// The connector's: the next connection has begun.
    Offered = 4,
    /// The connector's: the offer does not hold any more.
    Withdrawn = 5,
    /// The acceptor's: a thread looks whether the offer holds.
    Taking = 6,
    /// The acceptor's: the next connection has begun, and no `accept` has returned it yet.
    Taken = 7,
}

impl Turn {
    const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::InUse,
            2 => Self::Aside,
            3 => Self::Waits,
            4 => Self::Offered,
            5 => Self::Withdrawn,
            6 => Self::Taking,
            7 => Self::Taken,
            _ => Self::Away,
        }
    }
}

/// What a side's word says: how far it is, in which life of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// The life of the slot.
    pub life: u32,
    /// How far.
    pub turn: Turn,
}

impl Said {
    /// The life of the connection that the program has, which a connector that has offered it is in at once.
    const fn connection(self) -> u32 {
        match self.turn {
            Turn::Offered | Turn::Withdrawn => recycled_life(self.life),
            _ => self.life,
        }
    }
}

/// One side, by both words. A peer's is not trusted: it may say anything, and the worst that it can bring about is that this
/// side begins a connection with it, or none.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// This side's word.
    pub own: &'a AtomicU64,
    /// The other one's.
    pub peer: &'a AtomicU64,
}

impl Side<'_> {
    /// What this side says.
    #[must_use]
    pub fn own(&self) -> Said {
        read(self.own, Ordering::Relaxed)
    }

    /// What the peer says (acquire: what it wrote before is visible).
    #[must_use]
    pub fn peer(&self) -> Said {
        read(self.peer, Ordering::Acquire)
    }

    fn say(&self, life: u32, turn: Turn) {
        step();
        publish::word(self.own, u64::from(life) << 32 | turn as u64);
        step();
    }

    /// The connection of this life may be put aside at this end. Before the peer may see that this side honours its ring.
    pub fn begin(&self, life: u32) {
        self.say(life, Turn::InUse);
    }

    /// The life of the connection that the program has. A connector that has offered it is in it at once.
    #[must_use]
    pub fn life(&self) -> u32 {
        self.own().connection()
    }

    /// Whether the connection may be put aside, as far as both words say. A connector's offer is over once it is taken.
    #[must_use]
    pub fn may_put_aside(&self) -> bool {
        let (own, peer) = (self.own(), self.peer());
        let is_in_use = matches!(own.turn, Turn::InUse | Turn::Offered | Turn::Withdrawn);
        is_in_use && peer.connection() == own.connection() && peer.turn != Turn::Away
    }

    /// Puts it aside: the program has closed it, or is about to. As [`Self::may_put_aside`] allows.
    pub fn put_aside(&self) {
        self.say(self.life(), Turn::Aside);
    }

    /// Whether the peer has put aside the connection that the program has here, or may just have closed: no FIN tells of
    /// its end. Not where this side has given up, or has never begun: there the kernel tells, whatever the peer says.
    #[must_use]
    pub fn has_peer_put_aside(&self) -> bool {
        let (own, peer) = (self.own(), self.peer());
        own.turn != Turn::Away
            && peer.life == own.connection()
            && matches!(peer.turn, Turn::Aside | Turn::Waits)
    }

    /// Gives up: the caller closes the base socket next. An acceptor that waits has [ended](Self::end_wait) that before.
    pub fn give_up(&self) {
        self.say(self.life(), Turn::Away);
    }

    /// Whether the peer may offer what an acceptor has put aside, now or soon.
    #[must_use]
    pub fn may_be_offered(&self) -> bool {
        let (own, peer) = (self.own(), self.peer());
        own.turn == Turn::Aside && peer.turn != Turn::Away && peer.connection() == own.life
    }

    /// An acceptor's, put aside: a thread waits for an offer from here on. `true`: there is one.
    pub fn wait(&self) -> bool {
        self.change(Turn::Waits);
        self.is_offered()
    }

    /// It waits no more. `true`: there is an offer, to be taken; from here on none is made that holds.
    pub fn end_wait(&self) -> bool {
        self.change(Turn::Aside);
        self.is_offered()
    }

    /// The caller looks for an offer next.
    fn change(&self, turn: Turn) {
        self.say(self.own().life, turn);
        // Pairs with the one between the peer's offer and its look.
        full();
    }

    /// Whether an offer stands.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.peer()
            == Said {
                life: self.own().life,
                turn: Turn::Offered,
            }
    }

    /// The acceptor takes what is offered: `begin` has its slot begin the life, and then the connector is told. `false`: the
    /// offer has been withdrawn, and none stands. Also if the peer makes and withdraws offers without end: this side gives up then.
    pub fn take(&self, begin: impl FnOnce(u32)) -> bool {
        self.take_from(|| self.is_offered(), begin)
    }

    fn take_from(&self, mut is_offered: impl FnMut() -> bool, begin: impl FnOnce(u32)) -> bool {
        let before = self.own();
        for _ in 0..TRIES {
            self.say(before.life, Turn::Taking);
            // Pairs with the one between the peer's `Withdrawn` and its look.
            full();
            if is_offered() {
                let next = recycled_life(before.life);
                begin(next);
                self.say(next, Turn::Taken);
                return true;
            }
            // Who offers anew meanwhile, and finds `Taking`, relies on this look.
            self.change(before.turn);
            if !is_offered() {
                return false;
            }
        }
        self.give_up();
        false
    }

    /// An `accept` returns what was taken.
    pub fn accept(&self) {
        self.say(self.own().life, Turn::InUse);
    }

    /// Whether an offer of the connector's would be taken.
    #[must_use]
    pub fn may_offer(&self) -> bool {
        let (own, peer) = (self.own(), self.peer());
        own.turn == Turn::Aside && peer.turn == Turn::Waits && peer.life == own.life
    }

    /// Whether that may be so soon: the acceptor's program has the connection still, or nobody waits there just now.
    #[must_use]
    pub fn may_offer_soon(&self) -> bool {
        let (own, peer) = (self.own(), self.peer());
        let is_near = matches!(peer.turn, Turn::InUse | Turn::Aside | Turn::Taking);
        own.turn == Turn::Aside && is_near && peer.life == own.life
    }

    /// The connector offers the next life, which its slot has begun. `true`: the acceptor takes it, unless its process dies.
    /// `false`: nobody has seen it, or the peer looks without end, and this side has given up.
    pub fn offer(&self) -> bool {
        self.offer_to(|| self.peer())
    }

    fn offer_to(&self, mut peer: impl FnMut() -> Said) -> bool {
        let life = self.own().life;
        for _ in 0..TRIES {
            self.say(life, Turn::Offered);
            // Pairs with those after the peer's `Waits`, `Aside` and `Taking`.
            full();
            if self.is_awaited(peer()) {
                return true;
            }
            self.say(life, Turn::Withdrawn);
            // Pairs with the one after the peer's `Taking`.
            full();
            let said = peer();
            if said.life == recycled_life(life) {
                return true;
            }
            if said.life != life || said.turn != Turn::Taking {
                self.say(life, Turn::Aside);
                return false;
            }
            // It may have seen the offer or not, and looks for another one before it leaves.
        }
        self.give_up();
        false
    }

    /// Whether the peer, which looks after the offer was made, will find it.
    fn is_awaited(&self, peer: Said) -> bool {
        let life = self.own().life;
        peer.life == recycled_life(life)
            || peer.life == life && matches!(peer.turn, Turn::Waits | Turn::Taking)
    }

    /// Whether the acceptor has taken what this side has offered.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.peer().life == self.life()
    }

    /// Whether no `accept` of the peer's has returned what this side has offered.
    #[must_use]
    pub fn is_unaccepted(&self) -> bool {
        let (own, peer) = (self.own(), self.peer());
        own.turn == Turn::Offered && (peer.life != own.connection() || peer.turn == Turn::Taken)
    }
}

fn read(word: &AtomicU64, order: Ordering) -> Said {
    let word = word.load(order);
    Said {
        life: (word >> 32) as u32,
        turn: Turn::from_number(word as u32),
    }
}

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    fn words() -> [AtomicU64; 2] {
        [AtomicU64::new(0), AtomicU64::new(0)]
    }

    fn sides([one, other]: &[AtomicU64; 2]) -> [Side<'_>; 2] {
        [
            Side {
                own: one,
                peer: other,
            },
            Side {
                own: other,
                peer: one,
            },
        ]
    }

    /// Both have put aside their first connection.
    fn both_aside(words: &[AtomicU64; 2]) -> [Side<'_>; 2] {
        let sides = sides(words);
        sides.iter().for_each(|side| side.begin(256));
        for side in sides {
            assert!(side.may_put_aside());
            side.put_aside();
        }
        sides
    }

    #[test]
    fn what_is_offered_to_who_waits_is_taken_and_both_go_on_in_the_next_life() {
        let words = words();
        let [connector, acceptor] = both_aside(&words);
        assert!(!connector.may_offer() && !acceptor.wait());
        assert!(connector.may_offer());
        assert!(connector.offer());
        assert!(!connector.is_taken() && !connector.may_put_aside());
        let mut begun = 0;
        assert!(acceptor.is_offered() && acceptor.take(|life| begun = life));
        assert_eq!((begun, connector.life(), acceptor.life()), (257, 257, 257));
        assert!(connector.is_unaccepted() && !acceptor.may_put_aside());
        acceptor.accept();
        assert!(!connector.is_unaccepted());
        assert!(connector.is_taken() && connector.may_put_aside() && acceptor.may_put_aside());
    }

    #[test]
    fn nothing_is_offered_to_who_waits_no_more() {
        let words = words();
        let [connector, acceptor] = both_aside(&words);
        assert!(!acceptor.wait() && connector.may_offer());
        assert!(!acceptor.end_wait() && !connector.may_offer() && connector.may_offer_soon());
        // The look before was too early.
        assert!(!connector.offer());
        assert!(!acceptor.is_offered() && !acceptor.take(|_| panic!("withdrawn")));
        assert!(!acceptor.wait() && connector.may_offer());
    }

    #[test]
    fn what_is_offered_under_the_eyes_of_the_acceptor_is_taken_although_it_was_withdrawn() {
        let words = words();
        let [connector, acceptor] = both_aside(&words);
        acceptor.say(256, Turn::Taking);
        connector.say(256, Turn::Withdrawn);
        assert!(connector.offer());
        // It had seen the withdrawal, and is about to leave.
        assert!(acceptor.end_wait() && acceptor.take(|_| {}));
        assert!(connector.is_taken());
    }

    #[test]
    fn who_closes_later_sees_that_no_fin_tells_of_the_end() {
        let words = words();
        let [connector, acceptor] = sides(&words);
        connector.begin(512);
        assert!(!connector.may_put_aside(), "the peer cannot");
        acceptor.begin(512);
        connector.put_aside();
        assert!(acceptor.has_peer_put_aside() && !connector.has_peer_put_aside());
        connector.give_up();
        assert!(!acceptor.has_peer_put_aside() && !acceptor.may_put_aside());
    }

    #[test]
    fn a_side_that_has_not_begun_or_has_given_up_asks_the_kernel() {
        let words = words();
        let [victim, peer] = sides(&words);
        peer.say(0, Turn::Aside);
        assert!(!victim.has_peer_put_aside(), "this side never began");
        let [one, other] = both_aside(&words);
        assert!(one.has_peer_put_aside());
        one.give_up();
        assert!(!one.has_peer_put_aside() && !other.has_peer_put_aside());
    }

    #[test]
    fn a_peer_that_never_makes_up_its_mind_is_given_up() {
        let words = words();
        let [connector, acceptor] = both_aside(&words);
        let by_turns = |turns: [Turn; 2]| {
            let mut looks = 0;
            move || {
                looks += 1;
                let turn = turns[looks % 2];
                Said { life: 256, turn }
            }
        };
        assert!(!connector.offer_to(by_turns([Turn::Taking, Turn::Aside])));
        let mut offers = by_turns([Turn::Offered, Turn::Withdrawn]);
        assert!(!acceptor.take_from(|| offers().turn == Turn::Offered, |_| panic!("withdrawn")));
        assert_eq!(
            (connector.own().turn, acceptor.own().turn),
            (Turn::Away, Turn::Away)
        );
    }

    #[test]
    fn a_word_of_another_life_says_nothing() {
        let words = words();
        let [connector, acceptor] = both_aside(&words);
        acceptor.begin(1 << 20);
        acceptor.say(1 << 20, Turn::Waits);
        assert!(!connector.may_offer() && !connector.has_peer_put_aside());
        words[1].store(256 << 32 | 77, Ordering::Relaxed);
        assert_eq!(acceptor.own().turn, Turn::Away);
    }
}
