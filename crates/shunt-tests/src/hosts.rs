//! The two roles on two hosts, which are network namespaces: each has a `shuntd --system` of its own, and an emulated NIC for
//! each process (`SHUNT_WIRE`).
//!
//! ```text
//! client   10.79.1.1   veth   10.79.1.2   server
//! ```
//!
//! Both run on one kernel, whose eBPF programs would tell each daemon that the other end is on its own host; so the daemons go by
//! addresses. What a client connects to is the server's address (`DIFF_ADDRESS`). There is no IPv6: such cases fail natively, too, and are
//! skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::apart::enter;

/// So long the daemons may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
const SERVER: &str = "10.79.1.2";

const SCRIPT: &str = "
ip netns add \"$client\"
ip netns add \"$server\"
ip link add eth0 netns \"$client\" type veth peer name eth0 netns \"$server\"
for side in \"$client 10.79.1.1\" \"$server 10.79.1.2\"; do
    set -- $side
    ip -n $1 link set lo up
    ip -n $1 addr add $2/24 dev eth0
    ip -n $1 link set eth0 up
done";

/// Both hosts.
pub(crate) struct Hosts {
    /// The client's, the server's.
    names: [String; 2],
    /// Keys, devices, NICs, and where the daemons listen.
    directory: PathBuf,
    daemons: Vec<Child>,
}

impl Hosts {
    /// `shunt`: the daemon lies beside it.
    pub(crate) fn new(shunt: &Path) -> Result<Self> {
        let own = std::process::id();
        let directory = std::env::temp_dir().join(format!("shunt-hosts-{own}"));
        let port = directory.join("devices/rxe0/ports/1");
        fs::create_dir_all(&port)?;
        fs::create_dir_all(directory.join("nics"))?;
        fs::write(port.join("state"), "4: ACTIVE\n")?;
        fs::write(directory.join("devices/rxe0/node_type"), "1: CA\n")?;
        let key = directory.join("key");
        let made = Command::new(shunt).args(["host", "key"]).arg(&key).output();
        ensure!(
            made.context("cannot run shunt")?.status.success(),
            "no key for hosts"
        );
        let config = format!(
            "[hosts]\nkey = \"{}\"\nnetworks = [\"10.79.1.0/24\"]\n",
            key.display()
        );
        fs::write(directory.join("shunt.toml"), config)?;
        // From here on all of it goes with this.
        let mut hosts = Self {
            names: ["client", "server"].map(|role| format!("shunt-host-{role}-{own}")),
            directory,
            daemons: Vec::new(),
        };
        let mut script = Command::new("sh");
        let [client, server] = &hosts.names;
        script.args(["-e", "-c", SCRIPT]);
        let made = script.env("client", client).env("server", server).status();
        let made = made.context("cannot run sh")?;
        ensure!(made.success(), "no network namespaces: {made}");
        for host in 0..2 {
            hosts.start(shunt, host)?;
        }
        Ok(hosts)
    }

    fn start(&mut self, shunt: &Path, host: usize) -> Result<()> {
        let name = &self.names[host];
        let socket = self.socket(host);
        let mut command = enter(name, shunt.with_file_name("shuntd").as_os_str());
        command.args(["--system", "--by-addresses", "--name", name]);
        command
            .arg("--config")
            .arg(self.directory.join("shunt.toml"));
        command.arg("--devices").arg(self.directory.join("devices"));
        command.arg("--socket").arg(&socket);
        let daemon = command.spawn().context("cannot start shuntd")?;
        self.daemons.push(daemon);
        let deadline = Instant::now() + PATIENCE;
        while !socket.exists() {
            if Instant::now() > deadline {
                bail!("shuntd does not listen at {}", socket.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.directory.join(format!("{host}/socket"))
    }

    /// The same command on the host where its role is to run. Who is both has both ends on one.
    pub(crate) fn within(&self, role: &str, command: &Command) -> Command {
        let host = usize::from(role != "client");
        let mut within = enter(&self.names[host], command.get_program());
        within
            .args(command.get_args())
            .env("SHUNT_SOCKET", self.socket(host))
            .env("SHUNT_WIRE", self.directory.join("nics"))
            .env("DIFF_ADDRESS", SERVER);
        crate::apart::like(&mut within, command);
        within
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}
