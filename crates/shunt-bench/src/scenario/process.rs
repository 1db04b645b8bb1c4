//! What it costs under Shunt to start, become and end a process.

use std::process::Command;

use anyhow::Result;

use super::turns::{self, Stepper};
use super::{Entry, Row, Sample, Scenario};
use crate::cores::{Place, Places};
use crate::side::{Lab, Upgrade};

/// A library that comes with libc and has been empty since glibc 2.34: what no
/// preloaded library can do without.
const EMPTY: &str = "libutil.so.1";

/// The scenario.
pub(super) fn scenario(quick: bool, places: &Places) -> Scenario {
    // The scheduler likes to start children elsewhere, now and then.
    let core = places.cores(Place::One)[0].map(|core| core.to_string());
    let steps = [
        ("fork, exit", "fork"),
        ("fork, exec", "exec"),
        ("posix_spawn", "spawn"),
        ("sh -c", "shell"),
    ];
    let rows = steps.map(|(label, step)| (label, step, core.clone()));
    let rows = rows.into_iter().map(|(label, step, core)| Row {
        label: label.into(),
        x: 0.0,
        place: Place::One,
        entries: vec![Entry {
            sides: vec!["native", "empty", "shunt"],
            measure: Box::new(move |lab| {
                let turns = if quick { 40 } else { 200 };
                measure(lab, step, core.as_deref(), turns)
            }),
        }],
    });
    Scenario {
        name: "processes",
        title: "A process that ends at once, or becomes /bin/true: native, with an empty library \
                preloaded, and under Shunt",
        unit: "µs",
        lower: true,
        axis: "",
        item: "processes",
        rows: rows.collect(),
    }
}

fn measure(lab: &Lab, step: &str, core: Option<&str>, turns: usize) -> Result<Vec<Sample>> {
    const COUNT: u32 = 5;
    let under = lab.stepper(Some((Upgrade::Adaptive, None)));
    let mut steppers = Vec::new();
    for mut command in [lab.stepper(None), with_empty(lab), under] {
        command.args(["--step", step, "--count", &COUNT.to_string()]);
        command.args(core.iter().flat_map(|core| ["--cores", core]));
        steppers.push(Stepper::new(turns::start(&mut command)?, None)?);
    }
    let all = turns::take(steppers, turns)?.into_iter();
    all.map(|turns| turns.sample(COUNT, |ns| ns / 1e3))
        .collect()
}

fn with_empty(lab: &Lab) -> Command {
    let mut command = lab.stepper(None);
    command.env("LD_PRELOAD", EMPTY);
    command
}
