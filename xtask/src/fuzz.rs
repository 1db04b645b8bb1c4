//! Random input for everything that reads what others wrote: rings, credits and
//! the daemon's messages.

use crate::build::cargo;
use anyhow::Result;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
}

/// The property tests that read untrusted input, and how many cases one round takes.
const TESTS: &[(&str, &str, u32)] = &[
    ("shunt-shm", "survives_any", 10_000),
    ("shunt-shm", "behaves_like_a_byte_stream", 1_000),
    ("shuntd", "random_messages_never_hurt_the_daemon", 500),
];

/// The task. Every round draws new cases; a failing one is printed as it was shrunk.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let end = Instant::now() + Duration::from_secs(options.minutes * 60);
    let mut rounds = 0u64;
    while rounds == 0 || Instant::now() < end {
        for &(package, test, cases) in TESTS {
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
    let cases: u64 = TESTS.iter().map(|t| u64::from(t.2)).sum();
    println!("fuzz: {} cases, no failure", cases * rounds);
    Ok(true)
}
