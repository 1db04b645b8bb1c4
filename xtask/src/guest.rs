//! `cargo xtask lab rdma`: real verbs without a NIC. A guest under QEMU, with Debian's kernel and soft-RoCE, has two network namespaces
//! with a device for each; two sides of `shunt-rdma`'s trial run there (`crates/shunt-rdma/examples/peer.rs`).
//!
//! The processor is emulated: what works is shown here, never how fast.

mod boot;
mod image;

use crate::build::{artifact, cargo, root};
use crate::process::check;
use crate::progress;
use crate::report::Report;
use crate::setup::{self, Need};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;

/// What the lab is to show.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which: rdma
    which: Which,
    /// Bytes of each stream of the trial, in each of its three parts
    #[arg(long, default_value_t = 200_000)]
    bytes: u64,
    /// Round trips of 8 bytes, both sides asleep
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Which parts: trial (the protocol alone), programs (real ones under Shunt)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = ["trial", "programs"])]
    parts: Vec<Part>,
    /// Only these programs
    #[arg(long, value_name = "NAME;...", default_value = "")]
    programs: String,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Trial,
    Programs,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Which {
    /// Verbs over soft-RoCE
    Rdma,
}

/// What the trial must have shown, by the lines that it prints.
const SHOWN: [&str; 5] = [
    "LAB held: streams over the rings",
    "LAB held: streams whose queue pair broke, back on TCP",
    "LAB held: streams over the rings of a new queue pair",
    "LAB held: the devices have carried it",
    "LAB held: nothing stays pinned",
];

/// A guest that has come to its end says so last; one that has died does not.
const END: &str = "LAB end: 0 failures";

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let Which::Rdma = options.which;
    setup::run(Need::Lab)?;
    if options.parts.contains(&Part::Programs) {
        setup::run(Need::Everything)?;
    }
    Report::of(|report| {
        report.step("peer", || {
            check(cargo().args([
                "build",
                "--release",
                "--quiet",
                "-p",
                "shunt-rdma",
                "--example",
                "peer",
            ]))?;
            Ok(String::new())
        });
        report.step("build", || {
            check(cargo().args(["build", "--release", "--quiet"]))?;
            Ok(String::new())
        });
        report.step("guest", || guest(options));
        Ok(())
    })
}

fn directory() -> PathBuf {
    root().join("target/lab")
}

fn guest(options: &Options) -> Result<String> {
    let directory = directory();
    fs::create_dir_all(&directory)?;
    let kernel = progress::step("the kernel", || image::kernel(&directory))?;
    let peer = artifact("examples/peer");
    let plan = plan(options)?;
    let initrd = progress::step("the guest's files", || {
        image::initrd(&directory, &kernel, &peer, &plan)
    })?;
    let said = progress::step("the guest", || {
        boot::run(&directory, &kernel.image, &initrd)
    })?;
    let mut shown = vec![END];
    if options.parts.contains(&Part::Trial) {
        shown.extend(SHOWN);
    }
    if options.parts.contains(&Part::Programs) {
        shown.push("LAB held: all programs");
    }
    judge(&said, &shown)
}

/// What the guest is to do, as its first process reads it.
fn plan(options: &Options) -> Result<String> {
    let name = |part: &Part| match part {
        Part::Trial => "trial",
        Part::Programs => "programs",
    };
    let parts: Vec<_> = options.parts.iter().map(name).collect();
    let release = artifact("shunt");
    let release = release.parent().context("a directory of programs")?;
    Ok(format!(
        "BYTES={} ROUNDS={} PARTS='{}' PROGRAMS='{}' RELEASE='{}' TESTS='{}'",
        options.bytes,
        options.rounds,
        parts.join(" "),
        options.programs,
        release.display(),
        root().join("tests").display(),
    ))
}

/// What the devices have carried, if all was shown and nothing failed.
fn judge(said: &[String], shown: &[&str]) -> Result<String> {
    let failed = said.iter().filter(|line| line.starts_with("LAB failed"));
    let failed: Vec<_> = failed.collect();
    let is_said = |shown: &&str| said.iter().any(|line| line.starts_with(shown));
    let missing: Vec<_> = shown.iter().filter(|shown| !is_said(shown)).collect();
    if !missing.is_empty() || !failed.is_empty() {
        let end = &said[said.len().saturating_sub(30)..];
        let end = end.join("\n");
        bail!("failed: {failed:?}; not shown: {missing:?}\n{end}");
    }
    let carried = said.iter().find(|line| line.contains("have carried it"));
    Ok(carried.cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{SHOWN, judge};

    #[test]
    fn all_must_be_shown_and_nothing_fail() {
        let mut said = SHOWN.map(str::to_owned).to_vec();
        assert_eq!(judge(&said, &SHOWN).unwrap(), SHOWN[3]);
        said.push("LAB failed: listening side".to_owned());
        let error = judge(&said, &SHOWN).unwrap_err().to_string();
        assert!(error.contains("LAB failed: listening side"), "{error}");
        said.truncate(4);
        let error = judge(&said, &SHOWN).unwrap_err().to_string();
        assert!(error.contains(SHOWN[4]), "{error}");
    }
}
