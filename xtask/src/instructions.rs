//! How many instructions of libshunt.so a call takes when nobody waits, counted by
//! callgrind, so that the hot path cannot grow unnoticed on a machine whose clock
//! says nothing. The bounds are recorded in `tests/instructions/bounds`, what the
//! counts are made of is explained in `docs/hot-path.md`.

use crate::build::{artifact, root};
use crate::process::{Job, check, reap_leftovers};
use crate::stats::Stats;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

mod callgrind;

/// Calls of each kind in the programs in `tests/instructions`.
const CALLS: u64 = 100;
/// How far a count may be above its bound (per cent): compilers differ a little.
const SLACK_PERCENT: u64 = 4;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Take what is counted now as the bounds
    #[arg(long)]
    record: bool,
    /// Show which source files the instructions come from
    #[arg(long)]
    files: bool,
}

/// Instructions of one kind of call, by source file.
type Kind = BTreeMap<String, u64>;

/// The task. `false`: a bound is exceeded.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let kinds = count()?;
    if options.record {
        let lines = kinds
            .iter()
            .map(|(name, kind)| format!("{name} {}\n", per_call(kind)));
        fs::write(bounds_file(), lines.collect::<String>())?;
    }
    for (name, kind) in &kinds {
        println!("{:6}  {name}", per_call(kind));
        if options.files {
            let mut files: Vec<_> = kind.iter().collect();
            files.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
            for (file, count) in files {
                println!("{:6.1}      {file}", *count as f64 / CALLS as f64);
            }
        }
    }
    match compare(&kinds) {
        Ok(_) => Ok(true),
        Err(error) => {
            println!("{error:#}");
            Ok(false)
        }
    }
}

/// Counts and compares, as a step of the tests.
pub(crate) fn step() -> Result<String> {
    compare(&count()?)
}

fn per_call(kind: &Kind) -> u64 {
    kind.values().sum::<u64>() / CALLS
}

fn bounds_file() -> std::path::PathBuf {
    root().join("tests/instructions/bounds")
}

fn compare(kinds: &BTreeMap<String, Kind>) -> Result<String> {
    let bounds = fs::read_to_string(bounds_file())?;
    let mut worse = Vec::new();
    let mut said = Vec::new();
    for line in bounds.lines() {
        let (name, bound) = line.split_once(' ').context("a bound is \"name number\"")?;
        let bound: u64 = bound.parse()?;
        let kind = kinds
            .get(name)
            .with_context(|| format!("{name} was not counted"))?;
        let now = per_call(kind);
        said.push(format!("{name} {now}"));
        if now * 100 > bound * (100 + SLACK_PERCENT) {
            worse.push(format!(
                "{name} takes {now} instructions instead of {bound}"
            ));
        }
    }
    if !worse.is_empty() {
        bail!(
            "{}; `cargo xtask instructions --files` shows where, --record accepts it",
            worse.join(", ")
        );
    }
    Ok(said.join(", "))
}

fn count() -> Result<BTreeMap<String, Kind>> {
    let directory = std::env::temp_dir().join(format!("shunt-instructions.{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let result = count_in(&directory);
    let _ = fs::remove_dir_all(&directory);
    reap_leftovers();
    result
}

fn count_in(directory: &Path) -> Result<BTreeMap<String, Kind>> {
    let statistics = directory.join("statistics");
    let file = statistics.to_str().context("a name that is no text")?;
    let mut kinds = counted(directory, "calls", &["--upgrade=eager", "--stats", file])?;
    let share = Stats::read(&statistics)?.ring_share();
    ensure!(share > 0.99, "only {share:.2} of the bytes went by ring");
    kinds.extend(counted(directory, "plain", &[])?);
    Ok(kinds)
}

/// The same of one program under `shunt run` with these options.
fn counted(directory: &Path, name: &str, options: &[&str]) -> Result<BTreeMap<String, Kind>> {
    let program = directory.join(name);
    let source = root().join("tests/instructions").join(format!("{name}.c"));
    check(
        Command::new("gcc")
            .args(["-O2", "-Wall", "-Werror", "-o"])
            .args([&program, &source]),
    )?;
    let counts = format!("{name}-counts");
    let mut command = Command::new(artifact("shunt"));
    command.arg("run").args(options);
    command.args(["--", "valgrind", "--tool=callgrind", "--collect-atstart=no"]);
    command.arg(format!(
        "--callgrind-out-file={}",
        directory.join(&counts).display()
    ));
    let mut job = Job::spawn(name, directory, command.arg(&program))?;
    let status = job.wait(Duration::from_secs(60), &[])?;
    ensure!(status.success(), "{status}\n{}", job.tail());

    let mut kinds = BTreeMap::new();
    for file in fs::read_dir(directory)? {
        let file = file?.path();
        if file.extension().is_some() && file.file_stem() == Some(counts.as_ref()) {
            let (name, kind) = callgrind::read(&fs::read_to_string(file)?)?;
            kinds.insert(name, kind);
        }
    }
    Ok(kinds)
}
