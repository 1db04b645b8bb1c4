//! A child that speaks in lines, and that cannot hang the benchmark.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::sys;

/// How long an interruption may go unnoticed.
const LOOK: Duration = Duration::from_millis(100);

/// A program under watch. Its whole process group is killed when this is dropped.
pub(crate) struct Watched {
    name: String,
    child: Child,
    /// Held open: its end tells a worker to go.
    start: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Receiver<String>,
    until: Instant,
}

impl Watched {
    /// Starts it; nothing may be waited for beyond `limit` from now.
    pub(crate) fn start(name: &str, command: &mut Command, limit: Duration) -> Result<Self> {
        sys::bind(command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self {
            name: name.to_owned(),
            start: child.stdin.take(),
            lines: listen(child.stdout.take()),
            errors: listen(child.stderr.take()),
            child,
            until: Instant::now() + limit,
        })
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> Result<String> {
        loop {
            sys::go_on()?;
            let left = self.until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(LOOK)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if left > LOOK => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} hangs{}", self.name, self.complaint())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.wait()?;
                    bail!("{} ended early ({status}){}", self.name, self.complaint())
                }
            }
        }
    }

    /// Asks for one line more.
    pub(crate) fn ask(&mut self) -> Result<String> {
        if let Some(input) = &mut self.start {
            input.write_all(b"\n")?;
        }
        self.line()
    }

    /// Tells it to go.
    pub(crate) fn go(&mut self) {
        drop(self.start.take());
    }

    /// Waits for its end, which must be a good one, and returns what it printed.
    pub(crate) fn finish(mut self) -> Result<String> {
        self.go();
        while self.is_alive() && Instant::now() < self.until {
            sys::go_on()?;
            sleep(Duration::from_millis(1));
        }
        let status = self.wait()?;
        if !status.success() {
            bail!("{} failed ({status}){}", self.name, self.complaint());
        }
        Ok(self
            .lines
            .iter()
            .fold(String::new(), |all, line| all + &line + "\n"))
    }

    /// Asks it to end, and waits for that.
    pub(crate) fn stop(mut self, signal: Signal) -> Result<()> {
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, signal);
        }
        self.until = Instant::now() + Duration::from_secs(10);
        let status = self.wait()?;
        match status.code().or(status.signal().map(|_| 0)) {
            Some(0 | 143) => Ok(()),
            _ => bail!("{} ended badly ({status}){}", self.name, self.complaint()),
        }
    }

    /// Its process and group.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > self.until {
                bail!("{} does not end{}", self.name, self.complaint());
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// The end of what it wrote to standard error.
    pub(crate) fn complaint(&self) -> String {
        let lines: Vec<String> = self.errors.try_iter().collect();
        let last = &lines[lines.len().saturating_sub(5)..];
        if last.is_empty() {
            String::new()
        } else {
            format!(": {}", last.join("; "))
        }
    }

    fn group(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Not once it has been waited for: the number may be another's by then.
        if self.is_alive() {
            if let Some(group) = self.group() {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

/// Reads lines as they come, so that no child waits for us.
fn listen(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(from) = from {
        spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}
