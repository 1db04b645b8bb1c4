//! Starts a shuntd for this user if nobody serves him.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::control::Control;
use crate::{locate, sys};

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(5);

/// What shuntd writes to `--ready-fd` once clients can connect, and if another one serves this user. Anything
/// else is why it did not start.
const READY: &[u8] = b"1";
const ALREADY: &[u8] = b"2";

/// Seconds that a daemon goes on without clients.
const LINGER: &str = "60";

/// Returns when a daemon serves this user.
pub(super) fn ensure_daemon() -> Result<()> {
    if is_served()? {
        return Ok(());
    }
    if let Some(path) = Control::named() {
        bail!(
            "none of root's listens at {}, which SHUNT_SOCKET names: start `shuntd --system` on \
             the host, or unset the variable",
            path.display()
        );
    }
    if let Some((uid, pid)) = Control::usurper(false) {
        let process = match pid {
            Some(pid) => format!("process {pid}"),
            None => "a process of another PID namespace".into(),
        };
        let mapped = if uid == sys::OVERFLOW_UID {
            "; that number may stand for a user whom this user namespace does not know"
        } else {
            ""
        };
        bail!(
            "{process} of user {uid} has taken the address that shuntd needs for you; \
             a shuntd can start once it has ended (root's `shuntd --system` needs another address){mapped}"
        );
    }
    if Control::is_full() {
        bail!(
            "who listens at the address that shuntd needs for you takes no connections; \
             `shunt doctor` tells what to do"
        );
    }
    let program = locate::daemon().context("the program is neither beside shunt nor on PATH")?;
    let deadline = Instant::now() + PATIENCE;
    let (ready, writer) = io::pipe()?;
    let (ready, writer) = (OwnedFd::from(ready), OwnedFd::from(writer));
    let mut command = Command::new(&program);
    command.args(["--linger", LINGER]);
    command
        .arg("--ready-fd")
        .arg(writer.as_raw_fd().to_string());
    // It serves programs that this one has nothing to do with.
    command.env_remove("LD_PRELOAD").current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    sys::detach(&mut command, writer.as_raw_fd());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    child.wait()?;
    drop(writer);
    let mut said = Vec::new();
    if wait_readable(&ready, deadline) {
        File::from(ready).read_to_end(&mut said)?;
    }
    match said.as_slice() {
        READY => return Ok(()),
        ALREADY => {}
        _ => bail!("{}", failure(&program, &String::from_utf8_lossy(&said))),
    }
    // Another one was quicker, and is about to listen.
    while Instant::now() < deadline {
        if is_served()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("another one has the address, and does not answer; `shunt doctor` tells what to do")
}

/// In one line, why a daemon did not start, in its own words if it had any, and what to do.
fn failure(program: &Path, said: &str) -> String {
    let program = program.display();
    let words: Vec<_> = said.lines().map(str::trim).collect();
    match words.join(" ") {
        said if said.is_empty() => format!("{program} did not start: run it by hand to see why"),
        said => format!("{program} did not start: {said}; `shunt doctor` tells what to do"),
    }
}

/// Whether a daemon serves this user; an error if programs would wait for one that does not answer.
fn is_served() -> Result<bool> {
    for daemon in [true, false].into_iter().filter_map(Control::connect) {
        if daemon.answers()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a descriptor becomes readable (or its other end closes) in time.
fn wait_readable(fd: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else {
            return false;
        };
        let mut set = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut set, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.is_ok_and(|count| count > 0),
        }
    }
}
