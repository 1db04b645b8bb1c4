//! A network namespace of our own: all ports are free, and the control socket
//! of shuntd (an abstract name, confined to a namespace) is ours alone.

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const MARK: &str = "XTASK_NETNS";

/// Restarts this program in a fresh namespace; returns when in one, or when
/// there can be none (then we work in the one that we are in).
pub(crate) fn enter() -> Result<()> {
    // Daemons that outlive their parents become our children, and we end them.
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))?;
    if std::env::var_os(MARK).is_some() {
        return Ok(());
    }
    let arguments = unshare_arguments();
    let possible = Command::new("unshare")
        .args(&arguments)
        .args(["sh", "-c", "ip link set lo up"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !possible {
        eprintln!("xtask: no network namespace to be had; using this one's ports and shuntd");
        return Ok(());
    }
    let script = if rustix::process::getuid().is_root() {
        "ip link set lo up && exec \"$@\""
    } else {
        "ip link set lo up && exec setpriv --ambient-caps -all --inh-caps -all -- \"$@\""
    };
    let myself = std::env::current_exe()?;
    let error = Command::new("unshare")
        .args(&arguments)
        .args(["sh", "-c", script, "sh"])
        .arg(myself)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .exec();
    Err(error).context("exec unshare")
}

/// Whether we run in a namespace made by [`enter`].
pub(crate) fn private() -> bool {
    std::env::var_os(MARK).is_some()
}

fn unshare_arguments() -> Vec<&'static str> {
    if rustix::process::getuid().is_root() {
        vec!["--net", "--"]
    } else {
        vec!["--map-current-user", "--keep-caps", "--net", "--"]
    }
}
