//! Pairs of workers, one or several at the same time.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};

use super::Sample;
use crate::carried::Carried;
use crate::child::Watched;
use crate::cores::Place;
use crate::process;
use crate::side::{Lab, Side, Upgrade};
use crate::worker::{Outcome, Times, Work};

/// What a pair does.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) side: Side,
    pub(super) work: Work,
    pub(super) size: usize,
    pub(super) milliseconds: u64,
    pub(super) place: Place,
    pub(super) cores: [Option<usize>; 2],
    pub(super) pairs: usize,
}

/// What all pairs did together.
pub(super) struct Sum {
    pub(super) messages: f64,
    pub(super) bytes: f64,
    /// The longest time of a receiver (one way) or client.
    pub(super) seconds: f64,
    pub(super) times: Option<Times>,
    pub(super) cpu: [f64; 2],
    pub(super) carried: Option<Carried>,
    /// Bytes of memory that both ends take, and what serves them.
    pub(super) resident: f64,
}

impl Sum {
    /// A sample of which the value is chosen.
    pub(super) fn sample(&self, value: f64) -> Sample {
        Sample {
            value,
            times: self.times,
            cpu: self.cpu.map(|seconds| seconds / self.messages * 1e6),
            carried: self.carried,
        }
    }
}

/// Runs the pairs.
pub(super) fn run(lab: &Lab, task: &Task) -> Result<Sum> {
    let file = lab.fresh("statistics");
    let under = (task.side == Side::Shunt).then_some((Upgrade::Eager, &*file));
    let mut pairs = Vec::new();
    for _ in 0..task.pairs {
        pairs.push(start(lab, task, under)?);
    }
    for (_, client) in &mut pairs {
        let line = client.line()?;
        ensure!(line == "ready", "the client says {line:?}");
    }
    // Its memory counts, too, all of it.
    let daemon = match under {
        Some(_) if task.work == Work::Idle => process::resident_of_all("shuntd"),
        _ => 0,
    };
    for (_, client) in &mut pairs {
        client.go();
    }
    let mut outcomes = Vec::new();
    for (server, client) in pairs {
        let client = outcome(&client.finish()?)?;
        outcomes.push((outcome(&server.finish()?)?, client));
    }
    let carried = under.map(|(_, file)| Carried::mostly_by_ring(file, None));
    let mut sum = sum(task.work, &outcomes, carried.transpose()?)?;
    sum.resident += daemon as f64;
    Ok(sum)
}

fn start(lab: &Lab, task: &Task, under: Option<(Upgrade, &Path)>) -> Result<(Watched, Watched)> {
    let limit = limit(task);
    let [at_server, at_client] = task.cores;
    let mut ends = Vec::new();
    let mut address = match task.side {
        Side::Tcp | Side::Shunt => String::new(),
        Side::Unix => lab.fresh("unix").to_string_lossy().into_owned(),
        Side::Ring => lab.fresh("ring").to_string_lossy().into_owned(),
        Side::Pipe => {
            ends = pipes()?;
            leave_open(&ends[..2])?
        }
    };
    let command = |role: &str, address: &str, core: Option<usize>| {
        let mut command = lab.worker(under);
        describe(&mut command, task, limit);
        command.args(["--role", role, "--address", address]);
        command.args(core.map(|core| format!("--core={core}")));
        command
    };
    let mut server = Watched::start("server", &mut command("server", &address, at_server), limit)?;
    let told = server.line()?;
    if task.side == Side::Pipe {
        close_again(&ends[..2])?;
        address = leave_open(&ends[2..])?;
    } else {
        address = told;
    }
    let client = Watched::start("client", &mut command("client", &address, at_client), limit)?;
    Ok((server, client))
}

/// Much longer than any measurement, and bounded.
fn limit(task: &Task) -> Duration {
    let connections = match task.work {
        Work::Crowd | Work::Idle => task.size,
        _ => 1,
    };
    Duration::from_secs(30)
        + Duration::from_millis(task.milliseconds * 20)
        + Duration::from_millis(5) * connections as u32
}

pub(super) fn describe(command: &mut Command, task: &Task, limit: Duration) {
    let work = match task.work {
        Work::Echo => "echo",
        Work::Flow => "flow",
        Work::Filter => "filter",
        Work::Crowd => "crowd",
        Work::Idle => "idle",
    };
    let carrier = match task.side {
        Side::Tcp | Side::Shunt => "tcp",
        side => side.name(),
    };
    command
        .args(["--work", work, "--carrier", carrier])
        .arg(format!("--size={}", task.size))
        .arg(format!("--milliseconds={}", task.milliseconds))
        .arg(format!("--limit={}", limit.as_secs() + 5));
    if task.place != Place::Two || task.pairs > 1 {
        command.arg("--yields");
    }
}

/// Server's input and output, client's input and output.
fn pipes() -> Result<Vec<OwnedFd>> {
    let (there, from_client) = pipe_with(PipeFlags::CLOEXEC)?;
    let (back, from_server) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(vec![there, from_server, back, from_client])
}

/// The next child shall have them; the address that tells it so.
fn leave_open(ends: &[OwnedFd]) -> Result<String> {
    for end in ends {
        fcntl_setfd(end, FdFlags::empty())?;
    }
    Ok(format!("{},{}", ends[0].as_raw_fd(), ends[1].as_raw_fd()))
}

fn close_again(ends: &[OwnedFd]) -> Result<()> {
    for end in ends {
        fcntl_setfd(end, FdFlags::CLOEXEC)?;
    }
    Ok(())
}

pub(super) fn outcome(printed: &str) -> Result<Outcome> {
    let line = printed.lines().last().context("a worker reports nothing")?;
    serde_json::from_str(line).with_context(|| format!("a worker reports {line:?}"))
}

fn sum(work: Work, outcomes: &[(Outcome, Outcome)], carried: Option<Carried>) -> Result<Sum> {
    let mut sum = Sum {
        messages: 0.0,
        bytes: 0.0,
        seconds: 0.0,
        times: None,
        cpu: [0.0; 2],
        carried,
        resident: 0.0,
    };
    let mut all = Vec::new();
    for (server, client) in outcomes {
        if work == Work::Flow {
            let (sent, received) = (client.bytes, server.bytes);
            ensure!(sent == received, "{sent} bytes sent, {received} received");
        }
        let last = if work == Work::Flow { server } else { client };
        sum.messages += last.messages as f64;
        sum.bytes += last.bytes as f64;
        sum.seconds = f64::max(sum.seconds, last.seconds);
        sum.resident += (client.resident + server.resident) as f64;
        sum.cpu[0] += client.cpu;
        sum.cpu[1] += server.cpu;
        all.extend(client.times);
    }
    ensure!(sum.messages > 0.0 && sum.seconds > 0.0, "nothing was sent");
    let mean = |of: fn(&Times) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    sum.times = (!all.is_empty()).then(|| Times {
        mean: mean(|t| t.mean),
        p1: mean(|t| t.p1),
        p50: mean(|t| t.p50),
        p99: mean(|t| t.p99),
        p999: mean(|t| t.p999),
    });
    Ok(sum)
}
