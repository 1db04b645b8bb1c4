//! Echo servers of runtimes: processes of node that share or pass connections,
//! Java with a thread for each connection and with a selector.

use super::{PYTHON, script};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

/// Connections go from the parent to a worker by the kernel's `SCM_RIGHTS`.
pub(super) fn node_cluster(variant: Variant) -> Result<Stats> {
    node(variant, "round-robin", &[])
}

/// Workers accept from one listener.
pub(super) fn node_shared(variant: Variant) -> Result<Stats> {
    node(variant, "shared", &[])
}

/// Connections go to a child once lines have gone back and forth on them.
pub(super) fn node_handle(variant: Variant) -> Result<Stats> {
    node(variant, "handle", &["greet"])
}

pub(super) fn java(variant: Variant) -> Result<Stats> {
    run(
        variant,
        &["java", "-Xshare:auto", &script("Echo.java")],
        "blocking",
        &[],
    )
}

pub(super) fn java_nio(variant: Variant) -> Result<Stats> {
    run(
        variant,
        &["java", "-Xshare:auto", &script("Echo.java")],
        "nio",
        &[],
    )
}

fn node(variant: Variant, mode: &str, options: &[&str]) -> Result<Stats> {
    run(variant, &["node", &script("cluster.js")], mode, options)
}

fn run(variant: Variant, program: &[&str], mode: &str, options: &[&str]) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    let number = port.to_string();
    lab.serve(port, &[program, &[&number, mode]].concat())?;
    check(&mut lab, port, options)?;
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("{}: {output}", program[0]);
    }
    lab.finish(Signal::TERM)
}

/// Eight clients, each with 4 MiB, which come back as they were.
pub(super) fn check(lab: &mut Lab, port: u16, options: &[&str]) -> Result<()> {
    let (script, port) = (script("echo_check.py"), port.to_string());
    let mut words = vec![PYTHON, &*script, &*port, "8", "4"];
    words.extend(options);
    let output = lab.client(60, &words)?;
    if !output.contains("8 clients, 0 errors") {
        bail!("echo_check: {output}");
    }
    Ok(())
}
