//! A pipeline of filters: records through standard input and output.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::pair::{Task, describe, outcome};
use super::{Entry, Row, Sample, Scenario};
use crate::carried::Carried;
use crate::child::Watched;
use crate::cores::{Place, Places};
use crate::side::{Lab, Side, Upgrade};
use crate::sys;
use crate::worker::Work;

/// The scenario.
pub(super) fn scenario(quick: bool, places: &Places) -> Scenario {
    let mut rows = Vec::new();
    for place in [Place::Any, Place::One] {
        for size in [64, 4096] {
            let entry = |side| {
                let task = Task {
                    side,
                    work: Work::Filter,
                    size,
                    milliseconds: if quick { 100 } else { 300 },
                    place,
                    cores: places.cores(place),
                    pairs: 1,
                };
                Entry::of(side, move |lab| measure(lab, &task))
            };
            rows.push(Row {
                label: format!("{size} B records"),
                x: size as f64,
                place,
                entries: [Side::Tcp, Side::Unix, Side::Pipe, Side::Shunt]
                    .map(entry)
                    .into(),
            });
        }
    }
    Scenario {
        name: "pipeline",
        title: "Source, two filters and sink joined on standard input and output",
        unit: "1/s",
        lower: false,
        axis: "",
        item: "records (client: all four processes)",
        rows,
    }
}

fn measure(lab: &Lab, task: &Task) -> Result<Sample> {
    let file = lab.fresh("statistics");
    let under = (task.side == Side::Shunt).then_some((Upgrade::Adaptive, &*file));
    let limit = Duration::from_secs(30) + Duration::from_millis(task.milliseconds * 20);
    let mut command = lab.worker(under);
    describe(&mut command, task, limit);
    command.args(["--role", "client"]);
    if let Some(core) = task.cores[0] {
        sys::pin(&mut command, core);
    }
    let mut joiner = Watched::start("pipeline", &mut command, limit)?;
    joiner.line()?;
    let outcome = outcome(&joiner.finish()?)?;
    ensure!(outcome.messages > 0, "nothing was sent");
    let carried = under
        .map(|(_, file)| Carried::read(file, None))
        .transpose()?;
    Ok(Sample {
        value: outcome.messages as f64 / outcome.seconds,
        times: None,
        cpu: [outcome.cpu / outcome.messages as f64 * 1e6, 0.0],
        carried,
    })
}
