//! HAProxy between web clients and nginx, reloaded again and again under load:
//! each new worker takes over the listening sockets, the old one finishes its
//! connections.

use super::nginx;
use super::web::{check_ab, check_wrk, fetch};
use crate::lab::{Lab, Side, Variant, free_ports};
use crate::process::{signal_pid, wait_until};
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;
use std::process::Command;
use std::time::Duration;

const RELOADS: usize = 3;
const LOADED: &str = "Loading success";

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let [port, backend] = free_ports()?;
    // The web server is on the other side of the proxy, like the clients.
    nginx::serve_beside(&mut lab, Side::Client, backend)?;
    serve(&mut lab, port, backend)?;

    let url = format!("http://127.0.0.1:{port}/1k");
    // The connections of wrk stay with the worker that accepted them, which
    // lives until they end; those of ab meet each worker in turn.
    let load = [
        "wrk",
        "-t",
        "1",
        "-c",
        "8",
        "-d",
        "2s",
        "--timeout",
        "20s",
        &url,
    ];
    let output = lab.client_meanwhile(60, &load, reload)?;
    check_wrk(&output)?;
    let load = ["ab", "-q", "-n", "5000", "-c", "4", &url];
    let output = lab.client_meanwhile(60, &load, reload)?;
    check_ab(&output, 5000)?;
    fetch(&mut lab, port, nginx::FILES)?;
    nginx::check_log(&lab)?;
    for line in lab.server_output().lines() {
        let warns = line.contains("[ALERT]") || line.contains("[WARNING]");
        // 138: a worker that has nothing left to do takes its handlers back before it exits, and
        // the next reload sends it `SIGUSR1` once more. The loads tell whether it was too early.
        let expected = [
            "stopped (cumulated",
            "exited with code 0",
            "exited with code 138",
        ];
        if warns && !expected.iter().any(|words| line.contains(words)) && !is_own_crash(line) {
            bail!("haproxy: {line}");
        }
    }
    lab.finish(Signal::USR1)
}

/// Whether a former worker crashed in HAProxy's own code, as the kernel says. Version 2.6
/// does so natively, too, while it frees its memory at the very end, in 1 of some 250
/// reloads (mended by its commit b98314583 in 2.7).
fn is_own_crash(line: &str) -> bool {
    let pid = line
        .split_once("Former worker (")
        .filter(|(_, rest)| rest.contains("exited with code 139"))
        .and_then(|(_, rest)| rest.split_once(')'));
    let log = Command::new("dmesg").output();
    let (Some((pid, _)), Ok(log)) = (pid, log) else {
        return false;
    };
    let crash = format!("haproxy[{pid}]: segfault");
    String::from_utf8_lossy(&log.stdout)
        .lines()
        .rfind(|line| line.contains(&crash))
        .is_some_and(|line| line.contains(" in haproxy["))
}

fn serve(lab: &mut Lab, port: u16, backend: u16) -> Result<()> {
    let directory = lab.directory.to_string_lossy().into_owned();
    let path = format!("{directory}/haproxy.cfg");
    let configuration = format!(
        "global
    nbthread 2
    stats socket {directory}/haproxy.sock mode 600 level admin expose-fd listeners
defaults
    mode http
    timeout connect 10s
    timeout client 30s
    timeout server 30s
    option http-keep-alive
    option idle-close-on-response
frontend web
    bind 127.0.0.1:{port}
    default_backend nginx
backend nginx
    http-reuse always
    server one 127.0.0.1:{backend}
"
    );
    fs::write(&path, configuration)?;
    lab.serve(port, &["/usr/sbin/haproxy", "-W", "-db", "-f", &path])?;
    wait_loaded(lab, 1)
}

/// Has the master start new workers, one after the other.
fn reload(lab: &Lab) -> Result<()> {
    for count in 1..=RELOADS {
        let loaded = lab.server_output().matches(LOADED).count();
        signal_pid(lab.server_pid(), Signal::USR2);
        wait_loaded(lab, loaded + 1).with_context(|| format!("reload {count}"))?;
    }
    Ok(())
}

/// Waits until the master has started workers this number of times and hears signals, as what comes
/// before that it forgets, and until its workers do: `SIGUSR1`, by which the next reload ends
/// them, kills one that has no handler yet.
fn wait_loaded(lab: &Lab, times: usize) -> Result<()> {
    let ready = wait_until(Duration::from_secs(10), || {
        let master = lab.server_pid();
        lab.server_output().matches(LOADED).count() >= times
            && !is_deaf(master)
            && workers(master).into_iter().all(hears_its_end)
    });
    if !ready {
        bail!("haproxy did not load:\n{}", lab.server_output());
    }
    Ok(())
}

/// Whether a process blocks SIGUSR2.
fn is_deaf(pid: u32) -> bool {
    mask(pid, "SigBlk:").is_none_or(|mask| mask & bit(Signal::USR2) != 0)
}

/// Whether a process has a handler for SIGUSR1, or has ended.
fn hears_its_end(pid: u32) -> bool {
    mask(pid, "SigCgt:").is_none_or(|mask| mask & bit(Signal::USR1) != 0)
}

/// The processes that a process has started.
fn workers(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let numbers = children.split_whitespace().map(str::parse);
    numbers.filter_map(Result::ok).collect()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// One of the signal masks in `/proc/PID/status`; a process that has ended has none.
fn mask(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let digits = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}
