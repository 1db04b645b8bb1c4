//! `shunt ss`: each connection, its path, and why.

mod filter;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;
use shunt_abi::Reason;
use shunt_abi::message::{FLAG_SHUNTED, Kind, Message, comm_text};

use crate::control::Control;

pub(crate) use filter::Filter;

#[derive(Serialize)]
pub(crate) struct List {
    pub(crate) connections: Vec<Connection>,
    pub(crate) listeners: Vec<Listener>,
}

/// A socket that a program under Shunt listens on.
#[derive(Serialize)]
pub(crate) struct Listener {
    local: SocketAddr,
    /// `None`: it lives in a PID namespace that shuntd cannot see.
    pid: Option<u32>,
    comm: String,
    /// As of a [`Process`].
    container: Option<String>,
}

/// Payload by direction.
#[derive(Clone, Copy, Serialize)]
struct Bytes {
    /// From the server's end.
    to_client: Way,
    to_server: Way,
}

/// Payload by path.
#[derive(Clone, Copy, Serialize)]
struct Way {
    ring: u64,
    kernel: u64,
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
    bytes: Bytes,
}

#[derive(Clone, Serialize)]
pub(crate) struct Process {
    /// `None`: it lives in a PID namespace that shuntd cannot see.
    pub(crate) pid: Option<u32>,
    comm: String,
    /// "server" (it accepted) or "client" (it connected).
    end: &'static str,
    /// The container that it is in, if the asker may know that.
    container: Option<String>,
}

/// Prints the connections of every daemon that serves this user, as far as `filter` shows them.
pub(crate) fn ss(filter: &Filter, json: bool) -> Result<ExitCode> {
    let daemons = Control::all();
    if let (true, Some(path)) = (daemons.is_empty(), Control::named()) {
        bail!(
            "no shuntd answers at {}, which SHUNT_SOCKET names, so nothing runs under Shunt here",
            path.display()
        );
    }
    if daemons.is_empty() {
        bail!("no shuntd answers, so nothing runs under Shunt here: `shunt run -- CMD` starts one");
    }
    let (mut connections, mut listeners) = (Vec::new(), Vec::new());
    for daemon in daemons {
        daemon.greet("shunt-ss")?;
        let rows = daemon.list()?;
        let of = |kind| rows.iter().filter(move |row| row.kind() == Some(kind));
        connections.extend(of(Kind::Row).map(connection));
        listeners.extend(of(Kind::Listener).map(listener));
    }
    connections.retain(|connection| filter.shows(connection));
    connections.sort_by_key(|c| (c.local, c.peer));
    listeners.retain(|listener| filter.shows_listener(listener));
    listeners.sort_by_key(|l| (l.local, l.pid));
    if json {
        crate::print_json(&List {
            connections,
            listeners,
        })?;
    } else {
        crate::print(&table(&connections, &listeners))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn end(row: &Message, i: usize) -> SocketAddr {
    let bytes = row.addresses[i];
    let ip = if row.family == libc::AF_INET as u16 {
        IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
    } else {
        IpAddr::from(bytes)
    };
    SocketAddr::new(ip, row.ports[i])
}

/// A process id, if the daemon sees the process.
fn known(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

/// A process id for people.
fn shown(pid: Option<u32>) -> String {
    pid.map_or("?".to_owned(), |pid| pid.to_string())
}

fn listener(row: &Message) -> Listener {
    Listener {
        local: end(row, 0),
        pid: known(row.pids[0]),
        comm: comm_text(&row.name),
        container: row.containers()[0].take(),
    }
}

pub(crate) fn connection(row: &Message) -> Connection {
    let way = |i: usize| Way {
        ring: row.bytes[i][0],
        kernel: row.bytes[i][1],
    };
    let [of_server, of_client] = row.containers();
    let process = |pid: u32, comm: &[u8; 16], end, container| {
        // Who has introduced itself has a name, also where its process is not seen.
        (pid != 0 || comm[0] != 0).then(|| Process {
            pid: known(pid),
            comm: comm_text(comm),
            end,
            container,
        })
    };
    let shunted = row.flags & FLAG_SHUNTED != 0;
    let name = |status| {
        Reason::from_number(status)
            .map_or_else(|| format!("REASON_{status}"), |r| r.name().to_owned())
    };
    Connection {
        local: end(row, 0),
        peer: end(row, 1),
        processes: [
            process(row.pids[0], &row.name, "server", of_server),
            process(row.pids[1], &row.peer_name, "client", of_client),
        ]
        .into_iter()
        .flatten()
        .collect(),
        path: if shunted { "shm" } else { "tcp" },
        reason: (!shunted).then(|| name(row.status)),
        bytes: Bytes {
            to_client: way(0),
            to_server: way(1),
        },
    }
}

/// Columns as wide as their contents: connections, and listeners if there are any.
pub(crate) fn table(connections: &[Connection], listeners: &[Listener]) -> String {
    let heads = [
        "LOCAL",
        "PEER",
        "SERVER",
        "CLIENT",
        "PATH",
        "TO-CLIENT",
        "TO-SERVER",
        "REASON",
    ];
    // A name is whatever a program calls itself.
    let printable = |comm: &str| comm.replace(|ch: char| ch.is_control(), "?");
    let who = |comm: &str, pid, container: Option<&str>| {
        let container = container.map_or(String::new(), |name| format!("@{}", printable(name)));
        format!("{}/{}{container}", printable(comm), shown(pid))
    };
    let none = || "-".to_owned();
    let mut rows = vec![heads.map(str::to_owned)];
    for c in connections {
        let process = |end| {
            let found = c.processes.iter().find(|process| process.end == end);
            found.map_or_else(none, |p| who(&p.comm, p.pid, p.container.as_deref()))
        };
        // Through rings + through the kernel.
        let bytes = |way: Way| format!("{}+{}", way.ring, way.kernel);
        rows.push([
            c.local.to_string(),
            c.peer.to_string(),
            process("server"),
            process("client"),
            c.path.to_owned(),
            bytes(c.bytes.to_client),
            bytes(c.bytes.to_server),
            c.reason.clone().unwrap_or_default(),
        ]);
    }
    for l in listeners {
        let holder = who(&l.comm, l.pid, l.container.as_deref());
        let (local, path) = (l.local.to_string(), "listen".to_owned());
        rows.push([
            local,
            "*".to_owned(),
            holder,
            none(),
            path,
            none(),
            none(),
            String::new(),
        ]);
    }
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 8]| {
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

    fn row() -> Message {
        let mut row = Message::new(Kind::Row);
        row.family = libc::AF_INET as u16;
        row.addresses[0][..4].copy_from_slice(&[127, 0, 0, 1]);
        row.addresses[1][..4].copy_from_slice(&[127, 0, 0, 1]);
        row.ports = [6379, 40_000];
        row.pids = [7, 0];
        row.bytes[0] = [7, 1];
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
        assert_eq!(json["bytes"]["to_client"]["ring"], 7);
        assert_eq!(json["bytes"]["to_server"]["kernel"], 0);
        assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn the_table_names_reasons_and_prints_no_control_characters() {
        let (mut known, mut newer) = (row(), row());
        (known.status, newer.status) = (Reason::PeerPlain as u8, 200);
        let text = table(
            &[connection(&known), connection(&newer)],
            &[listener(&known)],
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "127.0.0.1:6379  127.0.0.1:40000  re?is/7  -       tcp     7+1        0+0        PEER_PLAIN"
        );
        assert!(lines[2].ends_with("REASON_200"));
        newer.set_container(0, b"0123456789ab\0\0\0\0");
        let text = table(&[connection(&newer)], &[]);
        assert!(text.contains("  re?is/7@0123456789ab  "), "{text}");
        assert_eq!(
            lines[3],
            "127.0.0.1:6379  *                re?is/7  -       listen  -          -"
        );
    }
}
