//! Who may be shunted with whom: pure, all that it needs to know of a connection comes with the question.
//!
//! ```text
//!  both ends ──> other namespace? ──> other user? ──> for each end: the first rule that matches it
//!                     │ cross_namespace    │ cross_user        │ deny        │ allow, or none
//!                     ▼                    ▼                   ▼             ▼
//!              OTHER_NAMESPACE        OTHER_USER            POLICY     both: they may
//! ```
//!
//! What could not be found out of an end counts against it: a rule that denies matches, one that
//! allows does not.

mod glob;
mod network;
mod rule;

use std::net::IpAddr;

use shunt_abi::Reason;

pub(crate) use network::Network;
pub use rule::Rule;
pub(crate) use rule::{Names, Table};

/// Who may be shunted with whom. What is denied stays on TCP.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Pair processes of different users (a host daemon only).
    pub cross_user: bool,
    /// Pair processes of different network namespaces (a host daemon only).
    pub cross_namespace: bool,
    /// The first one that matches an end decides on it.
    pub rules: Vec<Rule>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cross_user: false,
            cross_namespace: true,
            rules: Vec::new(),
        }
    }
}

/// A network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Tells it from others (`SO_NETNS_COOKIE`).
    pub(crate) cookie: u64,
    /// It is the daemon's own.
    pub(crate) is_host: bool,
    /// Its number, as `lsns(8)` shows it, if known.
    pub(crate) number: Option<u64>,
}

/// One end of a connection, and the process that has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    /// The user of its process.
    pub(crate) user: u32,
    /// The groups of its process.
    pub(crate) groups: Option<&'a [u32]>,
    /// The control groups of its process: a path in each hierarchy.
    pub(crate) cgroups: Option<&'a [String]>,
    /// The container that these show, if they do.
    pub(crate) container: Option<&'a str>,
    /// The path of its program.
    pub(crate) program: Option<&'a str>,
    /// The name that its process goes by (`comm`).
    pub(crate) comm: &'a str,
    /// Where the socket is.
    pub(crate) namespace: Namespace,
    /// Its own address and its peer's, as it sees them.
    pub(crate) addresses: [(IpAddr, u16); 2],
}

/// Why two ends stay on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    /// As the programs are told.
    pub(crate) reason: Reason,
    /// The line of the rule that says so, if one does.
    pub(crate) line: Option<usize>,
}

impl Policy {
    /// Why two ends may not share memory, if they may not.
    pub(crate) fn against(&self, ends: [End<'_>; 2]) -> Option<Denial> {
        let [one, other] = ends;
        let crosses = |reason| Denial { reason, line: None };
        if !self.cross_namespace && one.namespace.cookie != other.namespace.cookie {
            return Some(crosses(Reason::OtherNamespace));
        }
        if !self.cross_user && one.user != other.user {
            return Some(crosses(Reason::OtherUser));
        }
        let denies = [[one, other], [other, one]].into_iter();
        denies
            .filter_map(|[end, other]| self.denies(end, Some(other)))
            .next()
    }

    /// Why an end whose other end is on another host may not go by RDMA, if it may not. What that host's policy says of the
    /// other end is its own.
    pub(crate) fn against_leaving(&self, end: End<'_>) -> Option<Denial> {
        self.denies(end, None)
    }

    /// The line of the rule that denies every end of such a program, if one does: what depends on more (an address,
    /// a container) is not known, and does not count as a denial.
    #[must_use]
    pub fn denies_program(&self, user: u32, program: &str, comm: &str) -> Option<usize> {
        for rule in &self.rules {
            match rule.matches_program(user, program, comm) {
                Some(true) => return (!rule.allows()).then(|| rule.line()),
                None if rule.allows() => return None,
                _ => {}
            }
        }
        None
    }

    /// The rule by which an end is denied; `other`: the other one, if that is on this host.
    fn denies(&self, end: End<'_>, other: Option<End<'_>>) -> Option<Denial> {
        let rule = self.rules.iter().find(|rule| rule.matches(end, other))?;
        (!rule.allows()).then_some(Denial {
            reason: Reason::Policy,
            line: Some(rule.line()),
        })
    }
}

#[cfg(test)]
mod tests;
