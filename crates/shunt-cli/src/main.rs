//! The `shunt` command: runs programs under Shunt and shows what became of
//! their connections.
//!
//! Neighbours: it prepares the environment for libshunt, starts shuntd when a
//! user has none, and asks it over [`shunt_abi::message`]. It moves no payload
//! and `shunt run` leaves nothing behind in the program that it becomes.

#![deny(unsafe_code)] // `sys` alone is exempt, with a reason for each block.

mod bench;
mod container;
mod control;
mod doctor;
mod downgrade;
mod elf;
mod host;
mod library;
mod locate;
mod metrics;
mod process;
mod reasons;
mod run;
mod ss;
mod stats;
mod sys;
mod top;
mod user;
mod why;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Moves the TCP connections of local programs through shared memory.
#[derive(Debug, Parser)]
#[command(name = "shunt", version, arg_required_else_help = true)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program under Shunt
    ///
    /// The program takes this process's place, so its exit status, signals and
    /// descriptors are its own. Connections between programs that run under
    /// Shunt on this host move through shared memory; all others are plain TCP.
    /// A shuntd is started for you if none is running.
    ///
    /// Exit status: the program's own; 127 if it is not found, 126 if it cannot
    /// be executed, 125 if Shunt itself is not complete.
    Run(RunOptions),
    /// List the connections of programs that run under Shunt
    ///
    /// With options and a filter, those for which all of them hold.
    Ss {
        #[command(flatten)]
        display: ss::Display,
        #[command(flatten)]
        filter: ss::Filter,
        #[command(flatten)]
        json: Json,
    },
    /// Show what connections and processes do just now
    ///
    /// Until q is pressed; the last line has the other keys.
    Top(top::Options),
    /// Tell the history of a connection, or of all of a process, and what to do
    ///
    /// Exit status: 1 if there is no such process or connection.
    Why {
        /// A process id, or one end's ADDRESS:PORT as `shunt ss` shows it
        #[arg(value_name = "PID|CONN")]
        which: downgrade::Which,
        #[command(flatten)]
        json: Json,
    },
    /// Send connections back to TCP
    ///
    /// Both ends go on as if nothing had happened. An end that sleeps follows at its
    /// next call.
    Downgrade {
        /// A process id, or one end's ADDRESS:PORT as `shunt ss` shows it (may be several)
        #[arg(required = true, value_name = "PID|CONN")]
        which: Vec<downgrade::Which>,
        #[command(flatten)]
        json: Json,
    },
    /// Explain why a connection may stay on TCP
    Reasons {
        #[command(flatten)]
        json: Json,
        /// Only these, with what to do
        #[arg(value_name = "NAME", value_parser = reasons::named)]
        names: Vec<shunt_abi::Reason>,
    },
    /// Check that Shunt can work here, and for a program
    ///
    /// Exit status: 1 if something keeps it from working.
    Doctor {
        #[command(flatten)]
        json: Json,
        /// A process id, or a program and its arguments as they would follow `shunt run`
        #[arg(trailing_var_arg = true, value_name = "PID|CMD")]
        program: Vec<OsString>,
    },
    /// Add up what `shunt ss` knows, for Prometheus
    Metrics {
        /// Serve it at ADDRESS:PORT or at a socket file, by HTTP, instead of printing it once (may be repeated)
        #[arg(long, value_name = "ADDRESS|FILE")]
        listen: Vec<metrics::Place>,
    },
    /// Add up a file that `shunt run --stats FILE` wrote
    Stats {
        /// The file, one line per process
        file: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Run the programs of a container under Shunt
    Container {
        #[command(subcommand)]
        what: Container,
    },
    /// Let programs of several hosts find each other
    ///
    /// For connections between hosts; see shunt.toml(5), [hosts].
    Host {
        #[command(subcommand)]
        what: host::What,
    },
    /// Print completions for a shell, which packages install
    #[command(hide = true)]
    Completions { shell: Shell },
    /// Measure Shunt beside TCP, Unix sockets, pipes and a bare ring
    #[command(disable_help_flag = true)]
    Bench {
        /// See shunt-bench(1)
        #[arg(
            trailing_var_arg = true,
            value_name = "OPTION",
            allow_hyphen_values = true
        )]
        options: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
enum Container {
    /// Print what the tool that starts the container is to be told
    ///
    /// The container gets the directory of libshunt.so and that of the socket file of the host's
    /// `shuntd --system`, both read-only, and two variables.
    Print {
        /// For which tool
        #[arg(value_enum)]
        tool: container::Tool,
    },
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Json {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct RunOptions {
    /// When to move a connection: once it has shown that it will live
    /// (adaptive, the default), as soon as it is made (eager), before connect and
    /// accept return (sync, for tests), never (off)
    #[arg(long, value_enum)]
    upgrade: Option<Upgrade>,
    /// Let the program use io_uring, where connections that it uses there stay on TCP
    /// (allow, the default), or tell it that the kernel has none (deny)
    #[arg(long, value_enum)]
    io_uring: Option<IoUring>,
    /// Let each process append a line of statistics to this file when it ends
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The program and its arguments
    ///
    /// Everything behind its name is its own.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Upgrade {
    Adaptive,
    Eager,
    Sync,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IoUring {
    Allow,
    Deny,
}

fn main() -> ExitCode {
    let done = match Options::parse().command {
        Command::Run(options) => return run::run(&options),
        Command::Ss {
            display,
            filter,
            json,
        } => ss::ss(&filter, display, json.json),
        Command::Top(options) => top::top(&options),
        Command::Metrics { listen } => metrics::metrics(&listen),
        Command::Why { which, json } => why::why(which, json.json),
        Command::Downgrade { which, json } => downgrade::downgrade(&which, json.json),
        Command::Reasons { json, names } => reasons::reasons(&names, json.json),
        Command::Doctor { json, program } => doctor::doctor(&program, json.json),
        Command::Container { what } => match what {
            Container::Print { tool } => container::print(tool),
        },
        Command::Host { what } => host::host(what),
        Command::Completions { shell } => completions(shell),
        Command::Bench { options } => bench::bench(&options),
        Command::Stats { file, json } => stats::stats(&file, json.json),
    };
    match done {
        Ok(code) => code,
        // `shunt ss | head`: whoever reads has enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shunt: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "shunt", &mut text);
    print(&String::from_utf8(text)?)?;
    Ok(ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

/// Prints text in one go, so that a reader that went away is an error and not a
/// panic.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Prints a value as indented JSON.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
