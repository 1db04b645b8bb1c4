//! Counts what passed and failed and prints it as it happens.

use crate::process::reap_leftovers;
use anyhow::Result;
use std::time::Instant;

/// Lines of an error that the summary says again.
const SHOWN_AGAIN: usize = 30;

/// The results of one run.
pub(crate) struct Report {
    started: Instant,
    passed: u32,
    /// Name and error.
    failed: Vec<(String, String)>,
    /// Name and reason.
    skipped: Vec<(String, String)>,
}

impl Report {
    /// A task that is nothing but these steps: whether all of them hold.
    pub(crate) fn of(steps: impl FnOnce(&mut Self) -> Result<()>) -> Result<bool> {
        let mut report = Self::new();
        steps(&mut report)?;
        reap_leftovers();
        Ok(report.finish())
    }

    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            passed: 0,
            failed: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Runs one step; its text is printed behind its name. Returns whether it passed.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<String>) -> bool {
        println!(
            "[{:6.1} s] {name} ...",
            self.started.elapsed().as_secs_f64()
        );
        let started = Instant::now();
        let result = work();
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(detail) => {
                self.passed += 1;
                println!("           ok     {name} ({seconds:.1} s) {detail}");
                true
            }
            Err(error) => {
                let error = format!("{error:#}");
                println!("           FAILED {name} ({seconds:.1} s): {error}");
                self.failed.push((name.to_owned(), error));
                false
            }
        }
    }

    /// Leaves out one step that this machine cannot run.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        println!("           skip   {name}: {reason}");
        self.skipped.push((name.to_owned(), reason.to_owned()));
    }

    /// Prints what failed, with the end of each error, and the last line; true if nothing failed.
    pub(crate) fn finish(self) -> bool {
        for (name, error) in &self.failed {
            println!("failed: {name}");
            let lines: Vec<&str> = error.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN_AGAIN)..] {
                println!("        {line}");
            }
        }
        println!("total time {:.0} s", self.started.elapsed().as_secs_f64());
        for (name, reason) in &self.skipped {
            println!("skipped: {name}: {reason}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
        self.failed.is_empty()
    }
}
