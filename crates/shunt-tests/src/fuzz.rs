//! Random sequences of calls, natively and under Shunt.
//!
//! ```text
//! seed ─ generate ─ script ─ play (native, native, eager, sync, adaptive) ─ equal?
//!                              └ tests/fuzz/script.c                       └ no: shrink, report
//! ```
//!
//! A script whose two native plays differ says nothing and is dropped.

mod feature;
mod generate;
mod model;
mod play;
mod random;
mod report;
mod shrink;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::feature::Feature;
use self::generate::Lines;
use self::play::{Mode, Player};
use self::report::{Found, Report};
use crate::build;

/// Where the interpreter, its manual and the fixed scripts are.
const FOLDER: &str = "tests/fuzz";
/// Seeds that every run of the tests plays, beside the scripts that are kept.
const FIXED_SEEDS: std::ops::Range<u64> = 0..12;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The `shunt` command to test
    #[arg(long, default_value = "target/release/shunt")]
    shunt: PathBuf,
    /// How long; the scripts that are being played then are finished
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The first seed; the others follow it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, whatever time they take
    #[arg(long)]
    seeds: Option<u64>,
    /// When connections are moved
    #[arg(long, value_delimiter = ',', default_values = ["eager", "sync", "adaptive"])]
    modes: Vec<Mode>,
    /// Kinds of operations to leave out
    #[arg(long, value_delimiter = ',')]
    without: Vec<Feature>,
    /// Play these scripts instead of drawn ones
    #[arg(long, num_args = 1..)]
    script: Vec<PathBuf>,
    /// Play the scripts that are kept and a few seeds, as the tests do
    #[arg(long, conflicts_with_all = ["seed", "seeds", "minutes", "script"])]
    fixed: bool,
    /// Print what natively comes of it, too
    #[arg(long)]
    verbose: bool,
    /// Plays of each script in each mode
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Do not shrink what differs
    #[arg(long)]
    no_shrink: bool,
    /// Scripts played at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Where compiled programs and found scripts go
    #[arg(long, default_value = "target/differential")]
    out: PathBuf,
}

/// What to play, and its name.
struct Case {
    name: String,
    script: Lines,
}

/// The task. Returns the number of differences.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let out = std::path::absolute(&options.out)?;
    std::fs::create_dir_all(&out)?;
    let shunt = std::fs::canonicalize(&options.shunt)
        .with_context(|| format!("{}: build it first", options.shunt.display()))?;
    let player = Player {
        shunt,
        interpreter: build::interpreter(Path::new(FOLDER), &out)?,
        out,
    };
    let source = Source::new(options)?;
    let report = Mutex::new(Report::new());
    let failures = std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..options.jobs.max(1))
            .map(|_| scope.spawn(|| work(options, &player, &source, &report)))
            .collect();
        for worker in workers {
            worker
                .join()
                .map_err(|_| anyhow::anyhow!("a thread has died"))??;
        }
        Ok(())
    });
    failures?;
    let report = report
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(report.finish(source.seeds()))
}

/// Scripts, one after the other.
struct Source {
    kept: Vec<Case>,
    seeds: std::ops::Range<u64>,
    end: Option<Instant>,
    next: AtomicU64,
    without: Vec<Feature>,
}

impl Source {
    fn new(options: &Options) -> Result<Self> {
        let kept = if options.fixed {
            kept_scripts(&Path::new(FOLDER).join("scripts"))?
        } else {
            options.script.clone()
        };
        let first = if options.fixed {
            FIXED_SEEDS.start
        } else {
            options.seed
        };
        let count = match options.seeds {
            _ if options.fixed => FIXED_SEEDS.end - FIXED_SEEDS.start,
            _ if !options.script.is_empty() => 0,
            Some(count) => count,
            None => u64::MAX - first,
        };
        let is_timed = !options.fixed && options.seeds.is_none();
        Ok(Self {
            kept: kept.iter().map(read).collect::<Result<_>>()?,
            seeds: first..first + count,
            end: is_timed.then(|| Instant::now() + Duration::from_secs_f64(options.minutes * 60.0)),
            next: AtomicU64::new(0),
            without: options.without.clone(),
        })
    }

    fn next(&self) -> Option<Case> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(kept) = self.kept.get(usize::try_from(number).ok()?) {
            return Some(Case {
                name: kept.name.clone(),
                script: kept.script.clone(),
            });
        }
        let seed = self.seeds.start + (number - self.kept.len() as u64);
        let is_over = self.end.is_some_and(|end| Instant::now() > end);
        (seed < self.seeds.end && !is_over).then(|| Case {
            name: format!("seed {seed}"),
            script: generate::script(seed, &self.without),
        })
    }

    /// The seeds that were given out.
    fn seeds(&self) -> std::ops::Range<u64> {
        let given = self
            .next
            .load(Ordering::Relaxed)
            .saturating_sub(self.kept.len() as u64 + 1);
        self.seeds.start..(self.seeds.start + given).min(self.seeds.end)
    }
}

fn kept_scripts(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder)
        .with_context(|| format!("{}: run from the repository's root", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "script"))
        .collect();
    scripts.sort();
    Ok(scripts)
}

fn read(path: &PathBuf) -> Result<Case> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(Case {
        name: path.display().to_string(),
        script: text.lines().map(str::to_owned).collect(),
    })
}

fn work(options: &Options, player: &Player, source: &Source, report: &Mutex<Report>) -> Result<()> {
    let lock = || {
        report
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    while let Some(case) = source.next() {
        let native = player.play(&case.script, Mode::Native)?;
        let again = player.play(&case.script, Mode::Native)?;
        if options.verbose {
            println!("{}", native.output.join("\n"));
        }
        if let Some(difference) = native.difference(&again) {
            lock().drop_script(&case.name, &difference);
            continue;
        }
        for mode in options
            .modes
            .iter()
            .copied()
            .cycle()
            .take(options.modes.len() * options.repeat)
        {
            let shunted = player.play(&case.script, mode)?;
            let Some(difference) = native.difference(&shunted) else {
                lock().equal(native.output.len(), &shunted);
                continue;
            };
            let found = Found::look(
                player,
                &case.name,
                &case.script,
                mode,
                difference,
                !options.no_shrink,
            )?;
            lock().different(&shunted, &found, &player.out)?;
        }
        lock().progress(&case.name);
    }
    Ok(())
}
