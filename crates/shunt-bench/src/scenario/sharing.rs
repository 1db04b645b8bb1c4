//! What it costs that threads and processes may share a connection.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Entry, Row, Sample, Scenario};
use crate::child::Watched;
use crate::cores::{Place, Places};
use crate::side::{Lab, ring_share};

/// A row's sides, each with what its stepper does and whether it does so under Shunt.
type Sides = &'static [(&'static str, &'static str, bool)];

/// The scenario.
pub(super) fn scenario(quick: bool, places: &Places) -> Scenario {
    let turns = if quick { 40 } else { 200 };
    let row = |label: &str, sides: Sides, count: u32, place| {
        let cores = places.cores(place).map(|core| core.map(|n| n.to_string()));
        Row {
            label: label.into(),
            x: 0.0,
            place,
            entries: vec![Entry {
                sides: sides.iter().map(|(name, ..)| *name).collect(),
                measure: Box::new(move |lab| measure(lab, sides, count, &cores, turns)),
            }],
        }
    };
    let mut rows = vec![
        row(
            "8 B there",
            &[
                ("alone", "alone", true),
                ("thread", "threaded", true),
                ("child", "forked", true),
            ],
            5_000,
            Place::One,
        ),
        row(
            "free token",
            &[
                ("cas", "cas-free", false),
                ("biased", "biased-free", false),
                ("monitor", "monitor-free", false),
            ],
            20_000,
            Place::One,
        ),
    ];
    if places.of_two().contains(&Place::Two) {
        rows.push(row(
            "8 B by turns",
            &[
                ("turns", "turns", false),
                ("threads", "thread-turns", true),
                ("processes", "process-turns", true),
            ],
            200,
            Place::Two,
        ));
        rows.push(row(
            "token by turns",
            &[
                ("turns", "turns", false),
                ("cas", "cas-turns", false),
                ("biased", "biased-turns", false),
                ("monitor", "monitor-turns", false),
            ],
            100,
            Place::Two,
        ));
    }
    Scenario {
        name: "sharing",
        title: "8 bytes sent and received by one who has both ends of a connection, alone, beside \
                a thread or a child that sleeps, and in turn with another; and the token alone",
        unit: "ns",
        lower: true,
        axis: "",
        item: "messages",
        rows,
    }
}

fn measure(
    lab: &Lab,
    sides: Sides,
    count: u32,
    cores: &[Option<String>; 2],
    turns: usize,
) -> Result<Vec<Sample>> {
    let mut files = Vec::new();
    let commands = sides.iter().map(|&(_, step, under)| {
        let mut command = if under {
            let file = lab.fresh("statistics");
            let command = lab.stepper_eager(&file);
            files.push(Some(file));
            command
        } else {
            files.push(None);
            lab.stepper()
        };
        command.args(["--step", step, "--count", &count.to_string()]);
        if let [Some(first), Some(second)] = cores {
            command.args(["--cores", &format!("{first},{second}")]);
        }
        command
    });
    let mut samples = samples(by_turns(commands.collect(), turns)?, 1.0)?;
    for (sample, file) in samples.iter_mut().zip(files) {
        sample.ring_share = file.map(|file| ring_share(&file)).transpose()?;
        let share = sample.ring_share.unwrap_or(1.0);
        ensure!(share > 0.5, "only {:.0} % went by ring", share * 100.0);
    }
    Ok(samples)
}

/// Lets steppers take turns; the nanoseconds of each turn of each of them.
pub(super) fn by_turns(commands: Vec<Command>, turns: usize) -> Result<Vec<Vec<f64>>> {
    let mut steppers = Vec::new();
    for mut command in commands {
        let mut stepper = Watched::start("stepper", &mut command, Duration::from_secs(90))?;
        let line = stepper.line()?;
        ensure!(line == "ready", "a stepper says {line:?}");
        // Once for what is only the first time.
        stepper.ask()?;
        steppers.push(stepper);
    }
    let mut times = vec![Vec::new(); steppers.len()];
    for turn in 0..turns {
        for n in 0..steppers.len() {
            let n = (n + turn) % steppers.len();
            let line = steppers[n].ask()?;
            let time = line.parse::<f64>();
            times[n].push(time.with_context(|| format!("a stepper says {line:?}"))?);
        }
    }
    for stepper in steppers {
        stepper.finish()?;
    }
    Ok(times)
}

/// The medians, in units of so many nanoseconds.
pub(super) fn samples(times: Vec<Vec<f64>>, unit: f64) -> Result<Vec<Sample>> {
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    let sample = |times| {
        Ok(Sample {
            value: median(times).context("no turns")? * unit,
            times: None,
            cpu: [0.0; 2],
            ring_share: None,
        })
    };
    times.into_iter().map(sample).collect()
}
