//! `shunt-soak family`: connections that whole families of processes share.
//!
//! ```text
//! director ──> parent A ──4 connections── parent B      a new pair each round
//!    │            │ fork, exec, SCM_RIGHTS    │
//!    │          4 children, 2 threads each  4 children
//!    └── watches the numbers in the shared file
//! ```
//!
//! The parents kill, stop and replace their children every few milliseconds;
//! some children are programs without libshunt, and some put streams of the C
//! library on connections, so that these must become plain in the middle. Each
//! direction carries numbered records of known content (`record`), sent and
//! taken so that natively nothing can go wrong (`way`).

use crate::options::Common;
use crate::random::Random;
use rustix::process::Signal;
use shunt_harness::process::{descendants, signal};
use shunt_harness::stacks;
use shunt_harness::stats::{Bytes, Stats};
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

pub(crate) mod member;
pub(crate) mod parent;
mod pass;
mod record;
mod shared;
mod way;

use parent::Mischief;
use shared::{Shared, phase};

/// A way that does not move for this time hangs.
const PATIENCE: Duration = Duration::from_secs(20);

struct Options {
    common: Common,
    only: Option<Mischief>,
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut only = None;
    let common = Common::parse(arguments, Duration::from_secs(60), |word, words| {
        if word == "--mischief" {
            only = Some(mischief(words.value(word)?)?);
        }
        Ok(word == "--mischief")
    })?;
    Ok(Options { common, only })
}

fn mischief(text: &str) -> Result<Mischief, String> {
    let mut chosen = Mischief {
        kills: false,
        receivers: false,
        parts: false,
        strangers: false,
        plain: false,
    };
    for word in text.split(',') {
        match word {
            "none" => {}
            "kills" => chosen.kills = true,
            "parts" => (chosen.kills, chosen.parts) = (true, true),
            "receivers" => (chosen.kills, chosen.receivers) = (true, true),
            "strangers" => chosen.strangers = true,
            "plain" => (chosen.strangers, chosen.plain) = (true, true),
            _ => return Err(format!("no such mischief: {word}")),
        }
    }
    Ok(chosen)
}

/// The whole soak.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let options = parse(arguments)?;
    let directory = std::env::temp_dir().join(format!("shunt-family.{}", std::process::id()));
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let result = rounds(&options, &directory);
    let _ = std::fs::remove_dir_all(&directory);
    result
}

fn rounds(options: &Options, directory: &Path) -> Result<(), String> {
    let start = Instant::now();
    let (mut rounds, mut sum) = (0, Counts::default());
    let mut said = Instant::now();
    while start.elapsed() < options.common.time {
        let seed = options.common.seed.wrapping_add(rounds);
        let file = directory.join(format!("round.{rounds}"));
        let done = round(options, directory, &file, seed)
            .map_err(|text| format!("round {rounds}: {text}; begin there with --seed {seed}"))?;
        let _ = std::fs::remove_file(&file);
        rounds += 1;
        sum.add(&done);
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            let time = start.elapsed().as_secs();
            println!("[{time:4} s] {rounds} rounds, {sum}");
        }
    }
    if options.common.shunt.is_some() {
        let Bytes { ring, kernel } = Stats::count(&directory.join("stats")).bytes();
        println!(
            "statistics of those who were not killed: {ring} bytes in rings, {kernel} by the kernel"
        );
        if ring == 0 {
            return Err("no byte went through a ring".into());
        }
    }
    println!("family: {rounds} rounds, {sum}, 0 failures");
    Ok(())
}

/// What happened.
#[derive(Default)]
struct Counts {
    records: u64,
    events: u64,
    put_off: u64,
}

impl Counts {
    fn of(shared: &Shared) -> Self {
        let ways = shared.ways.iter().flatten();
        Self {
            records: ways.map(|way| way.receive.next.load(SeqCst)).sum(),
            events: shared.events.load(SeqCst),
            put_off: shared.put_off.load(SeqCst),
        }
    }

    fn add(&mut self, other: &Self) {
        self.records += other.records;
        self.events += other.events;
        self.put_off += other.put_off;
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            records,
            events,
            put_off,
        } = self;
        write!(
            f,
            "{records} records, {events} births, deaths and stops, {put_off} sends put off"
        )
    }
}

fn round(options: &Options, directory: &Path, file: &Path, seed: u64) -> Result<Counts, String> {
    let mut random = Random::new(seed);
    let shared = Shared::create(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let (kills, strangers) = (!random.one_in(4), !random.one_in(3));
    let chosen = Mischief {
        kills,
        receivers: kills && random.one_in(2),
        // The parts of one send may be torn apart by a kill.
        parts: kills && random.one_in(2),
        strangers,
        plain: strangers && !random.one_in(3),
    };
    let mischief = options.only.unwrap_or(chosen);
    let eager = !random.one_in(4);
    // A connection becomes plain once, so where that happens rounds are short.
    let longest = if mischief.strangers || mischief.plain {
        800
    } else {
        3000
    };
    let time = Duration::from_millis(random.magnitude(50, longest));
    let mut parents = Vec::new();
    for side in 0..2 {
        let mut command = command(options, directory, eager)?;
        command
            .arg("family-parent")
            .arg(file)
            .arg(side.to_string())
            .arg(seed.to_string())
            .arg(mischief.bits().to_string());
        parents.push(command.spawn().map_err(|error| format!("start: {error}"))?);
    }
    let result = watch(shared, &mut parents, time);
    if result.is_err() {
        println!("round with seed {seed}: {mischief:?}, eager {eager}");
        for parent in &mut parents {
            for pid in descendants(parent.id()) {
                signal(pid, Signal::KILL);
            }
            let _ = parent.kill();
            let _ = parent.wait();
        }
    }
    result?;
    Ok(Counts::of(shared))
}

fn command(options: &Options, directory: &Path, eager: bool) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let Some(shunt) = &options.common.shunt else {
        return Ok(Command::new(program));
    };
    let mut command = Command::new(shunt);
    let upgrade = if eager { "eager" } else { "adaptive" };
    command
        .arg("run")
        .arg(format!("--upgrade={upgrade}"))
        .arg("--stats")
        .arg(directory.join("stats"))
        .arg("--")
        .arg(program);
    Ok(command)
}

/// Until both parents have ended; says so when something stands still.
fn watch(shared: &Shared, parents: &mut [Child], time: Duration) -> Result<(), String> {
    let start = Instant::now();
    let mut last: [(u64, Instant); 2 * shared::CONNECTIONS] = [(0, start); 2 * shared::CONNECTIONS];
    let mut alive = vec![true; parents.len()];
    let mut moved = Instant::now();
    while alive.contains(&true) {
        if start.elapsed() > time && !shared.draining() {
            shared.phase.store(phase::DRAIN, SeqCst);
        }
        if shared.failures.load(SeqCst) > 0 {
            return Err("see above".into());
        }
        for (parent, alive) in parents.iter_mut().zip(&mut alive) {
            if !*alive {
                continue;
            }
            if let Some(status) = parent.try_wait().map_err(|error| error.to_string())? {
                if !status.success() {
                    return Err(format!("a parent ended: {status}"));
                }
                *alive = false;
                moved = Instant::now();
            }
        }
        let ways = shared.ways.iter().flatten();
        let mut all_ended = true;
        for (index, way) in ways.enumerate() {
            let now = way.receive.next.load(SeqCst);
            if way.receive.ended.load(SeqCst) == 1 {
                continue;
            }
            all_ended = false;
            if now != last[index].0 {
                last[index] = (now, Instant::now());
                moved = Instant::now();
            }
            if last[index].1.elapsed() > PATIENCE {
                return Err(hang(shared, parents));
            }
        }
        if all_ended && moved.elapsed() > PATIENCE {
            return Err(hang(shared, parents));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn hang(shared: &Shared, parents: &[Child]) -> String {
    for (index, way) in shared.ways.iter().flatten().enumerate() {
        println!(
            "connection {}, from side {}: {} sent (at {}), {} taken (at {}), ended {} and {}",
            index / 2,
            index % 2,
            way.send.next.load(SeqCst),
            way.send.intent.load(SeqCst) >> 1,
            way.receive.next.load(SeqCst),
            way.receive.intent.load(SeqCst) >> 1,
            way.send.ended.load(SeqCst),
            way.receive.ended.load(SeqCst)
        );
    }
    let parents: Vec<u32> = parents.iter().map(Child::id).collect();
    println!("{}", stacks::of(&parents));
    "stands still".into()
}
