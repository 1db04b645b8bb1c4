//! Steppers that live at the same time and take turns.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Sample;
use crate::child::Watched;
use crate::process::Process;

/// Who takes turns: what is asked, and the server that it talks to, if it has one.
pub(super) struct Stepper {
    asked: Watched,
    server: Option<Watched>,
}

/// The nanoseconds of each turn, and the processor seconds of all turns of both.
pub(super) struct Turns {
    times: Vec<f64>,
    cpu: [f64; 2],
}

impl Stepper {
    pub(super) fn new(mut asked: Watched, server: Option<Watched>) -> Result<Self> {
        let line = asked.line()?;
        ensure!(line == "ready", "a stepper says {line:?}");
        // Once for what is only the first time.
        asked.ask()?;
        Ok(Self { asked, server })
    }

    fn cpu(&self) -> [f64; 2] {
        [Some(&self.asked), self.server.as_ref()]
            .map(|one| one.map_or(0.0, |one| Process::of(one.id()).seconds))
    }

    fn turn(&mut self) -> Result<f64> {
        let line = self.asked.ask()?;
        line.parse()
            .with_context(|| format!("a stepper says {line:?}"))
    }
}

/// All of them, each once in each turn.
pub(super) fn take(mut steppers: Vec<Stepper>, turns: usize) -> Result<Vec<Turns>> {
    let mut all: Vec<Turns> = steppers
        .iter()
        .map(|stepper| Turns {
            times: Vec::new(),
            cpu: stepper.cpu().map(|seconds| -seconds),
        })
        .collect();
    for turn in 0..turns {
        for n in 0..steppers.len() {
            let n = (n + turn) % steppers.len();
            all[n].times.push(steppers[n].turn()?);
        }
    }
    for (stepper, turns) in steppers.into_iter().zip(&mut all) {
        for (sum, now) in turns.cpu.iter_mut().zip(stepper.cpu()) {
            *sum += now;
        }
        // A server serves until it is killed.
        stepper.asked.finish()?;
    }
    Ok(all)
}

impl Turns {
    /// A sample of the median turn, turned into a figure by `value`, and of the processor time for
    /// each of `count` items a turn.
    pub(super) fn sample(mut self, count: u32, value: fn(f64) -> f64) -> Result<Sample> {
        let items = self.times.len() as f64 * f64::from(count);
        self.times.sort_by(f64::total_cmp);
        let median = self.times.get(self.times.len() / 2).context("no turns")?;
        Ok(Sample {
            value: value(*median),
            times: None,
            cpu: self.cpu.map(|seconds| seconds / items * 1e6),
            carried: None,
        })
    }
}

/// Starts one that is killed if it takes much longer than any does.
pub(super) fn start(command: &mut std::process::Command) -> Result<Watched> {
    Watched::start("stepper", command, Duration::from_secs(90))
}
