//! Libraries that carry messages: ZeroMQ and Open MPI.

use super::{PYTHON, compile, script};
use crate::lab::{Lab, Side, Variant, free_ports};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

const ROUNDS: &str = "400";
const MPIRUN: &[&str] = &[
    "mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl",
    "tcp,self",
    "--mca",
    "btl_tcp_if_include",
    "lo",
];

/// Requests with answers, and a stream of messages beside them.
pub(super) fn zeromq(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let [port, pull] = free_ports()?;
    let (script, numbers) = (
        script("zmq_check.py"),
        [port, pull].map(|port| port.to_string()),
    );
    let serve = [PYTHON, &script, "serve", &numbers[0], &numbers[1]];
    lab.serve(port, &serve)?;
    let load = [PYTHON, &script, "load", &numbers[0], &numbers[1]];
    let output = lab.client(60, &load)?;
    if !output.contains(", 0 errors") {
        bail!("zmq_check: {output}");
    }
    let output = lab.server_output();
    if !output.trim().is_empty() {
        bail!("zmq_check: {output}");
    }
    lab.finish(Signal::TERM)
}

/// Four processes, each connected with each. There is no server: with only one
/// side under Shunt it is one of two processes.
pub(super) fn mpi(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?.eager();
    let program = compile(&mut lab, "mpi_ring", &["mpicc"], &[])?;
    let (ranks, output) = if variant == Variant::Client {
        let runner = lab.runner(Side::Client);
        let runner = runner.iter().map(|word| word.to_string_lossy());
        let mut words: Vec<String> = MPIRUN.iter().map(ToString::to_string).collect();
        words.extend(["-np", "1"].map(str::to_owned));
        words.extend(runner.map(|word| word.into_owned()));
        words.extend([&program, ROUNDS, ":", "-np", "1", &program, ROUNDS].map(str::to_owned));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        (2, lab.prepare(60, &words)?)
    } else {
        let words = [MPIRUN, &["-np", "4", &program, ROUNDS]].concat();
        (4, lab.client(60, &words)?)
    };
    if !output.contains(&format!("{ranks} ranks, {ROUNDS} rounds, 0 errors")) {
        bail!("mpi_ring: {output}");
    }
    lab.finish_clients()
}
