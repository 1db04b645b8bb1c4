//! Leaves out of a script what its difference does not need (Zeller's delta debugging, without the
//! complements: parts of half the length, then of a quarter, down to single lines).

use std::time::{Duration, Instant};

use anyhow::Result;

use super::generate::Lines;
use super::play::{Difference, Mode, Player};

/// How long one script may be shrunk.
const LIMIT: Duration = Duration::from_secs(240);
/// A difference that was seen in every one of these plays is looked for in one.
const SURE: usize = 3;

pub(crate) struct Shrinker<'a> {
    pub(crate) player: &'a Player,
    pub(crate) mode: Mode,
    /// What must differ.
    pub(crate) kind: String,
    /// Plays in which it is looked for.
    pub(crate) plays: usize,
}

impl<'a> Shrinker<'a> {
    pub(crate) fn new(
        player: &'a Player,
        mode: Mode,
        script: &[String],
        difference: &Difference,
    ) -> Result<Self> {
        let mut shrinker = Self {
            player,
            mode,
            kind: difference.kind(),
            plays: 1,
        };
        let mut seen = 0;
        for _ in 0..SURE {
            seen += usize::from(shrinker.differs(script)?.is_some());
        }
        shrinker.plays = if seen == SURE { 1 } else { 2 * SURE };
        Ok(shrinker)
    }

    /// The difference, if this script shows it and two native plays do not differ.
    fn differs(&self, script: &[String]) -> Result<Option<Difference>> {
        let native = self.player.play(script, Mode::Native)?;
        for _ in 0..self.plays {
            let shunted = self.player.play(script, self.mode)?;
            let Some(difference) = native.difference(&shunted) else {
                continue;
            };
            if difference.kind() != self.kind {
                continue;
            }
            let again = self.player.play(script, Mode::Native)?;
            return Ok((native.difference(&again).is_none()).then_some(difference));
        }
        Ok(None)
    }

    /// The shortest script found.
    pub(crate) fn shrink(&self, script: &[String]) -> Result<Lines> {
        let end = Instant::now() + LIMIT;
        let mut lines: Lines = script.to_vec();
        lines.retain(|line| !line.starts_with('#'));
        let mut part = (lines.len() / 2).max(1);
        loop {
            let before = lines.len();
            let mut at = 0;
            while at < lines.len() && Instant::now() < end {
                let mut fewer = lines.clone();
                fewer.drain(at..(at + part).min(lines.len()));
                if !fewer.is_empty() && self.differs(&fewer)?.is_some() {
                    lines = fewer;
                } else {
                    at += part;
                }
            }
            let is_done = part == 1 && lines.len() == before;
            if is_done || Instant::now() >= end {
                return Ok(lines);
            }
            part = (part / 2).max(1);
        }
    }
}
