//! Runs shunt-soak.

use crate::build::{artifact, root};
use crate::containers;
use crate::process::{Job, reap_leftovers};
use anyhow::{Result, bail};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The environment's words for them.
const RESTLESS: &str = "SHUNT_RESTLESS";
const HESITANT: &str = "SHUNT_HESITANT";
/// The soak's word for how often shuntd is killed.
const RESTARTS: &str = "--restarts";

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
    /// One `shuntd --system`, which is killed, too, between two network namespaces with translated addresses (as root)
    #[arg(long, conflicts_with_all = ["native", "family"])]
    system: bool,
    /// End after this number of kills, which come faster than else
    #[arg(long, conflicts_with = "family")]
    kills: Option<u64>,
    /// Kill the user's own shuntd, too, each time after this number of seconds
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["native", "family", "system"])]
    restarts: Option<u32>,
    /// Number of waits of a process after which it sends all connections back to TCP, again and again
    #[arg(long, value_name = "WAITS")]
    restless: Option<u32>,
    /// Of this number of steps of a change of way, pause at one, up to 0.4 ms
    #[arg(long, value_name = "STEPS")]
    hesitant: Option<u32>,
    /// Repeat the choices of an earlier run
    #[arg(long)]
    seed: Option<u64>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.system {
        return containers::between(|host, places| {
            let mut command = system(host, places, options.minutes * 60);
            run_with(&mut command, options)
        });
    }
    let mut command = command(options.family, options.minutes * 60, options.native);
    run_with(&mut command, options)
}

fn run_with(command: &mut Command, options: &Options) -> Result<bool> {
    if let Some(seed) = options.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    if let Some(kills) = options.kills {
        command.arg("--kills").arg(kills.to_string());
    }
    if let Some(seconds) = options.restarts {
        command.arg(RESTARTS).arg(seconds.to_string());
    }
    if let Some(waits) = options.restless {
        command.env(RESTLESS, waits.to_string());
    }
    if let Some(steps) = options.hesitant {
        command.env(HESITANT, steps.to_string());
    }
    let status = command.stdin(Stdio::null()).status()?;
    reap_leftovers();
    Ok(status.success())
}

/// A short one, for CI. Returns its last line.
pub(crate) fn short() -> Result<String> {
    follow("soak", command(false, 30, false), 180)
}

/// The same while all connections change their way at every fiftieth wait of a process, and
/// threads pause between the steps of that.
pub(crate) fn short_restless() -> Result<String> {
    let mut command = command(false, 20, false);
    command.env(RESTLESS, "50").env(HESITANT, "4");
    follow("soak-restless", command, 180)
}

/// The first one while shuntd is killed, again and again. Returns its last line.
pub(crate) fn short_restarts() -> Result<String> {
    let mut command = command(false, 20, false);
    command.args([RESTARTS, "4"]);
    follow("soak-restarts", command, 180)
}

/// The same for families. Returns its last line.
pub(crate) fn short_family() -> Result<String> {
    follow("soak-family", command(true, 30, false), 120)
}

/// Runs one that is to end within this number of seconds.
fn follow(name: &str, mut command: Command, seconds: u64) -> Result<String> {
    let mut job = Job::spawn(name, &root().join("target"), &mut command)?;
    let status = job.wait(Duration::from_secs(seconds), &[])?;
    if !status.success() {
        bail!("{status}; see target/{name}.log\n{}", job.tail());
    }
    Ok(job.output().lines().last().unwrap_or_default().to_owned())
}

/// One in which the host's shuntd is killed, too.
pub(crate) fn short_system() -> Result<String> {
    containers::between(|host, places| {
        let mut command = system(host, places, 60);
        command.args(["--kills", "50"]);
        follow("soak-system", command, 240)
    })
}

/// A soak of such a host's shuntd, with servers and clients in the network namespaces of two processes.
fn system(mut host: Command, [servers, clients]: [u32; 2], seconds: u32) -> Command {
    host.arg(artifact("shunt-soak"))
        .arg("--seconds")
        .arg(seconds.to_string())
        .arg("--shunt")
        .arg(artifact("shunt"))
        .arg("--system")
        .arg(artifact("shuntd"))
        .arg("--apart")
        .arg(format!("{servers},{clients},10.77.0.3,10.77.0.1"));
    host
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
