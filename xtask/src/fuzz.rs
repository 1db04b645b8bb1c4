//! Random input for everything that reads what others wrote: rings, credits,
//! the daemon's messages and configuration, records of eBPF. And random sequences of calls, natively and under Shunt.

use crate::build::{artifact, cargo, root};
use crate::process::{Job, reap_leftovers};
use anyhow::{Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A script that is shrunk takes long without a word.
const SILENCE: Duration = Duration::from_secs(400);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Only targets with this word in their names
    #[arg(long, conflicts_with = "differential")]
    only: Option<String>,
    /// Random sequences of socket calls instead, natively and under Shunt
    #[arg(long)]
    differential: bool,
    /// The first of these sequences; the others follow it
    #[arg(long, requires = "differential")]
    seed: Option<u64>,
    /// When connections are moved [default: eager,sync,adaptive]
    #[arg(long, requires = "differential")]
    modes: Option<String>,
    /// Kinds of operations to leave out
    #[arg(long, requires = "differential")]
    without: Option<String>,
    /// Scripts to play instead, such as an earlier run has written
    #[arg(long, requires = "differential", num_args = 1..)]
    script: Vec<PathBuf>,
    /// Scripts played at the same time
    #[arg(long, requires = "differential", default_value_t = 1)]
    jobs: usize,
}

/// The property tests that read untrusted input, and how many cases one round takes.
const TESTS: &[(&str, &str, u32)] = &[
    ("shunt-shm", "survives_any", 10_000),
    ("shunt-shm", "behaves_like_a_byte_stream", 1_000),
    ("shuntd", "random_messages_never_hurt_the_daemon", 500),
    ("shuntd", "any_text_is_a_configuration_or_a_mistake", 20_000),
    ("shuntd", "lists_of_rules_are_read_from_the_top", 10_000),
    ("shuntd", "it_matches_what_its_definition_does", 100_000),
    ("shunt-hosts", "any_bytes_are_a_frame_or_none", 100_000),
    ("shunt-hosts", "any_change_of_a_frame_is_a_frame", 100_000),
    ("shunt-hosts", "what_is_written_is_read", 1_000),
    (
        "shunt-identity",
        "any_bytes_are_an_identity_or_none",
        100_000,
    ),
    ("shunt-identity", "no_more_is_kept_than_the_log_has", 20_000),
    ("shunt-identity", "a_mirror_is_the_only_one", 20_000),
    ("shunt-identity", "any_line_is_a_path_or_none", 100_000),
];

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.differential {
        differential(options)
    } else {
        parsers(options)
    }
}

impl Options {
    pub(crate) fn is_differential(&self) -> bool {
        self.differential
    }
}

fn differential(options: &Options) -> Result<bool> {
    let mut command = sequences();
    command.arg("--minutes").arg(options.minutes.to_string());
    command.arg("--jobs").arg(options.jobs.to_string());
    if let Some(seed) = options.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    for (word, value) in [("--modes", &options.modes), ("--without", &options.without)] {
        if let Some(value) = value {
            command.args([word, value]);
        }
    }
    if !options.script.is_empty() {
        command.arg("--script").args(&options.script);
    }
    let status = command.stdin(Stdio::null()).status()?;
    reap_leftovers();
    Ok(status.success())
}

fn sequences() -> Command {
    let mut command = Command::new(artifact("shunt-differential"));
    command.arg("fuzz").arg("--shunt").arg(artifact("shunt"));
    command.current_dir(root());
    command
}

/// The scripts that are kept and a few seeds, as a step of the tests.
pub(crate) fn fixed() -> Result<String> {
    let mut command = sequences();
    command.args(["--fixed", "--no-shrink"]);
    let mut job = Job::spawn("fuzz", &root().join("target"), &mut command)?;
    let status = job.follow(SILENCE)?;
    if !status.success() {
        bail!("{status}; see target/fuzz.log\n{}", job.tail());
    }
    Ok(job.output().lines().last().unwrap_or_default().to_owned())
}

/// Every round draws new cases; a failing one is printed as it was shrunk.
fn parsers(options: &Options) -> Result<bool> {
    let is_wanted = |name: &str| {
        options
            .only
            .as_deref()
            .is_none_or(|word| name.contains(word))
    };
    let tests: Vec<_> = TESTS.iter().filter(|test| is_wanted(test.1)).collect();
    ensure!(!tests.is_empty(), "no target has such a name");
    let end = Instant::now() + Duration::from_secs(options.minutes * 60);
    let mut rounds = 0u64;
    while rounds == 0 || Instant::now() < end {
        for &&(package, test, cases) in &tests {
            let mut command = cargo();
            command
                .args(["test", "--quiet", "--package", package])
                .args(["--target-dir", "target/fuzz", "--", test])
                // Fast, with overflow checks and assertions.
                .env("CARGO_PROFILE_DEV_OPT_LEVEL", "2")
                .env("PROPTEST_CASES", cases.to_string());
            let output = command.output()?;
            if !output.status.success() {
                println!("{}", String::from_utf8_lossy(&output.stdout));
                eprintln!("{}", String::from_utf8_lossy(&output.stderr));
                println!("fuzz: {package} {test} failed in round {}", rounds + 1);
                return Ok(false);
            }
        }
        rounds += 1;
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        println!("fuzz: {rounds} rounds, {left} s left");
    }
    let cases: u64 = tests.iter().map(|t| u64::from(t.2)).sum();
    println!("fuzz: {} cases, no failure", cases * rounds);
    Ok(true)
}
