//! What a tenant may hold of what all share: links, slots, memory, and the daemon's time. A pair for which there is no room
//! stays on TCP (`QUOTA`, `daemon/pairing.rs`), and all else goes on.
//!
//! A process is charged to its user, to its container if it is in one, and to the host. Each of the two
//! processes of a link or of a connection is charged with it, and with the arena that it has made for it.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

use crate::config::Limits;

/// Bounds; what is not set is not bounded.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Links to other processes.
    pub links: Option<u64>,
    /// Connections in shared memory.
    pub slots: Option<u64>,
    /// Memory of links, in MiB.
    pub memory: Option<u64>,
    /// Messages to the daemon in a second.
    pub messages: Option<NonZeroU32>,
}

impl Quota {
    /// Whether anything is bounded.
    pub(crate) fn is_any(&self) -> bool {
        let bounds = [self.links, self.slots, self.memory];
        bounds.iter().any(Option::is_some) || self.messages.is_some()
    }
}

/// Something that is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) links: u64,
    pub(crate) slots: u64,
    /// In bytes.
    pub(crate) memory: u64,
}

impl Charge {
    /// A connection's slot.
    pub(crate) const SLOT: Self = Self {
        links: 0,
        slots: 1,
        memory: 0,
    };

    /// A link, and this much memory.
    pub(crate) fn link(memory: usize) -> Self {
        Self {
            links: 1,
            slots: 0,
            memory: memory as u64,
        }
    }

    /// This charge `count` times.
    pub(crate) fn times(self, count: u64) -> Self {
        Self {
            links: self.links.saturating_mul(count),
            slots: self.slots.saturating_mul(count),
            memory: self.memory.saturating_mul(count),
        }
    }

    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            links: self.links.saturating_add(more.links),
            slots: self.slots.saturating_add(more.slots),
            memory: self.memory.saturating_add(more.memory),
        }
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self {
            links: self.links.saturating_sub(less.links),
            slots: self.slots.saturating_sub(less.slots),
            memory: self.memory.saturating_sub(less.memory),
        }
    }
}

/// Whom a process is charged to, beside the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) user: u32,
    pub(crate) container: Option<String>,
}

/// For whom messages are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Whom {
    User(u32),
    Container(String),
    Host,
}

impl Whom {
    /// How many of its messages may be heard in a second.
    fn rate(&self, limits: &Limits) -> Option<NonZeroU32> {
        match self {
            Self::User(_) => limits.user.messages,
            Self::Container(_) => limits.container.messages,
            Self::Host => limits.host.messages,
        }
    }

    /// How long after one message the next one may be heard.
    pub(crate) fn pause(&self, limits: &Limits) -> Duration {
        let pause = |rate: NonZeroU32| Duration::from_secs(1) / rate.get();
        self.rate(limits).map_or(Duration::ZERO, pause)
    }
}

/// What somebody holds.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    charge: Charge,
    /// When the messages so far would all have been heard at the rate that is allowed.
    heard: Duration,
}

impl Used {
    fn is_nothing(&self, now: Duration) -> bool {
        self.charge == Charge::default() && self.heard <= now
    }
}

/// How long a process that was silent before may talk faster than allowed.
const BURST: Duration = Duration::from_secs(1);
/// Of more tenants than this those that hold nothing are forgotten when one leaves.
const KEPT: usize = 64;

/// What each tenant holds.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    users: HashMap<u32, Used>,
    containers: HashMap<String, Used>,
    host: Used,
}

impl Quotas {
    /// Whether two processes may each hold `more` in addition.
    pub(crate) fn have_room(&self, limits: &Limits, tenants: [&Tenant; 2], more: Charge) -> bool {
        let [one, other] = tenants;
        let twice = more.times(2);
        let for_user = if one.user == other.user { twice } else { more };
        let same = one.container == other.container;
        let for_container = if same { twice } else { more };
        let fits = |tenant: &Tenant| {
            let [user, container, host] = self.used(tenant);
            fits(&limits.host, host.charge.plus(twice))
                && fits(&limits.user, user.charge.plus(for_user))
                && (tenant.container.is_none()
                    || fits(&limits.container, container.charge.plus(for_container)))
        };
        tenants.into_iter().all(fits)
    }

    /// What a tenant's user, container and host hold.
    fn used(&self, tenant: &Tenant) -> [Used; 3] {
        let user = self.users.get(&tenant.user).copied();
        let container = tenant.container.as_ref();
        let container = container
            .and_then(|name| self.containers.get(name))
            .copied();
        [
            user.unwrap_or_default(),
            container.unwrap_or_default(),
            self.host,
        ]
    }

    fn change(&mut self, tenant: &Tenant, change: impl Fn(&mut Used)) {
        change(self.users.entry(tenant.user).or_default());
        if let Some(name) = &tenant.container {
            // Most are known: a name is made for the first one only.
            match self.containers.get_mut(name) {
                Some(used) => change(used),
                None => change(self.containers.entry(name.clone()).or_default()),
            }
        }
        change(&mut self.host);
    }

    /// A process holds `more` in addition.
    pub(crate) fn charge(&mut self, tenant: &Tenant, more: Charge) {
        self.change(tenant, |used| used.charge = used.charge.plus(more));
    }

    /// A process has given `less` back.
    pub(crate) fn refund(&mut self, tenant: &Tenant, less: Charge) {
        self.change(tenant, |used| used.charge = used.charge.minus(less));
    }

    /// When the next message of a process may be heard, and whose bound says so.
    pub(crate) fn heard_at(&self, limits: &Limits, tenant: &Tenant) -> (Duration, Whom) {
        let [user, container, host] = self.used(tenant);
        let whom = [
            Some(Whom::User(tenant.user)),
            tenant.container.clone().map(Whom::Container),
            Some(Whom::Host),
        ];
        let all = whom.into_iter().zip([user, container, host]);
        let bounded = all.filter_map(|(whom, used)| {
            let whom = whom?;
            whom.rate(limits)?;
            Some((used.heard.saturating_sub(BURST), whom))
        });
        bounded.max().unwrap_or((Duration::ZERO, Whom::Host))
    }

    /// A message of a process has been heard.
    pub(crate) fn hear(&mut self, limits: &Limits, tenant: &Tenant, now: Duration) {
        let hear = |used: &mut Used, quota: &Quota| {
            if let Some(rate) = quota.messages {
                used.heard = used.heard.max(now) + Duration::from_secs(1) / rate.get();
            }
        };
        hear(self.users.entry(tenant.user).or_default(), &limits.user);
        if let Some(name) = &tenant.container {
            let used = self.containers.entry(name.clone()).or_default();
            hear(used, &limits.container);
        }
        hear(&mut self.host, &limits.host);
    }

    /// A process has gone, and holds nothing any more.
    pub(crate) fn leave(&mut self, now: Duration) {
        forget_idle(&mut self.users, now);
        forget_idle(&mut self.containers, now);
    }
}

fn forget_idle<K: Eq + Hash>(all: &mut HashMap<K, Used>, now: Duration) {
    if all.len() > KEPT {
        all.retain(|_, used| !used.is_nothing(now));
    }
}

/// Whether anybody's messages are counted.
pub(crate) fn counts_messages(limits: &Limits) -> bool {
    let all = [limits.user, limits.container, limits.host];
    all.iter().any(|quota| quota.messages.is_some())
}

fn fits(quota: &Quota, charge: Charge) -> bool {
    let within = |bound: Option<u64>, held: u64| bound.is_none_or(|bound| held <= bound);
    within(quota.links, charge.links)
        && within(quota.slots, charge.slots)
        && within(
            quota.memory.map(|mib| mib.saturating_mul(1 << 20)),
            charge.memory,
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(user: u32, container: Option<&str>) -> Tenant {
        Tenant {
            user,
            container: container.map(str::to_owned),
        }
    }

    fn slots(bound: u64) -> Quota {
        Quota {
            slots: Some(bound),
            ..Quota::default()
        }
    }

    fn may_have_slot(quotas: &Quotas, limits: &Limits, tenants: [&Tenant; 2]) -> bool {
        quotas.have_room(limits, tenants, Charge::SLOT)
    }

    #[test]
    fn both_ends_are_charged_and_each_bound_counts() {
        let (a, b) = (tenant(1, Some("x")), tenant(2, None));
        let unbounded = Limits::default();
        let mut quotas = Quotas::default();
        assert!(may_have_slot(&quotas, &unbounded, [&a, &b]));
        for who in [&a, &b] {
            quotas.charge(who, Charge::SLOT);
        }
        let of_user = |bound| Limits {
            user: slots(bound),
            ..Limits::default()
        };
        let of_container = |bound| Limits {
            container: slots(bound),
            ..Limits::default()
        };
        let of_host = |bound| Limits {
            host: slots(bound),
            ..Limits::default()
        };
        for (bounds, least) in [
            (&of_user as &dyn Fn(u64) -> Limits, 2),
            (&of_container, 2),
            (&of_host, 4),
        ] {
            assert!(may_have_slot(&quotas, &bounds(least), [&a, &b]));
            assert!(!may_have_slot(&quotas, &bounds(least - 1), [&a, &b]));
            assert!(!may_have_slot(&quotas, &bounds(least - 1), [&b, &a]));
        }
        // Who is both ends needs room for two.
        assert!(!may_have_slot(&quotas, &of_user(2), [&a, &a]));
        assert!(may_have_slot(&quotas, &of_user(3), [&a, &a]));
        // Outside containers their bounds do not count.
        assert!(may_have_slot(&quotas, &of_container(0), [&b, &b]));
    }

    #[test]
    fn links_and_memory_are_bounded_like_slots() {
        let a = tenant(1, None);
        let mut quotas = Quotas::default();
        let link = Charge::link(1 << 20);
        quotas.charge(&a, link);
        let bounds = |links, memory| Limits {
            user: Quota {
                links,
                memory,
                ..Quota::default()
            },
            ..Limits::default()
        };
        let other = tenant(2, None);
        for (bounds, room) in [
            (bounds(Some(2), Some(2)), true),
            (bounds(Some(1), None), false),
            (bounds(None, Some(1)), false),
        ] {
            assert_eq!(quotas.have_room(&bounds, [&a, &other], link), room);
        }
        quotas.refund(&a, link);
        assert!(quotas.have_room(&bounds(Some(1), Some(1)), [&a, &other], link));
    }

    #[test]
    fn who_talks_faster_than_allowed_is_heard_later() {
        let rate = |messages| Quota {
            messages: NonZeroU32::new(messages),
            ..Quota::default()
        };
        let bounds = Limits {
            container: rate(10),
            ..Limits::default()
        };
        let (loud, quiet) = (tenant(1, Some("loud")), tenant(1, Some("quiet")));
        let mut quotas = Quotas::default();
        let now = Duration::from_secs(100);
        let mut heard = 0;
        while quotas.heard_at(&bounds, &loud).0 <= now {
            quotas.hear(&bounds, &loud, now);
            heard += 1;
        }
        assert_eq!(heard, 11, "a second's, and the one that is one too many");
        assert!(quotas.heard_at(&bounds, &quiet).0 <= now);
        let (_, whom) = quotas.heard_at(&bounds, &loud);
        assert_eq!(whom, Whom::Container("loud".into()));
        assert_eq!(whom.pause(&bounds), Duration::from_millis(100));
        let later = now + Duration::from_millis(100);
        assert!(quotas.heard_at(&bounds, &loud).0 <= later);
        assert!(counts_messages(&bounds) && !counts_messages(&Limits::default()));
    }

    #[test]
    fn who_holds_nothing_is_forgotten_some_day() {
        let mut quotas = Quotas::default();
        let keeper = tenant(0, Some("kept"));
        quotas.charge(&keeper, Charge::SLOT);
        for user in 1..1000 {
            let tenant = tenant(user, Some(&format!("c{user}")));
            quotas.charge(&tenant, Charge::SLOT);
            quotas.refund(&tenant, Charge::SLOT);
            quotas.leave(Duration::ZERO);
        }
        assert!(quotas.users.len() <= KEPT + 1 && quotas.containers.len() <= KEPT + 1);
        assert_eq!(quotas.containers["kept"].charge, Charge::SLOT);
    }

    proptest! {
        #[test]
        fn what_is_given_back_was_held(steps in proptest::collection::vec((0..3u32, 0..3usize, any::<bool>()), 0..60)) {
            let names = [None, Some("x"), Some("y")];
            let mut quotas = Quotas::default();
            let mut held = Vec::new();
            for (user, name, take) in steps {
                let tenant = tenant(user, names[name]);
                if take || held.is_empty() {
                    quotas.charge(&tenant, Charge::link(5));
                    held.push(tenant);
                } else {
                    quotas.refund(&held.swap_remove(user as usize % held.len()), Charge::link(5));
                }
                prop_assert_eq!(quotas.host.charge.links, held.len() as u64);
                let of_x = held.iter().filter(|t| t.container.as_deref() == Some("x")).count();
                let x = quotas.containers.get("x").copied().unwrap_or_default();
                prop_assert_eq!(x.charge.memory, 5 * of_x as u64);
            }
        }
    }
}
