//! Commands that run in a process group of their own, with their output in
//! files and an end that comes for certain.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use shunt_harness::process::Stat;
use shunt_harness::stacks;

/// A role that is running.
pub(crate) struct Running {
    pub(crate) role: &'static str,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    status: Option<ExitStatus>,
}

/// A role that has ended.
pub(crate) struct Ended {
    pub(crate) role: &'static str,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: String,
}

impl Running {
    pub(crate) fn start(mut command: Command, role: &'static str, folder: &Path) -> Result<Self> {
        let stdout = folder.join(format!("{role}.out"));
        let stderr = folder.join(format!("{role}.err"));
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Self {
            role,
            child,
            stdout,
            stderr,
            status: None,
        })
    }

    fn poll(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    fn kill_group(&self) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Ends whatever is left of the group and collects what it said.
    fn finish(mut self, hung: bool) -> Ended {
        self.kill_group();
        let status = match self.status {
            Some(status) => Some(status),
            None => self.child.wait().ok(),
        };
        let exit = match status {
            _ if hung => "hung".to_owned(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (_, Some(signal)) => format!("signal {signal}"),
                _ => "?".to_owned(),
            },
            None => "lost".to_owned(),
        };
        let text = |path: &Path| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
        };
        Ended {
            role: self.role,
            stdout: text(&self.stdout),
            stderr: text(&self.stderr),
            exit,
        }
    }
}

/// Waits for all; on a hang returns the stacks too.
pub(crate) fn finish_all(
    mut running: Vec<Running>,
    limit: Duration,
) -> (Vec<Ended>, Option<String>) {
    let end = Instant::now() + limit;
    let mut nap = Duration::from_millis(2);
    // When one role has failed the other has nothing to wait for.
    let mut grace: Option<Instant> = None;
    let mut hung = None;
    loop {
        if running
            .iter_mut()
            .map(Running::poll)
            .fold(true, |all, done| all & done)
        {
            break;
        }
        if running
            .iter()
            .any(|r| r.status.is_some_and(|s| !s.success()))
        {
            grace.get_or_insert_with(|| Instant::now() + Duration::from_secs(3));
        }
        if Instant::now() > end || grace.is_some_and(|g| Instant::now() > g) {
            let stuck: Vec<u32> = running
                .iter()
                .filter(|r| r.status.is_none())
                .map(|r| r.child.id())
                .collect();
            hung = Some(stacks::of(&stuck));
            break;
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(20));
    }
    let ended = running
        .into_iter()
        .map(|r| {
            let stuck = r.status.is_none();
            r.finish(stuck)
        })
        .collect();
    (ended, hung)
}

/// Processor time of this process and of those of its descendants that have ended and were waited for.
pub(crate) fn cpu_time() -> Duration {
    let stat = Stat::read(Path::new("/proc/self"));
    let ticks: u64 = (14..=17).map(|number| stat.field(number)).sum();
    Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32
}
