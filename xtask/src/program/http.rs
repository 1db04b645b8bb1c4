//! Python's own web server with curl.

use super::PYTHON;
use super::web::{fetch, write_files};
use crate::lab::{Lab, Variant, free_port};
use crate::stats::Stats;
use anyhow::{Result, bail};
use rustix::process::Signal;

const FILES: &[(&str, usize)] = &[
    ("empty", 0),
    ("1b", 1),
    ("1k", 1 << 10),
    ("100k", 100 << 10),
    ("1m", 1 << 20),
    ("10m", 10 << 20),
    ("32m", 32 << 20),
];

pub(super) fn run(variant: Variant) -> Result<Stats> {
    let mut lab = Lab::new(variant)?;
    let port = free_port()?;
    write_files(&lab, FILES)?;
    let number = port.to_string();
    lab.serve(
        port,
        &[
            PYTHON,
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            "--directory",
            "www",
            &number,
        ],
    )?;
    fetch(&mut lab, port, FILES)?;
    // Slow enough that shuntd can be killed in the middle.
    let url = format!("http://127.0.0.1:{port}/32m");
    lab.load(
        60,
        &["curl", "-sSf", "--limit-rate", "24M", "-o", "slow", &url],
    )?;
    if std::fs::read(lab.directory.join("slow"))? != std::fs::read(lab.directory.join("www/32m"))? {
        bail!("curl got other bytes than those of 32m");
    }
    let output = lab.server_output();
    if output.contains("Traceback") {
        bail!("http.server: {output}");
    }
    lab.finish(Signal::INT)
}
