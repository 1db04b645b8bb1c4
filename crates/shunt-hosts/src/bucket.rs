//! How often something may happen.

use std::time::{Duration, Instant};

/// A token bucket: allows a number of events at once, and more as time passes.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// How long one takes to come.
    each: Duration,
    /// When the bucket, drained as it is, is full again.
    full: Instant,
    /// How long an empty one takes to fill.
    whole: Duration,
}

impl Bucket {
    /// Full.
    pub(crate) fn new(per_second: u32, at_once: u32, now: Instant) -> Self {
        let each = Duration::from_secs(1) / per_second.max(1);
        Self {
            each,
            full: now,
            whole: each * at_once,
        }
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now) + self.each;
        let has = full <= now + self.whole;
        if has {
            self.full = full;
        }
        has
    }

    /// How long until there is one.
    pub(crate) fn rest(&self, now: Instant) -> Duration {
        (self.full.max(now) + self.each).saturating_duration_since(now + self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fills_as_time_goes_on_and_no_more_than_full() {
        let mut now = Instant::now();
        let mut bucket = Bucket::new(10, 3, now);
        let mut count = |now| (0..9).filter(|_| bucket.take(now)).count();
        assert_eq!(count(now), 3);
        now += Duration::from_millis(100);
        assert_eq!(count(now), 1);
        now += Duration::from_secs(60);
        assert_eq!(count(now), 3);
        assert_eq!(bucket.rest(now), Duration::from_millis(100));
        assert_eq!(bucket.rest(now + Duration::from_secs(1)), Duration::ZERO);
    }
}
