//! `cargo xtask <task>`: everything that people and CI do with this repository.
//!
//! Tasks that run programs do so in a network namespace of their own where the
//! machine allows it, so that neither their ports nor their shuntd meet anyone
//! else's.

#![forbid(unsafe_code)]

mod answers;
mod bench;
mod book;
mod build;
mod capability;
mod claims;
mod containers;
mod cpython;
mod demo;
mod faults;
mod fuzz;
mod guest;
mod guide;
mod image;
mod instructions;
mod lab;
mod lint;
mod map;
mod mutate;
mod netns;
mod newcomer;
mod package;
mod process;
mod program;
mod progress;
mod report;
mod rooms;
mod setup;
mod soak;
mod stats;
mod strace;
mod test;
mod tool;
mod top;
mod why;

use anyhow::Result;
use clap::{Parser, Subcommand};
use setup::Need;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, test and measure Shunt")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the Debian packages that the tests and the demo use
    Setup,
    /// Build everything for release and check what libshunt.so depends on
    Build,
    /// Format check and clippy
    Lint,
    /// Everything that CI runs
    Test {
        /// Leave out the programs, CPython's tests and the short soak
        #[arg(long)]
        quick: bool,
    },
    /// Run real programs natively, under Shunt, mixed, and with shuntd killed
    Programs {
        /// Only these; any unknown name lists all
        names: Vec<String>,
        /// Only these variants: native both client server kill
        #[arg(long, value_delimiter = ',')]
        variants: Vec<lab::Variant>,
        /// When connections are moved, as in `shunt run --upgrade`, instead of what each program's
        /// own test chooses
        #[arg(long)]
        upgrade: Option<String>,
        /// Number of times, one after the other
        #[arg(long, default_value_t = 1)]
        repeat: u32,
    },
    /// Run CPython's own network tests natively and under Shunt and compare
    Cpython(cpython::Options),
    /// Run shunt-differential: every call family, natively and in each mix of ends
    Differential,
    /// Run redis, memcached and nginx natively and under Shunt, side by side
    Demo(demo::Options),
    /// Programs in network namespaces and containers that talk through shared memory
    Containers(containers::Options),
    /// The demo (and the tests) of a fresh clone, here and in a default container
    Newcomer(newcomer::Options),
    /// Make the Debian package and the tarball in target/package
    Package(package::Options),
    /// Randomised soak with kills, checksums and a leak check
    Soak(soak::Options),
    /// Random input for what reads rings and messages, or random sequences of calls
    Fuzz(fuzz::Options),
    /// Refuse each system call of the library's and shuntd's in turn
    Faults(faults::Options),
    /// Put faults into a copy of the path machine: its tests and models must catch each
    Mutate(mutate::Options),
    /// Run `shunt bench`: every side and real servers in turn, and the goals
    Bench(bench::Options),
    /// A guest with emulated devices: real verbs between two hosts (as root; slow)
    Lab(guest::Options),
    /// Run the commands of docs/getting-started.md and compare what they print
    Guide,
    /// Build the book of the documents with mdbook, without a warning, and check its links
    Book,
    /// `shunt top` in terminals of several sizes
    Top,
    /// Whether `shunt why` names the true reason for connections that cannot be shunted
    Why,
    /// How many of redis-server's socket calls make a system call
    Strace,
    /// How many instructions a call takes, against recorded bounds
    Instructions(instructions::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one task; `false` means that something under test failed.
fn run(task: Task) -> Result<bool> {
    progress::start();
    match &task {
        Task::Setup
        | Task::Build
        | Task::Book
        | Task::Lint
        | Task::Mutate(_)
        | Task::Lab(_)
        | Task::Newcomer(_)
        | Task::Containers(_)
        | Task::Package(_) => {}
        _ if prepared() || netns::private() => netns::enter()?,
        Task::Demo(_) => {
            // All that needs the network, and the build, before a namespace has none.
            setup::run(Need::Demo)?;
            build::product()?;
            netns::enter()?;
        }
        _ => {
            setup::run(Need::Everything)?;
            build::fetch();
            if matches!(task, Task::Test { .. }) {
                lint::components();
            }
            netns::enter()?;
        }
    }
    match task {
        Task::Setup => setup::run(Need::Everything).map(|()| true),
        Task::Build => build::run().map(|()| true),
        Task::Lint => lint::run(),
        Task::Book => book::run(),
        Task::Test { quick } => test::run(quick),
        Task::Programs {
            names,
            variants,
            upgrade,
            repeat,
        } => {
            upgrade.into_iter().for_each(lab::Lab::set_upgrade);
            prepare()?;
            program::run(&names, &variants, repeat)
        }
        Task::Cpython(options) => {
            prepare()?;
            cpython::run(&options)
        }
        Task::Differential => {
            prepare()?;
            test::differential_alone()
        }
        Task::Demo(options) => demo::run(&options),
        Task::Containers(options) => {
            prepare_for(Need::Containers)?;
            containers::run(&options)
        }
        Task::Newcomer(options) => newcomer::run(&options),
        Task::Package(options) => package::run(&options),
        Task::Soak(options) => {
            prepare()?;
            soak::run(&options)
        }
        Task::Fuzz(options) => {
            if options.is_differential() {
                prepare()?;
            }
            fuzz::run(&options)
        }
        Task::Faults(options) => {
            prepare()?;
            faults::run(&options)
        }
        Task::Mutate(options) => mutate::run(&options),
        Task::Bench(options) => {
            prepare()?;
            bench::run(&options)
        }
        Task::Lab(options) => guest::run(&options),
        Task::Guide => {
            prepare()?;
            guide::run()
        }
        Task::Top => {
            prepare()?;
            top::run()
        }
        Task::Why => {
            prepare()?;
            why::run()
        }
        Task::Strace => {
            prepare()?;
            strace::run()
        }
        Task::Instructions(options) => {
            prepare()?;
            instructions::run(&options)
        }
    }
}

/// `XTASK_PREPARED=1` says that setup and build have been done (to look at one
/// thing again and again).
fn prepared() -> bool {
    std::env::var_os("XTASK_PREPARED").is_some()
}

/// What each task that runs programs needs first.
fn prepare() -> Result<()> {
    prepare_for(Need::Everything)
}

fn prepare_for(need: Need) -> Result<()> {
    if prepared() {
        return Ok(());
    }
    setup::run(need)?;
    build::run()
}
