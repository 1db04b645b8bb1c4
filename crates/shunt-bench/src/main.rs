//! `shunt bench`: Shunt beside native TCP, Unix sockets, pipes and a bare ring.
//!
//! The driver (this process, always native) starts *workers*: this program again,
//! one per end, so that every side runs the very same code and only what carries
//! the bytes differs. A worker for Shunt is started by `shunt run`, and its
//! statistics must show that the bytes went through rings. Rounds visit the sides
//! in turn, so that what else the machine does harms all of them alike.
//!
//! ```text
//!   plan: for each row, rounds; in each round every side in turn
//!    └─ scenario: what a row is (traffic, filter, exchange, process, sharing, request)
//!        └─ child: a watched process ── worker echo|flow|filter|crowd
//!                                       stepper: what takes turns within a sample
//!                                       or a real server and its load generator
//!   report: medians of the samples as table, JSON, page
//! ```
//!
//! Neighbours: it borrows the ring of `shunt-shm` for the floor, has from `shunt-harness` what all tools need of
//! processes and statistics, and knows of the rest of Shunt only its command.

#![deny(unsafe_code)] // `sys` and the bare ring are exempt, with reasons.

mod busy;
mod carried;
mod child;
mod cores;
mod pattern;
mod plan;
mod process;
mod report;
mod scenario;
mod server;
mod side;
mod stepper;
mod sys;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measure Shunt beside TCP, Unix sockets, pipes and a bare ring.
#[derive(Debug, Parser)]
#[command(name = "shunt-bench", bin_name = "shunt bench", version)]
struct Options {
    #[command(subcommand)]
    hidden: Option<Hidden>,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// One end of a measurement; started by the driver.
    #[command(hide = true)]
    Worker(worker::Options),
    /// One of several processes that are measured by turns; started by the driver.
    #[command(hide = true)]
    Stepper(stepper::Options),
    /// A loop that uses a core; started by the driver.
    #[command(hide = true)]
    Busy,
}

#[derive(Debug, clap::Args)]
struct RunOptions {
    /// Rounds; tables show the median of them [default: 5, quick 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Fewer sizes, shorter measurements, fewer rounds
    #[arg(long)]
    quick: bool,
    /// Only what has one of these names, or of it the rows that begin so (may be repeated)
    #[arg(long, value_name = "NAME[:ROW]")]
    only: Vec<String>,
    /// Only what the goals are about, and of the tables only the one of the goals
    #[arg(long)]
    goals: bool,
    /// Show what earlier runs have written as JSON, together, and measure nothing
    #[arg(long, value_name = "FILE")]
    show: Vec<PathBuf>,
    /// List the names and stop
    #[arg(long)]
    list: bool,
    /// Number of busy loops that run beside every measurement, on any core
    #[arg(long, value_name = "LOOPS", default_value_t = 0)]
    busy: usize,
    /// The two cores to use, by number
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Write every sample as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one page with tables and plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.hidden {
        Some(Hidden::Worker(worker)) => worker::run(worker).map(|()| true),
        Some(Hidden::Stepper(stepper)) => stepper::run(stepper).map(|()| true),
        Some(Hidden::Busy) => busy::run(),
        None => drive(&options.run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("shunt bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn drive(options: &RunOptions) -> Result<bool> {
    let places = cores::Places::choose(&options.cores)?;
    let scenarios = scenario::all(options.quick, &places);
    if options.list {
        for scenario in &scenarios {
            println!("{:12} {}", scenario.name, scenario.title);
        }
        return Ok(true);
    }
    let results = if options.show.is_empty() {
        sys::hear_interruption();
        let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 5 });
        let mut only = options.only.clone();
        if options.goals && only.is_empty() {
            only = report::goal::TABLES.map(String::from).into();
            only.retain(|name| scenarios.iter().any(|s| name.starts_with(s.name)));
        }
        plan::run(scenarios, &only, rounds.max(1), &places, options.busy)?
    } else {
        report::Results::read(&options.show)?
    };
    print!("{}", report::table::text(&results, options.goals));
    if let Some(file) = &options.json {
        report::write(file, &(serde_json::to_string_pretty(&results)? + "\n"))?;
    }
    if let Some(file) = &options.html {
        report::write(file, &report::html::page(&results)?)?;
    }
    Ok(results.failures.is_empty())
}
