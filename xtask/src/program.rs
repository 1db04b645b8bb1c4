//! Real programs, in every [`Variant`]: no error, checked payloads, and under
//! Shunt at both ends nearly all bytes in rings.

mod asyncio;
mod http;
pub(crate) mod memcached;
pub(crate) mod nginx;
mod postgresql;
pub(crate) mod redis;
mod rings;

use crate::lab::Variant;
use crate::process::reap_leftovers;
use crate::report::Report;
use crate::stats::Stats;
use anyhow::{Result, bail};
use rings::Rings;

/// Every variant but `kill`, which is for programs that make much of one load.
const MIXED: &[Variant] = &[
    Variant::Native,
    Variant::Both,
    Variant::Client,
    Variant::Server,
];

const SHORT: Rings = Rings::Any("a connection for each request stays on TCP");

/// One program with one kind of load.
struct Program {
    name: &'static str,
    run: fn(Variant) -> Result<Stats>,
    rings: Rings,
    variants: &'static [Variant],
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "redis",
        run: redis::run,
        rings: Rings::Nearly,
        variants: &Variant::ALL,
    },
    Program {
        name: "memcached",
        run: memcached::run,
        rings: Rings::Nearly,
        variants: &Variant::ALL,
    },
    Program {
        name: "nginx-wrk",
        run: nginx::keep_alive,
        rings: Rings::Nearly,
        variants: &Variant::ALL,
    },
    Program {
        name: "nginx-ab",
        run: nginx::closing,
        rings: SHORT,
        variants: &Variant::ALL,
    },
    Program {
        name: "http",
        run: http::run,
        rings: SHORT,
        variants: &Variant::ALL,
    },
    Program {
        name: "asyncio",
        run: asyncio::run,
        rings: Rings::Nearly,
        variants: &Variant::ALL,
    },
    Program {
        name: "postgresql",
        run: postgresql::run,
        rings: Rings::Nearly,
        variants: MIXED,
    },
];

/// The task; no name or variant means all.
pub(crate) fn run(names: &[String], variants: &[Variant]) -> Result<bool> {
    let mut report = Report::new();
    steps(&mut report, names, variants)?;
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

/// A script or source in `tests/programs`.
pub(crate) fn script(name: &str) -> String {
    crate::build::root()
        .join("tests/programs")
        .join(name)
        .to_string_lossy()
        .into_owned()
}

/// The interpreter: Debian's, whatever else is first in `PATH`.
pub(crate) const PYTHON: &str = "/usr/bin/python3.11";
