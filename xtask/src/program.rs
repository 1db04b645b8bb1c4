//! Real programs, in every [`Variant`]: no error, checked payloads, and under
//! Shunt at both ends nearly all bytes in rings.

mod asyncio;
mod http;
pub(crate) mod memcached;
pub(crate) mod nginx;
pub(crate) mod redis;

use crate::lab::Variant;
use crate::process::reap_leftovers;
use crate::report::Report;
use crate::stats::Stats;
use anyhow::{Result, bail};

/// Share of payload bytes that must go through rings.
const RING_SHARE: f64 = 0.99;

/// One program with one kind of load.
struct Program {
    name: &'static str,
    run: fn(Variant) -> Result<Stats>,
    /// Whether its connections live longer than one request.
    lasting: bool,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "redis",
        run: redis::run,
        lasting: true,
    },
    Program {
        name: "memcached",
        run: memcached::run,
        lasting: true,
    },
    Program {
        name: "nginx-wrk",
        run: nginx::keep_alive,
        lasting: true,
    },
    Program {
        name: "nginx-ab",
        run: nginx::closing,
        lasting: false,
    },
    Program {
        name: "http",
        run: http::run,
        lasting: false,
    },
    Program {
        name: "asyncio",
        run: asyncio::run,
        lasting: true,
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
    let variants = if variants.is_empty() {
        &Variant::ALL[..]
    } else {
        variants
    };
    for program in programs {
        for &variant in variants {
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
        Variant::Both
            if program.lasting && (stats.shunted == 0 || stats.ring_share() < RING_SHARE) =>
        {
            bail!("too few bytes in rings: {}", stats.summary());
        }
        Variant::Kill if program.lasting && stats.shunted == 0 => {
            bail!("nothing was shunted: {}", stats.summary());
        }
        Variant::Client | Variant::Server if stats.shunted > 0 => {
            bail!("a connection with one end was shunted: {}", stats.summary());
        }
        _ => {}
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
