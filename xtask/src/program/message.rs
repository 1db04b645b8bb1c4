//! Libraries that carry messages: ZeroMQ and Open MPI.

use super::{PYTHON, compile, script};
use crate::lab::{Lab, Variant, free_ports};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

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
    let output = lab.client(40, &load)?;
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
    let mut words = vec![
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
        "-np",
    ];
    let (ranks, rounds) = if variant == Variant::Client {
        (2, "400")
    } else {
        (4, "400")
    };
    if ranks == 4 {
        words.extend(["4", &*program, rounds]);
    } else {
        let plain = ["1", "env", "-u", "LD_PRELOAD", &*program, rounds];
        words.extend(["1", &*program, rounds, ":", "-np"]);
        words.extend(plain);
    }
    let output = lab.client(40, &words)?;
    if !output.contains(&format!("{ranks} ranks, {rounds} rounds, 0 errors")) {
        bail!("mpi_ring: {output}");
    }
    lab.finish_clients()
}
