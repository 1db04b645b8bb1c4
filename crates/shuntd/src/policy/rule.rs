//! One rule: what the file says, and what that is true of.

use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::End;
use super::glob::Glob;
use super::network::Network;

/// What becomes of the ends that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Allow,
    Deny,
}

/// In what the two ends of a connection differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Across {
    User,
    Namespace,
    Host,
}

/// A rule as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    action: Action,
    user: Option<Spanned<Several>>,
    group: Option<Spanned<Several>>,
    container: Option<Spanned<Several>>,
    program: Option<Spanned<Several>>,
    address: Option<Spanned<Several>>,
    port: Option<Spanned<Several>>,
    namespace: Option<Spanned<Several>>,
    across: Option<Across>,
}

/// A value, or a list of values.
#[derive(Debug)]
struct Several(Vec<Word>);

/// A value.
#[derive(Debug)]
enum Word {
    Number(i64),
    Text(String),
}

/// What is wrong with a rule, and where: as an offset into the file.
pub(crate) type Wrong = (usize, String);

/// Looks numbers up by names.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) user: fn(&str) -> Option<u32>,
    pub(crate) group: fn(&str) -> Option<u32>,
}

/// Network namespaces that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Host,
    Other,
    Number(u64),
}

/// A rule matches an end when everything that it names matches. What names several things matches
/// when one of these does.
#[derive(Clone, Debug)]
pub struct Rule {
    action: Action,
    line: usize,
    user: Option<Vec<u32>>,
    group: Option<Vec<u32>>,
    container: Option<Vec<Glob>>,
    program: Option<Vec<Glob>>,
    address: Option<Vec<Network>>,
    port: Option<Vec<RangeInclusive<u16>>>,
    namespace: Option<Vec<Where>>,
    across: Option<Across>,
}

impl Rule {
    /// The rule that is written in this line.
    ///
    /// # Errors
    /// When a value means nothing.
    pub(crate) fn new(table: Table, line: usize, names: Names) -> Result<Self, Wrong> {
        Ok(Self {
            action: table.action,
            line,
            user: each(table.user, |word| id(word, "user", names.user))?,
            group: each(table.group, |word| id(word, "group", names.group))?,
            container: each(table.container, glob)?,
            program: each(table.program, glob)?,
            address: each(table.address, |word| Network::parse(&word.to_string()))?,
            port: each(table.port, ports)?,
            namespace: each(table.namespace, namespace)?,
            across: table.across,
        })
    }

    pub(super) fn allows(&self) -> bool {
        self.action == Action::Allow
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// Whether it decides on every end of such a program, or on none. `None`: on some, perhaps.
    pub(super) fn matches_program(&self, user: u32, program: &str, comm: &str) -> Option<bool> {
        let user = named(&self.user, |named| Some(*named == user));
        let program = named(&self.program, |glob| {
            Some(glob.matches(if glob.is_of_paths() { program } else { comm }))
        });
        if [user, program].contains(&Some(false)) {
            return Some(false);
        }
        let is_all = self.group.is_none()
            && self.container.is_none()
            && self.address.is_none()
            && self.port.is_none()
            && self.namespace.is_none()
            && self.across.is_none();
        is_all.then_some(true)
    }

    /// Whether it decides on an end; `other`: the other one, if that is on this host.
    pub(super) fn matches(&self, end: End<'_>, other: Option<End<'_>>) -> bool {
        let user = named(&self.user, |user| Some(*user == end.user));
        let group = named(&self.group, |group| Some(end.groups?.contains(group)));
        let container = named(&self.container, |glob| is_in(end, glob));
        let program = named(&self.program, |glob| runs(end, glob));
        let address = named(&self.address, |network| {
            let mut addresses = end.addresses.into_iter();
            Some(addresses.any(|(address, _)| network.contains(address)))
        });
        let port = named(&self.port, |ports| {
            let mut addresses = end.addresses.into_iter();
            Some(addresses.any(|(_, port)| ports.contains(&port)))
        });
        let namespace = named(&self.namespace, |place| match place {
            Where::Host => Some(end.namespace.is_host),
            Where::Other => Some(!end.namespace.is_host),
            Where::Number(number) => Some(*number == end.namespace.number?),
        });
        let across = match self.across {
            None => Some(true),
            // Users and namespaces of another host are others.
            Some(Across::User) => Some(other.is_none_or(|other| end.user != other.user)),
            Some(Across::Namespace) => {
                Some(other.is_none_or(|other| end.namespace.cookie != other.namespace.cookie))
            }
            Some(Across::Host) => Some(other.is_none()),
        };
        let all = [
            user, group, container, program, address, port, namespace, across,
        ];
        if all.contains(&Some(false)) {
            return false;
        }
        !all.contains(&None) || !self.allows()
    }
}

/// Whether one of what a rule names matches: it does where nothing is named. `None`: nobody knows.
fn named<T>(things: &Option<Vec<T>>, mut matches: impl FnMut(&T) -> Option<bool>) -> Option<bool> {
    let Some(things) = things else {
        return Some(true);
    };
    let mut found = Some(false);
    for thing in things {
        match matches(thing) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => found = None,
        }
    }
    found
}

/// By the path of a control group, or by the container that these show.
fn is_in(end: End<'_>, glob: &Glob) -> Option<bool> {
    let cgroups = end.cgroups?;
    Some(if glob.is_of_paths() {
        cgroups.iter().any(|path| glob.matches(path))
    } else {
        end.container
            .is_some_and(|container| glob.matches(container))
    })
}

/// By the path of the program, or by the name that the process goes by.
fn runs(end: End<'_>, glob: &Glob) -> Option<bool> {
    if glob.is_of_paths() {
        Some(glob.matches(end.program?))
    } else {
        Some(glob.matches(end.comm))
    }
}

/// Reads each of the values that a key has.
fn each<T>(
    values: Option<Spanned<Several>>,
    read: impl Fn(&Word) -> Result<T, String>,
) -> Result<Option<Vec<T>>, Wrong> {
    let Some(values) = values else {
        return Ok(None);
    };
    let at = values.span().start;
    let words = values.into_inner().0;
    let read: Result<Vec<T>, String> = words.iter().map(read).collect();
    Ok(Some(read.map_err(|wrong| (at, wrong))?))
}

fn id(word: &Word, kind: &str, find: fn(&str) -> Option<u32>) -> Result<u32, String> {
    match word {
        // The last one means "none" to the kernel.
        Word::Number(number) => u32::try_from(*number)
            .ok()
            .filter(|number| *number != u32::MAX)
            .ok_or_else(|| format!("no {kind} has the number {number}")),
        Word::Text(name) => find(name).ok_or_else(|| {
            format!("there is no {kind} `{name}` on this host: name another one, or a number")
        }),
    }
}

fn glob(word: &Word) -> Result<Glob, String> {
    match word {
        Word::Text(text) if !text.is_empty() => Ok(Glob::new(text)),
        Word::Text(_) => Err("an empty pattern matches nothing: leave the key out".into()),
        Word::Number(number) => Err(format!("patterns are strings: write \"{number}\"")),
    }
}

fn ports(word: &Word) -> Result<RangeInclusive<u16>, String> {
    let text = word.to_string();
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(format!(
            "`{text}` is no port: write a number up to 65535, or \"6000-6100\""
        )),
    }
}

fn namespace(word: &Word) -> Result<Where, String> {
    match word {
        Word::Text(text) if text == "host" => Ok(Where::Host),
        Word::Text(text) if text == "other" => Ok(Where::Other),
        Word::Number(number) if *number > 0 => Ok(Where::Number(number.cast_unsigned())),
        _ => Err(format!(
            "`{word}` is no network namespace: write \"host\", \"other\", or its number as lsns -t net shows it"
        )),
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Several {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMore)
    }
}

struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Several;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number, or a list of these")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Several, E> {
        Ok(Several(vec![Word::Number(number)]))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Several, E> {
        Ok(Several(vec![Word::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Several, A::Error> {
        let mut words = Vec::new();
        while let Some(Several(one)) = list.next_element()? {
            words.extend(one);
        }
        if words.is_empty() {
            return Err(de::Error::custom(
                "an empty list matches nothing: leave the key out",
            ));
        }
        Ok(Several(words))
    }
}
