//! `shunt-refuse`: runs a program in which chosen system calls fail, if they are made
//! from the code of one library (or program).
//!
//! ```text
//! main thread ──────── answers ─────────┐ each call of the chosen kinds, by any process of the
//!    │                                  │ tree: "go on", or "fail with this errno"
//!    └─ thread with a filter ── spawns ─┴─> program ── forks, execs ──> its descendants
//! ```
//!
//! The filter (`seccomp(2)`, `SECCOMP_RET_USER_NOTIF`) belongs to the thread that spawns the program
//! and is inherited by everything that comes of it. So the library needs no code for this, and
//! nothing of it is left out: also what it does while it is loaded, and in forked children.
//!
//! Neighbours: none. `shunt-differential faults` runs it around a program and says what to refuse; what
//! this program writes down says where calls were made, as addresses in the file of the library.

mod filter;
mod place;
mod plan;
mod supervise;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::plan::Key;

/// Run a program and refuse some of the system calls that one of its libraries makes.
#[derive(Parser)]
#[command(name = "shunt-refuse", version)]
pub(crate) struct Options {
    /// The end of the name of the file whose calls are meant.
    #[arg(long)]
    within: String,
    /// Also calls that are made elsewhere, if the stack tells of that file.
    #[arg(long)]
    outside: bool,
    /// Numbers of the system calls that are looked at.
    #[arg(long, value_delimiter = ',', required = true)]
    calls: Vec<u32>,
    /// Calls to refuse, as the log names them; none: write down what there is.
    #[arg(long)]
    at: Vec<Key>,
    /// What they fail with.
    #[arg(long, default_value_t = 0)]
    errno: i32,
    /// The first call that is refused.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// The last one.
    #[arg(long, default_value_t = u64::MAX)]
    last: u64,
    /// Where to write what was met: number, argument, address, caller, times, refused.
    #[arg(long)]
    log: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("shunt-refuse: {error:#}");
            ExitCode::from(125)
        }
    }
}

fn run(options: &Options) -> Result<u8> {
    let mut plan = plan::Plan::new(options);
    let code = supervise::run(options, &mut plan)?;
    plan.write(&options.log)?;
    Ok(code)
}
