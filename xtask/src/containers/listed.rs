//! What `shunt ss` says on the host.

use super::docker::{Docker, GATEWAY, Name, SERVER};
use super::place::Place;
use super::{LIMIT, Lab};
use crate::build::artifact;
use crate::process::wait_until;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::process::Command;

const CLIENT: &str = "10.78.0.2";
const PUBLISHED: u16 = 8080;

impl Lab {
    /// The connections of these ports, as `shunt ss` lists them where such a command runs.
    pub(super) fn rows(&self, mut command: Command, ports: &[u16]) -> Result<Vec<Value>> {
        let variable = format!("SHUNT_SOCKET={}", self.socket.display());
        let command = command.arg("env").arg(variable).arg(artifact("shunt"));
        let output = command.args(["ss", "--json"]).output()?;
        let list: Value = serde_json::from_slice(&output.stdout)?;
        let rows = list["connections"].as_array().cloned().unwrap_or_default();
        let is_wanted = |row: &Value| {
            let ends = [&row["local"], &row["peer"]];
            let mut ends = ends.into_iter().filter_map(Value::as_str);
            ends.any(|end| ports.iter().any(|port| end.ends_with(&format!(":{port}"))))
        };
        Ok(rows.into_iter().filter(is_wanted).collect())
    }
}

impl Docker {
    /// A connection in rings is one row with both containers; one that docker-proxy relays is two on TCP, each with the
    /// container of its end and a reason.
    pub(super) fn list(&self) -> Result<String> {
        let server_name = Name::new("listed-server");
        let publish = format!("{GATEWAY}:{PUBLISHED}:7000");
        let options = ["--publish", &publish, "--name", &server_name.0];
        let options = [&self.at(SERVER)[..], &options].concat();
        let (mut server, _) = self.lab.server("listed", Place::Container(&options), "2")?;
        let server_id = server_name.id()?;
        let shunted = self.listed(SERVER, 7000, |client, rows| {
            let [row] = rows else { return false };
            row["path"] == "shm" && containers(row) == [&*server_id, client]
        })?;
        let relayed = self.listed(GATEWAY, PUBLISHED, |client, rows| {
            let is_plain = |row: &&Value| {
                row["path"] == "tcp" && row["reason"] == "PEER_PLAIN" && row["why"].is_string()
            };
            let is_of = |id: &str| {
                rows.iter()
                    .filter(is_plain)
                    .any(|row| containers(row) == [id])
            };
            rows.len() == 2 && is_of(&server_id) && is_of(client)
        })?;
        let status = server.wait(LIMIT, &[])?;
        ensure!(status.success(), "{status}\n{}", server.tail());
        Ok(format!("{shunted} row in rings, {relayed} on TCP"))
    }

    /// Waits until the list is right about a client in a container that goes on meanwhile, whose number is told. How many
    /// rows it has.
    fn listed(
        &self,
        address: &str,
        port: u16,
        is_right: impl Fn(&str, &[Value]) -> bool,
    ) -> Result<usize> {
        let name = Name::new("listed-client");
        let options = [&self.at(CLIENT)[..], &["--name", &name.0]].concat();
        let port = port.to_string();
        let words = [address, &port, "listed", "/statistics/end"];
        let place = Place::Container(&options);
        let (mut client, stats) = self.lab.end("lasting", "listed", place, &words)?;
        let under_way = || client.output().contains("under way");
        ensure!(wait_until(LIMIT, under_way), "{}", client.tail());
        let id = name.id()?;
        let mut rows = Vec::new();
        let is_so = || {
            let host = Command::new("env");
            rows = self.lab.rows(host, &[7000, PUBLISHED]).unwrap_or_default();
            is_right(&id, &rows)
        };
        ensure!(wait_until(LIMIT, is_so), "listed: {rows:?}");
        fs::write(stats.with_file_name("end"), "")?;
        let status = client.wait(LIMIT, &[])?;
        ensure!(status.success(), "{status}\n{}", client.tail());
        Ok(rows.len())
    }
}

/// The containers that a row names, the accepting end's first.
fn containers(row: &Value) -> Vec<&str> {
    let processes = row["processes"].as_array();
    let processes = processes.into_iter().flatten();
    processes
        .filter_map(|process| process["container"].as_str())
        .collect()
}

impl Name {
    /// The number of the container as `docker ps` and `shunt ss` have it.
    fn id(&self) -> Result<String> {
        let output = Command::new("docker")
            .args(["inspect", "--format", "{{.Id}}", &self.0])
            .output()?;
        let id = String::from_utf8(output.stdout)?;
        Ok(id.get(..12).context("no such container")?.to_owned())
    }
}
