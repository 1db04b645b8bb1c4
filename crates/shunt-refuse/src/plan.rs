//! Which calls are refused, and what was met.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};

use crate::Options;

/// What tells one call in the code from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Its number.
    pub(crate) number: u32,
    /// The argument that tells what it is for, where there is one.
    pub(crate) argument: u32,
    /// Where it is, in the file of the library; 0: outside of it, called from it.
    pub(crate) address: u64,
    /// Where the function that holds it is called; 0 in a key stands for any.
    pub(crate) caller: u64,
}

impl Key {
    fn covers(self, met: Self) -> bool {
        let same = (self.number, self.argument, self.address);
        same == (met.number, met.argument, met.address)
            && (self.caller == 0 || self.caller == met.caller)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            argument,
            address,
            caller,
        } = self;
        write!(f, "{number} {argument} {address:x} {caller:x}")
    }
}

impl FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not NUMBER ARGUMENT ADDRESS CALLER");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [number, argument, address, caller] = words[..] else {
            return Err(wrong());
        };
        let hex = |word| u64::from_str_radix(word, 16).map_err(|_| wrong());
        Ok(Self {
            number: number.parse().map_err(|_| wrong())?,
            argument: argument.parse().map_err(|_| wrong())?,
            address: hex(address)?,
            caller: hex(caller)?,
        })
    }
}

/// See the module.
pub(crate) struct Plan {
    keys: Vec<Key>,
    errno: i32,
    first: u64,
    last: u64,
    met: u64,
    refused: u64,
    /// How often each call was met.
    counts: BTreeMap<Key, u64>,
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            keys: options.at.clone(),
            errno: options.errno,
            first: options.first,
            last: options.last,
            met: 0,
            refused: 0,
            counts: BTreeMap::new(),
        }
    }

    /// A call is about to be made: the errno that it fails with instead, if it is to be refused.
    pub(crate) fn decide(&mut self, call: Key) -> Option<i32> {
        *self.counts.entry(call).or_default() += 1;
        if !self.keys.iter().any(|key| key.covers(call)) {
            return None;
        }
        self.met += 1;
        let refuses = (self.first..=self.last).contains(&self.met);
        self.refused += u64::from(refuses);
        refuses.then_some(self.errno)
    }

    /// Writes down what was met.
    pub(crate) fn write(&self, log: &Path) -> Result<()> {
        let mut text = format!("met {} refused {}\n", self.met, self.refused);
        for (key, count) in &self.counts {
            let _ = writeln!(text, "{key} {count}");
        }
        std::fs::write(log, text).with_context(|| format!("write {}", log.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = Key {
            number: 72,
            argument: 1030,
            address: 0xc0de,
            caller: 0xca11,
        };
        assert_eq!(key.to_string().parse(), Ok(key));
        assert!("72 1030 c0de".parse::<Key>().is_err());
    }

    #[test]
    fn a_key_without_a_caller_stands_for_all() {
        let met = Key {
            number: 72,
            argument: 0,
            address: 1,
            caller: 2,
        };
        assert!(Key { caller: 0, ..met }.covers(met) && met.covers(met));
        assert!(!Key { caller: 3, ..met }.covers(met) && !Key { address: 0, ..met }.covers(met));
    }
}
