//! Real programs, in every [`Variant`]: no error, checked payloads, and under
//! Shunt at both ends nearly all bytes in rings.

mod apache;
mod asyncio;
mod echo;
mod git;
mod haproxy;
mod http;
mod inetd;
mod mariadb;
pub(crate) mod memcached;
mod message;
mod mosquitto;
pub(crate) mod nginx;
mod postgresql;
mod python_web;
mod rabbitmq;
pub(crate) mod redis;
mod rings;
mod rsync;
mod ssh;
mod table;
mod varnish;
mod web;
mod zookeeper;

use crate::lab::{Lab, Variant};
use crate::process::reap_leftovers;
use crate::report::Report;
use anyhow::{Result, bail};
use table::{PROGRAMS, Program};

/// The task; no name or variant means all.
pub(crate) fn run(names: &[String], variants: &[Variant], repeat: u32) -> Result<bool> {
    let mut report = Report::new();
    for _ in 0..repeat {
        steps(&mut report, names, variants)?;
    }
    reap_leftovers();
    Ok(report.finish())
}

/// The steps, for `test` as well.
pub(crate) fn steps(report: &mut Report, names: &[String], variants: &[Variant]) -> Result<()> {
    let chosen = |program: &&Program| {
        names.is_empty()
            || names
                .iter()
                .any(|name| program.name.starts_with(name.as_str()))
    };
    let programs: Vec<_> = PROGRAMS.iter().filter(chosen).collect();
    if programs.is_empty() {
        let known: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        bail!("no such program; there are {}", known.join(" "));
    }
    for program in programs {
        let wanted = |variant: &&Variant| variants.is_empty() || variants.contains(variant);
        for &variant in program.variants.iter().filter(wanted) {
            report.step(&format!("{} / {}", program.name, variant.name()), || {
                judge(program, variant)
            });
        }
    }
    Ok(())
}

fn judge(program: &Program, variant: Variant) -> Result<String> {
    let stats = (program.run)(variant)?;
    match variant {
        Variant::Native => return Ok(String::new()),
        Variant::Both => program.rings.check_share(&stats)?,
        Variant::Kill => program.rings.check_some(&stats)?,
        Variant::Client | Variant::Server if stats.shunted > 0 => {
            bail!("a connection with one end was shunted: {}", stats.summary());
        }
        Variant::Client | Variant::Server => {}
    }
    Ok(stats.summary())
}

/// Programs that are tested with every mixture of ends: natively, with both under Shunt, and with either one.
pub(crate) fn mixed() -> impl Iterator<Item = &'static str> {
    use Variant::{Both, Client, Native, Server};
    let is_mixed = |program: &&Program| {
        let mixtures = [Native, Both, Client, Server];
        mixtures.iter().all(|one| program.variants.contains(one))
    };
    PROGRAMS.iter().filter(is_mixed).map(|program| program.name)
}

/// The table of all programs, as documents have it: in which mixtures each is tested, and how much of its bytes must go through
/// rings.
pub(crate) fn compatibility() -> String {
    let row = |program: &Program| {
        let variants = program.variants.iter().map(|variant| variant.name());
        let variants = variants.collect::<Vec<_>>().join(", ");
        format!(
            "| `{}` | {variants} | {} |\n",
            program.name,
            program.rings.cells()
        )
    };
    let head = "| program | ends under Shunt | bytes through shared memory, with both | because |\n|---|---|---|---|\n";
    let rows: String = PROGRAMS.iter().map(row).collect();
    head.to_owned() + &rows
}

/// A script or source in `tests/programs`.
pub(crate) fn script(name: &str) -> String {
    crate::build::root()
        .join("tests/programs")
        .join(name)
        .to_string_lossy()
        .into_owned()
}

/// Builds a source of `tests/programs` in the lab's directory, with the given
/// compiler and libraries; returns the program.
fn compile(lab: &mut Lab, name: &str, compiler: &[&str], libraries: &[&str]) -> Result<String> {
    let program = lab.directory.join(name).to_string_lossy().into_owned();
    let source = script(&format!("{name}.c"));
    let mut words = compiler.to_vec();
    words.extend(["-O2", "-Wall", "-Wextra", "-o", &program, &source]);
    words.extend(libraries);
    lab.prepare(60, &words)?;
    Ok(program)
}

/// The interpreter: Debian's, whatever else is first in `PATH`.
pub(crate) const PYTHON: &str = "/usr/bin/python3.11";
