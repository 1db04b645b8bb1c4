//! A list as a line of JSON, byte for byte as `serde_json` writes it. `shunt ss --json --watch` writes many, beside
//! programs that are to be disturbed as little as can be: this takes a third of the instructions.

use std::net::SocketAddr;

use super::List;
use super::connection::{Calls, Connection, Counts, Process, Queue, Way};

/// What is written so far.
#[derive(Default)]
pub(super) struct Line(Vec<u8>);

impl Line {
    /// The line of a list, in the place of what is there.
    pub(super) fn write(&mut self, list: &List) -> serde_json::Result<&[u8]> {
        self.0.clear();
        self.text("{\"connections\":[");
        for (i, connection) in list.connections.iter().enumerate() {
            self.text(if i == 0 { "" } else { "," });
            self.connection(connection)?;
        }
        self.text("],\"listeners\":");
        serde_json::to_writer(&mut self.0, &list.listeners)?;
        self.text("}\n");
        Ok(&self.0)
    }

    fn connection(&mut self, connection: &Connection) -> serde_json::Result<()> {
        let Connection {
            local,
            peer,
            processes,
            path,
            reason,
            why,
            bytes,
            queue,
            age_seconds,
        } = connection;
        self.text("{\"local\":");
        self.address(local)?;
        self.text(",\"peer\":");
        self.address(peer)?;
        self.text(",\"processes\":[");
        for (i, process) in processes.iter().enumerate() {
            self.text(if i == 0 { "" } else { "," });
            self.process(process)?;
        }
        self.text("],\"path\":");
        self.string(Some(path))?;
        self.text(",\"reason\":");
        self.string(reason.as_deref())?;
        self.text(",\"why\":");
        self.string(*why)?;
        self.text(",\"bytes\":{\"to_client\":");
        self.way(bytes.to_client);
        self.text(",\"to_server\":");
        self.way(bytes.to_server);
        self.text("},\"queue\":");
        match queue {
            Some(Queue {
                to_client,
                to_server,
            }) => {
                self.count("{\"to_client\":", *to_client);
                self.count(",\"to_server\":", *to_server);
                self.text("}");
            }
            None => self.text("null"),
        }
        self.text(",\"age_seconds\":");
        self.number(*age_seconds);
        self.text("}");
        Ok(())
    }

    fn process(&mut self, process: &Process) -> serde_json::Result<()> {
        let Process {
            pid,
            comm,
            end,
            uid,
            reason,
            counts,
            container,
        } = process;
        self.text("{\"pid\":");
        self.number(*pid);
        self.text(",\"comm\":");
        self.string(Some(comm))?;
        self.text(",\"end\":");
        self.string(Some(end))?;
        self.text(",\"uid\":");
        self.number(*uid);
        self.text(",\"reason\":");
        self.string(reason.as_deref())?;
        self.text(",\"counts\":");
        match counts {
            Some(counts) => self.counts(counts),
            None => self.text("null"),
        }
        self.text(",\"container\":");
        self.string(container.as_deref())?;
        self.text("}");
        Ok(())
    }

    fn counts(&mut self, counts: &Counts) {
        let Counts {
            sent,
            received,
            sleeps,
            wakeups_sent,
            wakeups_received,
        } = counts;
        for (name, Calls { user, kernel }) in [("{\"sent\":", sent), (",\"received\":", received)] {
            self.text(name);
            self.count("{\"user\":", *user);
            self.count(",\"kernel\":", *kernel);
            self.text("}");
        }
        self.count(",\"sleeps\":", *sleeps);
        self.count(",\"wakeups_sent\":", *wakeups_sent);
        self.count(",\"wakeups_received\":", *wakeups_received);
        self.text("}");
    }

    fn way(&mut self, Way { ring, kernel }: Way) {
        self.count("{\"ring\":", ring);
        self.count(",\"kernel\":", kernel);
        self.text("}");
    }

    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn count(&mut self, name: &str, count: u64) {
        self.text(name);
        self.text(itoa::Buffer::new().format(count));
    }

    fn number(&mut self, number: Option<u32>) {
        match number {
            Some(number) => self.count("", number.into()),
            None => self.text("null"),
        }
    }

    fn string(&mut self, text: Option<&str>) -> serde_json::Result<()> {
        let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
        match text {
            Some(text) if text.bytes().all(is_plain) => {
                self.text("\"");
                self.text(text);
                self.text("\"");
                Ok(())
            }
            other => serde_json::to_writer(&mut self.0, &other),
        }
    }

    fn address(&mut self, address: &SocketAddr) -> serde_json::Result<()> {
        let SocketAddr::V4(address) = address else {
            return serde_json::to_writer(&mut self.0, address);
        };
        let [a, b, c, d] = address.ip().octets();
        self.count("\"", a.into());
        for octet in [b, c, d] {
            self.count(".", octet.into());
        }
        self.count(":", address.port().into());
        self.text("\"");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{detail, row};
    use super::super::connection::{connection, listener};
    use super::*;
    use shunt_abi::Reason;
    use shunt_abi::message::{FLAG_SHUNTED, Message};

    /// Lists of all kinds of connections: with and without each thing that may be missing, and with names of all kinds.
    fn lists() -> Vec<List> {
        let mut rows: Vec<Message> = Vec::new();
        for (flags, status) in [
            (FLAG_SHUNTED, 0),
            (0, Reason::PeerPlain as u8),
            (0, Reason::Requested as u8),
            (0, 200),
        ] {
            for pids in [[0, 0], [7, 0], [7, u32::MAX]] {
                for name in ["plain", "a\"b\\c", "\u{1}\n\u{7f}", "gr\u{fc}n", ""] {
                    let mut row = row();
                    (row.flags, row.status, row.pids) = (flags, status, pids);
                    row.peer_name[..name.len()].copy_from_slice(name.as_bytes());
                    row.bytes = [[0, u64::MAX], [10, 12_345_678_901]];
                    rows.push(row);
                    row.family = libc::AF_INET6 as u16;
                    row.addresses = [[0xfe; 16], [0; 16]];
                    row.set_container(0, b"0123456789ab\0\0\0\0");
                    rows.push(row);
                }
            }
        }
        let listeners = || rows.iter().take(2).map(listener).collect();
        let all = |detail| List {
            connections: rows.iter().map(|row| connection(row, detail)).collect(),
            listeners: listeners(),
        };
        let one = List {
            connections: vec![connection(&row(), Some(&detail()))],
            listeners: Vec::new(),
        };
        let none = List {
            connections: Vec::new(),
            listeners: listeners(),
        };
        vec![all(Some(&detail())), all(None), one, none]
    }

    #[test]
    fn a_line_is_what_serde_makes_of_a_list() {
        let mut line = Line::default();
        for list in lists() {
            let expected = serde_json::to_string(&list).unwrap() + "\n";
            let written = line.write(&list).unwrap();
            assert_eq!(std::str::from_utf8(written).unwrap(), expected);
        }
    }
}
