//! Compiles a program if its sources are newer than what is there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::program::Program;

/// The programs break rules on purpose; these warnings would only say so.
const FLAGS: &[&str] = &[
    "-std=gnu17",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wno-nonnull",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    "-pthread",
];

/// Returns the executable. A module of its own lies beside it, as `NAME.so`.
pub(crate) fn build(program: &Program, out: &Path) -> Result<PathBuf> {
    let exe = out.join(&program.name);
    let folder = program.source.parent().unwrap_or(Path::new("."));
    if modified(&exe).is_some_and(|built| newest(folder).is_some_and(|n| n < built)) {
        return Ok(exe);
    }
    if let Some(flags) = &program.module {
        compile(program, flags, &out.join(format!("{}.so", program.name)))?;
    }
    compile(program, &[], &exe)?;
    Ok(exe)
}

fn compile(program: &Program, more: &[String], result: &Path) -> Result<()> {
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "gcc".into()));
    cc.args(FLAGS);
    if !program.flags.iter().any(|f| f.starts_with("-O")) {
        cc.arg("-O1");
    }
    let new = result.with_added_extension("new");
    cc.args(&program.flags)
        .args(more)
        .arg("-o")
        .arg(&new)
        .arg(&program.source);
    let done = cc
        .output()
        .context("no C compiler: install gcc or set CC")?;
    if !done.status.success() {
        bail!(
            "{} does not compile:\n{}",
            program.source.display(),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    std::fs::rename(&new, result)?;
    Ok(())
}

/// Builds what plays the scripts of random tests; returns the executable.
pub(crate) fn interpreter(folder: &Path, out: &Path) -> Result<PathBuf> {
    let source = folder.join("script.c");
    let text = std::fs::read_to_string(&source)
        .with_context(|| format!("{}: run from the repository's root", source.display()))?;
    let programs = crate::program::parse("script", &source, &text);
    build(&programs[0], out)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

/// Any header may matter to any program.
fn newest(folder: &Path) -> Option<SystemTime> {
    std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| modified(&entry.ok()?.path()))
        .max()
}
