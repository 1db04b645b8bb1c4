//! How many of redis-server's socket calls become system calls under a load
//! that saturates it: counted by strace against what the program called.

use crate::build::artifact;
use crate::lab::free_port;
use crate::process::{Job, comm, descendants, reap_leftovers, signal_pid};
use crate::program::redis;
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// System calls on sockets and readiness. `read` and `write` are counted whole,
/// files included, so the result errs on the high side.
const SOCKET_CALLS: &[&str] = &[
    "read",
    "write",
    "readv",
    "writev",
    "recvfrom",
    "sendto",
    "recvmsg",
    "sendmsg",
    "recvmmsg",
    "sendmmsg",
    "sendfile",
    "splice",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "accept",
    "accept4",
    "connect",
    "shutdown",
    "preadv2",
    "pwritev2",
];

/// The wanted share of calls without a system call.
const WANTED: f64 = 0.95;

/// The task.
pub(crate) fn run() -> Result<bool> {
    let directory = std::env::temp_dir().join(format!("shunt-strace.{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let result = measure(&directory);
    let _ = fs::remove_dir_all(&directory);
    reap_leftovers();
    result
}

fn measure(directory: &std::path::Path) -> Result<bool> {
    let port = free_port()?;
    let (stats_file, count_file) = (directory.join("stats"), directory.join("count"));
    let number = port.to_string();
    let mut server = Command::new(artifact("shunt"));
    server
        .arg("run")
        .arg("--stats")
        .arg(&stats_file)
        .args(["--", "strace", "-f", "-c", "-o"])
        .arg(&count_file);
    server.args(redis::server(&number));
    let mut server = Job::spawn("redis", directory, &mut server)?;
    let end = Instant::now() + Duration::from_secs(20);
    while !crate::lab::listens(port) {
        if server.finished()?.is_some() || Instant::now() > end {
            bail!("redis-server did not start\n{}", server.tail());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut load = Command::new(artifact("shunt"));
    load.args([
        "run",
        "--",
        "redis-benchmark",
        "-p",
        &number,
        "-t",
        "get,set",
        "-n",
        "300000",
        "-c",
        "50",
        "-P",
        "1",
        "--csv",
    ]);
    let mut load = Job::spawn("load", directory, &mut load)?;
    let status = load.wait(Duration::from_secs(300), &[server.pid()])?;
    if !status.success() {
        bail!("redis-benchmark failed ({status})\n{}", load.tail());
    }
    print!("{}", load.output());
    // strace ends when redis does.
    let redis = descendants(std::process::id())
        .into_iter()
        .find(|&pid| comm(pid) == "redis-server");
    signal_pid(
        redis.context("no redis-server among our processes")?,
        Signal::TERM,
    );
    server.wait(Duration::from_secs(20), &[])?;

    let counts = fs::read_to_string(&count_file)?;
    let stats = Stats::read_of(&stats_file, Some("redis-server"))?;
    let calls = stats.user_calls + stats.kernel_calls;
    if calls == 0 {
        bail!("redis-server left no count of its calls");
    }
    let mut system_calls = 0;
    println!("\nsystem calls of redis-server:");
    for (name, count) in parse(&counts) {
        let socket = SOCKET_CALLS.contains(&name);
        println!(
            "  {count:>9} {name}{}",
            if socket { "" } else { "  (not a socket call)" }
        );
        system_calls += if socket { count } else { 0 };
    }
    #[allow(clippy::cast_precision_loss)] // For display and a threshold only.
    let free = 1.0 - system_calls as f64 / calls as f64;
    println!(
        "\nsocket calls of redis-server: {calls} ({} answered from shared memory)",
        stats.user_calls
    );
    println!("system calls for them:        {system_calls}");
    println!("without a system call:        {:.2} %", free * 100.0);
    println!("{}", stats.summary());
    Ok(free > WANTED)
}

/// (name, calls) of each row of strace's table.
fn parse(table: &str) -> Vec<(&str, u64)> {
    let rows = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = *words.last()?;
        let count = words.get(3)?.parse().ok()?;
        words[0]
            .parse::<f64>()
            .ok()
            .filter(|_| name != "total")
            .map(|_| (name, count))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn table_of_strace_is_read() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n 50.00    0.000010           1        10         2 read\n\
            ------ ----------- ----------- --------- --------- ----------------\n100.00    0.000010           1        10         2 total\n";
        assert_eq!(super::parse(table), [("read", 10)]);
    }
}
