//! A Python asyncio echo server with 1,000 clients at once.

use super::{PYTHON, script};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::time::Duration;

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?;
    // It takes a while until all are connected and under way.
    lab.kill_after = Duration::from_secs(3);
    let port = free_port()?;
    let number = port.to_string();
    lab.serve(port, &[PYTHON, &script("echo_server.py"), &number])?;
    // Under Shunt at both ends long enough that the first messages, which go
    // by TCP, are less than one in a hundred.
    let messages = if variant == Variant::Both { 800 } else { 200 };
    let script = script("echo_client.py");
    let output = lab.load(
        180,
        &[PYTHON, &script, &number, "1000", &messages.to_string()],
    )?;
    if !output.contains(&format!(
        "1000 clients, {} messages, 0 errors",
        messages * 1000
    )) {
        bail!("echo_client: {output}");
    }
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("echo_server: {output}");
    }
    lab.finish(Signal::TERM)
}
