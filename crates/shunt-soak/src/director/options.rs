//! The command line.

use crate::options::{Common, Words};
use std::time::Duration;

/// What to run, and for how long.
pub(crate) struct Options {
    pub(super) common: Common,
    pub(super) servers: usize,
    pub(super) clients: usize,
    pub(super) json: bool,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut servers, mut clients, mut json) = (3, 8, false);
        let ten_minutes = Duration::from_secs(600);
        let common = Common::parse(arguments, ten_minutes, |word, words| {
            match word {
                "--servers" => servers = at_least_one(word, words)?,
                "--clients" => clients = at_least_one(word, words)?,
                "--json" => json = true,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self {
            common,
            servers,
            clients,
            json,
        })
    }

    /// A check of the soak itself, without Shunt.
    pub(super) fn is_native(&self) -> bool {
        self.common.shunt.is_none()
    }
}

fn at_least_one(word: &str, words: &mut Words) -> Result<usize, String> {
    Ok(usize::try_from(words.number(word)?).unwrap_or(1).max(1))
}
