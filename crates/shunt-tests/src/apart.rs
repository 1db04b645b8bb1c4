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

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::namespaces::{Daemon, Namespaces};

const TRANSLATION: &str = "
for side in \"$client\" \"$server\"; do
    nsenter --net=/run/netns/$side sh -e -c '
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
    _daemon: Daemon,
    namespaces: Namespaces,
    directory: PathBuf,
    socket: PathBuf,
}

impl Apart {
    /// `shunt`: the daemon lies beside it.
    pub(crate) fn new(shunt: &Path) -> Result<Self> {
        let namespaces = Namespaces::new("shunt-diff", "10.79.0")?;
        namespaces.set_up(TRANSLATION)?;
        let name = format!("shunt-diff-{}", std::process::id());
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&directory)?;
        let socket = directory.join("run/socket");
        let mut command = Command::new(shunt.with_file_name("shuntd"));
        command.args(["--system", "--config", "/dev/null", "--name", &name]);
        Ok(Self {
            _daemon: Daemon::start(command, &socket)?,
            namespaces,
            directory,
            socket,
        })
    }

    /// The same command where its role is to run.
    pub(crate) fn within(&self, role: &str, command: &Command) -> Command {
        let mut within = self.namespaces.within(role, command);
        within.env("SHUNT_SOCKET", &self.socket);
        within
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
