//! Servers that start a program for each connection: socat, and a super-server
//! that hands the connection itself to a statically linked program.

use super::compile;
use super::echo::check;
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

/// socat keeps the connection and talks to `cat` by a socket pair.
pub(super) fn socat(variant: Variant) -> Result<Stats> {
    run_socat(variant, "EXEC:/bin/cat")
}

/// socat becomes `cat`, with the connection as standard input and output.
pub(super) fn socat_nofork(variant: Variant) -> Result<Stats> {
    run_socat(variant, "EXEC:/bin/cat,nofork")
}

fn run_socat(variant: Variant, program: &str) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let port = free_port()?;
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,backlog=64");
    // Once a side has ended, the other one gets the time that it needs.
    lab.serve(port, &["socat", "-t", "60", &listen, program])?;
    check(&mut lab, port, &[])?;
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("socat: {output}");
    }
    lab.finish(Signal::TERM)
}

/// The program takes over a connection on which nothing has happened yet.
pub(super) fn at_once(variant: Variant) -> Result<Stats> {
    run_inetd(variant, "now")
}

/// The client's first bytes wait for the program.
pub(super) fn waiting(variant: Variant) -> Result<Stats> {
    run_inetd(variant, "waiting")
}

/// Bytes have been received and sent before the program comes.
pub(super) fn greeted(variant: Variant) -> Result<Stats> {
    run_inetd(variant, "greeted")
}

fn run_inetd(variant: Variant, mode: &str) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let inetd = compile(&mut lab, "inetd", &["gcc"], &[])?;
    let program = compile(&mut lab, "echo_sum", &["gcc", "-static"], &[])?;
    let port = free_port()?;
    lab.serve(port, &[&inetd, &port.to_string(), mode, &program])?;
    match mode {
        "greeted" => check(&mut lab, port, &["sum", "greet"])?,
        _ => check(&mut lab, port, &["sum"])?,
    }
    lab.finish(Signal::TERM)
}
