//! `shunt-differential faults`: each system call of the library's, and of shuntd's, is refused in turn, and
//! a program that lives through all that connections live through must not notice.
//!
//! ```text
//! for each mode, case and side:
//!     a run without refusals   which calls are there, where, how often   (call.rs, place.rs)
//!     for each of these calls, each errno, the first, the second, … and every time:
//!         a run                as natively? served, or on TCP with a reason?   (trial.rs)
//! ```

mod call;
mod errno;
mod place;
mod table;
mod trial;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::{build, program};
use call::Span;
use place::{Place, Symbols};
use trial::{Bench, Fate, Refusal, Run, Side, Which};

/// What is slower than this, and was not so without the refusal, is said.
const SLOW: Duration = Duration::from_millis(1500);

/// Refuse each system call of the library's or shuntd's in turn
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The `shunt` command to test; the others are beside it.
    #[arg(long, default_value = "target/release/shunt")]
    shunt: PathBuf,
    /// Whose calls.
    #[arg(long, value_delimiter = ',', default_value = "client,server")]
    sides: Vec<Side>,
    /// When connections are moved.
    #[arg(long, value_delimiter = ',', default_value = "eager,adaptive,sync")]
    upgrades: Vec<String>,
    /// Only cases whose name contains one of these.
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Only calls whose name contains this.
    #[arg(long, default_value = "")]
    call: String,
    /// Only at places whose name contains this.
    #[arg(long, default_value = "")]
    place: String,
    /// Only this errno.
    #[arg(long)]
    errno: Option<String>,
    /// Number of the first calls at a place that are refused one by one, beside the last one and all of them.
    #[arg(long, default_value_t = 2)]
    depth: u64,
    /// Each call once: at the first case that makes it, one errno, once and every time.
    #[arg(long)]
    short: bool,
    /// Runs at the same time; where shuntd's calls are refused, one.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Append one JSON object per run.
    #[arg(long)]
    results: Option<PathBuf>,
    /// Write a table of all results in that file, of this run and of earlier ones.
    #[arg(long, requires = "results")]
    table: Option<PathBuf>,
    /// Only list the calls.
    #[arg(long)]
    list: bool,
    /// Where the program is.
    #[arg(long, default_value = "tests/differential")]
    sources: PathBuf,
    /// Where the compiled program goes.
    #[arg(long, default_value = "target/differential")]
    out: PathBuf,
}

/// A run to be made.
struct Trial {
    scene: usize,
    place: Place,
    errno: i32,
    which: Which,
}

/// One case in one mode with one side's calls in view.
struct Scene {
    bench: Bench,
    side: Side,
    native: std::sync::Arc<Run>,
    usual: Run,
}

impl Scene {
    /// Whether a refusal there hits a defect that is known: where shuntd may not copy descriptors, nobody
    /// lends the peer's end of a connection that goes back to TCP while that peer makes no call.
    fn is_known(&self, place: &Place) -> bool {
        const GOING_BACK: [&str; 5] = ["execs", "spawns", "execs_shunted", "passes", "streams"];
        place.call.name == "pidfd_getfd" && GOING_BACK.contains(&self.bench.case.as_str())
    }

    fn title(&self) -> String {
        let upgrade = self.bench.upgrade.unwrap_or_default();
        format!("{upgrade} {} {}", self.bench.case, self.side.word())
    }
}

/// Returns the number of failures.
pub(crate) fn run(options: &Options) -> Result<usize> {
    let failures = if options.sides.is_empty() {
        0
    } else {
        refuse(options)?
    };
    if let (Some(table), Some(results)) = (&options.table, &options.results) {
        std::fs::write(table, table::make(&std::fs::read_to_string(results)?)?)?;
    }
    Ok(failures)
}

fn refuse(options: &Options) -> Result<usize> {
    let shunt = std::fs::canonicalize(&options.shunt)
        .with_context(|| format!("{}: build it first", options.shunt.display()))?;
    let out = std::path::absolute(&options.out)?;
    std::fs::create_dir_all(&out)?;
    let source = options.sources.join("journey.c");
    let text = std::fs::read_to_string(&source)
        .with_context(|| format!("{}: run from the repository's root", source.display()))?;
    let exe = build::build(&program::parse("journey", &source, &text)[0], &out)?;
    let list = Command::new(&exe).arg("list").output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let cases: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split('\t').next())
        .filter(|case| {
            options.cases.is_empty() || options.cases.iter().any(|c| case.contains(c.as_str()))
        })
        .collect();
    let daemon = options.sides.contains(&Side::Daemon);
    if daemon && options.sides.len() > 1 {
        bail!("shuntd's calls are refused by themselves: it is another one for each run then");
    }
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
    let _shuntd = if daemon {
        None
    } else {
        Some(Shuntd::start(&shunt)?)
    };

    let (mut scenes, mut trials) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    let mut library =
        Symbols::of(&shunt.with_file_name(if daemon { "shuntd" } else { "libshunt.so" }));
    for case in cases {
        let bench = |upgrade| Bench {
            shunt: shunt.clone(),
            refuse: shunt.with_file_name("shunt-refuse"),
            exe: exe.clone(),
            out: out.clone(),
            upgrade,
            case: case.to_owned(),
        };
        let native = std::sync::Arc::new(bench(None).run(None, None)?);
        for upgrade in &options.upgrades {
            for &side in &options.sides {
                let upgrade = match upgrade.as_str() {
                    "eager" => "eager",
                    "adaptive" => "adaptive",
                    "sync" => "sync",
                    other => bail!("{other}: one of eager, adaptive, sync"),
                };
                let bench = bench(Some(upgrade));
                let usual = bench.run(Some(side), None)?;
                let places = library.places(&usual.log)?;
                let scene = Scene {
                    bench,
                    side,
                    native: native.clone(),
                    usual,
                };
                if let Some(difference) = scene.usual.difference(&scene.native) {
                    bail!("{}, without a refusal: {difference}", scene.title());
                }
                let places = places
                    .into_iter()
                    .filter(|place| !scene.is_known(place))
                    .collect();
                trials.extend(plan(options, scenes.len(), places, &mut seen));
                scenes.push(scene);
            }
        }
    }
    if options.list {
        for trial in trials.iter().filter(|t| t.which == Which::Nth(1)) {
            let place = &trial.place;
            println!(
                "{:24} {:30} {:48} {:4} {}",
                scenes[trial.scene].title(),
                place.call.name,
                place.name,
                place.times,
                errno::name(trial.errno)
            );
        }
        return Ok(0);
    }
    perform(
        options,
        &scenes,
        &trials,
        if daemon { 1 } else { options.jobs.max(1) },
    )
}

/// What to try at these places.
fn plan(
    options: &Options,
    scene: usize,
    places: Vec<Place>,
    seen: &mut BTreeSet<(&'static str, String)>,
) -> Vec<Trial> {
    let is_wanted = |errno| {
        options
            .errno
            .as_ref()
            .is_none_or(|one| one == errno::name(errno))
    };
    let mut trials = Vec::new();
    for place in places {
        if !place.call.name.contains(&options.call)
            || !place.name.contains(&options.place)
            || place.is_left_out()
            || options.short && !seen.insert((place.call.name, place.name.clone()))
        {
            continue;
        }
        let each = options.short.then_some(1);
        for errno in place
            .everywhere()
            .take(each.unwrap_or(usize::MAX))
            .filter(|&e| is_wanted(e))
        {
            trials.push(Trial {
                scene,
                place: place.clone(),
                errno,
                which: Which::Every,
            });
        }
        let depth = each.map_or(options.depth, |one| one as u64);
        for (errno, span) in place.at_a_place().take(each.unwrap_or(usize::MAX)) {
            let mut which: Vec<Which> = (1..=place.times.min(depth)).map(Which::Nth).collect();
            if place.times > depth && !options.short {
                which.push(Which::Nth(place.times));
            }
            // A shuntd that serves nobody any more is waited for by each `shunt run`.
            let waits = options.short && options.sides.contains(&Side::Daemon);
            if span == Span::Lasts && place.times > 1 && !waits {
                which.push(Which::Every);
            }
            let of = |which| Trial {
                scene,
                place: place.clone(),
                errno,
                which,
            };
            trials.extend(which.into_iter().filter(|_| is_wanted(errno)).map(of));
        }
    }
    trials
}

fn perform(options: &Options, scenes: &[Scene], trials: &[Trial], jobs: usize) -> Result<usize> {
    let results = match &options.results {
        Some(path) => Some(
            std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)?,
        ),
        None => None,
    };
    let (next, results) = (AtomicUsize::new(0), Mutex::new((results, [0usize; 3])));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let scene = &scenes[trial.scene];
                    let refusal = Refusal {
                        place: &trial.place,
                        errno: trial.errno,
                        which: trial.which,
                    };
                    let run = scene.bench.run(Some(scene.side), Some(&refusal));
                    let mut results = results
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    let (file, tally) = &mut *results;
                    let kind = report(file.as_mut(), scene, trial, run);
                    tally[kind] += 1;
                }
            });
        }
    });
    let (_, [served, tcp, wrong]) = results
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("{served} served, {tcp} on TCP with a reason, {wrong} wrong");
    Ok(wrong)
}

/// Says how a run went: 0 for served, 1 for TCP, 2 for wrong.
fn report(
    file: Option<&mut std::fs::File>,
    scene: &Scene,
    trial: &Trial,
    run: Result<Run>,
) -> usize {
    let (fate, counts, wall) = match &run {
        Ok(run) => (
            run.judge(&scene.native, &scene.usual),
            run.counts(),
            run.wall,
        ),
        Err(error) => (Fate::Wrong(format!("{error:#}")), (0, 0), Duration::ZERO),
    };
    let errno = errno::name(trial.errno);
    let slow = wall > SLOW && wall > scene.usual.wall * 2;
    let title = format!(
        "{}: {} at {} refused with {errno}, {} (of {})",
        scene.title(),
        trial.place.call.name,
        trial.place.name,
        trial.which,
        trial.place.times
    );
    let wrong = matches!(fate, Fate::Wrong(_));
    if wrong {
        println!("WRONG {title}\n{fate}");
    } else if slow {
        println!("slow  {title}: {:.1} s; {fate}", wall.as_secs_f64());
    }
    if let Some(file) = file {
        let line = json!({
            "upgrade": scene.bench.upgrade, "case": scene.bench.case, "side": scene.side.word(),
            "call": trial.place.call.name, "place": trial.place.name, "errno": errno,
            "which": trial.which.to_string(), "times": trial.place.times, "refused": counts.1,
            "seconds": wall.as_secs_f64(), "slow": slow, "fate": if wrong { "WRONG".to_owned() } else { fate.to_string() },
        });
        let _ = writeln!(file, "{line}");
    }
    match fate {
        Fate::Served => 0,
        Fate::Tcp(_) | Fate::NotStarted(_) => 1,
        Fate::Wrong(_) => 2,
    }
}

/// The shuntd of all runs in which its own calls are not refused.
struct Shuntd(Child);

impl Shuntd {
    fn start(shunt: &std::path::Path) -> Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" --ready-fd 3 3>&1 >&2", "sh"])
            .arg(shunt.with_file_name("shuntd"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut byte = [0];
        std::io::Read::read(child.stdout.as_mut().context("no output")?, &mut byte)?;
        if byte != *b"1" {
            bail!("shuntd did not start: does another one serve this network namespace?");
        }
        Ok(Self(child))
    }
}

impl Drop for Shuntd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
