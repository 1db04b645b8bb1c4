//! Counts of the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

use shunt_abi::Reason;
use shunt_abi::counters::{GivenUp, Header};

use super::header;
use super::line_file::is_on;

/// Adds one to a count of the whole process.
fn count(which: impl FnOnce(&Header) -> &AtomicU64) {
    if let Some(header) = header() {
        which(header).fetch_add(1, Ordering::Relaxed);
    }
}

/// A peer that sleeps has been called.
pub(crate) fn calls() {
    count(|header| &header.calls[0]);
}

/// One of ours has been.
pub(crate) fn called() {
    count(|header| &header.calls[1]);
}

/// A readiness call on shunted descriptors.
#[inline]
pub(crate) fn ready_call(by_kernel: bool) {
    if is_on() {
        if by_kernel {
            count(|header| &header.ready_kernel);
        } else {
            count(|header| &header.ready_user);
        }
    }
}

/// A readiness call went to sleep.
pub(crate) fn ready_sleep() {
    count(|header| &header.ready_sleeps);
}

/// An end was put aside when it was closed.
pub(crate) fn put_aside() {
    count(|header| &header.put_aside);
}

/// It is used again.
pub(crate) fn used_again() {
    count(|header| &header.used_again);
}

/// It is not.
pub(crate) fn given_up(why: GivenUp) {
    count(|header| &header.given_up[why as usize]);
}

/// A connection that has been counted with one reason had another.
pub(crate) fn recount(former: Reason, reason: Reason) {
    if let Some(header) = header() {
        recount_in(header, former, reason);
    }
}

fn recount_in(header: &Header, former: Reason, reason: Reason) {
    let count = |reason: Reason| &header.reasons[reason as usize];
    let one_less = |n: u64| n.checked_sub(1);
    let o = Ordering::Relaxed;
    if count(former).fetch_update(o, o, one_less).is_ok() {
        count(reason).fetch_add(1, o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_another_reason_only_if_it_was_counted_with_the_former_one() {
        // SAFETY: integers, for which zero is a value.
        let header: Header = unsafe { std::mem::zeroed() };
        let counts = || {
            [Reason::Pending, Reason::NotLocal]
                .map(|reason| header.reasons[reason as usize].load(Ordering::Relaxed))
        };
        recount_in(&header, Reason::Pending, Reason::NotLocal);
        assert_eq!(counts(), [0, 0]);
        header.reasons[Reason::Pending as usize].store(2, Ordering::Relaxed);
        recount_in(&header, Reason::Pending, Reason::NotLocal);
        assert_eq!(counts(), [1, 1]);
    }
}
