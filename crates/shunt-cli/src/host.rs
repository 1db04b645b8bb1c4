//! `shunt host`: the key that hosts share, the other hosts that the host's shuntd knows, and whether one of them answers.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde::Serialize;
use shunt_abi::Reason;
use shunt_abi::message::Message;

use crate::control::Control;
use crate::ss::connection::end;
use crate::{Json, locate};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Make a file with a new key, to be copied to each host
    ///
    /// Only its owner can read it. A file that exists is left as it is.
    Key {
        /// The file, such as /etc/shunt/hosts.key
        file: PathBuf,
    },
    /// List the other hosts that the host's shuntd has looked for (root only)
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Call the shuntd of another host, and say whether it answers with the same key (root only)
    ///
    /// Exit status: 1 if it does not.
    Check {
        /// Its address, as connections go to it
        address: IpAddr,
    },
}

/// Another host, as the daemon knows it.
#[derive(Debug, Serialize)]
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    /// Why connections there stay on TCP, as far as that is due to the host.
    pub(crate) reason: Option<String>,
    /// Connections whose other ends are looked for there.
    pub(crate) waiting: u32,
    /// Connections whose two ends have met.
    pub(crate) met: u32,
    /// For how long this is so.
    pub(crate) seconds: u64,
}

/// Does it.
pub(crate) fn host(what: What) -> Result<ExitCode> {
    match what {
        What::Key { file } => key(&file),
        What::List { json } => list(json.json),
        What::Check { address } => check(address),
    }
}

fn key(file: &Path) -> Result<ExitCode> {
    let name = file.display();
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(file);
    let mut made = made.with_context(|| format!("cannot make {name}"))?;
    let text = shunt_hosts::key::generate().context("the kernel has no random bytes")?;
    let written = made
        .write_all(text.as_bytes())
        .and_then(|()| made.sync_all());
    if let Err(error) = written {
        let _ = std::fs::remove_file(file);
        return Err(error).with_context(|| format!("cannot write {name}"));
    }
    crate::print(&format!(
        "{name}: a new key. Copy it to each host by a way that nobody else can read, and name it as `key` in \
         [hosts] of shunt.toml(5) there.\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What the host's daemon knows of other hosts; `None`: it talks to none.
pub(crate) fn collect() -> Result<Option<Vec<Host>>> {
    let daemon = Control::connect(true);
    let daemon =
        daemon.context("no `shuntd --system` answers, and only that talks to other hosts")?;
    daemon.greet("shunt-host")?;
    known(&daemon)
}

/// What a daemon that has let us in knows of other hosts; `None`: it talks to none.
pub(crate) fn known(daemon: &Control) -> Result<Option<Vec<Host>>> {
    let (rows, is_on) = daemon.hosts()?;
    Ok(is_on.then(|| rows.iter().map(of_row).collect()))
}

fn of_row(row: &Message) -> Host {
    Host {
        address: end(row, 0).ip(),
        reason: Reason::from_number(row.status).map(|reason| reason.name().to_owned()),
        waiting: row.slot,
        met: row.index,
        seconds: row.link,
    }
}

fn list(json: bool) -> Result<ExitCode> {
    let Some(hosts) = collect()? else {
        bail!("shuntd talks to no other hosts: see [hosts] in shunt.toml(5)");
    };
    if json {
        crate::print_json(&hosts)?;
    } else {
        crate::print(&table(&hosts))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(hosts: &[Host]) -> String {
    let mut text = String::new();
    let addresses: Vec<_> = hosts.iter().map(|host| host.address.to_string()).collect();
    let width = addresses
        .iter()
        .map(String::len)
        .fold("HOST".len(), usize::max);
    let _ = writeln!(
        text,
        "{:width$}  {:13} {:>7} {:>7}  SINCE",
        "HOST", "STATE", "WAITING", "MET"
    );
    for (host, address) in hosts.iter().zip(addresses) {
        let Host {
            reason,
            waiting,
            met,
            seconds,
            ..
        } = host;
        let state = reason.as_deref().unwrap_or("found");
        let _ = writeln!(
            text,
            "{address:width$}  {state:13} {waiting:>7} {met:>7}  {seconds} s"
        );
    }
    text
}

/// The daemon's program reads the configuration, and calls as the daemon does.
fn check(address: IpAddr) -> Result<ExitCode> {
    let program = locate::daemon().context("shuntd is neither beside shunt nor on PATH")?;
    let status = Command::new(&program)
        .arg("--reach")
        .arg(address.to_string())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_new_key_is_its_owners_alone_and_no_file_is_overwritten() {
        let file = std::env::temp_dir().join(format!("shunt-host-key-{}", std::process::id()));
        assert_eq!(key(&file).unwrap(), ExitCode::SUCCESS);
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read(&file).unwrap();
        assert!(shunt_hosts::Keys::parse(&text).is_ok());
        assert!(key(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), text);
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_host_is_a_line() {
        let host = |address: &str, reason: Option<Reason>| Host {
            address: address.parse().unwrap(),
            reason: reason.map(|reason| reason.name().to_owned()),
            waiting: 3,
            met: 0,
            seconds: 12,
        };
        let hosts = [
            host("10.1.0.2", None),
            host("fd00::1:2", Some(Reason::HostKey)),
        ];
        let text = table(&hosts);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "HOST       STATE         WAITING     MET  SINCE");
        assert_eq!(lines[1], "10.1.0.2   found               3       0  12 s");
        assert_eq!(lines[2], "fd00::1:2  HOST_KEY            3       0  12 s");
    }
}
