//! The command line.

use crate::options::{Common, Words};
use std::path::PathBuf;
use std::time::Duration;

/// What to run, and for how long.
pub(crate) struct Options {
    pub(super) common: Common,
    pub(super) servers: usize,
    pub(super) clients: usize,
    pub(super) json: bool,
    /// The run ends after this number of kills, if the time has not passed before.
    pub(super) kills: Option<u64>,
    /// How long until the user's shuntd is killed, again and again.
    pub(super) restarts: Option<Duration>,
    /// The host's daemon, which the director starts and kills.
    pub(super) system: Option<PathBuf>,
    pub(super) apart: Option<Apart>,
}

/// Servers and clients in two network namespaces.
pub(super) struct Apart {
    /// Processes in them.
    pub(super) servers: u32,
    pub(super) clients: u32,
    /// Where clients ask, with commas.
    pub(super) addresses: String,
}

impl Apart {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ',');
        Some(Self {
            servers: words.next()?.parse().ok()?,
            clients: words.next()?.parse().ok()?,
            addresses: words.next()?.to_owned(),
        })
    }
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut servers, mut clients, mut json) = (3, 8, false);
        let (mut kills, mut restarts, mut system, mut apart) = (None, None, None, None);
        let ten_minutes = Duration::from_secs(600);
        let common = Common::parse(arguments, ten_minutes, |word, words| {
            match word {
                "--servers" => servers = at_least_one(word, words)?,
                "--clients" => clients = at_least_one(word, words)?,
                "--json" => json = true,
                "--kills" => kills = Some(words.number(word)?),
                "--restarts" => restarts = Some(Duration::from_secs(words.number(word)?.max(1))),
                "--system" => system = Some(PathBuf::from(words.value(word)?)),
                "--apart" => {
                    let text = words.value(word)?;
                    apart = Some(Apart::parse(text).ok_or(format!("{text} names no places"))?);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if restarts.is_some() && (system.is_some() || common.shunt.is_none()) {
            return Err("--restarts needs a user's own shuntd, which is there without --system and --native".into());
        }
        Ok(Self {
            common,
            servers,
            clients,
            json,
            kills,
            restarts,
            system,
            apart,
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
