//! Starts a shuntd for this user if nobody serves him.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::control::Control;
use crate::{locate, sys};

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(5);

/// Seconds that a daemon goes on without clients.
const LINGER: &str = "60";

/// Returns when a daemon that serves this user can be connected to.
pub(super) fn ensure_daemon() -> Result<()> {
    if is_served() {
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
    if wait_readable(&ready, deadline) {
        let mut byte = [0; 1];
        if rustix::io::read(&ready, &mut byte[..]) == Ok(1) {
            return Ok(());
        }
    }
    // It ended, most likely because another one was quicker: that one is about
    // to listen.
    while Instant::now() < deadline {
        if is_served() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!(
        "{} did not start: run it by hand to see why",
        program.display()
    )
}

fn is_served() -> bool {
    let answers = |host| Control::connect(host).is_some_and(|daemon| !daemon.has_gone());
    answers(true) || answers(false)
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
