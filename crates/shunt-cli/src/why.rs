//! `shunt why`: what has become of a connection, or of all of a process, and what to do.

pub(crate) mod advice;
mod seen;
mod sockets;
mod story;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::downgrade::Which;
use crate::process::{Finding, Process};
use crate::ss::{self, Connection};
use seen::Seen;

/// The whole answer.
#[derive(Serialize)]
struct Answer {
    /// What is wrong with the daemon, if anything is.
    daemon: Option<String>,
    processes: Vec<About>,
    connections: Vec<Story>,
}

/// What is said of a process.
#[derive(Serialize)]
struct About {
    pid: u32,
    comm: String,
    findings: Vec<Finding>,
}

/// What is said of a connection.
#[derive(Serialize)]
struct Story {
    #[serde(flatten)]
    connection: Connection,
    /// What has happened, one sentence each.
    history: Vec<String>,
    advice: Option<String>,
}

/// Says it of what is named.
pub(crate) fn why(which: Which, json: bool) -> Result<ExitCode> {
    let (known, daemon) = match ss::collect() {
        Ok(list) => (list.connections, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    let connections: Vec<_> = known.into_iter().filter(|c| which.names(c)).collect();
    let mut seen = Seen::default();
    let mut pids: Vec<u32> = match which {
        Which::Process(pid) => vec![pid],
        // The daemon does not know it: whoever has it does not run under Shunt.
        Which::End(end) if connections.is_empty() => seen.sockets.holders_at(end),
        Which::End(_) => Vec::new(),
    };
    pids.retain(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
    let answer = Answer {
        daemon,
        processes: pids
            .iter()
            .filter_map(|&pid| seen.process(pid).map(about))
            .collect(),
        connections: connections
            .into_iter()
            .map(|connection| story::of(connection, &mut seen))
            .collect(),
    };
    let found = !(answer.processes.is_empty() && answer.connections.is_empty());
    if json {
        crate::print_json(&answer)?;
    } else {
        crate::print(&answer.text())?;
    }
    if !found {
        eprintln!("shunt: there is no such process or connection here");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn about(process: &Process) -> About {
    let findings = std::iter::once(process.finding()).chain(process.remark());
    About {
        pid: process.pid,
        findings: findings.collect(),
        comm: process.comm.clone(),
    }
}

impl Answer {
    fn text(&self) -> String {
        let mut lines = Vec::new();
        let advise = |advice: &Option<String>| advice.as_ref().map(|a| format!("  -> {a}"));
        for About {
            pid,
            comm,
            findings,
        } in &self.processes
        {
            for finding in findings {
                let who = ss::table::who(comm, Some(*pid));
                lines.push(format!("{who} {}.", finding.what));
                lines.extend(advise(&finding.advice));
            }
        }
        lines.extend(self.daemon.iter().map(|error| format!("{error}.")));
        for Story {
            connection,
            history,
            advice,
        } in &self.connections
        {
            lines.push(format!("{} <- {}", connection.local, connection.peer));
            lines.extend(history.iter().map(|sentence| format!("  {sentence}")));
            lines.extend(advise(advice));
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}
