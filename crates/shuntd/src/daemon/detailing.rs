//! What a list says beyond its rows: the counters of both ends of a connection.

use rustix::time::{ClockId, clock_gettime};
use shunt_abi::Reason;
use shunt_abi::detail::{Detail, End};

use super::listing::Holder;
use super::seeing::Sight;

/// Now, as [`shunt_abi::counters::Record::since`] has it.
pub(super) fn now() -> u32 {
    u32::try_from(clock_gettime(ClockId::Monotonic).tv_sec).unwrap_or_default()
}

/// Of a connection whose ends are seen so `now`, and held by these.
pub(super) fn detail(ends: [&[Sight]; 2], holders: [Option<Holder>; 2], now: u32) -> Detail {
    let mut detail = Detail::unknown();
    if let Some(since) = first(ends.into_iter().flatten()) {
        detail.age = now.saturating_sub(since);
    }
    for (i, end) in detail.ends.iter_mut().enumerate() {
        let (own, other) = (ends[i], ends[1 - i]);
        add_counts(end, own);
        if !own.is_empty() && !other.is_empty() {
            let ring = |sum: u64, bytes: &[u64; 2]| sum.saturating_add(bytes[0]);
            let sent = other.iter().map(|s| s.sent).fold(0, |n, b| ring(n, &b));
            let taken = own.iter().map(|s| s.received).fold(0, |n, b| ring(n, &b));
            end.queued = sent.saturating_sub(taken);
        }
        let Some(holder) = holders[i] else { continue };
        if let Some(left) = holder.left {
            end.left_for = left.reason;
            let ago = now.saturating_sub(left.at);
            let is_first = detail.left == 0;
            detail.left = detail.left.max(left.count);
            detail.left_ago = if is_first {
                ago
            } else {
                detail.left_ago.min(ago)
            };
        }
        let Some(face) = holder.face else { continue };
        end.uid = face.uid;
        end.status = holder.status.unwrap_or(Reason::Pending as u8);
        end.wakeups = face.wakeups;
    }
    detail
}

/// When the first of these got the connection.
fn first<'a>(sights: impl Iterator<Item = &'a Sight>) -> Option<u32> {
    sights.map(|s| s.since).filter(|&since| since != 0).min()
}

/// The sum of what the processes that share an end count.
fn add_counts(end: &mut End, sights: &[Sight]) {
    end.counted = u8::from(!sights.is_empty());
    for sight in sights {
        let [sent, received] = sight.calls;
        let sums = end.sent.iter_mut().chain(&mut end.received);
        for (sum, calls) in sums.zip(sent.into_iter().chain(received)) {
            *sum = sum.saturating_add(calls);
        }
        end.sleeps = end.sleeps.saturating_add(sight.sleeps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(since: u32, sent: u64) -> Sight {
        Sight {
            client: 1,
            accepts: true,
            status: 0,
            seat: (0, 0),
            sent: [0; 2],
            received: [0; 2],
            calls: [[sent, 1], [2, 3]],
            sleeps: 4,
            since,
        }
    }

    #[test]
    fn an_end_that_is_shared_counts_what_all_its_holders_count() {
        let sights = [sight(0, 5), sight(9, u64::MAX)];
        let mut end = Detail::unknown().ends[0];
        add_counts(&mut end, &sights);
        assert_eq!((end.sent, end.received), ([u64::MAX, 2], [4, 6]));
        assert_eq!((end.sleeps, end.counted), (8, 1));
        assert_eq!(first(sights.iter()), Some(9));
        assert_eq!(first(sights[..1].iter()), None);
    }
}
