//! The configuration file: policy and limits.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use shunt_abi::Reason;
use shunt_abi::message::comm_text;

/// The whole file. Every part may be left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Who may be shunted with whom.
    pub policy: Policy,
    /// What one client or user may make the daemon hold.
    pub limits: Limits,
}

/// Who may be shunted with whom. What is denied stays on TCP.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Pair processes of different users (a host daemon only).
    pub cross_user: bool,
    /// Pair processes of different network namespaces (a host daemon only).
    pub cross_namespace: bool,
    /// Connections that match any of these are not paired.
    pub deny: Vec<Rule>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cross_user: false,
            cross_namespace: true,
            deny: Vec::new(),
        }
    }
}

/// A rule matches when everything it names matches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The port of either end, as either of them sees it.
    pub port: Option<u16>,
    /// The user of either process.
    pub uid: Option<u32>,
    /// The name (`comm`, at most 15 bytes) of either process.
    pub comm: Option<String>,
}

/// Bounds on memory and descriptors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Clients that one user may connect.
    pub clients_per_user: usize,
    /// Connections and listeners, each, that one client may have known here.
    pub connections_per_client: usize,
    /// Connections and listeners, each, of all clients of one user.
    pub connections_per_user: usize,
    /// Messages that all clients of one user may leave unread.
    pub unread_per_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients_per_user: 8192,
            connections_per_client: 32_768,
            connections_per_user: 131_072,
            unread_per_user: 65_536,
        }
    }
}

/// What policy needs to know about one end's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    /// Its user.
    pub(crate) uid: u32,
    /// Its `comm`.
    pub(crate) comm: [u8; 16],
}

impl Config {
    /// Reads a file; one that does not exist is an empty one unless `required`.
    ///
    /// # Errors
    /// When it cannot be read or is not valid; the message names the line.
    pub fn load(path: &Path, required: bool) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        Self::parse(&text).with_context(|| format!("{} is not valid", path.display()))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// When it is not valid TOML, names something unknown, or has an empty rule.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)?;
        for rule in &config.policy.deny {
            ensure!(
                rule.port.is_some() || rule.uid.is_some() || rule.comm.is_some(),
                "a [[policy.deny]] rule names none of port, uid, comm and would deny everything"
            );
        }
        Ok(config)
    }
}

impl Policy {
    /// Why two processes may not share memory for a connection on these ports, if they may not.
    pub(crate) fn against(&self, parties: [Party; 2], ports: &[u16]) -> Option<Reason> {
        let denies = |rule: &Rule| rule.matches(parties, ports);
        if !self.cross_user && parties[0].uid != parties[1].uid {
            Some(Reason::OtherUser)
        } else {
            self.deny.iter().any(denies).then_some(Reason::Policy)
        }
    }
}

impl Rule {
    fn matches(&self, parties: [Party; 2], ports: &[u16]) -> bool {
        self.port.is_none_or(|port| ports.contains(&port))
            && self
                .uid
                .is_none_or(|uid| parties.iter().any(|p| p.uid == uid))
            && self
                .comm
                .as_ref()
                .is_none_or(|c| parties.iter().any(|p| comm_text(&p.comm) == *c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(uid: u32, name: &str) -> Party {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        Party { uid, comm }
    }

    #[test]
    fn an_empty_file_pairs_processes_of_one_user_only() {
        let policy = Config::parse("").unwrap().policy;
        assert_eq!(
            policy.against([party(1, "a"), party(1, "b")], &[80, 4000]),
            None
        );
        assert_eq!(
            policy.against([party(1, "a"), party(2, "b")], &[80, 4000]),
            Some(Reason::OtherUser)
        );
        let policy = Config::parse("[policy]\ncross_user = true").unwrap().policy;
        assert_eq!(
            policy.against([party(1, "a"), party(2, "b")], &[80, 4000]),
            None
        );
    }

    #[test]
    fn a_rule_denies_when_everything_it_names_matches() {
        let text = "[[policy.deny]]\nport = 80\ncomm = \"nginx\"\n[[policy.deny]]\nuid = 7\n";
        let policy = Config::parse(text).unwrap().policy;
        assert_eq!(
            policy.against([party(1, "a"), party(1, "nginx")], &[80, 4000]),
            Some(Reason::Policy)
        );
        assert_eq!(
            policy.against([party(1, "a"), party(1, "nginx")], &[81, 4000]),
            None
        );
        assert_eq!(
            policy.against([party(1, "a"), party(1, "apache")], &[80, 4000]),
            None
        );
        assert_eq!(
            policy.against([party(7, "a"), party(7, "b")], &[1, 2]),
            Some(Reason::Policy)
        );
    }

    #[test]
    fn mistakes_are_refused() {
        assert!(Config::parse("[policy]\ncross_users = true").is_err());
        assert!(Config::parse("[[policy.deny]]").is_err());
        assert!(Config::load(Path::new("/nonexistent"), true).is_err());
        assert!(Config::load(Path::new("/nonexistent"), false).is_ok());
    }
}
