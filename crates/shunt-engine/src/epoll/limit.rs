//! How long a wait may take.

use libc::timespec;

use crate::sys;

/// The end of a wait.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// Nanoseconds of the monotonic clock; `None`: for ever.
    until: Option<u64>,
    now: bool,
    /// Not in whole milliseconds.
    pub(crate) fine: bool,
}

impl Limit {
    /// From a relative time in nanoseconds; `None`: for ever.
    pub(crate) fn new(relative: Option<u64>) -> Self {
        Self {
            until: relative
                .filter(|&ns| ns != 0)
                .map(|ns| sys::now().saturating_add(ns)),
            now: relative == Some(0),
            fine: relative.is_some_and(|ns| ns % 1_000_000 != 0),
        }
    }

    /// Whether the call must not wait at all.
    #[inline]
    pub(crate) fn is_now(&self) -> bool {
        self.now
    }

    /// What is left, for the real call; `None`: for ever.
    pub(crate) fn left(&self) -> Option<timespec> {
        if self.now {
            return Some(span(0));
        }
        let left = self.until?.saturating_sub(sys::now());
        Some(span(left))
    }

    /// The same, but no more than `most` nanoseconds.
    pub(crate) fn left_of(&self, most: u64) -> timespec {
        match self.until {
            _ if self.now => span(0),
            Some(until) => span(until.saturating_sub(sys::now()).min(most)),
            None => span(most),
        }
    }

    /// The same limit, or one in so many nanoseconds if that is sooner.
    pub(crate) fn at_most(self, nanoseconds: u64) -> Self {
        let sooner = Self::new(Some(nanoseconds));
        match self.until {
            None if !self.now => sooner,
            Some(until) if sooner.until.is_some_and(|soon| soon < until) => sooner,
            _ => self,
        }
    }

    /// Whether the time is up.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.now || self.until.is_some_and(|until| sys::now() >= until)
    }
}

fn span(nanoseconds: u64) -> timespec {
    timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    }
}
