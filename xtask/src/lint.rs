//! Formatting, clippy, the order of the engine's rooms, the tables that say where to look, the
//! tests that `docs/security.md` names, and the links of the documents.

use crate::book;
use crate::build::cargo;
use crate::claims;
use crate::map;
use crate::process::check;
use crate::report::Report;
use crate::rooms;
use anyhow::{Result, bail};
use std::process::{Command, Stdio};

/// The task.
pub(crate) fn run() -> Result<bool> {
    let mut report = Report::new();
    steps(&mut report);
    Ok(report.finish())
}

/// The steps, for `test` as well.
pub(crate) fn steps(report: &mut Report) {
    report.step("format", || {
        component("fmt", "rustfmt")?;
        check(cargo().args(["fmt", "--all", "--check"]))?;
        Ok(String::new())
    });
    report.step("clippy", || {
        component("clippy", "clippy")?;
        check(cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ]))?;
        Ok(String::new())
    });
    report.step("rooms", rooms::step);
    report.step("map", map::step);
    report.step("claims", claims::step);
    report.step("book", book::step);
}

/// Adds what is missing while there is a network; the steps say if it could not be.
pub(crate) fn components() {
    let _ = component("fmt", "rustfmt");
    let _ = component("clippy", "clippy");
}

/// Makes sure that cargo has a subcommand which minimal toolchains lack.
fn component(subcommand: &str, name: &str) -> Result<()> {
    let there = || {
        let mut command = cargo();
        command
            .args([subcommand, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if there() {
        return Ok(());
    }
    let _ = Command::new("rustup")
        .args(["component", "add", name])
        .stdin(Stdio::null())
        .status();
    if there() {
        return Ok(());
    }
    bail!("cargo {subcommand} is not installed: add the toolchain component {name}")
}
