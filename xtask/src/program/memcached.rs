//! memcached with libmemcached's memcslap, and values of many sizes read back.

use super::{PYTHON, script};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?;
    let port = free_port()?.to_string();
    serve(&mut lab, &port)?;
    let servers = format!("--servers=127.0.0.1:{port}");
    for test in ["--test=set", "--test=get"] {
        let load = [
            "memcslap",
            &servers,
            "--concurrency=16",
            "--execute-number=64000",
            test,
        ];
        let output = lab.load(90, &load)?;
        check(&output, 16 * 64_000)?;
    }
    let output = lab.client(
        60,
        &[
            "memcslap",
            &servers,
            "--concurrency=16",
            "--execute-number=1000",
            "--test=mget",
        ],
    )?;
    check(&output, 16 * 1000)?;
    lab.client(60, &[PYTHON, &script("memcached_check.py"), &port])?;
    lab.finish(Signal::TERM)
}

/// Starts memcached with four threads; root gives up root.
pub(crate) fn serve(lab: &mut Lab, port: &str) -> Result<()> {
    lab.serve(
        port.parse()?,
        &[
            "memcached",
            "-u",
            "nobody",
            "-l",
            "127.0.0.1",
            "-p",
            port,
            "-U",
            "0",
            "-t",
            "4",
            "-m",
            "256",
        ],
    )
}

/// Exactly these many keys must have been served, and nothing said but times.
fn check(output: &str, keys: u64) -> Result<()> {
    let strange = output
        .lines()
        .find(|line| !line.starts_with("Time ") && !line.starts_with("---"));
    if let Some(line) = strange {
        bail!("memcslap: {line}");
    }
    match served(output) {
        Some((count, _)) if count == keys => Ok(()),
        _ => bail!("memcslap did not serve {keys} keys:\n{output}"),
    }
}

/// How many keys in how many seconds, from `Time to get N keys by T threads: S seconds.`
pub(crate) fn served(output: &str) -> Option<(u64, f64)> {
    let line = output.lines().find(|line| line.contains(" keys by "))?;
    let mut words = line.split_whitespace();
    let keys = words.nth(3)?.parse().ok()?;
    Some((keys, words.rev().nth(1)?.parse().ok()?))
}
