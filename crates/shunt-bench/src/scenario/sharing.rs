//! What it costs that threads and processes may share a connection.

use anyhow::Result;

use super::turns::{self, Stepper};
use super::{Entry, Row, Sample, Scenario};
use crate::carried::Carried;
use crate::cores::{Place, Places};
use crate::side::{Lab, Upgrade};

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
    let mut steppers = Vec::new();
    for &(_, step, under) in sides {
        let file = under.then(|| lab.fresh("statistics"));
        let under = file.as_deref().map(|file| (Upgrade::Eager, Some(file)));
        let mut command = lab.stepper(under);
        command.args(["--step", step, "--count", &count.to_string()]);
        if let [Some(first), Some(second)] = cores {
            command.args(["--cores", &format!("{first},{second}")]);
        }
        steppers.push(Stepper::new(turns::start(&mut command)?, None)?);
        files.push(file);
    }
    let mut samples = Vec::new();
    for (turns, file) in turns::take(steppers, turns)?.into_iter().zip(files) {
        let carried = file
            .as_deref()
            .map(|file| Carried::mostly_by_ring(file, None));
        samples.push(Sample {
            carried: carried.transpose()?,
            ..turns.sample(count, |ns| ns)?
        });
    }
    Ok(samples)
}
