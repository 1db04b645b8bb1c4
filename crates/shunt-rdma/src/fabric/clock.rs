//! Time, real or a test's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub(super) enum Clock {
    Real(Instant),
    Manual(AtomicU64),
}

impl Clock {
    pub(super) fn new(manual: bool) -> Self {
        if manual {
            Self::Manual(AtomicU64::new(0))
        } else {
            Self::Real(Instant::now())
        }
    }

    pub(super) fn is_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }

    /// Nanoseconds.
    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Real(start) => start.elapsed().as_nanos() as u64,
            Self::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    pub(super) fn advance(&self, by: u64) {
        if let Self::Manual(now) = self {
            now.fetch_add(by, Ordering::Relaxed);
        }
    }
}
