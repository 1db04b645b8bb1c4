//! What it costs under Shunt to start, become and end a process.

use std::process::Command;

use super::sharing::{self, by_turns};
use super::{Entry, Row, Scenario};
use crate::cores::{Place, Places};
use crate::side::Lab;

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
                let sides = [lab.stepper(), with_empty(lab), lab.stepper_under()];
                let commands = sides.map(|mut command| {
                    command.args(["--step", step, "--count", "5"]);
                    command.args(core.iter().flat_map(|core| ["--cores", core]));
                    command
                });
                let turns = if quick { 40 } else { 200 };
                sharing::samples(by_turns(commands.into(), turns)?, 1e-3)
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

fn with_empty(lab: &Lab) -> Command {
    let mut command = lab.stepper();
    command.env("LD_PRELOAD", EMPTY);
    command
}
