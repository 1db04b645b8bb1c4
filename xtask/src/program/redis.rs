//! redis-server with redis-benchmark, and values of many sizes read back.

use super::{PYTHON, script};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

const TESTS: &str = "ping,set,get,lpush,lrange_100,mset";

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?;
    let port = free_port()?.to_string();
    serve(&mut lab, &port)?;
    for extra in [&["-n", "100000"][..], &["-n", "400000", "-P", "16"]] {
        let mut words = vec![
            "redis-benchmark",
            "-p",
            &port,
            "-t",
            TESTS,
            "-c",
            "50",
            "--csv",
        ];
        words.extend(extra);
        let output = lab.load(120, &words)?;
        check(&output)?;
    }
    lab.client(60, &[PYTHON, &script("redis_check.py"), &port])?;
    lab.finish(Signal::TERM)
}

/// Starts redis without any files.
pub(crate) fn serve(lab: &mut Lab, port: &str) -> Result<()> {
    lab.serve(port.parse()?, &server(port))
}

/// The command that does.
pub(crate) fn server(port: &str) -> [&str; 9] {
    [
        "redis-server",
        "--port",
        port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]
}

/// Every test must have printed its rate and nothing else.
fn check(output: &str) -> Result<()> {
    let rates = output
        .lines()
        .filter(|line| line.starts_with('"') && !line.starts_with("\"test\""));
    let wanted = [
        "PING_INLINE",
        "PING_MBULK",
        "SET",
        "GET",
        "LPUSH",
        "LRANGE_100",
        "MSET",
    ];
    let names: Vec<&str> = rates.filter_map(|line| line.split('"').nth(1)).collect();
    for test in wanted {
        if !names.iter().any(|name| name.starts_with(test)) {
            bail!("redis-benchmark printed no result of {test}:\n{output}");
        }
    }
    if let Some(line) = output.lines().find(|line| !line.starts_with('"')) {
        bail!("redis-benchmark: {line}");
    }
    Ok(())
}
