//! The shuntd that our programs started.

use crate::process::{comm, descendants, signal_pid};
use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Kills the shuntd that our programs started; nobody else's.
pub(super) fn kill() -> Result<()> {
    let Some(daemon) = find() else {
        bail!("none of our processes is a shuntd: is another one serving this user?");
    };
    signal_pid(daemon, Signal::KILL);
    let end = Instant::now() + Duration::from_secs(5);
    while find() == Some(daemon) {
        let raw = i32::try_from(daemon).ok().and_then(Pid::from_raw);
        let _ = waitpid(raw, WaitOptions::NOHANG);
        if Instant::now() > end {
            bail!("shuntd {daemon} did not die");
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The shuntd among our descendants (also one that made itself a daemon: we are
/// a subreaper) that serves our own user.
fn find() -> Option<u32> {
    descendants(std::process::id())
        .into_iter()
        .find(|&pid| comm(pid) == "shuntd" && is_ours(pid))
}

/// Whether a process runs as our user.
fn is_ours(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let user = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    user == Some(&rustix::process::geteuid().as_raw().to_string())
}
