//! Which sockets wait to be attached, so that a wait on a set with many members need not look at
//! each of these to find them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shunt_abi::counters::Stage;

use crate::pool;

/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// A bit for each socket object, by its index. It stays when the socket has been attached, until
/// [`each`] comes by.
static BITS: [AtomicU64; pool::MOST / 64] = [const { AtomicU64::new(0) }; pool::MOST / 64];

/// Notes that the socket of this index has moved from one stage to another.
pub(super) fn note(index: u32, from: Stage, to: Stage) {
    if to == Stage::Paired {
        set(index);
        COUNT.fetch_add(1, Ordering::AcqRel);
    } else if from == Stage::Paired {
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}

fn set(index: u32) {
    if let Some(word) = BITS.get(index as usize / 64) {
        word.fetch_or(1 << (index % 64), Ordering::SeqCst);
    }
}

/// Whether some socket of this process waits to be attached.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Calls `visit` with each of the first `used` sockets that waits to be attached, beginning behind the index
/// `behind`, as long as `visit` says so. `find` gives the socket of an index, if it waits.
pub(super) fn each<T>(
    behind: u32,
    used: u32,
    find: impl Fn(u32) -> Option<T>,
    mut visit: impl FnMut(T) -> bool,
) {
    let words = used.div_ceil(64).clamp(1, BITS.len() as u32);
    let start = (behind + 1) % (words * 64);
    let above = u64::MAX << (start % 64);
    // The word of the start comes twice: first with what is above, last with what is below.
    for turn in 0..=words {
        let number = (start / 64 + turn) % words;
        let part = match turn {
            0 => above,
            turn if turn == words => !above,
            _ => u64::MAX,
        };
        let word = &BITS[number as usize];
        let mut left = word.load(Ordering::SeqCst) & part;
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            let index = number * 64 + bit.trailing_zeros();
            if let Some(waiting) = waiting(word, bit, || find(index))
                && !visit(waiting)
            {
                return;
            }
        }
    }
}

/// The socket that a bit stands for, if it still waits to be attached; otherwise clears the bit.
fn waiting<T>(word: &AtomicU64, bit: u64, find: impl Fn() -> Option<T>) -> Option<T> {
    let found = find();
    if found.is_some() {
        return found;
    }
    word.fetch_and(!bit, Ordering::SeqCst);
    // It may have been paired before the bit went, as another connection.
    let found = find();
    if found.is_some() {
        word.fetch_or(bit, Ordering::SeqCst);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Socket;
    use super::*;

    /// Sockets of this test, under numbers that no descriptor has.
    fn sockets(many: i32) -> Vec<&'static Socket> {
        let number = |i| 200_000 + i;
        (0..many)
            .map(|i| Socket::enter(number(i), Stage::Claimed).unwrap())
            .collect()
    }

    fn found(behind: u32, most: usize) -> Vec<u32> {
        let mut found = Vec::new();
        Socket::each_paired(behind, |socket| {
            found.push(socket.index());
            found.len() < most
        });
        found
    }

    #[test]
    fn each_that_waits_is_found_once_from_anywhere_on() {
        let _alone = crate::both_ends::one_at_a_time();
        let all = sockets(200);
        let waiting: Vec<_> = all.iter().step_by(9).collect();
        assert!(!any() && found(0, 200).is_empty());
        for socket in &waiting {
            assert!(socket.move_on(Stage::Claimed, Stage::Paired));
        }
        let mut indices: Vec<_> = waiting.iter().map(|socket| socket.index()).collect();
        for behind in [0, 1, 62, 63, 64, indices[7], 199] {
            let mut seen = found(behind, 200);
            let after = indices.iter().filter(|index| **index > behind).count();
            assert!(seen[..after].is_sorted() && seen[after..].is_sorted());
            seen.sort_unstable();
            assert_eq!(seen, indices);
        }
        assert_eq!(found(indices[3], 2), indices[4..6]);
        // Attached ones are forgotten, and found again as another connection.
        for socket in &waiting[1..] {
            assert!(socket.move_on(Stage::Paired, Stage::Attached));
        }
        assert_eq!(found(0, 200), indices[..1]);
        waiting[5].set_stage(Stage::Claimed);
        assert!(waiting[5].move_on(Stage::Claimed, Stage::Paired));
        indices = vec![indices[0], indices[5]];
        assert_eq!(found(4000, 200).len(), 2);
        assert!(found(0, 200).iter().all(|index| indices.contains(index)));
        for socket in [waiting[0], waiting[5]] {
            socket.move_on(Stage::Paired, Stage::Attached);
        }
        assert!(!any() && found(0, 200).is_empty());
    }
}
