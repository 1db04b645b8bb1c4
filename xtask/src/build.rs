//! The release build, and the check that libshunt.so stays light.

use crate::progress;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What libshunt.so may depend on: everything else would be loaded into every
/// program under Shunt.
const ALLOWED: &[&str] = &["libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// A program or library of the release build.
pub(crate) fn artifact(name: &str) -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("release").join(name)
}

pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    if crate::netns::private() {
        command.env("CARGO_NET_OFFLINE", "true");
    }
    command
}

/// Fetches every dependency, also those of tests, so that later steps need no
/// network. Without one, what is here must do.
pub(crate) fn fetch() {
    let fetched = progress::step("fetching crates", || progress::run(cargo().arg("fetch")));
    if fetched.is_err() {
        eprintln!("xtask: going on with the dependencies that are here");
    }
}

/// Builds everything and checks. This program itself is left out: cargo built it
/// when it was called.
pub(crate) fn run() -> Result<()> {
    progress::step("building", || build(&["--workspace", "--exclude", "xtask"]))
}

/// Builds and checks what users run.
pub(crate) fn product() -> Result<()> {
    progress::step("building shunt, shuntd and libshunt.so", || {
        build(&["-p", "shunt-cli", "-p", "shuntd", "-p", "shunt-preload"])
    })
}

/// Builds and checks what is packaged.
pub(crate) fn packaged() -> Result<()> {
    const ALL: &[&str] = &[
        "-p",
        "shunt-cli",
        "-p",
        "shuntd",
        "-p",
        "shunt-preload",
        "-p",
        "shunt-bench",
    ];
    progress::step("building what is packaged", || build(ALL))
}

fn build(packages: &[&str]) -> Result<()> {
    progress::run(cargo().args(["build", "--release"]).args(packages))?;
    check_dependencies(&artifact("libshunt.so"))
}

fn check_dependencies(library: &Path) -> Result<()> {
    let output = Command::new("readelf").arg("-dW").arg(library).output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("xtask: no readelf here, so libshunt.so's dependencies are not checked");
            return Ok(());
        }
        Err(error) => return Err(error).context("readelf"),
    };
    if !output.status.success() {
        bail!("cannot read {}", library.display());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    let extra: Vec<&str> = needed
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .filter(|name| !ALLOWED.contains(name))
        .collect();
    if !extra.is_empty() {
        bail!(
            "libshunt.so needs {}; only libc and the dynamic loader are allowed",
            extra.join(" ")
        );
    }
    Ok(())
}
