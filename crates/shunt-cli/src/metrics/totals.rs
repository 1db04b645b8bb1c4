//! Counters: what the processes of each user have counted since their daemon began, whether they live or not.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use shunt_abi::Reason;
use shunt_abi::totals::{OTHERS, Total, Totals};

use crate::user;

/// The user, and what else tells a count from others of its family.
type Labels = Vec<(&'static str, String)>;
type Counts = Family<Labels, Counter>;

/// Families of counters. Each end of a connection counts.
pub(super) struct Counters {
    connections: Counts,
    reasons: Counts,
    bytes: Counts,
    calls: Counts,
    sleeps: Counts,
    wakeups: Counts,
}

const BY: &str = "by";
const DIRECTION: &str = "direction";

impl Counters {
    /// Makes them known by names to which the registry adds `_total`.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut family = |name: &str, help: &str| {
            let family = Counts::default();
            registry.register(name, help, family.clone());
            family
        };
        Self {
            connections: family(
                "ended_connections",
                "Ends of connections that have ended, by who carried their bytes (memory: at least some of them)",
            ),
            reasons: family(
                "ended_tcp_connections",
                "Ends of connections that ended on TCP by reason, see shunt-reasons(7)",
            ),
            bytes: family("bytes", "Payload by who carried it"),
            calls: family("calls", "Calls by who answered them"),
            sleeps: family("sleeps", "Waits that went to sleep"),
            wakeups: family("wakeups", "Wake-ups of peers, and by peers"),
        }
    }

    /// Shows what daemons have told. One that knows the same user as another adds to it.
    pub(super) fn count<'a>(&self, totals: impl Iterator<Item = &'a (u32, Totals)>) {
        let families = [
            &self.connections,
            &self.reasons,
            &self.bytes,
            &self.calls,
            &self.sleeps,
            &self.wakeups,
        ];
        for family in families {
            family.clear();
        }
        for (uid, totals) in totals {
            self.add(*uid, totals);
        }
    }

    fn add(&self, uid: u32, totals: &Totals) {
        let user = match uid {
            OTHERS => "others".to_owned(),
            uid => user::name(uid),
        };
        let add = |family: &Counts, labels: &[(&'static str, &str)], count: u64| {
            let mut all = vec![("user", user.clone())];
            let labels = labels
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()));
            all.extend(labels);
            family.get_or_create(&all).inc_by(count);
        };
        let get = |total| totals.get(total);
        let shunted = get(Total::EndedShunted);
        let plain = get(Total::Ended).saturating_sub(shunted);
        for (by, count) in [("memory", shunted), ("kernel", plain)] {
            add(&self.connections, &[(BY, by)], count);
        }
        for reason in Reason::ALL {
            let count = totals.reason(*reason as u8);
            if count > 0 {
                add(&self.reasons, &[("reason", reason.name())], count);
            }
        }
        let bytes = [
            ("memory", "sent", Total::SentByRings),
            ("kernel", "sent", Total::SentByKernel),
            ("memory", "received", Total::ReceivedByRings),
            ("kernel", "received", Total::ReceivedByKernel),
        ];
        for (by, direction, total) in bytes {
            add(&self.bytes, &[(BY, by), (DIRECTION, direction)], get(total));
        }
        for (by, total) in [
            ("memory", Total::CallsByMemory),
            ("kernel", Total::CallsByKernel),
        ] {
            add(&self.calls, &[(BY, by)], get(total));
        }
        add(&self.sleeps, &[], get(Total::Sleeps));
        for (direction, total) in [
            ("sent", Total::WakeupsSent),
            ("received", Total::WakeupsReceived),
        ] {
            add(&self.wakeups, &[(DIRECTION, direction)], get(total));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::Ordering;

    use prometheus_client::encoding::text::encode;
    use shunt_abi::counters::{Counts, Header};
    use zerocopy::FromZeros as _;

    use super::*;

    /// Of a process that has had three connections, two of them shunted.
    pub(crate) fn example() -> Totals {
        let header = Header::new_zeroed();
        let put = |count: &std::sync::atomic::AtomicU64, n| count.store(n, Ordering::Relaxed);
        put(&header.total, 3);
        put(&header.shunted, 2);
        put(&header.reasons[Reason::PeerPlain as usize], 1);
        let counts = |counts: &Counts, first: u64| {
            let all = [
                &counts.ring_bytes,
                &counts.kernel_bytes,
                &counts.user_calls,
                &counts.kernel_calls,
                &counts.sleeps,
            ];
            for (count, n) in all.into_iter().zip(first..) {
                put(count, n);
            }
        };
        counts(&header.tx, 10);
        counts(&header.rx, 20);
        put(&header.calls[0], 7);
        put(&header.calls[1], 8);
        Totals::of(&header)
    }

    #[test]
    fn counts_of_several_daemons_are_added_up_and_of_several_users_are_not() {
        let mut registry = Registry::with_prefix("shunt");
        let counters = Counters::new(&mut registry);
        let told = [
            (4_000_000, example()),
            (OTHERS, example()),
            (4_000_000, example()),
        ];
        // A second look is not added to the first.
        for _ in 0..2 {
            counters.count(told.iter());
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "shunt_ended_connections_total{user=\"4000000\",by=\"memory\"} 4",
            "shunt_ended_connections_total{user=\"others\",by=\"kernel\"} 1",
            "shunt_ended_tcp_connections_total{user=\"4000000\",reason=\"PEER_PLAIN\"} 2",
            "shunt_bytes_total{user=\"others\",by=\"kernel\",direction=\"received\"} 21",
            "shunt_calls_total{user=\"others\",by=\"memory\"} 34",
            "shunt_sleeps_total{user=\"others\"} 38",
            "shunt_wakeups_total{user=\"4000000\",direction=\"sent\"} 14",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
    }
}
