//! Programs of other projects, published as crates, that some tasks use, each version in a directory of its own below `target`.

use crate::build::{cargo, root};
use crate::progress;
use anyhow::Result;
use std::path::PathBuf;

/// The program of this crate, in this version; it is built unless it is there.
pub(crate) fn prepare(name: &str, version: &str, options: &[&str]) -> Result<PathBuf> {
    let home = root().join(format!("target/tools/{name}-{version}"));
    let program = home.join("bin").join(name);
    if !program.exists() {
        progress::step(&format!("installing {name} {version}"), || {
            let mut install = cargo();
            install
                .args(["install", name, "--locked", "--version"])
                .arg(format!("={version}"))
                .args(options)
                .arg("--root")
                .arg(&home);
            progress::run(&mut install)
        })?;
    }
    Ok(program)
}
