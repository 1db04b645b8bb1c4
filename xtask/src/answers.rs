//! What Shunt says of real programs: a line of statistics for each process, however it
//! ends, and a row of `shunt ss` for each listener and connection, with the reason. And what the kernel says of
//! connections whose ends sleep.

use crate::build::{artifact, root};
use crate::process::Job;
use crate::program::{PYTHON, script};
use crate::report::Report;
use anyhow::{Result, bail};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The steps, for `test`.
pub(crate) fn steps(report: &mut Report) {
    report.step("statistics of every end", || {
        let directory = root().join("target/endings");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        run("endings", &[&directory.display().to_string()])
    });
    report.step("rows of shunt ss", || run("listing", &[]));
    report.step("peers out of reach", || run("elsewhere", &[]));
    report.step("calls beside the stream", || run("sleepers", &[]));
    report.step("back to the rings", || run("returning", &[]));
    report.step("claims that outlive shuntd", || run("successor", &[]));
    report.step("another shuntd behind its socket", || {
        run("activation", &[])
    });
    report.step("a close beside a recall", || run("unanswered", &[]));
    report.step("bytes that a late shuntd brings", || run("late", &[]));
    report.step("calls before a late welcome", || run("welcome", &[]));
    report.step("children of a forking server", || run("forking", &[]));
    report.step("addresses and memory", || run("capacity", &[]));
}

/// Runs a script that prints a line a case; returns its last line.
fn run(name: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new(PYTHON);
    command
        .arg(script(&format!("{name}.py")))
        .arg(artifact("shunt"))
        .args(words);
    let mut job = Job::spawn(name, &root().join("target"), &mut command)?;
    let status = job.wait(Duration::from_secs(120), &[])?;
    let output = job.output();
    if !status.success() {
        bail!("{status}\n{output}");
    }
    for line in output.lines().filter(|line| line.starts_with("skipped")) {
        println!("           {line}");
    }
    let passed = output
        .lines()
        .filter(|line| line.starts_with("ok "))
        .count();
    Ok(format!("{passed} cases"))
}
