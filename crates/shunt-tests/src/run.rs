//! Runs one program in one mode and compares it with the native run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde_json::json;
use shunt_harness::stats::Stats;

use crate::apart::Apart;
use crate::diff;
use crate::hosts::Hosts;
use crate::process::{Ended, Running, finish_all};
use crate::program::{PathKind, Program};
use crate::restless::Restless;

/// Which ends run under Shunt, and how eagerly it upgrades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Neither end: checks that a program is deterministic.
    Native,
    /// Both ends, `--upgrade=eager`.
    Both,
    /// Only the client.
    Client,
    /// Only the server.
    Server,
    /// Both ends, `--upgrade=adaptive`.
    Adaptive,
    /// Both ends, `--upgrade=sync`.
    Sync,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "native" => Self::Native,
            "both" => Self::Both,
            "client" => Self::Client,
            "server" => Self::Server,
            "adaptive" => Self::Adaptive,
            "sync" => Self::Sync,
            _ => return Err("one of native, both, client, server, adaptive, sync".into()),
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Both => "both",
            Self::Client => "client",
            Self::Server => "server",
            Self::Adaptive => "adaptive",
            Self::Sync => "sync",
        })
    }
}

impl Mode {
    /// `None`: this role runs natively in this mode.
    fn upgrade(self, role: &str) -> Option<&'static str> {
        match (self, role) {
            (Self::Both, _) | (Self::Client, "client") | (Self::Server, "server") => Some("eager"),
            (Self::Adaptive, _) => Some("adaptive"),
            (Self::Sync, _) => Some("sync"),
            _ => None,
        }
    }

    /// Whether the statistics must show what a program declares.
    fn pairs_at_once(self) -> bool {
        matches!(self, Self::Both | Self::Sync)
    }

    /// A process that holds both ends cannot be half under Shunt.
    fn has_one_process_run(self) -> bool {
        !matches!(self, Self::Client | Self::Server)
    }
}

/// Everything that runs need to know.
pub(crate) struct Runner {
    pub(crate) shunt: PathBuf,
    pub(crate) out: PathBuf,
    /// Seconds; overrides what programs declare.
    pub(crate) timeout: Option<u64>,
    pub(crate) restless: Option<Restless>,
    /// Connections are used again.
    pub(crate) recycle: bool,
    /// Where the roles run, if not here.
    pub(crate) apart: Option<Apart>,
    pub(crate) hosts: Option<Hosts>,
}

/// Whether the kernel lets one process copy another's descriptors: the seccomp filters of
/// containers may not.
fn can_lend() -> bool {
    static CAN: LazyLock<bool> = LazyLock::new(|| {
        pidfd_open(getpid(), PidfdFlags::empty())
            .and_then(|process| pidfd_getfd(process, 0, PidfdGetfdFlags::empty()))
            .is_ok()
    });
    *CAN
}

/// What to run: a compiled program, or some of its cases.
pub(crate) struct Job<'a> {
    pub(crate) program: &'a Program,
    pub(crate) exe: PathBuf,
    /// Part of a case's name, or `=` and the whole of it.
    pub(crate) case: Option<String>,
    /// Why it is skipped where both ends are shunted, as the program declares.
    pub(crate) known: Option<String>,
}

impl Job<'_> {
    fn name(&self) -> String {
        match self.case.as_deref().and_then(|c| c.strip_prefix('=')) {
            Some(case) => format!("{}/{case}", self.program.name),
            None => self.program.name.clone(),
        }
    }
}

/// What the roles of one run did.
pub(crate) struct Outcome {
    ended: Vec<Ended>,
    hung: Option<String>,
    stats: Stats,
}

/// The result of one run.
pub(crate) struct Verdict {
    pub(crate) program: String,
    pub(crate) mode: String,
    pub(crate) wall: Duration,
    pub(crate) note: String,
    pub(crate) failure: Option<String>,
    pub(crate) skipped: bool,
}

impl Verdict {
    /// The program could not even be built or run natively.
    pub(crate) fn broken(program: &Program, error: &anyhow::Error) -> Self {
        Self {
            program: program.name.clone(),
            mode: "reference".into(),
            wall: Duration::ZERO,
            note: String::new(),
            failure: Some(format!("{error:#}")),
            skipped: false,
        }
    }

    /// It cannot be run natively here.
    pub(crate) fn impossible(job: &Job<'_>, why: &str) -> Self {
        Self {
            program: job.name(),
            mode: "reference".into(),
            wall: Duration::ZERO,
            note: why.into(),
            failure: None,
            skipped: true,
        }
    }

    pub(crate) fn json(&self) -> String {
        json!({
            "program": self.program,
            "mode": self.mode,
            "ok": self.failure.is_none(),
            "skipped": self.skipped,
            "seconds": self.wall.as_secs_f64(),
            "note": self.note,
            "failure": self.failure,
        })
        .to_string()
    }
}

/// Seconds that a run may take.
const DEFAULT_LIMIT: u64 = 20;

static RUNS: AtomicUsize = AtomicUsize::new(0);

impl Runner {
    /// The native run that all others are compared with.
    pub(crate) fn reference(&self, job: &Job<'_>) -> Result<Outcome> {
        let outcome = self.run(job, Mode::Native)?;
        for ended in &outcome.ended {
            if ended.exit != "exit 0" {
                let stacks = outcome.hung.as_deref().unwrap_or_default();
                bail!(
                    "natively, {} ends with {}\n{}{stacks}",
                    ended.role,
                    ended.exit,
                    tail(&ended.stderr)
                );
            }
        }
        Ok(outcome)
    }

    pub(crate) fn compare(&self, job: &Job<'_>, mode: Mode, reference: &Outcome) -> Verdict {
        let start = Instant::now();
        let mut verdict = Verdict {
            program: job.name(),
            mode: mode.to_string(),
            wall: Duration::ZERO,
            note: String::new(),
            failure: None,
            skipped: false,
        };
        let lacks = (job.program.needs_lending && !can_lend())
            .then(|| "pidfd_getfd is refused: nobody lends the other end's descriptor".to_owned());
        let why = job.known.as_ref().or(lacks.as_ref());
        if let (Some(why), Mode::Both | Mode::Adaptive | Mode::Sync) = (why, mode) {
            verdict.note.clone_from(why);
            verdict.skipped = true;
            return verdict;
        }
        match self.run(job, mode) {
            Err(error) => verdict.failure = Some(format!("{error:#}")),
            Ok(outcome) => {
                verdict.failure = self.judge(job, mode, reference, &outcome);
                if mode != Mode::Native {
                    verdict.note = outcome.stats.summary();
                }
            }
        }
        verdict.wall = start.elapsed();
        verdict
    }

    fn run(&self, job: &Job<'_>, mode: Mode) -> Result<Outcome> {
        let folder = self.out.join(format!(
            "run-{}-{}",
            std::process::id(),
            RUNS.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&folder)?;
        let result = self.run_in(&folder, job, mode);
        let _ = std::fs::remove_dir_all(&folder);
        result
    }

    fn run_in(&self, folder: &Path, job: &Job<'_>, mode: Mode) -> Result<Outcome> {
        let stats_file = folder.join("stats");
        let limit = Duration::from_secs(
            self.timeout
                .or(job.program.timeout)
                .unwrap_or(DEFAULT_LIMIT),
        );
        // A short path: it must fit into a socket's address.
        let rendezvous = std::env::temp_dir().join(format!(
            "shunt-diff-{}-{}",
            std::process::id(),
            RUNS.fetch_add(1, Ordering::Relaxed)
        ));
        let start = |role: &'static str| {
            let mut command = match mode.upgrade(role) {
                None => Command::new(&job.exe),
                Some(upgrade) => {
                    let mut command = Command::new(&self.shunt);
                    command.arg("run").arg(format!("--upgrade={upgrade}"));
                    command
                        .arg("--stats")
                        .arg(&stats_file)
                        .arg("--")
                        .arg(&job.exe);
                    command
                }
            };
            command
                .arg(role)
                .env_remove("DIFF_CASE")
                .current_dir(folder);
            if role != "both" {
                command.arg(&rendezvous);
            }
            if let Some(case) = &job.case {
                command.env("DIFF_CASE", case);
            }
            if let Some(restless) = &self.restless {
                restless.leave_out(&mut command);
                if mode.upgrade(role).is_some() {
                    restless.apply(&mut command);
                }
            }
            if self.recycle && mode.upgrade(role).is_some() {
                command.env("SHUNT_RECYCLE", "1");
            }
            if let Some(apart) = &self.apart {
                command = apart.within(role, &command);
            }
            if let Some(hosts) = &self.hosts {
                command = hosts.within(role, &command);
            }
            Running::start(command, role, folder)
        };
        let (mut ended, mut hung) = finish_all(vec![start("server")?, start("client")?], limit);
        let _ = std::fs::remove_file(&rendezvous);
        if mode.has_one_process_run() && hung.is_none() {
            let (more, stuck) = finish_all(vec![start("both")?], limit);
            ended.extend(more);
            hung = stuck;
        }
        Ok(Outcome {
            ended,
            hung,
            stats: Stats::count(&stats_file),
        })
    }

    /// What is wrong with this run, if anything.
    fn judge(
        &self,
        job: &Job<'_>,
        mode: Mode,
        reference: &Outcome,
        outcome: &Outcome,
    ) -> Option<String> {
        let mut problems = Vec::new();
        for ended in &outcome.ended {
            let Some(native) = reference.ended.iter().find(|n| n.role == ended.role) else {
                continue;
            };
            if ended.exit != native.exit {
                let got = format!("{}: {}, natively {}", ended.role, ended.exit, native.exit);
                problems.push(format!("{got}\n{}", tail(&ended.stderr)));
            }
            let (old, new) = (
                format!("{} native", ended.role),
                format!("{} {mode}", ended.role),
            );
            let cut = outcome.hung.is_some() || ended.exit.starts_with("signal");
            let most = if cut { diff::FEW } else { diff::MANY };
            problems.extend(diff::unified(
                &old,
                &new,
                &native.stdout,
                &ended.stdout,
                most,
            ));
        }
        problems.extend(outcome.hung.clone());
        if mode != Mode::Native && problems.is_empty() {
            problems.extend(self.judge_path(job, mode, &outcome.stats));
        }
        if problems.is_empty() {
            None
        } else {
            Some(problems.join("\n"))
        }
    }

    /// Whether the bytes went the way that this mode and program promise.
    fn judge_path(&self, job: &Job<'_>, mode: Mode, stats: &Stats) -> Option<String> {
        if stats.malformed > 0 {
            return Some(format!(
                "{} malformed lines in the statistics",
                stats.malformed
            ));
        }
        if stats.processes == 0 {
            return Some("no statistics: the library was not loaded".into());
        }
        // Who is elsewhere is found by the first claim, and shunted later.
        let is_near = self.apart.is_none() && self.hosts.is_none();
        let promises = mode.pairs_at_once() && is_near;
        let is_free = mode == Mode::Sync && job.program.not_for_sync;
        if promises && (job.case.is_some() || is_free) {
            return None; // what a program declares holds for all its cases together
        }
        let plain = match job.program.path_kind {
            PathKind::Tcp(_) if mode.pairs_at_once() => true,
            _ => matches!(mode, Mode::Client | Mode::Server),
        };
        // Paired at their first call, connections of one question end before they are in rings.
        let recycles = self.recycle && job.program.recycles && mode == Mode::Sync;
        if recycles && stats.used_again == 0 {
            return Some("no connection was used again".into());
        }
        let percent = stats.sent.ring_share() * 100.0;
        match job.program.path_kind {
            _ if plain && stats.sent.ring > 0 => Some(format!(
                "{} bytes went through rings; all should have used TCP",
                stats.sent.ring
            )),
            PathKind::Shunted(_) if promises && stats.sent.ring == 0 => {
                Some("no byte went through a ring".into())
            }
            // Connections that change their way all the time send little by either.
            PathKind::Shunted(share) if promises && self.restless.is_none() && percent < share => {
                Some(format!(
                    "only {:.1}% of the bytes went through rings, {share}% expected",
                    percent
                ))
            }
            _ => None,
        }
    }
}

/// The last lines of what a role wrote to its standard error.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(12);
    let mut tail = lines[from..].join("\n");
    if !tail.is_empty() {
        tail.push('\n');
    }
    tail
}
