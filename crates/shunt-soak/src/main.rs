//! A randomised soak for Shunt, and, with `--native`, for itself.
//!
//! ```text
//! director ──starts, kills──> servers  (five listeners each: blocking, poll,
//!    ^  │                        ^      select, epoll level, epoll edge)
//!    │  └────────starts, kills──>│
//!    └── lines on stdout ──── clients (batches of connections, every way)
//! ```
//!
//! Each direction of a connection is a header and a stream of known bytes that
//! the receiver checks. A connection may break only if its other end was
//! killed, or had announced that it would leave early.
//!
//! Neighbours: `shunt-harness`, for what it sees of processes; it is an ordinary program that `shunt run` runs.

mod call;
mod client;
mod connection;
mod director;
mod event;
mod family;
mod options;
mod process;
mod random;
mod server;
mod system;
mod watch;

use std::process::ExitCode;

const USAGE: &str = "\
shunt-soak [--minutes N | --seconds N] [--seed N] [--servers N] [--clients N] [--json]
           [--kills N] [--restarts SECONDS] [--system SHUNTD] [--apart PID,PID,ADDRESS,…] (--shunt PATH | --native)
shunt-soak family [--minutes N | --seconds N] [--seed N] [--mischief LIST]
           (--shunt PATH | --native)

  family         connections that families of processes share, instead of
                 many connections of few processes
  --shunt PATH   run the workers by `PATH run`
  --native       run them without Shunt: a check of the soak itself
  --kills        end after this number of kills, which come faster than else
  --restarts     kill the user's own shuntd, too, each time after this number of seconds; the next worker starts another
  --system       start this `shuntd --system` for all, and kill it, too
  --apart        servers in the network namespace of the first process, clients in that of the second; these ask at
                 such addresses
  --mischief     in each round, of kills, receivers, parts, strangers, plain, or none [default: at random]
  --json         end with a summary as one line of JSON";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("server") => server::run(&arguments[1..]),
        Some("client") => client::run(&arguments[1..]),
        Some("family") => family::run(&arguments[1..]),
        Some("family-parent") => family::parent::run(&arguments[1..]),
        Some("family-member") => family::member::run(&arguments[1..]),
        Some("--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => match director::Options::parse(&arguments) {
            Ok(options) => director::run(&options),
            Err(message) => {
                eprintln!("shunt-soak: {message}\n{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("shunt-soak: {message}");
            ExitCode::FAILURE
        }
    }
}
