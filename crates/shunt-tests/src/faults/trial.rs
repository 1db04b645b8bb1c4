//! One run of both ends of a case, in which a call of one side, or of shuntd, is refused.

use std::fmt;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use shunt_harness::process::{comm, descendants, signal};
use shunt_harness::stats::Stats;

use super::call;
use super::place::Place;
use crate::diff;
use crate::process::{Ended, Running, finish_all};

/// The longest that a run may take.
const LIMIT: Duration = Duration::from_secs(12);

/// Whose calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Side {
    Server,
    Client,
    Daemon,
}

impl Side {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Daemon => "daemon",
        }
    }
}

/// Which of the calls at a place fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Nth(u64),
    Every,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(n) => write!(f, "{n}"),
            Self::Every => f.write_str("every"),
        }
    }
}

/// What is refused.
pub(crate) struct Refusal<'a> {
    pub(crate) place: &'a Place,
    pub(crate) errno: i32,
    pub(crate) which: Which,
}

/// What a run came to.
pub(crate) struct Run {
    ended: Vec<Ended>,
    hung: Option<String>,
    /// Of the server, and of the client.
    pub(crate) stats: [Stats; 2],
    /// What `shunt-refuse` wrote down.
    pub(crate) log: String,
    pub(crate) wall: Duration,
    /// What shuntd said if it is gone.
    daemon: Option<String>,
    /// The same case once more, by the same shuntd, and whether that answers then. (Whether the
    /// connections are served depends on how soon it answers, and that on the machine.)
    again: Option<Box<Run>>,
    answers: bool,
}

/// What runs need.
pub(crate) struct Bench {
    pub(crate) shunt: PathBuf,
    pub(crate) refuse: PathBuf,
    pub(crate) exe: PathBuf,
    pub(crate) out: PathBuf,
    /// `None`: natively.
    pub(crate) upgrade: Option<&'static str>,
    pub(crate) case: String,
}

static RUNS: AtomicUsize = AtomicUsize::new(0);

impl Bench {
    /// Runs the case, with a look at the calls of `side`, some of which may be refused.
    pub(crate) fn run(&self, side: Option<Side>, refusal: Option<&Refusal<'_>>) -> Result<Run> {
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let folder = self
            .out
            .join(format!("fault-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let result = self.run_in(&folder, side, refusal);
        let _ = std::fs::remove_dir_all(&folder);
        result
    }

    fn run_in(
        &self,
        folder: &Path,
        side: Option<Side>,
        refusal: Option<&Refusal<'_>>,
    ) -> Result<Run> {
        if side != Some(Side::Daemon) {
            return self.ends(folder, side, refusal);
        }
        let shuntd = self.shunt.with_file_name("shuntd");
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" --ready-fd 3 3>&1 >&2", "sh"]);
        self.refused(&mut command, folder, "shuntd", refusal);
        command.arg(shuntd);
        let mut daemon = Daemon::start(command, folder)?;
        let mut run = if daemon.is_ready {
            let mut run = self.ends(folder, side, refusal)?;
            let passes = refusal.is_some_and(|r| r.which != Which::Every);
            if passes && run.hung.is_none() {
                run.again = Some(Box::new(self.ends(folder, side, None)?));
                // A run makes now more, now fewer calls: the one that is refused may be that which hears the first question.
                run.answers = self.is_answered()? || self.is_answered()?;
            }
            run
        } else {
            Run {
                ended: Vec::new(),
                hung: None,
                stats: Default::default(),
                log: String::new(),
                wall: Duration::ZERO,
                daemon: None,
                again: None,
                answers: true,
            }
        };
        run.daemon = daemon.stop()?;
        run.log = read(folder, "log");
        if run.daemon.is_some() {
            end_strangers();
        }
        Ok(run)
    }

    /// Whether shuntd tells `shunt ss` what it has.
    fn is_answered(&self) -> Result<bool> {
        let mut list = Command::new(&self.shunt);
        let list = list.arg("ss").stdout(Stdio::null()).stderr(Stdio::null());
        Ok(list.status()?.success())
    }

    /// The words before a program whose calls from the code of `within` are looked at.
    fn refused(
        &self,
        command: &mut Command,
        folder: &Path,
        within: &str,
        refusal: Option<&Refusal<'_>>,
    ) {
        command.arg(&self.refuse);
        command.args([
            "--within",
            &format!("/{within}"),
            "--calls",
            &call::numbers(),
            "--log",
        ]);
        command.arg(folder.join("log"));
        if within == "shuntd" {
            // All calls of its process are its own.
            command.arg("--outside");
        }
        if let Some(refusal) = refusal {
            for key in &refusal.place.keys {
                command.args(["--at", key]);
            }
            command.args(["--errno", &refusal.errno.to_string()]);
            if let Which::Nth(n) = refusal.which {
                command.args(["--first", &n.to_string(), "--last", &n.to_string()]);
            }
        }
        command.arg("--");
    }

    fn ends(
        &self,
        folder: &Path,
        side: Option<Side>,
        refusal: Option<&Refusal<'_>>,
    ) -> Result<Run> {
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let rendezvous =
            std::env::temp_dir().join(format!("shunt-fault-{}-{number}", std::process::id()));
        let start = |role: &'static str| {
            let mut command = Command::new("env");
            if side.is_some_and(|side| side.word() == role) {
                self.refused(&mut command, folder, "libshunt.so", refusal);
            }
            if let Some(upgrade) = self.upgrade {
                command
                    .arg(&self.shunt)
                    .arg("run")
                    .arg(format!("--upgrade={upgrade}"));
                command
                    .arg("--stats")
                    .arg(stats_file(folder, number, role))
                    .arg("--");
            }
            command.arg(&self.exe).arg(role).arg(&rendezvous);
            command
                .env("DIFF_CASE", format!("={}", self.case))
                .current_dir(folder);
            Running::start(command, role, folder)
        };
        let begun = Instant::now();
        let (ended, hung) = finish_all(vec![start("server")?, start("client")?], LIMIT);
        let _ = std::fs::remove_file(&rendezvous);
        Ok(Run {
            ended,
            hung,
            wall: begun.elapsed(),
            stats: ["server", "client"].map(|role| Stats::count(&stats_file(folder, number, role))),
            log: read(folder, "log"),
            daemon: None,
            again: None,
            answers: true,
        })
    }
}

fn stats_file(folder: &Path, number: usize, role: &str) -> PathBuf {
    folder.join(format!("stats-{number}-{role}"))
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_default()
}

/// Ends what `shunt run` has started in the place of a shuntd that was gone. It is our child: we are a
/// subreaper.
fn end_strangers() {
    for pid in descendants(std::process::id()) {
        if let (true, Some(pid)) = (comm(pid) == "shuntd", Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

/// A shuntd of the run's own.
struct Daemon {
    child: Child,
    is_ready: bool,
    errors: PathBuf,
}

impl Daemon {
    fn start(mut command: Command, folder: &Path) -> Result<Self> {
        let errors = folder.join("shuntd.err");
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors)?)
            .spawn()
            .context("cannot start sh")?;
        let mut output = child.stdout.take().context("no output")?;
        // It may be refused to say so, and others have the pipe, too.
        let mut poll = [PollFd::new(&output, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 2,
            tv_nsec: 0,
        };
        let said = rustix::event::poll(&mut poll, Some(&patience))? > 0;
        let mut byte = [0];
        let is_ready = !said || output.read(&mut byte)? == 1 && byte == *b"1";
        Ok(Self {
            child,
            is_ready,
            errors,
        })
    }

    /// Ends it, and returns what it said if it had ended already.
    fn stop(&mut self) -> Result<Option<String>> {
        let id = self.child.id();
        if self.child.try_wait()?.is_none() && self.is_ready {
            let family = std::iter::once(id).chain(descendants(id));
            for pid in family.filter(|&pid| comm(pid) == "shuntd") {
                signal(pid, Signal::TERM);
            }
            let end = Instant::now() + Duration::from_secs(3);
            while self.child.try_wait()?.is_none() {
                if Instant::now() > end {
                    bail!("shuntd does not end by SIGTERM");
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            return Ok(None);
        }
        let status = self.child.wait()?;
        let said = std::fs::read_to_string(&self.errors).unwrap_or_default();
        Ok(Some(format!("{status}: {}", said.trim())))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Where the connections of a run went.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    /// As without any refusal.
    Served,
    /// Reasons that there are only because of it.
    Tcp(String),
    /// shuntd did not start, and said why.
    NotStarted(String),
    /// What must not be.
    Wrong(String),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served => f.write_str("served"),
            Self::Tcp(reasons) => write!(f, "TCP, {reasons}"),
            Self::NotStarted(said) => write!(f, "not started ({said})"),
            Self::Wrong(what) => write!(f, "WRONG {what}"),
        }
    }
}

impl Run {
    /// How often the refused call was met, and refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let mut words = self
            .log
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let mut number = || words.nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        (number(), number())
    }

    /// What is not as natively.
    pub(crate) fn difference(&self, native: &Run) -> Option<String> {
        let mut problems = Vec::new();
        for (here, there) in self.ended.iter().zip(&native.ended) {
            if here.exit != there.exit {
                problems.push(format!(
                    "{}: {}, natively {}\n{}",
                    here.role, here.exit, there.exit, here.stderr
                ));
            }
            let names = (
                format!("{} native", here.role),
                format!("{} here", here.role),
            );
            problems.extend(diff::unified(
                &names.0,
                &names.1,
                &there.stdout,
                &here.stdout,
                diff::FEW,
            ));
        }
        problems.extend(self.hung.clone());
        (!problems.is_empty()).then(|| problems.join("\n"))
    }

    /// Whether all went as it may; `usual` is the same without a refusal.
    pub(crate) fn judge(&self, native: &Run, usual: &Run) -> Fate {
        if self.ended.is_empty() {
            return Fate::NotStarted(self.daemon.clone().unwrap_or_default());
        }
        if let Some(difference) = self.difference(native) {
            return Fate::Wrong(difference);
        }
        if let Some(end) = &self.daemon {
            return Fate::Wrong(format!("shuntd has ended: {end}"));
        }
        if let Some(difference) = self
            .again
            .as_ref()
            .and_then(|again| again.difference(native))
        {
            return Fate::Wrong(format!("after that: {difference}"));
        }
        if !self.answers {
            return Fate::Wrong("shuntd does not answer any more".to_owned());
        }
        let mut reasons: Vec<&str> = Vec::new();
        for (here, usual) in self.stats.iter().zip(&usual.stats) {
            let explained = here.shunted + here.reasons.values().sum::<u64>();
            if here.processes > 0 && explained < here.connections {
                return Fate::Wrong(format!("neither shunted nor explained: {}", here.summary()));
            }
            let more = |(name, count): &(&String, &u64)| {
                **count > usual.reasons.get(*name).copied().unwrap_or(0)
            };
            let new: Vec<&str> = here
                .reasons
                .iter()
                .filter(more)
                .map(|(name, _)| name.as_str())
                .collect();
            reasons.extend(new);
        }
        let lost = |(here, usual): (&Stats, &Stats)| {
            here.shunted < usual.shunted && here.connections >= usual.connections
        };
        if reasons.is_empty() && self.stats.iter().zip(&usual.stats).any(lost) {
            // It would have had that reason later.
            reasons.extend(
                self.stats
                    .iter()
                    .flat_map(|s| s.reasons.keys().map(String::as_str)),
            );
            if reasons.is_empty() {
                return Fate::Wrong("fewer shunted, without a reason".to_owned());
            }
        }
        if reasons.is_empty() {
            return Fate::Served;
        }
        reasons.sort_unstable();
        reasons.dedup();
        Fate::Tcp(reasons.join(" "))
    }
}
