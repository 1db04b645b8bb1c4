//! Runs rounds in which the sides take turns.

use std::time::Duration;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::busy::Loops;
use crate::cores::Places;
use crate::report::{Failure, Figure, Host, Results, Table, TableRow};
use crate::scenario::{Entry, Row, Sample, Scenario};
use crate::side::Lab;
use crate::sys;

/// Runs what is asked for.
pub(crate) fn run(
    mut scenarios: Vec<Scenario>,
    only: &[String],
    rounds: usize,
    places: &Places,
    busy: usize,
) -> Result<Results> {
    choose(&mut scenarios, only)?;
    let lab = Lab::open()?;
    let samples: usize = scenarios
        .iter()
        .flat_map(|s| &s.rows)
        .map(|r| r.entries.len())
        .sum();
    let bar = ProgressBar::new((samples * rounds) as u64);
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} {elapsed} of {duration}  {msg}",
    )?);
    bar.enable_steady_tick(Duration::from_millis(500));
    let mut results = Results {
        host: Host::look(places, busy),
        rounds,
        tables: Vec::new(),
        goals: Vec::new(),
        failures: Vec::new(),
    };
    let beside = Loops::start(busy)?;
    for scenario in scenarios {
        let mut rows = Vec::new();
        for row in &scenario.rows {
            if sys::go_on().is_err() {
                break;
            }
            let what = format!("{} {} {}", scenario.name, row.label, row.place.name());
            let figures = turns(&lab, row, rounds, &bar, &what, &mut results.failures);
            rows.push(TableRow {
                label: row.label.clone(),
                x: row.x,
                place: row.place,
                figures,
            });
        }
        results.tables.push(Table::new(&scenario, rows));
    }
    drop(beside);
    bar.finish_and_clear();
    if let Err(error) = sys::go_on() {
        // What has been measured until then is shown.
        let (what, why) = ("the rest".into(), error.to_string());
        results.failures.push(Failure { what, why });
    }
    results.judge();
    Ok(results)
}

/// Leaves what is asked for: by its name, or of it the rows whose label begins with what
/// follows a colon.
fn choose(scenarios: &mut Vec<Scenario>, only: &[String]) -> Result<()> {
    if only.is_empty() {
        return Ok(());
    }
    let mut known = vec![false; only.len()];
    for scenario in &mut *scenarios {
        scenario.rows.retain(|row| {
            let mut wanted = false;
            for (known, name) in known.iter_mut().zip(only) {
                let (name, label) = name.split_once(':').unwrap_or((name, ""));
                if name == scenario.name && row.label.starts_with(label) {
                    (*known, wanted) = (true, true);
                }
            }
            wanted
        });
    }
    for (known, name) in known.iter().zip(only) {
        ensure!(known, "there is no {name:?}; see --list");
    }
    scenarios.retain(|scenario| !scenario.rows.is_empty());
    Ok(())
}

/// One turn of an entry: a sample of each of its sides.
fn measure(lab: &Lab, entry: &Entry, sides: &mut [Vec<Sample>]) -> Result<()> {
    let samples = (entry.measure)(lab)?;
    for (of_side, sample) in sides.iter_mut().zip(samples) {
        of_side.push(sample);
    }
    Ok(())
}

/// All rounds of a row.
fn turns(
    lab: &Lab,
    row: &Row,
    rounds: usize,
    bar: &ProgressBar,
    what: &str,
    failures: &mut Vec<Failure>,
) -> Vec<Figure> {
    let mut all: Vec<Vec<Vec<Sample>>> = row
        .entries
        .iter()
        .map(|entry| vec![Vec::new(); entry.sides.len()])
        .collect();
    let mut failed = vec![false; row.entries.len()];
    for round in 0..rounds {
        for turn in 0..row.entries.len() {
            // Each round begins with another side, so that none always follows the same.
            let n = (turn + round) % row.entries.len();
            let entry = &row.entries[n];
            let what = format!("{what} {}", entry.sides.join(", "));
            bar.set_message(what.clone());
            if !failed[n]
                && sys::go_on().is_ok()
                && let Err(error) = measure(lab, entry, &mut all[n])
            {
                // Once may be told; five times would tell nothing more.
                failed[n] = true;
                let why = format!("{error:#}");
                failures.push(Failure { what, why });
            }
            bar.inc(1);
        }
    }
    let sides = row.entries.iter().flat_map(|entry| &entry.sides);
    let samples = all.into_iter().flatten();
    sides
        .zip(samples)
        .filter_map(|(side, samples)| Figure::of(side, samples))
        .collect()
}
