//! What Shunt is to reach, and whether it does: ratios of what one run has measured in
//! turn.

mod list;

use serde::Serialize;

use super::table::number;
use super::{Figure, Table, TableRow};
use crate::cores::Place;
pub(super) use list::all;

/// What must have been measured to judge all of them.
pub(crate) const TABLES: [&str; 11] = [
    "latency",
    "throughput",
    "pairs",
    "events:1 connection",
    "idle",
    "connections",
    "one-sided",
    "pipeline",
    "processes",
    "requests",
    "load",
];

/// One line of the list.
#[derive(Serialize)]
pub(crate) struct Goal {
    pub(crate) figure: &'static str,
    pub(crate) wanted: String,
    /// The least favourable of what it covers; nothing if that was not measured.
    pub(crate) measured: Option<f64>,
    pub(crate) holds: Option<bool>,
    /// Which measurement that was, and beside what.
    pub(crate) of: String,
    /// Processor seconds per million items, of both ends together, …
    pub(crate) cpu: Option<f64>,
    /// … and those of what it is compared with.
    pub(crate) cpu_there: Option<f64>,
}

impl Goal {
    /// The measured value as it is shown.
    pub(crate) fn value(&self) -> String {
        self.measured.map_or_else(|| "not measured".into(), number)
    }

    /// Whether it holds, as it is shown.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        }
    }
}

/// A goal's bound, in what `Goals` is asked for.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}
use Bound::{AtLeast, AtMost};

/// A figure with where it stands.
#[derive(Clone, Copy)]
struct Spot<'a> {
    table: &'a Table,
    row: &'a TableRow,
    figure: &'a Figure,
}

impl Spot<'_> {
    fn name(&self) -> String {
        let (table, row) = (&self.table.name, &self.row.label);
        format!("{table} {row}, {}", self.row.place.name())
    }

    /// How many times better this is.
    fn better(&self, other: &Self) -> f64 {
        let value = |spot: &Self| spot.figure.median.value;
        self.table.better(value(self), value(other))
    }

    fn cpu(&self) -> f64 {
        self.figure.median.cpu.iter().sum()
    }
}

/// The tables, as goals look at them.
struct Measured<'a> {
    tables: &'a [Table],
    rounds: usize,
}

impl<'a> Measured<'a> {
    /// Every figure of a side for what begins so.
    fn all(&self, table: &str, label: &str, side: &str) -> Vec<Spot<'a>> {
        let tables = self.tables.iter().filter(|t| t.name == table);
        let rows = tables.flat_map(|table| table.rows.iter().map(move |row| (table, row)));
        rows.filter(|(_, row)| row.label.starts_with(label))
            .filter_map(|(table, row)| {
                let figure = row.of(side)?;
                Some(Spot { table, row, figure })
            })
            // What has failed in some round is not judged by the others.
            .filter(|spot| spot.figure.samples.len() >= self.rounds)
            .collect()
    }

    /// The one in this place.
    fn at(&self, table: &str, label: &str, place: Place, side: &str) -> Vec<Spot<'a>> {
        let mut all = self.all(table, label, side);
        all.retain(|spot| spot.row.place == place && spot.row.label == label);
        all
    }

    /// The one in the place that suits it best.
    fn best(&self, table: &str, label: &str, side: &str) -> Vec<Spot<'a>> {
        let all = self.all(table, label, side).into_iter();
        let all = all.filter(|spot| spot.row.label == label);
        all.reduce(|a, b| if a.better(&b) >= 1.0 { a } else { b })
            .into_iter()
            .collect()
    }

    /// The other side in the same row.
    fn beside(spots: &[Spot<'a>], side: &str) -> Vec<(Spot<'a>, Spot<'a>)> {
        let other = |spot: &Spot<'a>| {
            let figure = spot.row.of(side)?;
            Some((*spot, Spot { figure, ..*spot }))
        };
        spots.iter().filter_map(other).collect()
    }
}

/// The list being made.
#[derive(Default)]
struct Goals {
    all: Vec<Goal>,
}

impl Goals {
    /// How many times better (or worse, for an upper bound) than the other of each pair.
    fn ratio<'a>(
        &mut self,
        figure: &'static str,
        bound: Bound,
        unit: &str,
        pairs: impl IntoIterator<Item = (Spot<'a>, Spot<'a>)>,
    ) {
        let found = pairs.into_iter().map(|(spot, other)| {
            let better = spot.better(&other);
            let value = if let AtMost(_) = bound {
                1.0 / better
            } else {
                better
            };
            (value, spot, Some(other))
        });
        self.add(figure, bound, unit, found);
    }

    /// A value of each.
    fn value<'a>(
        &mut self,
        figure: &'static str,
        bound: Bound,
        unit: &str,
        spots: Vec<Spot<'a>>,
        of: impl Fn(&Spot<'a>) -> Option<f64>,
    ) {
        let found = spots
            .into_iter()
            .filter_map(|spot| Some((of(&spot)?, spot, None)));
        self.add(figure, bound, unit, found);
    }

    /// The worst of them counts.
    fn add<'a>(
        &mut self,
        figure: &'static str,
        bound: Bound,
        unit: &str,
        found: impl Iterator<Item = (f64, Spot<'a>, Option<Spot<'a>>)>,
    ) {
        let worst = found.reduce(|a, b| {
            let a_is_worse = match bound {
                AtMost(_) => a.0 >= b.0,
                AtLeast(_) => a.0 <= b.0,
            };
            if a_is_worse { a } else { b }
        });
        let (sign, limit) = match bound {
            AtMost(limit) => ('≤', limit),
            AtLeast(limit) => ('≥', limit),
        };
        let measured = worst.map(|(value, ..)| value);
        self.all.push(Goal {
            figure,
            wanted: format!("{sign} {limit} {unit}"),
            measured,
            holds: measured.map(|value| match bound {
                AtMost(limit) => value <= limit,
                AtLeast(limit) => value >= limit,
            }),
            of: worst.map_or_else(String::new, |(_, spot, other)| {
                let beside = other.map(|other| {
                    let side = &other.figure.side;
                    if std::ptr::eq(spot.row, other.row) {
                        format!(" : {side}")
                    } else {
                        format!(" : {side}, {}", other.row.place.name())
                    }
                });
                spot.name() + &beside.unwrap_or_default()
            }),
            cpu: worst.map(|(_, spot, _)| spot.cpu()),
            cpu_there: worst.and_then(|(_, _, other)| Some(other?.cpu())),
        });
    }
}

#[cfg(test)]
mod tests;
