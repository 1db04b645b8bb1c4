//! `shunt-differential`: compiles the C programs of `tests/differential`, runs
//! each natively and under Shunt, and compares what they printed.
//!
//! Neighbours: the programs themselves, and `shunt run`, both used only as
//! commands. It never looks inside the library: what a program can observe and
//! what the statistics file says is all that it judges by.

#![forbid(unsafe_code)]

mod apart;
mod build;
mod diff;
mod faults;
mod fuzz;
mod hosts;
mod namespaces;
mod process;
mod program;
mod restless;
mod run;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::apart::Apart;
use crate::hosts::Hosts;
use crate::program::Program;
use crate::restless::Restless;
use crate::run::{Job, Mode, Runner, Verdict};

/// Run the differential programs natively and under Shunt and compare.
#[derive(Parser)]
#[command(
    name = "shunt-differential",
    version,
    args_conflicts_with_subcommands = true
)]
struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    /// The `shunt` command to test.
    #[arg(long, default_value = "target/release/shunt")]
    shunt: PathBuf,
    /// Only programs whose name contains one of these (may be repeated).
    #[arg(long)]
    filter: Vec<String>,
    /// Only cases whose name contains this.
    #[arg(long)]
    case: Option<String>,
    /// Run each case by itself, so that a crash or a hang does not hide others.
    #[arg(long)]
    each: bool,
    /// Which ends run under Shunt.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "both,client,server,adaptive"
    )]
    modes: Vec<Mode>,
    /// Number of waits after which shunted ends send all their connections back to TCP, again and again. Cases that
    /// count edges, or know how much room there is, are left out.
    #[arg(long, value_name = "WAITS", value_parser = clap::value_parser!(u32).range(1..))]
    restless: Option<u32>,
    /// Of this number of steps of such a change, their threads pause after one. Cases that make very
    /// many calls are left out.
    #[arg(long, value_name = "STEPS", requires = "restless",
          value_parser = clap::value_parser!(u32).range(1..))]
    hesitant: Option<u32>,
    /// Connections that both programs have closed in order are used again (`SHUNT_RECYCLE`).
    #[arg(long)]
    recycle: bool,
    /// Client and server in two network namespaces, with address translation between (root only). Cases that
    /// fail there natively, too, are skipped.
    #[arg(long, requires = "each")]
    apart: bool,
    /// Client and server on two hosts, which are network namespaces with a shuntd each and emulated NICs between (root only).
    /// Cases that fail there natively, too, are skipped.
    #[arg(long, requires = "each", conflicts_with = "apart")]
    hosts: bool,
    /// Programs run at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Runs of each program in each mode.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Seconds until a run counts as hung [default: what the program declares, or 20].
    #[arg(long)]
    timeout: Option<u64>,
    /// Where the C programs are.
    #[arg(long, default_value = "tests/differential")]
    sources: PathBuf,
    /// Where compiled programs go.
    #[arg(long, default_value = "target/differential")]
    out: PathBuf,
    /// List the programs and stop.
    #[arg(long)]
    list: bool,
    /// Print one JSON object per run instead of text.
    #[arg(long)]
    json: bool,
    /// Stop at the first failure.
    #[arg(long)]
    fail_fast: bool,
}

/// What else there is to do.
#[derive(clap::Subcommand)]
enum Task {
    /// Random sequences of calls, natively and under Shunt
    Fuzz(fuzz::Options),
    /// Each system call of the library's, or of shuntd's, refused in turn
    Faults(faults::Options),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let failures = match &args.task {
        Some(Task::Fuzz(options)) => fuzz::run(options),
        Some(Task::Faults(options)) => faults::run(options),
        None => start(&args),
    };
    match failures {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("shunt-differential: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns the number of failures.
fn start(args: &Args) -> Result<usize> {
    let programs: Vec<Program> = program::find(&args.sources)?
        .into_iter()
        .filter(|p| {
            args.filter.is_empty() || args.filter.iter().any(|f| p.name.contains(f.as_str()))
        })
        .collect();
    if args.list {
        for p in &programs {
            println!("{}\t{}", p.name, p.path_kind);
        }
        return Ok(0);
    }
    if programs.is_empty() {
        bail!("no program in {} matches", args.sources.display());
    }
    let shunt = if args.modes.iter().all(|m| *m == Mode::Native) {
        args.shunt.clone()
    } else {
        std::fs::canonicalize(&args.shunt).with_context(|| {
            format!(
                "{}: build it first, or name it with --shunt",
                args.shunt.display()
            )
        })?
    };
    let out = std::path::absolute(&args.out)?;
    std::fs::create_dir_all(&out)?;
    let apart = args.apart.then(|| Apart::new(&shunt)).transpose()?;
    let hosts = args.hosts.then(|| Hosts::new(&shunt)).transpose()?;
    let runner = Runner {
        shunt,
        out,
        timeout: args.timeout,
        apart,
        hosts,
        restless: args.restless.map(|waits| Restless {
            waits,
            steps: args.hesitant,
        }),
        recycle: args.recycle,
    };
    let left_out = AtomicUsize::new(0);
    let tally = run_all(&runner, &programs, args, &left_out);
    tally.sum_up(left_out.into_inner(), args.json);
    Ok(tally.failures.len())
}

/// Runs all of them, as many at a time as there are to be jobs.
fn run_all(runner: &Runner, programs: &[Program], args: &Args, left_out: &AtomicUsize) -> Tally {
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    let work = || {
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            for verdict in one_program(runner, program, args, left_out) {
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.add(&verdict, args.json);
                if args.fail_fast && verdict.failure.is_some() {
                    next.store(programs.len(), Ordering::Relaxed);
                    break;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a program, makes its native reference and yields one verdict per run.
fn one_program<'a>(
    runner: &'a Runner,
    program: &'a Program,
    args: &'a Args,
    left_out: &AtomicUsize,
) -> Box<dyn Iterator<Item = Verdict> + 'a> {
    let built = build::build(program, &runner.out)
        .and_then(|exe| Ok((cases(runner, &exe, args, left_out)?, exe)));
    match built {
        Err(error) => Box::new(std::iter::once(Verdict::broken(program, &error))),
        Ok((cases, exe)) => Box::new(
            cases
                .into_iter()
                .flat_map(move |case| one_run(runner, program, exe.clone(), case, args)),
        ),
    }
}

/// A case of a program, or all that its pattern names.
struct Case {
    /// The value of `DIFF_CASE`.
    pattern: Option<String>,
    /// Why it is skipped where both ends are shunted.
    known: Option<String>,
    /// Why it cannot be run at all.
    impossible: Option<String>,
}

/// What to run: with `--each` every case by itself, otherwise those that are to
/// be skipped, in some modes or all, which a program's other runs leave out.
fn cases(runner: &Runner, exe: &Path, args: &Args, left_out: &AtomicUsize) -> Result<Vec<Case>> {
    let mut command = Command::new(exe);
    command.arg("list");
    if let Some(restless) = &runner.restless {
        restless.leave_out(&mut command);
    }
    let list = command.output()?;
    let wanted = args.case.as_deref().unwrap_or_default();
    let (mut cases, mut is_any_possible) = (Vec::new(), false);
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let mut parts = line.split('\t').map(ToOwned::to_owned);
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let name = next().unwrap_or_default();
        let (known, is_left_out, refused) = (next(), next().is_some(), next());
        if !name.contains(wanted) {
            continue;
        }
        if is_left_out {
            left_out.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let takes_numbers = args.hosts && hosts::TAKES_NUMBERS.contains(&name.as_str());
        let refused = refused.map(|call| format!("{call} is refused"));
        let impossible = takes_numbers
            .then(|| "takes the emulated NIC's descriptors".to_owned())
            .or(refused);
        is_any_possible |= impossible.is_none();
        if args.each || known.is_some() || impossible.is_some() {
            cases.push(Case {
                pattern: Some(format!("={name}")),
                known,
                impossible,
            });
        }
    }
    if !args.each && is_any_possible {
        let all = Case {
            pattern: args.case.clone(),
            known: None,
            impossible: None,
        };
        cases.insert(0, all);
    }
    Ok(cases)
}

fn one_run<'a>(
    runner: &'a Runner,
    program: &'a Program,
    exe: PathBuf,
    case: Case,
    args: &'a Args,
) -> Box<dyn Iterator<Item = Verdict> + 'a> {
    let job = Job {
        program,
        exe,
        case: case.pattern,
        known: case.known,
    };
    let impossible = |why: &str| Box::new(std::iter::once(Verdict::impossible(&job, why)));
    if let Some(why) = &case.impossible {
        return impossible(why);
    }
    match runner.reference(&job) {
        Err(_) if args.apart || args.hosts => impossible("fails there natively, too"),
        Err(error) => Box::new(std::iter::once(Verdict::broken(program, &error))),
        Ok(reference) => Box::new(
            (0..args.repeat.max(1))
                .flat_map(move |_| args.modes.iter().copied())
                .map(move |mode| runner.compare(&job, mode, &reference)),
        ),
    }
}

/// Lines of each failure that the summary says again.
const SHOWN_AGAIN: usize = 12;

#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: usize,
    /// Program and mode, and what went wrong.
    failures: Vec<(String, String)>,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict, json: bool) {
        let name = format!("{} {}", verdict.program, verdict.mode);
        if json {
            println!("{}", verdict.json());
        } else {
            let word = if verdict.failure.is_some() {
                "FAIL"
            } else if verdict.skipped {
                "skip"
            } else {
                "ok  "
            };
            println!(
                "{word} {name:<28} {:>6.2}s  {}",
                verdict.wall.as_secs_f64(),
                verdict.note
            );
            if let Some(failure) = &verdict.failure {
                println!("{}", failure.trim_end());
            }
        }
        if let Some(failure) = &verdict.failure {
            self.failures.push((name, failure.clone()));
        } else if verdict.skipped {
            self.skipped += 1;
        } else {
            self.passed += 1;
        }
    }

    /// What failed, with the beginning of why (whoever sees only the end of the output needs it), and
    /// how many of each.
    fn sum_up(&self, left_out: usize, json: bool) {
        if !json && !self.failures.is_empty() {
            println!("\nfailed:");
            for (name, failure) in &self.failures {
                println!("  {name}");
                for line in failure.lines().take(SHOWN_AGAIN) {
                    println!("      {line}");
                }
            }
            println!();
        }
        if left_out > 0 && !json {
            println!("{left_out} cases left out: {}", restless::WHY);
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failures.len(),
            self.skipped
        );
    }
}
