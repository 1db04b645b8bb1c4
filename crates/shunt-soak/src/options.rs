//! What the command lines of both soaks have in common.

use std::path::PathBuf;
use std::slice::Iter;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long, from which seed, and under which Shunt.
pub(crate) struct Common {
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    /// `None`: a check of the soak itself.
    pub(crate) shunt: Option<PathBuf>,
}

impl Common {
    /// Reads a command line. `own` takes the words that only one soak knows, and
    /// their values; `false`: nor does that one.
    pub(crate) fn parse<'a>(
        arguments: &'a [String],
        time: Duration,
        mut own: impl FnMut(&str, &mut Words<'a>) -> Result<bool, String>,
    ) -> Result<Self, String> {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let mut common = Self {
            time,
            seed: u64::from(clock.subsec_nanos()) ^ clock.as_secs(),
            shunt: None,
        };
        let mut native = false;
        let mut words = Words(arguments.iter());
        while let Some(word) = words.0.next() {
            match word.as_str() {
                "--minutes" => common.time = Duration::from_secs(60 * words.number(word)?),
                "--seconds" => common.time = Duration::from_secs(words.number(word)?),
                "--seed" => common.seed = words.number(word)?,
                "--shunt" => common.shunt = Some(PathBuf::from(words.value(word)?)),
                "--native" => native = true,
                _ if own(word, &mut words)? => {}
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        if native == common.shunt.is_some() {
            return Err("give either --shunt PATH or --native".into());
        }
        Ok(common)
    }
}

/// The words that are still to come.
pub(crate) struct Words<'a>(Iter<'a, String>);

impl<'a> Words<'a> {
    /// What stands behind `word`.
    pub(crate) fn value(&mut self, word: &str) -> Result<&'a str, String> {
        let value = self.0.next().ok_or(format!("{word} needs a value"))?;
        Ok(value)
    }

    /// The same, if it is a number.
    pub(crate) fn number(&mut self, word: &str) -> Result<u64, String> {
        let text = self.value(word)?;
        text.parse().map_err(|_| format!("{text} is not a number"))
    }
}
