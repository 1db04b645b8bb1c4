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
pub(crate) mod redis;
mod rings;
mod rsync;
mod ssh;
mod web;

use crate::lab::{Lab, Variant};
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

const SHORT_AMONG_OTHERS: Rings = Rings::Floor(0.7, "many connections are for one request");

const LARGE_AMONG_OTHERS: Rings = Rings::Floor(
    0.9,
    "some large bodies are written at once on a new connection",
);

const HANDED_ON: Rings = Rings::Any("a connection goes back to TCP when an exec hands it on");

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
        name: "socat",
        run: inetd::socat,
        rings: Rings::Floor(
            0.5,
            "the server has shared its end with a process that went on as cat, and sends by TCP",
        ),
        variants: MIXED,
    },
    Program {
        name: "socat-nofork",
        run: inetd::socat_nofork,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "inetd",
        run: inetd::at_once,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "inetd-waiting",
        run: inetd::waiting,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "inetd-greeted",
        run: inetd::greeted,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "apache-prefork",
        run: apache::prefork,
        rings: SHORT_AMONG_OTHERS,
        variants: MIXED,
    },
    Program {
        name: "apache-event",
        run: apache::event,
        rings: SHORT_AMONG_OTHERS,
        variants: MIXED,
    },
    Program {
        name: "haproxy",
        run: haproxy::run,
        rings: Rings::Floor(
            0.4,
            "a listener that a reload hands on is unknown: new workers' clients stay on TCP",
        ),
        variants: MIXED,
    },
    Program {
        name: "node-cluster",
        run: echo::node_cluster,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "node-shared",
        run: echo::node_shared,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "node-handle",
        run: echo::node_handle,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "java-blocking",
        run: echo::java,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "java-nio",
        run: echo::java_nio,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "zeromq",
        run: message::zeromq,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "openmpi",
        run: message::mpi,
        rings: Rings::Nearly,
        variants: &[Variant::Native, Variant::Both, Variant::Client],
    },
    Program {
        name: "rsync",
        run: rsync::run,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "git-daemon",
        run: git::run,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "mosquitto",
        run: mosquitto::run,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "ssh",
        run: ssh::run,
        rings: HANDED_ON,
        variants: MIXED,
    },
    Program {
        name: "gunicorn-sync",
        run: python_web::gunicorn_sync,
        rings: SHORT,
        variants: MIXED,
    },
    Program {
        name: "gunicorn-threads",
        run: python_web::gunicorn_threads,
        rings: LARGE_AMONG_OTHERS,
        variants: MIXED,
    },
    Program {
        name: "uwsgi",
        run: python_web::uwsgi,
        rings: LARGE_AMONG_OTHERS,
        variants: MIXED,
    },
    Program {
        name: "postgresql",
        run: postgresql::run,
        rings: Rings::Nearly,
        variants: MIXED,
    },
    Program {
        name: "mariadb",
        run: mariadb::run,
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
