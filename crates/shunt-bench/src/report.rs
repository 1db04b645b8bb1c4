//! What came out, and how it is shown.

pub(crate) mod goal;
pub(crate) mod html;
mod plot;
pub(crate) mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::carried::Carried;
use crate::cores::{Place, Places};
use crate::scenario::{Sample, Scenario};
use crate::worker::Times;
use goal::Goal;

#[derive(Deserialize, Serialize)]
pub(crate) struct Results {
    pub(crate) host: Host,
    pub(crate) rounds: usize,
    /// What these tables say of what Shunt is to reach.
    #[serde(skip_deserializing)]
    pub(crate) goals: Vec<Goal>,
    pub(crate) tables: Vec<Table>,
    pub(crate) failures: Vec<Failure>,
}

impl Results {
    /// Reads what earlier runs have written; what two of them have measured counts by
    /// the later one.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self> {
        let mut all: Option<Self> = None;
        for file in files {
            let what = || format!("cannot read {}", file.display());
            let text = std::fs::read_to_string(file).with_context(what)?;
            let results: Self = serde_json::from_str(&text).with_context(what)?;
            all = Some(match all {
                None => results,
                Some(mut earlier) => {
                    earlier.merge(results);
                    earlier
                }
            });
        }
        let mut all = all.context("no file to read")?;
        all.judge();
        Ok(all)
    }

    fn merge(&mut self, later: Self) {
        for table in later.tables {
            match self.tables.iter_mut().find(|old| old.name == table.name) {
                Some(old) => old.merge(table),
                None => self.tables.push(table),
            }
        }
        self.rounds = self.rounds.min(later.rounds);
        self.failures.extend(later.failures);
    }

    /// Compares the tables with the goals.
    pub(crate) fn judge(&mut self) {
        self.goals = goal::all(&self.tables, self.rounds);
    }
}

/// A measurement that could not be made.
#[derive(Deserialize, Serialize)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) why: String,
}

#[derive(Deserialize, Serialize)]
pub(crate) struct Host {
    pub(crate) processor: String,
    pub(crate) kernel: String,
    pub(crate) cores: usize,
    /// Runnable processes before the run: what else the machine did.
    pub(crate) load: String,
    /// Busy loops beside it.
    #[serde(default)]
    pub(crate) busy: usize,
    pub(crate) version: String,
}

impl Host {
    /// What else the machine did, in words.
    pub(crate) fn beside(&self) -> String {
        match self.busy {
            0 => format!("load {} before the run", self.load),
            busy => format!("{busy} busy loops beside each measurement"),
        }
    }

    pub(crate) fn look(places: &Places, busy: usize) -> Self {
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
            busy,
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

#[derive(Deserialize, Serialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    /// Whether less is better.
    pub(crate) lower: bool,
    pub(crate) axis: String,
    pub(crate) item: String,
    pub(crate) rows: Vec<TableRow>,
}

#[derive(Deserialize, Serialize)]
pub(crate) struct TableRow {
    pub(crate) label: String,
    pub(crate) x: f64,
    pub(crate) place: Place,
    pub(crate) figures: Vec<Figure>,
}

/// One side of a row: the median of its rounds, and all of them.
#[derive(Deserialize, Serialize)]
pub(crate) struct Figure {
    pub(crate) side: String,
    pub(crate) median: Sample,
    pub(crate) samples: Vec<Sample>,
}

impl Figure {
    pub(crate) fn of(side: &str, samples: Vec<Sample>) -> Option<Self> {
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
        let carried = || {
            Some(Carried {
                ring: of(&|s| Some(s.carried?.ring))?,
                free: of(&|s| Some(s.carried?.free))?,
            })
        };
        let median = Sample {
            value: of(&|s| Some(s.value))?,
            times: times(),
            cpu: [0, 1].map(|end| of(&|s| Some(s.cpu[end])).unwrap_or(0.0)),
            carried: carried(),
        };
        Some(Self {
            side: side.into(),
            median,
            samples,
        })
    }
}

impl Table {
    pub(crate) fn new(scenario: &Scenario, rows: Vec<TableRow>) -> Self {
        Self {
            name: scenario.name.into(),
            title: scenario.title.into(),
            unit: scenario.unit.into(),
            lower: scenario.lower,
            axis: scenario.axis.into(),
            item: scenario.item.into(),
            rows,
        }
    }

    /// How many times better `a` is than `b`.
    pub(crate) fn better(&self, a: f64, b: f64) -> f64 {
        if self.lower { b / a } else { a / b }
    }

    /// What a row's sides are compared with: its first one, mostly native TCP.
    pub(crate) fn base(&self) -> &str {
        let first = self.rows.iter().find_map(|row| row.figures.first());
        first.map_or("", |figure| &figure.side)
    }

    /// The first side in its best placement, for what this row measures.
    pub(crate) fn best_base(&self, row: &TableRow) -> Option<f64> {
        let same = self.rows.iter().filter(|r| r.label == row.label);
        let values = same.filter_map(|r| Some(r.figures.first()?.median.value));
        values.reduce(|a, b| if self.better(a, b) > 1.0 { a } else { b })
    }

    /// Takes over the rows of another one of the same name.
    fn merge(&mut self, other: Table) {
        for row in other.rows {
            let same = |old: &TableRow| old.label == row.label && old.place == row.place;
            self.rows.retain(|old| !same(old));
            self.rows.push(row);
        }
    }

    /// Whether processor time was measured.
    pub(crate) fn has_cpu(&self) -> bool {
        let mut figures = self.rows.iter().flat_map(|row| &row.figures);
        figures.any(|figure| figure.median.cpu != [0.0; 2])
    }
}

impl TableRow {
    pub(crate) fn of(&self, side: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.side == side)
    }
}

/// Writes a report's file.
pub(crate) fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
