//! `shunt bench`, with its report beside the build: `bench.json` and `bench.html`.

use crate::build::artifact;
use anyhow::{Context, Result};
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// What else `shunt bench` is told: see `shunt bench --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let [json, html] = ["bench.json", "bench.html"].map(artifact);
    let mut command = Command::new(artifact("shunt"));
    command
        .arg("bench")
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html);
    let status = command.args(&options.words).status();
    let status = status.context("cannot start shunt bench")?;
    println!("\n{}\n{}", json.display(), html.display());
    Ok(status.success())
}
