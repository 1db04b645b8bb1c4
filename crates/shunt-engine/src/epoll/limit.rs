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

    /// The time that is left, but no more than `most` nanoseconds.
    pub(crate) fn left_of(&self, most: u64) -> timespec {
        match self.until {
            _ if self.now => span(0),
            Some(until) => span(until.saturating_sub(sys::now()).min(most)),
            None => span(most),
        }
    }

    /// This limit, or one that is `nanoseconds` away if that is sooner.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn no_time_is_over_at_once_and_no_limit_never() {
        let now = Limit::new(Some(0));
        assert!(now.is_now() && now.is_up());
        assert_eq!(now.left().map(|t| (t.tv_sec, t.tv_nsec)), Some((0, 0)));
        let never = Limit::new(None);
        assert!(!never.is_now() && !never.is_up() && never.left().is_none());
    }

    #[test]
    fn what_is_left_is_no_more_than_there_was() {
        let limit = Limit::new(Some(90_000 * MS));
        let left = limit.left().unwrap();
        assert!(!limit.is_up() && (89..=90).contains(&left.tv_sec));
        assert_eq!(limit.left_of(3 * MS).tv_nsec, 3 * MS as i64);
        assert_eq!(Limit::new(None).left_of(3 * MS).tv_nsec, 3 * MS as i64);
        assert_eq!(Limit::new(Some(0)).left_of(3 * MS).tv_nsec, 0);
    }

    #[test]
    fn the_sooner_of_two_limits_counts() {
        let is_sooner = |limit: Limit| limit.left().is_some_and(|left| left.tv_sec < 10);
        assert!(is_sooner(Limit::new(None).at_most(MS)));
        assert!(is_sooner(Limit::new(Some(90_000 * MS)).at_most(MS)));
        assert!(is_sooner(Limit::new(Some(MS)).at_most(90_000 * MS)));
        assert!(Limit::new(Some(0)).at_most(MS).is_now());
    }

    #[test]
    fn a_time_that_is_not_whole_milliseconds_is_fine() {
        assert!(Limit::new(Some(MS + 1)).fine && !Limit::new(Some(2 * MS)).fine);
        assert!(!Limit::new(None).fine);
    }
}
