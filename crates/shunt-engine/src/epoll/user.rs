//! A call on a set that is under way.

use libc::c_int;

use super::set::Set;
use crate::hold::{self, Held, Taken};
use crate::thread::is_alone;

/// A call on a set under way: the set outlives it, whoever closes the last descriptor meanwhile. In a process with
/// one thread nobody does, and nothing is counted.
#[derive(Clone, Copy)]
pub(crate) struct User {
    set: &'static Set,
    held: Option<Taken>,
}

impl User {
    /// A call on the set that `fd` names, if it names one.
    #[inline(always)]
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        let held = (!is_alone()).then(Taken::now);
        let set = if held.is_some() {
            hold::get(fd)?
        } else {
            Set::of(fd)?
        };
        Some(Self { set, held })
    }

    /// The set.
    #[inline]
    pub(crate) fn set(self) -> &'static Set {
        self.set
    }

    /// The call is over, or its thread cancelled.
    #[inline]
    pub(crate) fn leave(self) {
        if self.held.is_some_and(Taken::lasts) {
            self.set.unhold();
        }
    }
}
