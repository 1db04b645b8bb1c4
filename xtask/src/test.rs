//! Everything that CI runs, in the order of what fails soonest.

use crate::answers;
use crate::build::{self, artifact, cargo, root};
use crate::capability::Capabilities;
use crate::containers;
use crate::cpython;
use crate::faults;
use crate::fuzz;
use crate::guide;
use crate::instructions;
use crate::lint;
use crate::process::{Job, check, reap_leftovers};
use crate::program;
use crate::report::Report;
use crate::setup;
use crate::soak;
use crate::top;
use crate::why;
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Duration;

/// A program of the differential suite that hangs is ended sooner, and said so.
const SILENCE: Duration = Duration::from_secs(300);

/// The task.
pub(crate) fn run(quick: bool) -> Result<bool> {
    let mut report = Report::new();
    let here = Capabilities::probe();
    println!("this machine: {}", here.summary());
    if !report.step("setup", || {
        setup::run(setup::Need::Everything).map(|()| String::new())
    }) {
        return Ok(report.finish());
    }
    let built = report.step("build", || build::run().map(|()| String::new()));
    lint::steps(&mut report);
    report.step("unit tests", || {
        check(cargo().args([
            "test",
            "--workspace",
            "--exclude",
            "shunt-preload",
            "--quiet",
        ]))?;
        // The library is tested as it ships: without optimisation its frames have
        // clean-ups, and a thread cannot be cancelled through them.
        check(cargo().args(["test", "--release", "-p", "shunt-preload", "--quiet"]))?;
        Ok(String::new())
    });
    report.step("loom", || model("loom"));
    report.step("shuttle", || model("shuttle"));
    if built {
        report.step("instructions", instructions::step);
        report.step("differential", differential);
        report.step("differential, restless", restless);
        report.step("differential, recycled", recycled);
        report.step("differential, random", fuzz::fixed);
        report.step("refused calls", faults::short);
        containers::steps(&mut report)?;
        why::steps(&mut report)?;
        top::steps(&mut report)?;
        skips(&mut report, &here);
        answers::steps(&mut report);
        report.step("getting started", guide::step);
        if !quick {
            program::steps(&mut report, &[], &[])?;
            cpython::steps(&mut report, &cpython::Options::default())?;
            report.step("soak", soak::short);
            report.step("soak, restless", soak::short_restless);
            report.step("soak, shuntd restarted", soak::short_restarts);
            report.step("soak family", soak::short_family);
            if here.ebpf {
                report.step("soak, shuntd killed", soak::short_system);
            }
        }
    }
    reap_leftovers();
    Ok(report.finish())
}

/// Runs the models of the lock-free protocols: with `loom` every order of the steps of small scenes,
/// with `shuttle` random orders of long ones.
fn model(checker: &str) -> Result<String> {
    let mut command = cargo();
    command
        .args(["test", "-p", "shunt-shm", "--release", "--quiet"])
        .args(["--target-dir", &format!("target/{checker}")])
        .env("RUSTFLAGS", format!("--cfg model --cfg {checker}"));
    check(&mut command)?;
    Ok(String::new())
}

/// What the steps so far have left out by themselves, for lack of something here.
fn skips(report: &mut Report, here: &Capabilities) {
    let parts = [
        (
            here.ipv6,
            "differential / v6",
            "no ::1; cases that would run there alone ran on IPv4",
        ),
        (
            here.pidfd_getfd,
            "differential / copied_by_pidfd, taken_by_pidfd, downgrade with both ends shunted",
            "pidfd_getfd is refused",
        ),
        (
            here.unshare,
            "differential / own_descriptors",
            "unshare is refused",
        ),
        (
            here.userfaultfd,
            "differential / stopped",
            "userfaultfd is refused",
        ),
        (
            here.landlock,
            "differential / uncalled: may_not_send, may_send_no_more, await_room",
            "Landlock has no scopes here, or is refused; these cases ran unconfined",
        ),
        (
            here.ptrace,
            "differential / peers_are_stopped",
            "ptrace is refused",
        ),
        (
            here.pidfd_getfd,
            "unit tests / shuntd: lending, survivors, sockets of other users",
            "pidfd_getfd is refused",
        ),
        (
            here.namespaces,
            "unit tests / shunt and shuntd together",
            "no namespaces to be had",
        ),
        (
            here.ebpf,
            "unit tests / identities of connections, soak of shuntd between namespaces",
            "eBPF or the unified cgroup hierarchy is refused",
        ),
    ];
    for (_, name, reason) in parts.into_iter().filter(|&(there, ..)| !there) {
        report.skip(name, reason);
    }
}

/// The differential suite as a task of its own.
pub(crate) fn differential_alone() -> Result<bool> {
    let mut report = Report::new();
    report.step("differential", differential);
    reap_leftovers();
    Ok(report.finish())
}

/// Cases whose results do not depend on when a connection changes its way, while all of them
/// do so at every fifth wait of a process.
fn restless() -> Result<String> {
    const EVERY: &str = "5";
    const FILTERS: [&str; 14] = [
        "bulk", "close", "connect", "cores", "epoll", "flags", "fork", "nonblock", "oob", "poll",
        "rw", "sndbuf", "stdio", "upgrade",
    ];
    let mut words = vec!["--modes", "both,adaptive", "--restless", EVERY];
    words.extend(FILTERS.iter().flat_map(|filter| ["--filter", filter]));
    run_differential(&words)
}

/// Short connections, of which those that both programs have closed in order are used again.
fn recycled() -> Result<String> {
    run_differential(&["--recycle", "--modes", "sync", "--filter", "recycle"])
}

fn differential() -> Result<String> {
    run_differential(&["--modes", "both,adaptive,client,server"])
}

/// Runs programs of the differential suite.
pub(crate) fn run_differential(words: &[&str]) -> Result<String> {
    let program = artifact("shunt-differential");
    if !program.exists() {
        bail!("{} has not been built", program.display());
    }
    let directory = root().join("target");
    let mut command = Command::new(&program);
    command
        .args(words)
        .args(["--jobs", "2"])
        .arg("--shunt")
        .arg(artifact("shunt"))
        .current_dir(root());
    let mut job = Job::spawn("differential", &directory, &mut command)?;
    let status = job.follow(SILENCE)?;
    if !status.success() {
        bail!("{status}; see target/differential.log\n{}", job.tail());
    }
    Ok(job.output().lines().last().unwrap_or_default().to_owned())
}
