//! How a thread lets others run while it waits for a step of another one, which takes some microseconds, unless that gets no processor.

use crate::{config, sys};

/// The turns of one such wait. The thread yields the processor, until that has taken long. A long wait means that strangers want
/// the processor, and a thread that yields comes behind all of them, for a whole slice of each (0.4 s at nice 15 beside fifty busy
/// threads, where a short sleep took 1.5 ms); or that this thread has a real-time priority, and a thread without one gets no
/// processor from its yields. From then on it sleeps.
pub(crate) struct Rest {
    began: u64,
}

impl Rest {
    /// Nanoseconds after which a wait is long.
    const LONG: u64 = 1_000_000;
    /// How long the thread sleeps in each turn of a long wait, in nanoseconds.
    const NAP: u64 = 50_000;

    pub(crate) fn new() -> Self {
        Self { began: sys::now() }
    }

    /// One turn.
    pub(crate) fn turn(&self) {
        // A filter of system calls that allows a yield may refuse a sleep.
        if self.is_long(sys::now()) && !config::is_confined() {
            sys::nap(Self::NAP);
        } else {
            sys::sched_yield();
        }
    }

    fn is_long(&self, now: u64) -> bool {
        now.saturating_sub(self.began) > Self::LONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_for_long_yields_no_more() {
        let rest = Rest { began: 5 };
        assert!(!rest.is_long(0) && !rest.is_long(5 + Rest::LONG));
        assert!(rest.is_long(6 + Rest::LONG));
    }
}
