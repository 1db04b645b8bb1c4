//! The configuration file: policy, limits, other hosts.

mod hosts;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;
use toml::Spanned;

use crate::policy::{Names, Policy, Rule, Table};
use crate::quota::Quota;
use crate::sys;
pub use hosts::Between;
pub(crate) use hosts::PINNED;

/// The whole file. Every part may be left out.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Who may be shunted with whom.
    pub policy: Policy,
    /// What one client or user may make the daemon hold.
    pub limits: Limits,
    /// Which other hosts are talked to; `None`: none.
    pub hosts: Option<Between>,
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    policy: PolicyTable,
    limits: Limits,
    hosts: Option<hosts::Table>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyTable {
    cross_user: bool,
    cross_namespace: bool,
    rule: Vec<Spanned<Table>>,
}

impl Default for PolicyTable {
    fn default() -> Self {
        let Policy {
            cross_user,
            cross_namespace,
            ..
        } = Policy::default();
        Self {
            cross_user,
            cross_namespace,
            rule: Vec::new(),
        }
    }
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
    /// What the processes of one user may have together.
    pub user: Quota,
    /// What the processes in one container may have together.
    pub container: Quota,
    /// What all processes may have together.
    pub host: Quota,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients_per_user: 8192,
            connections_per_client: 32_768,
            connections_per_user: 131_072,
            unread_per_user: 65_536,
            user: Quota::default(),
            container: Quota::default(),
            host: Quota::default(),
        }
    }
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    /// What, and what to do.
    pub text: String,
}

/// Where the configuration is, and whether it must be there.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// Without the file nothing goes on; otherwise none means an empty one.
    pub required: bool,
}

impl Source {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read or is not valid; the message says where.
    pub fn load(&self) -> Result<Config> {
        Config::load(&self.path, self.required)
    }
}

impl Config {
    /// Reads a file; one that does not exist is an empty one unless `required`.
    ///
    /// # Errors
    /// When it cannot be read or is not valid; the message says where.
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
        Self::parse(&text).map_err(|mistake| anyhow!("{}:{mistake}", path.display()))
    }

    /// Parses the text of a file. Users and groups are named as this host knows them.
    ///
    /// # Errors
    /// When it is not valid TOML, or names something unknown.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        let names = Names {
            user: sys::user_named,
            group: sys::group_named,
        };
        Self::parse_with(text, names)
    }

    fn parse_with(text: &str, names: Names) -> Result<Self, Mistake> {
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let says = match error.message() {
                "" => "this is not TOML: is a value missing?",
                says => says,
            };
            Mistake::new(text, at, says)
        })?;
        let mut rules = Vec::new();
        for table in file.policy.rule {
            let (line, _) = place(text, table.span().start);
            let rule = Rule::new(table.into_inner(), line, names);
            rules.push(rule.map_err(|(at, wrong)| Mistake::new(text, at, &wrong))?);
        }
        let hosts = file
            .hosts
            .map(|table| Between::new(table, |at| place(text, at)));
        let hosts = hosts.transpose();
        let hosts = hosts.map_err(|(at, wrong)| Mistake::new(text, at, &wrong))?;
        Ok(Self {
            policy: Policy {
                cross_user: file.policy.cross_user,
                cross_namespace: file.policy.cross_namespace,
                rules,
            },
            limits: file.limits,
            hosts,
        })
    }
}

impl Mistake {
    fn new(text: &str, at: usize, wrong: &str) -> Self {
        let (line, column) = place(text, at);
        Self {
            line,
            column,
            text: wrong.trim_end().replace('\n', "; "),
        }
    }
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, column, text } = self;
        write!(f, "{line}:{column}: {text} (see shunt.toml(5))")
    }
}

impl std::error::Error for Mistake {}

/// Line and column, from 1, of what is at this offset.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    (line, before[start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mistake(text: &str) -> (usize, usize, String) {
        let Mistake { line, column, text } = Config::parse(text).unwrap_err();
        (line, column, text)
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        let (line, column, text) = mistake("[policy]\ncross_users = true");
        assert_eq!((line, column), (2, 1));
        assert!(text.contains("cross_user`"), "{text}");
        let rule = "[[policy.rule]]\naction = \"deny\"\n";
        for (condition, column, says) in [
            ("user = \"nobody at all\"", 8, "no user `nobody at all`"),
            ("group = -1", 9, "no group has the number -1"),
            ("port = [80, 70000]", 8, "`70000` is no port"),
            ("port = \"9-8\"", 8, "`9-8` is no port"),
            ("address = \"10.0.0.1/8\"", 11, "must be 0"),
            ("namespace = \"elsewhere\"", 13, "lsns"),
            ("program = 7", 11, "write \"7\""),
            ("program = \"\"", 11, "leave the key out"),
            ("container = []", 13, "leave the key out"),
            ("across = \"planet\"", 10, "`user`"),
            ("user = 1.5", 8, "a list of these"),
        ] {
            let (line, at, text) = mistake(&format!("{rule}{condition}"));
            assert_eq!((line, at), (3, column), "{condition}: {text}");
            assert!(text.contains(says), "{condition}: {text}");
        }
        assert_eq!(mistake("0=").1, 3);
        assert_eq!(mistake("[limits.user]\nmessages = 0").0, 2);
        let (line, _, text) = mistake("[[policy.rule]]\nport = 1");
        assert_eq!((line, text.contains("action")), (1, true), "{text}");
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        assert!(Config::load(Path::new("/nonexistent"), true).is_err());
        assert!(Config::load(Path::new("/nonexistent"), false).is_ok());
    }

    #[test]
    fn columns_count_characters() {
        assert_eq!(place("a\n\u{e4}b", 4), (2, 2));
        assert_eq!(place("", 0), (1, 1));
    }

    /// What files are made of.
    fn lines() -> impl Strategy<Value = String> {
        let line = prop_oneof![
            Just("[policy]".to_owned()),
            Just("[[policy.rule]]".to_owned()),
            Just("[limits]".to_owned()),
            "(action|user|group|container|program|address|port|namespace|across|cross_user) = (\"(allow|deny|host|user|10\\.0\\.0\\.0/[0-9]{1,3}|[0-9]{1,5}-[0-9]{1,5})\"|-?[0-9]{1,20}|\\[[0-9, ]{0,6}\\]|true)",
            "[ -~\u{e4}]{0,12}",
        ];
        proptest::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"))
    }

    proptest! {
        #[test]
        fn any_text_is_a_configuration_or_a_mistake_in_one_of_its_lines(text in lines()) {
            let known = |name: &str| (name == "root").then_some(0);
            let names = Names { user: known, group: known };
            if let Err(mistake) = Config::parse_with(&text, names) {
                prop_assert!((1..=text.matches('\n').count() + 1).contains(&mistake.line));
                prop_assert!(mistake.column >= 1 && !mistake.text.is_empty());
            }
        }
    }
}
