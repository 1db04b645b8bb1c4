//! `shunt ss`: each connection, its path, and why.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_SHUNTED, Message, comm_text};

use crate::control::Control;

#[derive(Serialize)]
pub(crate) struct List {
    pub(crate) connections: Vec<Connection>,
}

/// One connection, seen from the accepting end.
#[derive(Serialize)]
pub(crate) struct Connection {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Those known to Shunt, the accepting end's first.
    pub(crate) processes: Vec<Process>,
    pub(crate) path: &'static str,
    reason: Option<String>,
}

#[derive(Clone, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    comm: String,
    /// "server" (it accepted) or "client" (it connected).
    end: &'static str,
}

/// Prints the connections of every daemon that serves this user.
pub(crate) fn ss(json: bool) -> Result<ExitCode> {
    let daemons = Control::all();
    if daemons.is_empty() {
        bail!("no shuntd answers, so nothing runs under Shunt here: `shunt run -- CMD` starts one");
    }
    let mut connections = Vec::new();
    for daemon in daemons {
        daemon.greet("shunt-ss")?;
        connections.extend(daemon.list()?.iter().map(connection));
    }
    connections.sort_by_key(|c| (c.local, c.peer));
    if json {
        crate::print_json(&List { connections })?;
    } else {
        crate::print(&table(&connections))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn connection(row: &Message) -> Connection {
    let end = |i: usize| {
        let bytes = row.addresses[i];
        let ip = if row.family == libc::AF_INET as u16 {
            IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
        } else {
            IpAddr::from(bytes)
        };
        SocketAddr::new(ip, row.ports[i])
    };
    let process = |pid: u32, comm: &[u8; 16], end| {
        (pid != 0).then(|| Process {
            pid,
            comm: comm_text(comm),
            end,
        })
    };
    let shunted = row.flags & FLAG_SHUNTED != 0;
    let name = |status| {
        Reason::from_number(status)
            .map_or_else(|| format!("REASON_{status}"), |r| r.name().to_owned())
    };
    Connection {
        local: end(0),
        peer: end(1),
        processes: [
            process(row.pids[0], &row.name, "server"),
            process(row.pids[1], &row.peer_name, "client"),
        ]
        .into_iter()
        .flatten()
        .collect(),
        path: if shunted { "shm" } else { "tcp" },
        reason: (!shunted).then(|| name(row.status)),
    }
}

/// Columns as wide as their contents.
pub(crate) fn table(connections: &[Connection]) -> String {
    let mut rows = vec![["LOCAL", "PEER", "SERVER", "CLIENT", "PATH", "REASON"].map(str::to_owned)];
    for c in connections {
        let process = |end| {
            let found = c.processes.iter().find(|process| process.end == end);
            // A name is whatever a program calls itself.
            let printable = |p: &Process| p.comm.replace(|ch: char| ch.is_control(), "?");
            found.map_or_else(|| "-".to_owned(), |p| format!("{}/{}", printable(p), p.pid))
        };
        rows.push([
            c.local.to_string(),
            c.peer.to_string(),
            process("server"),
            process("client"),
            c.path.to_owned(),
            c.reason.clone().unwrap_or_default(),
        ]);
    }
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 6]| {
        let cells: Vec<_> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_abi::message::Kind;

    fn row() -> Message {
        let mut row = Message::new(Kind::Row);
        row.family = libc::AF_INET as u16;
        row.addresses[0][..4].copy_from_slice(&[127, 0, 0, 1]);
        row.addresses[1][..4].copy_from_slice(&[127, 0, 0, 1]);
        row.ports = [6379, 40_000];
        row.pids = [7, 0];
        row.name[..5].copy_from_slice(b"re\x1bis");
        row
    }

    #[test]
    fn a_shunted_connection_has_no_reason() {
        let mut row = row();
        row.flags = FLAG_SHUNTED;
        let json = serde_json::to_value(connection(&row)).unwrap();
        assert_eq!(json["local"], "127.0.0.1:6379");
        assert_eq!(json["peer"], "127.0.0.1:40000");
        assert_eq!(json["path"], "shm");
        assert!(json["reason"].is_null());
        assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn the_table_names_reasons_and_prints_no_control_characters() {
        let (mut known, mut newer) = (row(), row());
        (known.status, newer.status) = (Reason::PeerPlain as u8, 200);
        let text = table(&[connection(&known), connection(&newer)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "127.0.0.1:6379  127.0.0.1:40000  re?is/7  -       tcp   PEER_PLAIN"
        );
        assert!(lines[2].ends_with("tcp   REASON_200"));
    }
}
