//! Each system call of the library's and of shuntd's, refused in turn.

use crate::build::{artifact, root};
use crate::process::{Job, reap_leftovers};
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Duration;

/// Every run ends much sooner; without failures nothing is said.
const SILENCE: Duration = Duration::from_secs(3600);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write docs/faults.md
    #[arg(long)]
    table: bool,
    /// Only the short part that the tests have
    #[arg(long, conflicts_with = "table")]
    short: bool,
    /// Further options for `shunt-differential faults`
    #[arg(last = true)]
    words: Vec<String>,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.short {
        short()?;
        return Ok(true);
    }
    let results = root().join("target/faults.json");
    let _ = std::fs::remove_file(&results);
    let mut good = true;
    for sides in ["client,server", "daemon"] {
        let mut words = vec!["--sides", sides];
        words.extend(options.words.iter().map(String::as_str));
        let mut command = refusals(&words);
        command.arg("--results").arg(&results);
        if options.table {
            command.arg("--table").arg(root().join("docs/faults.md"));
        }
        good &= command.status()?.success();
    }
    reap_leftovers();
    Ok(good)
}

/// Each call once, as a step of the tests.
pub(crate) fn short() -> Result<String> {
    // It starts a shuntd of its own; what went before may have left one.
    reap_leftovers();
    let mut said = Vec::new();
    for sides in ["client,server", "daemon"] {
        let mut command = refusals(&["--short", "--upgrades", "eager", "--sides", sides]);
        let name = format!("faults-{}", sides.replace(',', "-"));
        let mut job = Job::spawn(&name, &root().join("target"), &mut command)?;
        let status = job.follow(SILENCE)?;
        if !status.success() {
            bail!("{status}; see target/{name}.log\n{}", job.tail());
        }
        said.push(job.output().lines().last().unwrap_or_default().to_owned());
    }
    reap_leftovers();
    Ok(said.join("; shuntd's: "))
}

fn refusals(words: &[&str]) -> Command {
    let mut command = Command::new(artifact("shunt-differential"));
    command
        .arg("faults")
        .args(words)
        .arg("--shunt")
        .arg(artifact("shunt"))
        .current_dir(root());
    command
}
