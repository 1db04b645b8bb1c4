//! Who may send how much: each write and each note takes a receive of the peer's, and no more are on their way than the peer has
//! posted.
//!
//! A note carries how many the peer may send again. Where half of them are owed, a note goes for nothing else. Data stops while
//! some are left for notes, and notes stop while two are left for such grants: so a side that has taken what has come can always
//! say so, and a peer that waits for that is not forgotten.

/// Fewer receives than this make no queue pair.
pub const LEAST: u16 = 128;
/// How many receives data leaves to notes.
const FOR_NOTES: u32 = 32;
/// How many receives notes leave to notes that only grant.
const FOR_GRANTS: u32 = 2;

/// What a post is, for who may go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// A write of payload.
    Data,
    /// A note that says something.
    Note,
    /// A note that only grants.
    Grant,
}

/// Receives of the peer's that are left for this side, and ours that the peer has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grants {
    left: u32,
    owed: u32,
    half: u32,
}

/// The peer has sent more than it was granted, or grants more than there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdrawn;

impl Grants {
    /// At the beginning: what the peer has posted, and what this side has.
    #[must_use]
    pub fn new(peer: u16, own: u16) -> Self {
        Self {
            left: u32::from(peer),
            owed: 0,
            half: u32::from(own) / 2,
        }
    }

    /// How many posts of that rank may go out now.
    #[must_use]
    pub fn room(&self, rank: Rank) -> u32 {
        let kept = match rank {
            Rank::Data => FOR_NOTES,
            Rank::Note => FOR_GRANTS,
            Rank::Grant => 0,
        };
        self.left.saturating_sub(kept)
    }

    /// One has been posted.
    pub fn sent(&mut self) {
        debug_assert!(self.left > 0);
        self.left -= 1;
    }

    /// One of the peer's has come.
    ///
    /// # Errors
    /// [`Overdrawn`]: more than it may.
    pub fn received(&mut self) -> Result<(), Overdrawn> {
        self.owed += 1;
        if self.owed > 2 * self.half {
            return Err(Overdrawn);
        }
        Ok(())
    }

    /// The peer has posted this many receives anew.
    ///
    /// # Errors
    /// [`Overdrawn`]: it cannot have.
    pub fn granted(&mut self, receives: u16) -> Result<(), Overdrawn> {
        self.left += u32::from(receives);
        if self.left > u32::from(u16::MAX) {
            return Err(Overdrawn);
        }
        Ok(())
    }

    /// Whether a note is to go out that only grants.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.owed >= self.half
    }

    /// What the next note grants; it is posted.
    pub fn take_owed(&mut self) -> u16 {
        u16::try_from(std::mem::take(&mut self.owed)).expect("at most as many as are posted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::VecDeque;

    use proptest::prelude::*;

    /// What is on its way to a side: what it grants, if it is a note.
    type Wire = VecDeque<Option<u16>>;

    struct Side {
        grants: Grants,
        /// Receives that are posted, as the NIC counts them.
        posted: u32,
    }

    impl Side {
        fn send(&mut self, rank: Rank, wire: &mut Wire) -> bool {
            let may = self.grants.room(rank) > 0;
            if may {
                self.grants.sent();
                wire.push_back((rank != Rank::Data).then(|| self.grants.take_owed()));
            }
            may
        }

        /// Takes all that has come, and grants if that is due.
        fn progress(&mut self, inward: &mut Wire, outward: &mut Wire) {
            while let Some(note) = inward.pop_front() {
                // What the NIC would answer by RNR.
                self.posted = self.posted.checked_sub(1).expect("a receive");
                self.posted += 1;
                self.grants.received().unwrap();
                self.grants.granted(note.unwrap_or(0)).unwrap();
            }
            if self.grants.is_due() {
                assert!(self.send(Rank::Grant, outward), "no receive for a grant");
            }
        }
    }

    proptest! {
        #[test]
        fn no_receive_is_missing_and_nobody_is_stuck(steps in prop::collection::vec((0..6u8, 0..300u32), 1..200)) {
            let side = || Side { grants: Grants::new(LEAST, LEAST), posted: u32::from(LEAST) };
            let mut sides = [side(), side()];
            let mut wires = [Wire::new(), Wire::new()];
            for (step, times) in steps {
                let from = usize::from(step % 2);
                for _ in 0..times {
                    match step / 2 {
                        0 => { sides[from].send(Rank::Data, &mut wires[from]); }
                        1 => { sides[from].send(Rank::Note, &mut wires[from]); }
                        _ => progress(&mut sides, &mut wires, from),
                    }
                    // Never more on their way than receives.
                    prop_assert!(wires[from].len() <= usize::from(LEAST));
                }
            }
            // Once both have looked, both may send data again.
            for _ in 0..4 {
                progress(&mut sides, &mut wires, 0);
                progress(&mut sides, &mut wires, 1);
            }
            for side in &sides {
                prop_assert!(side.grants.room(Rank::Data) > 0);
            }
        }
    }

    fn progress(sides: &mut [Side; 2], wires: &mut [Wire; 2], of: usize) {
        let [first, second] = wires;
        let (outward, inward) = if of == 0 {
            (first, second)
        } else {
            (second, first)
        };
        sides[of].progress(inward, outward);
    }

    #[test]
    fn a_peer_that_sends_more_than_it_may_is_found_out() {
        let mut grants = Grants::new(LEAST, LEAST);
        for _ in 0..LEAST {
            assert_eq!(grants.received(), Ok(()));
        }
        assert_eq!(grants.received(), Err(Overdrawn));
        assert_eq!(grants.granted(u16::MAX), Err(Overdrawn));
    }
}
