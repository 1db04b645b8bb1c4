//! `shunt downgrade`: connections go back to TCP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use shunt_abi::message::Message;

use crate::control::{self, Control};
use crate::ss::Connection;
use crate::ss::connection::connection;
use crate::ss::table::{Style, table};

/// Ends that make calls have followed within this time.
const PATIENCE: Duration = Duration::from_millis(500);

/// Which connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// All of a process.
    Process(u32),
    /// That with this end.
    End(SocketAddr),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Self::Process)
            .or_else(|_| text.parse().map(Self::End))
            .map_err(|_| "neither a process id nor ADDRESS:PORT, as `shunt ss` shows it".into())
    }
}

impl Which {
    pub(crate) fn names(self, connection: &Connection) -> bool {
        match self {
            Self::Process(pid) => connection.processes.iter().any(|p| p.pid == Some(pid)),
            Self::End(end) => end == connection.local || end == connection.peer,
        }
    }
}

/// Whether there is anything to be sent back.
fn is_shunted(connection: &Connection) -> bool {
    connection.path != "tcp"
}

/// Sends them back, and shows what became of them.
pub(crate) fn downgrade(which: &[Which], json: bool) -> Result<ExitCode> {
    let mut found = Vec::new();
    let daemons = Control::all();
    if daemons.is_empty() {
        return Err(control::nobody());
    }
    for daemon in daemons {
        daemon.greet("shunt-downgrade")?;
        for row in daemon.list()? {
            let known = connection(&row, None);
            if is_shunted(&known) && which.iter().any(|which| which.names(&known)) {
                if daemon.downgrade(&row)? == 0 {
                    bail!(
                        "{} belongs to programs of another user or container",
                        known.local
                    );
                }
                found.push(row);
            }
        }
    }
    if found.is_empty() {
        bail!("no such connection moves through shared memory or by RDMA: `shunt ss` lists all");
    }
    let mut connections = look(&found)?;
    let until = Instant::now() + PATIENCE;
    while connections.iter().any(is_shunted) && Instant::now() < until {
        sleep(Duration::from_millis(10));
        connections = look(&found)?;
    }
    connections.sort_by_key(|c| (c.local, c.peer));
    let later = connections.iter().filter(|c| is_shunted(c)).count();
    if json {
        crate::print_json(&BTreeMap::from([("connections", connections)]))?;
    } else {
        crate::print(&table(&connections, &[], Style::default()))?;
        if later > 0 {
            eprintln!("shunt: still to follow, at the next call of one of their ends: {later}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What has become of these connections; those that have ended are left out.
fn look(rows: &[Message]) -> Result<Vec<Connection>> {
    let same = |a: &Message, b: &Message| {
        (a.family, a.ports, a.addresses) == (b.family, b.ports, b.addresses)
    };
    let mut found = Vec::new();
    for daemon in Control::all() {
        daemon.greet("shunt-downgrade")?;
        for row in daemon.list()? {
            if rows.iter().any(|known| same(known, &row)) {
                found.push(connection(&row, None));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED};

    #[test]
    fn connections_by_rdma_are_sent_back_too() {
        let mut row = crate::ss::connection::tests::row();
        assert!(!is_shunted(&connection(&row, None)));
        row.flags = FLAG_SHUNTED;
        assert!(is_shunted(&connection(&row, None)));
        row.flags |= FLAG_REACHES;
        assert!(is_shunted(&connection(&row, None)));
    }

    #[test]
    fn processes_and_ends_are_told_apart() {
        assert_eq!("812".parse(), Ok(Which::Process(812)));
        let end = SocketAddr::from(([127, 0, 0, 1], 6379));
        assert_eq!("127.0.0.1:6379".parse(), Ok(Which::End(end)));
        let end: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!("[::1]:80".parse(), Ok(Which::End(end)));
        for wrong in ["", "-1", "redis", "127.0.0.1", ":80"] {
            assert!(wrong.parse::<Which>().is_err(), "{wrong}");
        }
    }
}
