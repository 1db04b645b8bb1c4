//! The sets inside a set.

use std::sync::atomic::Ordering;

use super::set::{SETS, Set};
use super::state::State;
use crate::stream::{SELDOM, TURN};

/// The sets inside a set at some moment.
pub(super) struct Inside {
    few: [Option<&'static Set>; 64],
    /// More than these take memory.
    more: Vec<&'static Set>,
}

impl Inside {
    pub(super) fn of(state: &State) -> Self {
        let mut inside = Self {
            few: [None; 64],
            more: Vec::new(),
        };
        for (to, from) in inside.few.iter_mut().zip(&state.nested) {
            *to = SETS.get(*from);
        }
        let more = state.nested.iter().skip(inside.few.len());
        inside.more.extend(more.filter_map(|&set| SETS.get(set)));
        inside
    }

    pub(super) fn each(inside: Option<Self>, visit: impl FnMut(&'static Set)) {
        if let Some(Self { few, more }) = inside {
            few.into_iter().flatten().chain(more).for_each(visit);
        }
    }
}

impl Set {
    /// How long a thread may sleep on the set between two looks, in nanoseconds, if not every connection in it, and in the
    /// sets inside, can wake that thread. `None`: all can.
    pub(crate) fn turn(&'static self) -> Option<u64> {
        let mut turn = if self.looks_in_turns() {
            Some(TURN)
        } else {
            self.may_wait_for_room().then_some(SELDOM)
        };
        self.each_inside(|nested| turn = turn.into_iter().chain(nested.turn()).min());
        turn
    }

    /// Whether there are sets inside it.
    pub(crate) fn has_nested(&self) -> bool {
        self.nested.load(Ordering::Acquire) != 0
    }

    pub(super) fn each_inside(&'static self, visit: impl FnMut(&'static Set)) {
        if self.nested.load(Ordering::Acquire) != 0 {
            let inside = self.with(|state| Inside::of(state));
            Inside::each(inside, visit);
        }
    }
}
