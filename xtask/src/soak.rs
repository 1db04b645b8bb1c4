//! Runs shunt-soak.

use crate::build::{artifact, root};
use crate::process::{Job, reap_leftovers};
use anyhow::{Result, bail};
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u32,
    /// Without Shunt: a test of the soak itself
    #[arg(long)]
    native: bool,
    /// Connections that families of processes share, instead of many connections of few
    #[arg(long)]
    family: bool,
    /// Repeat the choices of an earlier run
    #[arg(long)]
    seed: Option<u64>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut command = command(options.family, options.minutes * 60, options.native);
    if let Some(seed) = options.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    let status = command.stdin(Stdio::null()).status()?;
    reap_leftovers();
    Ok(status.success())
}

/// A short one, for CI. Returns its last line.
pub(crate) fn short() -> Result<String> {
    let mut command = command(false, 30, false);
    let mut job = Job::spawn("soak", &root().join("target"), &mut command)?;
    let status = job.wait(Duration::from_secs(180), &[])?;
    if !status.success() {
        bail!("{status}; see target/soak.log\n{}", job.tail());
    }
    Ok(job.output().lines().last().unwrap_or_default().to_owned())
}

/// The same for families. Returns its last line.
pub(crate) fn short_family() -> Result<String> {
    let mut command = command(true, 30, false);
    let mut job = Job::spawn("soak-family", &root().join("target"), &mut command)?;
    let status = job.wait(Duration::from_secs(120), &[])?;
    if !status.success() {
        bail!("{status}; see target/soak-family.log\n{}", job.tail());
    }
    Ok(job.output().lines().last().unwrap_or_default().to_owned())
}

fn command(family: bool, seconds: u32, native: bool) -> Command {
    let mut command = Command::new(artifact("shunt-soak"));
    if family {
        command.arg("family");
    }
    command.arg("--seconds").arg(seconds.to_string());
    if native {
        command.arg("--native");
    } else {
        command.arg("--shunt").arg(artifact("shunt"));
    }
    command
}
