//! Child processes: bounded in time, ended by process id, with the stacks of
//! everyone involved printed when one hangs.

use crate::progress;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
pub(crate) use shunt_harness::process::{comm, descendants, signal as signal_pid, wait_until};
use shunt_harness::stacks;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(10);

/// A child in a process group of its own, its output in a file.
pub(crate) struct Job {
    pub(crate) name: String,
    log: PathBuf,
    child: Child,
}

impl Job {
    /// Starts `command`; its output goes to `directory/name.log`.
    pub(crate) fn spawn(name: &str, directory: &Path, command: &mut Command) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {:?}", command.get_program()))?;
        Ok(Self {
            name: name.to_owned(),
            log,
            child,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of what it printed, for messages.
    pub(crate) fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    pub(crate) fn finished(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end. If that does not come in time, prints the stacks of
    /// its tree and of `others`, ends it and fails.
    pub(crate) fn wait(&mut self, limit: Duration, others: &[u32]) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                return self.hung(&format!("not done after {} s", limit.as_secs()), others);
            }
            sleep(TICK);
        }
    }

    /// Waits for its end, and says each line that it prints. If none comes for this long,
    /// prints the stacks of its tree, ends it and fails.
    pub(crate) fn follow(&mut self, silence: Duration) -> Result<ExitStatus> {
        let mut log = BufReader::new(File::open(&self.log)?);
        let (mut line, mut end) = (Vec::new(), Instant::now() + silence);
        loop {
            let status = self.child.try_wait()?;
            while log.read_until(b'\n', &mut line)? > 0 {
                end = Instant::now() + silence;
                if line.ends_with(b"\n") {
                    progress::say(String::from_utf8_lossy(&line).trim_end());
                    line.clear();
                }
            }
            if let Some(status) = status {
                return Ok(status);
            }
            if Instant::now() > end {
                return self.hung(&format!("silent for {} s", silence.as_secs()), &[]);
            }
            sleep(TICK);
        }
    }

    fn hung(&mut self, how: &str, others: &[u32]) -> Result<ExitStatus> {
        print_stacks(&self.name, self.pid());
        for &pid in others {
            print_stacks("other end", pid);
        }
        self.kill();
        bail!("{} hung: {how}\n{}", self.name, self.tail());
    }

    /// Asks it to end with `signal` and waits; it must not need force.
    pub(crate) fn stop(mut self, signal: Signal) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended by itself ({status})\n{}", self.name, self.tail());
        }
        signal_pid(self.pid(), signal);
        self.wait(Duration::from_secs(30), &[])
    }

    /// Ends it and all that it started.
    pub(crate) fn kill(&mut self) {
        for pid in descendants(self.pid()) {
            signal_pid(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill();
        }
    }
}

/// Prints what every thread of a process tree is doing.
pub(crate) fn print_stacks(name: &str, pid: u32) {
    eprintln!("---- stacks of {name}\n{}", stacks::of(&[pid]));
}

/// Ends what our children left behind (daemons reparented to us).
pub(crate) fn reap_leftovers() {
    for pid in descendants(std::process::id()) {
        signal_pid(pid, Signal::TERM);
    }
    let end = Instant::now() + Duration::from_secs(3);
    while !descendants(std::process::id()).is_empty() {
        if Instant::now() > end {
            for pid in descendants(std::process::id()) {
                signal_pid(pid, Signal::KILL);
            }
        }
        if Instant::now() > end + Duration::from_secs(1) {
            return;
        }
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
        sleep(TICK);
    }
}

/// Runs a command that belongs to the build, its output shown; fails if it does.
pub(crate) fn check(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    if !status.success() {
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy())
            .collect();
        bail!("`{}` failed ({status})", words.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Job;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn only_silence_ends_what_is_followed() {
        let directory = std::env::temp_dir();
        let start = |name: &str, script: &str| {
            let name = format!("shunt-follow-{name}.{}", std::process::id());
            Job::spawn(&name, &directory, Command::new("sh").args(["-c", script])).unwrap()
        };
        // It takes longer than the silence that is allowed, but is never silent for that time.
        let mut talks = start(
            "talks",
            "for i in 1 2 3 4; do echo $i; sleep 0.5; done; exit 3",
        );
        let status = talks.follow(Duration::from_millis(1500)).unwrap();
        assert_eq!(status.code(), Some(3));
        let mut hangs = start("hangs", "echo last words; sleep 60");
        let error = hangs.follow(Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("last words"), "{error}");
        for job in [talks, hangs] {
            std::fs::remove_file(&job.log).unwrap();
        }
    }
}
