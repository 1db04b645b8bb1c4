//! The command line.

use std::path::PathBuf;
use std::time::Duration;

/// What to run, and for how long.
pub(crate) struct Options {
    pub(super) time: Duration,
    pub(super) seed: u64,
    pub(super) servers: usize,
    pub(super) clients: usize,
    pub(super) shunt: Option<PathBuf>,
    pub(super) json: bool,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let clock = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let mut options = Self {
            time: Duration::from_secs(600),
            seed: u64::from(clock.subsec_nanos()) ^ clock.as_secs(),
            servers: 3,
            clients: 8,
            shunt: None,
            json: false,
        };
        let mut native = false;
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let number = |text: &String| {
                text.parse::<u64>()
                    .map_err(|_| format!("{text} is not a number"))
            };
            match word.as_str() {
                "--minutes" => options.time = Duration::from_secs(60 * number(value()?)?),
                "--seconds" => options.time = Duration::from_secs(number(value()?)?),
                "--seed" => options.seed = number(value()?)?,
                "--servers" => {
                    options.servers = usize::try_from(number(value()?)?).unwrap_or(1).max(1)
                }
                "--clients" => {
                    options.clients = usize::try_from(number(value()?)?).unwrap_or(1).max(1)
                }
                "--shunt" => options.shunt = Some(PathBuf::from(value()?)),
                "--native" => native = true,
                "--json" => options.json = true,
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        if native == options.shunt.is_some() {
            return Err("give either --shunt PATH or --native".into());
        }
        Ok(options)
    }

    /// A check of the soak itself, without Shunt.
    pub(super) fn is_native(&self) -> bool {
        self.shunt.is_none()
    }
}
