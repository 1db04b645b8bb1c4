//! `shunt ss`: each connection, its path, and why.

pub(crate) mod connection;
mod expression;
mod filter;
mod source;
pub(crate) mod table;
mod word;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

pub(crate) use connection::{Connection, Listener};
pub(crate) use expression::{Expression, Item};
pub(crate) use filter::Filter;
pub(crate) use source::Source;
use table::{Style, table};

#[derive(Default, Serialize)]
pub(crate) struct List {
    pub(crate) connections: Vec<Connection>,
    pub(crate) listeners: Vec<Listener>,
}

/// How it is shown; what `ss(8)` has under the same letters.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Display {
    /// Counters, too: age, unread bytes, calls, sleeps, wake-ups, and the reason as a sentence
    #[arg(long, short)]
    info: bool,
    /// No line of titles
    #[arg(long, short = 'H')]
    no_header: bool,
    /// One line for each connection, however narrow the terminal
    #[arg(long, short = 'O')]
    oneline: bool,
    #[command(flatten)]
    _habits: Habits,
    /// Show it anew every so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", require_equals = true, num_args = 0..=1,
          default_missing_value = "1", value_parser = interval)]
    watch: Option<Duration>,
}

/// For those who are used to them.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Habits {
    /// Show connections and listening sockets (always the case, unless -l says otherwise)
    #[arg(long = "all", short = 'a')]
    _all: bool,
    /// Show the processes (always the case)
    #[arg(long = "processes", short = 'p')]
    _processes: bool,
    /// Show numbers, not names, of ports (always the case)
    #[arg(long = "numeric", short = 'n')]
    _numeric: bool,
    /// Show TCP sockets (always the case)
    #[arg(long = "tcp", short = 't')]
    _tcp: bool,
    /// Show UDP sockets (of which there are none under Shunt)
    #[arg(long = "udp", short = 'u')]
    _udp: bool,
}

/// A number of seconds.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if seconds > Duration::MAX.as_secs_f64() {
        return Err("too long".into());
    }
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| *time >= Duration::from_millis(10))
        .ok_or_else(|| "0.01 seconds or more".into())
}

/// Prints the connections of every daemon that serves this user, as far as `filter` shows them.
pub(crate) fn ss(filter: &Filter, display: Display, json: bool) -> Result<ExitCode> {
    let filter = match filter.compile() {
        Ok(filter) => filter,
        Err(wrong) => {
            let seconds = display.watch.and_then(|_| filter.leading_number());
            let wrong = seconds.map_or(wrong, |seconds| {
                format!("seconds stand behind a sign: `--watch={seconds}`")
            });
            eprintln!("shunt: {wrong}");
            return Ok(ExitCode::from(2));
        }
    };
    let terminal = std::io::stdout().is_terminal();
    let mut source = Source::default();
    let mut line = Vec::new();
    loop {
        let list = source.collect(|item| filter.shows(item))?;
        // A terminal is cleared only once there is something to show in the place of what it shows.
        let clear = display.watch.is_some() && terminal && !json;
        if clear {
            crate::print("\x1b[H\x1b[2J")?;
        }
        if json && display.watch.is_some() {
            line.clear();
            serde_json::to_writer(&mut line, &list)?;
            line.push(b'\n');
            std::io::stdout().write_all(&line)?;
        } else if json {
            crate::print_json(&list)?;
        } else {
            let style = Style {
                width: width(terminal),
                info: display.info,
                bare: display.no_header,
                one_line: display.oneline,
                legend: terminal && !display.info && !display.no_header,
            };
            crate::print(&table(&list.connections, &list.listeners, style))?;
        }
        let Some(time) = display.watch else {
            return Ok(ExitCode::SUCCESS);
        };
        std::thread::sleep(time);
        if !terminal && !json {
            crate::print("\n")?;
        }
    }
}

/// What every daemon that serves this user knows just now.
pub(crate) fn collect() -> Result<List> {
    Source::default().collect(|_| true)
}

/// The columns of the terminal; `None`: whoever reads this has as many as are needed.
fn width(terminal: bool) -> Option<usize> {
    if !terminal {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_and_parts_of_them() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("0.1"), Ok(Duration::from_millis(100)));
        for wrong in ["", "x", "-1", "0", "0.001", "NaN", "inf"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        let long = interval("1e30").unwrap_err();
        assert!(long.contains("too long"), "{long}");
    }
}
