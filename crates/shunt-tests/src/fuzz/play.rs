//! Plays a script, natively or under Shunt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use shunt_harness::stats::Stats;

use super::generate::Lines;
use crate::process::{Running, finish_all};

/// The longest that a whole script may take; its conductor ends a call that hangs much sooner.
const LIMIT: Duration = Duration::from_secs(60);

/// When connections are moved; all processes are under Shunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    Native,
    Eager,
    Sync,
    Adaptive,
}

impl Mode {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Eager => "eager",
            Self::Sync => "sync",
            Self::Adaptive => "adaptive",
        }
    }
}

/// What a script came to.
pub(crate) struct Play {
    pub(crate) output: Lines,
    pub(crate) stats: Stats,
    /// Stacks of all threads, if it had to be ended.
    pub(crate) stacks: Option<String>,
}

impl Play {
    /// The first line that is not the same, and both its forms.
    pub(crate) fn difference(&self, other: &Self) -> Option<Difference> {
        let most = self.output.len().max(other.output.len());
        let line = |play: &Self, at: usize| play.output.get(at).cloned().unwrap_or_default();
        (0..most)
            .map(|at| Difference {
                native: line(self, at),
                shunted: line(other, at),
            })
            .find(|d| d.native != d.shunted)
    }
}

/// One line of output that should be the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Difference {
    pub(crate) native: String,
    pub(crate) shunted: String,
}

impl Difference {
    /// The operation, whose it is, and how both results look: what stays the same while a script
    /// shrinks.
    pub(crate) fn kind(&self) -> String {
        let line = if self.native.is_empty() {
            &self.shunted
        } else {
            &self.native
        };
        let words: Vec<&str> = line.split([' ', ':']).skip(1).take(2).collect();
        let looks = (look(&self.native), look(&self.shunted));
        format!("{} {} {}", words.join(" "), looks.0, looks.1)
    }
}

/// A line with all numbers of its result alike.
fn look(line: &str) -> String {
    let (_, result) = line.split_once(": ").unwrap_or(("", line));
    let mut look = String::new();
    for c in result.chars() {
        let c = if c.is_ascii_digit() { '9' } else { c };
        if c != '9' || !look.ends_with('9') {
            look.push(c);
        }
    }
    look
}

/// Plays scripts.
pub(crate) struct Player {
    pub(crate) shunt: PathBuf,
    /// The interpreter.
    pub(crate) interpreter: PathBuf,
    /// For files.
    pub(crate) out: PathBuf,
}

static PLAYS: AtomicUsize = AtomicUsize::new(0);

impl Player {
    pub(crate) fn play(&self, script: &[String], mode: Mode) -> Result<Play> {
        self.play_so(script, mode, false)
    }

    /// Like [`Self::play`]; a script that hangs is left for its stacks to be taken.
    pub(crate) fn play_so(&self, script: &[String], mode: Mode, stays: bool) -> Result<Play> {
        let number = PLAYS.fetch_add(1, Ordering::Relaxed);
        let folder = self
            .out
            .join(format!("play-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let result = self.play_in(&folder, script, mode, stays);
        let _ = std::fs::remove_dir_all(&folder);
        result
    }

    fn play_in(&self, folder: &Path, script: &[String], mode: Mode, stays: bool) -> Result<Play> {
        let (file, stats) = (folder.join("script"), folder.join("stats"));
        std::fs::write(&file, script.join("\n") + "\n")?;
        let mut command = if mode == Mode::Native {
            Command::new(&self.interpreter)
        } else {
            let mut command = Command::new(&self.shunt);
            command
                .arg("run")
                .arg(format!("--upgrade={}", mode.word()))
                .arg("--stats")
                .arg(&stats)
                .arg("--")
                .arg(&self.interpreter);
            command
        };
        command.arg(&file);
        if stays {
            command.arg("stay");
        }
        let running = Running::start(command, "script", folder)?;
        let limit = if stays { LIMIT / 4 } else { LIMIT };
        let (ended, stacks) = finish_all(vec![running], limit);
        let mut output = Lines::new();
        for ended in &ended {
            output.extend(ended.stdout.lines().map(str::to_owned));
            if ended.exit != "exit 0" {
                output.push(ended.exit.clone());
            }
        }
        Ok(Play {
            output,
            stats: Stats::count(&stats),
            stacks,
        })
    }
}
