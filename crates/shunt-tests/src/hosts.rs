//! The two roles on two hosts, which are network namespaces: each has a `shuntd --system` of its own, and an emulated NIC for
//! each process (`SHUNT_WIRE`).
//!
//! ```text
//! client   10.79.1.1   veth   10.79.1.2   server
//! ```
//!
//! Both run on one kernel, whose eBPF programs would tell each daemon that the other end is on its own host; so the daemons go by
//! addresses. What a client connects to is the server's address (`DIFF_ADDRESS`). There is no IPv6, so cases run over IPv4 alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::namespaces::{Daemon, Namespaces};

const SERVER: &str = "10.79.1.2";

const WITHOUT_IPV6: &str = "
for host in \"$client\" \"$server\"; do
    ip netns exec \"$host\" sh -c 'all=/proc/sys/net/ipv6/conf/all/disable_ipv6; [ ! -e $all ] || echo 1 > $all'
done";

/// Cases in which a program takes all numbers of descriptors, those of the emulated NIC, too.
pub(crate) const TAKES_NUMBERS: &[&str] = &["all_numbers_taken"];

/// Both hosts.
pub(crate) struct Hosts {
    daemons: Vec<Daemon>,
    namespaces: Namespaces,
    directory: Directory,
}

/// Keys, devices, NICs, and where the daemons listen; it goes with this.
struct Directory(PathBuf);

impl Hosts {
    /// `shunt`: the daemon lies beside it.
    pub(crate) fn new(shunt: &Path) -> Result<Self> {
        let mut hosts = Self {
            daemons: Vec::new(),
            namespaces: Namespaces::new("shunt-host", "10.79.1")?,
            directory: Directory::new(shunt)?,
        };
        hosts.namespaces.set_up(WITHOUT_IPV6)?;
        for host in 0..2 {
            let command = hosts.daemon(shunt, host);
            let daemon = Daemon::start(command, &hosts.directory.socket(host))?;
            hosts.daemons.push(daemon);
        }
        Ok(hosts)
    }

    fn daemon(&self, shunt: &Path, host: usize) -> Command {
        let program = shunt.with_file_name("shuntd");
        let mut command = self.namespaces.enter(host, program.as_os_str());
        command.args(["--system", "--by-addresses", "--name"]);
        command.arg(self.namespaces.name(host));
        let Directory(directory) = &self.directory;
        command.arg("--config").arg(directory.join("shunt.toml"));
        command.arg("--devices").arg(directory.join("devices"));
        command
    }

    /// The same command on the host where its role is to run.
    pub(crate) fn within(&self, role: &str, command: &Command) -> Command {
        let host = Namespaces::place_of(role);
        let mut within = self.namespaces.within(role, command);
        within
            .env("SHUNT_SOCKET", self.directory.socket(host))
            .env("SHUNT_WIRE", self.directory.0.join("nics"))
            .env("DIFF_ADDRESS", SERVER);
        within
    }
}

impl Directory {
    fn new(shunt: &Path) -> Result<Self> {
        let name = format!("shunt-hosts-{}", std::process::id());
        let made = Self(std::env::temp_dir().join(name));
        let Self(directory) = &made;
        let port = directory.join("devices/rxe0/ports/1");
        fs::create_dir_all(&port)?;
        fs::create_dir_all(directory.join("nics"))?;
        fs::write(port.join("state"), "4: ACTIVE\n")?;
        fs::write(directory.join("devices/rxe0/node_type"), "1: CA\n")?;
        let key = directory.join("key");
        let output = Command::new(shunt).args(["host", "key"]).arg(&key).output();
        let output = output.context("cannot run shunt")?;
        ensure!(output.status.success(), "no key for hosts");
        let config = format!(
            "[hosts]\nkey = \"{}\"\nnetworks = [\"10.79.1.0/24\"]\nrdma = true\n",
            key.display()
        );
        fs::write(directory.join("shunt.toml"), config)?;
        Ok(made)
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.0.join(format!("{host}/socket"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
