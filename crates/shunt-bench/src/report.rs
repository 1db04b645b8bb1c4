//! What came out, and how it is shown.

pub(crate) mod html;
mod plot;
pub(crate) mod table;

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cores::{Place, Places};
use crate::scenario::{Sample, Scenario};
use crate::side::Side;
use crate::worker::Times;

#[derive(Serialize)]
pub(crate) struct Results {
    pub(crate) host: Host,
    pub(crate) rounds: usize,
    pub(crate) tables: Vec<Table>,
    pub(crate) failures: Vec<Failure>,
}

/// A measurement that could not be made.
#[derive(Serialize)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) why: String,
}

#[derive(Serialize)]
pub(crate) struct Host {
    pub(crate) processor: String,
    pub(crate) kernel: String,
    pub(crate) cores: usize,
    /// Runnable processes before the run: what else the machine did.
    pub(crate) load: String,
    pub(crate) version: &'static str,
}

impl Host {
    pub(crate) fn look(places: &Places) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo").lines().find_map(|line| {
            Some(
                line.strip_prefix("model name")?
                    .split_once(':')?
                    .1
                    .trim()
                    .to_owned(),
            )
        });
        let load = read("/proc/loadavg");
        Self {
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.into()),
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            cores: places.count,
            load: load.split_whitespace().next().unwrap_or_default().into(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// Whether less is better.
    pub(crate) lower: bool,
    pub(crate) axis: &'static str,
    pub(crate) item: &'static str,
    pub(crate) rows: Vec<TableRow>,
}

#[derive(Serialize)]
pub(crate) struct TableRow {
    pub(crate) label: String,
    pub(crate) x: f64,
    pub(crate) place: Place,
    pub(crate) figures: Vec<Figure>,
}

/// One side of a row: the median of its rounds, and all of them.
#[derive(Serialize)]
pub(crate) struct Figure {
    pub(crate) side: &'static str,
    pub(crate) median: Sample,
    pub(crate) samples: Vec<Sample>,
}

impl Figure {
    pub(crate) fn of(side: &'static str, samples: Vec<Sample>) -> Option<Self> {
        let of = |part: &dyn Fn(&Sample) -> Option<f64>| {
            let mut all: Vec<f64> = samples.iter().filter_map(part).collect();
            all.sort_by(f64::total_cmp);
            let middle = all.len() / 2;
            match all.len() {
                0 => None,
                n if n % 2 == 1 => Some(all[middle]),
                _ => Some(f64::midpoint(all[middle - 1], all[middle])),
            }
        };
        let time = |part: fn(&Times) -> f64| of(&|s| s.times.as_ref().map(part));
        let times = || {
            Some(Times {
                mean: time(|t| t.mean)?,
                p1: time(|t| t.p1)?,
                p50: time(|t| t.p50)?,
                p99: time(|t| t.p99)?,
                p999: time(|t| t.p999)?,
            })
        };
        let median = Sample {
            value: of(&|s| Some(s.value))?,
            times: times(),
            cpu: [0, 1].map(|end| of(&|s| Some(s.cpu[end])).unwrap_or(0.0)),
            ring_share: of(&|s| s.ring_share),
        };
        Some(Self {
            side,
            median,
            samples,
        })
    }
}

impl Table {
    pub(crate) fn new(scenario: &Scenario, rows: Vec<TableRow>) -> Self {
        Self {
            name: scenario.name,
            title: scenario.title,
            unit: scenario.unit,
            lower: scenario.lower,
            axis: scenario.axis,
            item: scenario.item,
            rows,
        }
    }

    /// How many times better `a` is than `b`.
    pub(crate) fn better(&self, a: f64, b: f64) -> f64 {
        if self.lower { b / a } else { a / b }
    }

    /// What a row's sides are compared with: its first one, mostly native TCP.
    pub(crate) fn base(&self) -> &'static str {
        let first = self.rows.iter().find_map(|row| row.figures.first());
        first.map_or("", |figure| figure.side)
    }

    /// The first side in its best placement, for what this row measures.
    pub(crate) fn best_base(&self, row: &TableRow) -> Option<f64> {
        let same = self.rows.iter().filter(|r| r.label == row.label);
        let values = same.filter_map(|r| Some(r.figures.first()?.median.value));
        values.reduce(|a, b| if self.better(a, b) > 1.0 { a } else { b })
    }

    /// Whether processor time was measured.
    pub(crate) fn has_cpu(&self) -> bool {
        let mut figures = self.rows.iter().flat_map(|row| &row.figures);
        figures.any(|figure| figure.median.cpu != [0.0; 2])
    }
}

impl TableRow {
    pub(crate) fn of(&self, side: Side) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|figure| figure.side == side.name())
    }
}

/// Writes a report's file.
pub(crate) fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
