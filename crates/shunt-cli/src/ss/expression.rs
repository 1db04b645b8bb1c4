//! Filters in the words of `ss(8)`: `state established '( sport = :80 or dst 10.0.0.0/8 )'`.
//!
//! ```text
//! filter     = [ "state" STATE | "exclude" STATE ] [ alternative ]
//! alternative = all { ("or" | "|" | "||") all }
//! all        = one { [ "and" | "&" | "&&" ] one }
//! one        = ("not" | "!") one | "(" alternative ")" | FIELD [ COMPARISON ] VALUE
//! ```

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use shunt_abi::Reason;

use super::connection::{Connection, Listener};
use super::word;
use crate::{reasons, user};

/// What a filter is asked about.
#[derive(Clone, Copy)]
pub(crate) enum Item<'a> {
    Connection(&'a Connection),
    Listener(&'a Listener),
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    /// No condition.
    All,
    Listening,
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    /// Field, comparison, value.
    Port(Side, Comparison, u16),
    Address(Side, Network),
    Pid(Comparison, u32),
    Program(String),
    User(u32),
    Reason(Reason),
    Path(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    /// The accepting end, LOCAL in the table.
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    Greater,
    AtMost,
    AtLeast,
}

impl Comparison {
    fn holds<T: PartialOrd>(self, one: T, other: T) -> bool {
        match self {
            Self::Equal => one == other,
            Self::NotEqual => one != other,
            Self::Less => one < other,
            Self::Greater => one > other,
            Self::AtMost => one <= other,
            Self::AtLeast => one >= other,
        }
    }

    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Equal,
            "!=" | "ne" | "neq" => Self::NotEqual,
            "<" | "lt" => Self::Less,
            ">" | "gt" => Self::Greater,
            "<=" | "le" | "leq" => Self::AtMost,
            ">=" | "ge" | "geq" => Self::AtLeast,
            _ => return None,
        })
    }
}

/// `ADDRESS`, `ADDRESS/BITS`, `ADDRESS:PORT`, `:PORT`, or `*` in place of the address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Network {
    prefix: Option<(IpAddr, u32)>,
    port: Option<u16>,
}

impl Network {
    fn parse(word: &str) -> Option<Self> {
        let (address, port) = split_port(word)?;
        let prefix = match address {
            "" | "*" => None,
            some => Some(prefix(some)?),
        };
        Some(Self { prefix, port })
    }

    fn has(&self, end: SocketAddr) -> bool {
        let ip = end.ip().to_canonical();
        self.port.is_none_or(|port| port == end.port())
            && self
                .prefix
                .is_none_or(|(base, bits)| is_within(ip, base, bits))
    }
}

/// The address of a word, without brackets, and its port.
fn split_port(word: &str) -> Option<(&str, Option<u16>)> {
    let parse = |port: &str| match port {
        "*" => Some(None),
        port => word::port(port).ok().map(Some),
    };
    if let Some(rest) = word.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let port = match rest {
            "" => None,
            rest => parse(rest.strip_prefix(':')?)?,
        };
        return Some((address, port));
    }
    match word.split_once(':') {
        Some((address, port)) if !port.contains(':') => Some((address, parse(port)?)),
        _ => Some((word, None)),
    }
}

fn prefix(word: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
        None => (word, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    let plain = address.to_canonical();
    // Addresses of version 4 that are mapped to version 6 are what they stand for.
    let mapped = if plain == address { 0 } else { 96 };
    (mapped..=width)
        .contains(&bits)
        .then(|| (plain, bits - mapped))
}

fn is_within(ip: IpAddr, base: IpAddr, bits: u32) -> bool {
    match (ip, base) {
        (IpAddr::V4(ip), IpAddr::V4(base)) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            ip.to_bits() & mask == base.to_bits() & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(base)) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            ip.to_bits() & mask == base.to_bits() & mask
        }
        _ => false,
    }
}

impl Expression {
    /// The filter that these words are.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let words = tokens(&words.join(" "));
        if words.len() > MOST_WORDS {
            return Err(format!(
                "the filter is too long: it may have {MOST_WORDS} words"
            ));
        }
        let mut rest = Words {
            words: words.iter().map(String::as_str).collect(),
            depth: 0,
        };
        let state = rest.state()?;
        let condition = match rest.peek() {
            None => Self::All,
            Some(_) => rest.alternative()?,
        };
        match rest.peek() {
            None => Ok(state.and(condition)),
            Some(word) => Err(format!("\"{word}\" is not expected here")),
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, one) | (one, Self::All) => one,
            (one, other) => Self::And(one.into(), other.into()),
        }
    }

    /// Whether it holds. What a listener has not, such as a peer, is not equal to anything.
    pub(crate) fn shows(&self, item: Item<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Not(one) => !one.shows(item),
            Self::And(one, other) => one.shows(item) && other.shows(item),
            Self::Or(one, other) => one.shows(item) || other.shows(item),
            Self::Listening => matches!(item, Item::Listener(_)),
            Self::Port(side, how, port) => {
                item.end(*side).is_some_and(|e| how.holds(e.port(), *port))
            }
            Self::Address(side, network) => item.end(*side).is_some_and(|end| network.has(end)),
            Self::Pid(how, pid) => item.pids().iter().any(|other| how.holds(other, pid)),
            Self::Program(name) => item
                .programs()
                .iter()
                .any(|comm| word::is_named(comm, name)),
            Self::User(uid) => item.users().contains(uid),
            Self::Reason(reason) => match item {
                Item::Connection(c) => c.reason.as_deref() == Some(reason.name()),
                Item::Listener(_) => false,
            },
            Self::Path(path) => match item {
                Item::Connection(c) => c.path == *path,
                Item::Listener(_) => false,
            },
        }
    }
}

impl Item<'_> {
    fn end(&self, side: Side) -> Option<SocketAddr> {
        match (self, side) {
            (Self::Connection(c), Side::Source) => Some(c.local),
            (Self::Connection(c), Side::Destination) => Some(c.peer),
            (Self::Listener(l), Side::Source) => Some(l.local),
            (Self::Listener(_), Side::Destination) => None,
        }
    }

    fn pids(&self) -> Vec<u32> {
        match self {
            Self::Connection(c) => c.processes.iter().filter_map(|p| p.pid).collect(),
            Self::Listener(l) => l.pid.into_iter().collect(),
        }
    }

    fn programs(&self) -> Vec<&str> {
        match self {
            Self::Connection(c) => c.processes.iter().map(|p| p.comm.as_str()).collect(),
            Self::Listener(l) => vec![&l.comm],
        }
    }

    fn users(&self) -> Vec<u32> {
        match self {
            Self::Connection(c) => c.processes.iter().filter_map(|p| p.uid).collect(),
            Self::Listener(l) => l.uid.into_iter().collect(),
        }
    }
}

/// The words of a line: parentheses and comparisons need no spaces around them.
fn tokens(line: &str) -> Vec<String> {
    let kind = |c: char| match c {
        '(' | ')' => 1,
        '=' | '<' | '>' | '!' => 2,
        '&' | '|' => 3,
        _ => 0,
    };
    let mut words: Vec<String> = Vec::new();
    let mut last = None;
    for c in line.chars() {
        let now = (!c.is_whitespace()).then(|| kind(c));
        match words.last_mut() {
            Some(word) if now.is_some() && now == last && now != Some(1) => word.push(c),
            _ if now.is_some() => words.push(c.to_string()),
            _ => {}
        }
        last = now;
    }
    words
}

/// More would need more of the stack than there may be, to be read or to be asked.
const MOST_WORDS: usize = 4096;
const DEEPEST: usize = 100;

/// What is still to be read.
struct Words<'a> {
    words: VecDeque<&'a str>,
    /// Parentheses and negations that are open.
    depth: usize,
}

impl Words<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.front().copied()
    }

    fn take(&mut self, wanted: &[&str]) -> bool {
        let found = self.peek().is_some_and(|word| wanted.contains(&word));
        if found {
            self.words.pop_front();
        }
        found
    }

    fn value(&mut self, field: &str) -> Result<String, String> {
        let word = self.words.pop_front();
        word.map(str::to_owned)
            .ok_or_else(|| format!("\"{field}\" needs a value"))
    }

    fn state(&mut self) -> Result<Expression, String> {
        let excluded = self.take(&["exclude", "excl"]);
        if !excluded && !self.take(&["state"]) {
            return Ok(Expression::All);
        }
        let not = |one: Expression| Expression::Not(one.into());
        let state = match self.value("state")?.as_str() {
            "all" => Expression::All,
            "listening" | "listen" => Expression::Listening,
            "established" | "connected" => not(Expression::Listening),
            other => {
                return Err(format!(
                    "there is no state \"{other}\": all, established, connected or listening"
                ));
            }
        };
        Ok(if excluded { not(state) } else { state })
    }

    fn alternative(&mut self) -> Result<Expression, String> {
        let mut one = self.all()?;
        while self.take(&["or", "|", "||"]) {
            one = Expression::Or(one.into(), self.all()?.into());
        }
        Ok(one)
    }

    fn all(&mut self) -> Result<Expression, String> {
        let mut one = self.one()?;
        loop {
            let said = self.take(&["and", "&", "&&"]);
            let ends = matches!(self.peek(), None | Some(")" | "or" | "|" | "||"));
            if ends && !said {
                return Ok(one);
            }
            one = one.and(self.one()?);
        }
    }

    fn deeper(
        &mut self,
        read: fn(&mut Self) -> Result<Expression, String>,
    ) -> Result<Expression, String> {
        if self.depth == DEEPEST {
            return Err("the filter is nested too deeply".into());
        }
        self.depth += 1;
        let inner = read(self);
        self.depth -= 1;
        inner
    }

    fn one(&mut self) -> Result<Expression, String> {
        if self.take(&["not", "!"]) {
            return Ok(Expression::Not(self.deeper(Self::one)?.into()));
        }
        if self.take(&["("]) {
            let inner = self.deeper(Self::alternative)?;
            return match self.take(&[")"]) {
                true => Ok(inner),
                false => Err("a \")\" is missing".into()),
            };
        }
        let field = match self.words.pop_front() {
            None => return Err(format!("the filter ends where it needs one of {FIELDS}")),
            Some("state" | "exclude" | "excl") => {
                return Err("a state stands in front of all else, once".into());
            }
            Some(field) if is_field(field) => field.to_owned(),
            Some(other) => {
                return Err(format!(
                    "\"{other}\" is no filter, as `sport = :80` would be: state, {FIELDS}"
                ));
            }
        };
        let how = self.peek().and_then(Comparison::named);
        if how.is_some() {
            self.words.pop_front();
        }
        let value = self.value(&field)?;
        condition(&field, how.unwrap_or(Comparison::Equal), &value)
    }
}

const FIELDS: &str = "sport, dport, src, dst, pid, program, user, reason or path";

/// Whether it is one of these, or another name of one.
fn is_field(word: &str) -> bool {
    let mut fields = FIELDS.split([',', ' ']);
    matches!(word, "comm" | "uid") || word != "or" && fields.any(|field| field == word)
}

/// A comparison of a field with a value.
fn condition(field: &str, how: Comparison, value: &str) -> Result<Expression, String> {
    let wrong = |what: &str| format!("\"{value}\" is not {what}");
    let side = match field {
        "sport" | "src" => Side::Source,
        _ => Side::Destination,
    };
    let equal = match field {
        "sport" | "dport" => {
            let port = word::port(value.strip_prefix(':').unwrap_or(value));
            let port = port.map_err(|_| wrong("a port"))?;
            return Ok(Expression::Port(side, how, port));
        }
        "pid" => {
            let pid = value.parse().map_err(|_| wrong("a process id"))?;
            return Ok(Expression::Pid(how, pid));
        }
        "src" | "dst" => {
            let network = Network::parse(value).ok_or_else(|| wrong("an address"))?;
            Expression::Address(side, network)
        }
        "program" | "comm" => Expression::Program(value.to_owned()),
        "user" | "uid" => Expression::User(user::number(value).ok_or_else(|| wrong("a user"))?),
        "reason" => {
            let advice = |_| wrong("a reason: `shunt reasons` lists all");
            Expression::Reason(reasons::named(value).map_err(advice)?)
        }
        "path" => match value {
            "shm" | "rdma" | "tcp" => Expression::Path(value.to_owned()),
            _ => return Err(wrong("a path: shm, rdma or tcp")),
        },
        _ => return Err(format!("\"{field}\" is no filter")),
    };
    match how {
        Comparison::Equal => Ok(equal),
        Comparison::NotEqual => Ok(Expression::Not(equal.into())),
        _ => Err(format!("\"{field}\" is equal or not (=, !=)")),
    }
}

#[cfg(test)]
mod tests;
