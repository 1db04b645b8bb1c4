//! The two roles in two network namespaces, with address translation at both: what the client connects to on its
//! own host is the server's. One `shuntd --system` serves both by its socket file.
//!
//! ```text
//! client   127.0.0.1:PORT ──DNAT──> 10.79.0.2   veth   10.79.0.2:PORT ──DNAT──> 127.0.0.1:PORT   server
//!          127.0.0.1      <─ masqueraded ─ 10.79.0.1   10.79.0.1 as the server sees it
//! ```
//!
//! IPv6 knows no such way to an address of the host's own, so there is none. A client finds no listener of its own there: such
//! cases fail natively, too, and are skipped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// So long the daemon may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

const SCRIPT: &str = "
ip netns add \"$client\"
ip netns add \"$server\"
ip link add eth0 netns \"$client\" type veth peer name eth0 netns \"$server\"
for side in \"$client 10.79.0.1\" \"$server 10.79.0.2\"; do
    set -- $side
    ip -n $1 link set lo up
    ip -n $1 addr add $2/24 dev eth0
    ip -n $1 link set eth0 up
    nsenter --net=/run/netns/$1 sh -e -c '
        echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
        echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6'
done
nsenter --net=/run/netns/$client nft -f - <<'END'
table ip apart {
    chain own {
        type nat hook output priority -100;
        ip daddr 127.0.0.1 meta l4proto tcp dnat to 10.79.0.2
    }
    chain leaving {
        type nat hook postrouting priority srcnat;
        oifname eth0 masquerade
    }
}
END
nsenter --net=/run/netns/$server nft -f - <<'END'
table ip apart {
    chain arriving {
        type nat hook prerouting priority dstnat;
        iifname eth0 meta l4proto tcp dnat to 127.0.0.1
    }
}
END";

/// Both namespaces, and the daemon.
pub(crate) struct Apart {
    /// The client's, the server's.
    names: [String; 2],
    socket: PathBuf,
    daemon: Child,
}

impl Apart {
    /// `shunt`: the daemon lies beside it.
    pub(crate) fn new(shunt: &Path) -> Result<Self> {
        let own = std::process::id();
        let names = ["client", "server"].map(|role| format!("shunt-diff-{role}-{own}"));
        let directory = std::env::temp_dir().join(format!("shunt-diff-{own}"));
        std::fs::create_dir_all(&directory)?;
        let socket = directory.join("run/socket");
        let mut script = Command::new("sh");
        script.args(["-e", "-c", SCRIPT]);
        let made = script.env("client", &names[0]).env("server", &names[1]);
        let made = made.status().context("cannot run sh")?;
        let mut command = Command::new(shunt.with_file_name("shuntd"));
        command.args(["--system", "--config", "/dev/null", "--name"]);
        command.arg(format!("shunt-diff-{own}"));
        command.arg("--socket").arg(&socket);
        let daemon = command.spawn().context("cannot start shuntd")?;
        // From here on all of it goes with this.
        let apart = Self {
            names,
            socket,
            daemon,
        };
        ensure!(made.success(), "no network namespaces with nft: {made}");
        let deadline = Instant::now() + PATIENCE;
        while !apart.socket.exists() {
            if Instant::now() > deadline {
                bail!("shuntd does not listen at {}", apart.socket.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(apart)
    }

    /// The same command where its role is to run. Who is both has both ends in one namespace.
    pub(crate) fn within(&self, role: &str, command: &Command) -> Command {
        let name = &self.names[usize::from(role != "client")];
        let mut within = enter(name, command.get_program());
        within
            .args(command.get_args())
            .env("SHUNT_SOCKET", &self.socket);
        like(&mut within, command);
        within
    }
}

/// A program in a namespace.
pub(crate) fn enter(name: &str, program: &OsStr) -> Command {
    let mut within = Command::new("nsenter");
    within.arg(format!("--net=/run/netns/{name}")).arg(program);
    within
}

/// Has it run where another command would, and with its environment.
pub(crate) fn like(within: &mut Command, command: &Command) {
    if let Some(directory) = command.get_current_dir() {
        within.current_dir(directory);
    }
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => within.env(key, value),
            None => within.env_remove(key),
        };
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        if let Some(directory) = self.socket.parent().and_then(Path::parent) {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}
