//! `shunt bench`: becomes the program that measures.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::locate;

/// Hands the options on; returns only if that failed.
pub(crate) fn bench(options: &[OsString]) -> Result<ExitCode> {
    let program = locate::bench().context(
        "shunt-bench is neither beside shunt nor in ../lib/shunt: install it there, or build it",
    )?;
    let error = Command::new(&program).args(options).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
