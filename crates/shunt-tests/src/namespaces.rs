//! Two network namespaces with a virtual cable between them, one for each role, and the daemons that serve who runs there.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The longest that a daemon may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

const SCRIPT: &str = "
ip netns add \"$client\"
ip netns add \"$server\"
ip link add eth0 netns \"$client\" type veth peer name eth0 netns \"$server\"
for side in \"$client $network.1\" \"$server $network.2\"; do
    set -- $side
    ip -n $1 link set lo up
    ip -n $1 addr add $2/24 dev eth0
    ip -n $1 link set eth0 up
done";

/// Both namespaces; they go with this.
pub(crate) struct Namespaces {
    /// The client's, the server's.
    names: [String; 2],
}

impl Namespaces {
    /// The client's has the first address of a network of 256, as `10.79.0`, the server's the second one.
    pub(crate) fn new(prefix: &str, network: &str) -> Result<Self> {
        let own = std::process::id();
        let namespaces = Self {
            names: ["client", "server"].map(|role| format!("{prefix}-{role}-{own}")),
        };
        namespaces.run(Command::new("sh").env("network", network), SCRIPT)?;
        Ok(namespaces)
    }

    /// Runs a script of `sh` that knows both by their names, `$client` and `$server`.
    pub(crate) fn set_up(&self, script: &str) -> Result<()> {
        self.run(&mut Command::new("sh"), script)
    }

    fn run(&self, sh: &mut Command, script: &str) -> Result<()> {
        let [client, server] = &self.names;
        let done = sh.args(["-e", "-c", script]);
        let done = done.env("client", client).env("server", server).status();
        let done = done.context("cannot run sh")?;
        ensure!(
            done.success(),
            "the network namespaces cannot be made: {done}"
        );
        Ok(())
    }

    /// Who is both roles has both ends where the server is.
    pub(crate) fn place_of(role: &str) -> usize {
        usize::from(role != "client")
    }

    /// The name of one.
    pub(crate) fn name(&self, place: usize) -> &str {
        &self.names[place]
    }

    /// A program in one of them.
    pub(crate) fn enter(&self, place: usize, program: &OsStr) -> Command {
        let mut within = Command::new("nsenter");
        let namespace = format!("--net=/run/netns/{}", self.names[place]);
        within.arg(namespace).arg(program);
        within
    }

    /// The same command where its role is to run.
    pub(crate) fn within(&self, role: &str, command: &Command) -> Command {
        let mut within = self.enter(Self::place_of(role), command.get_program());
        within.args(command.get_args());
        if let Some(directory) = command.get_current_dir() {
            within.current_dir(directory);
        }
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => within.env(key, value),
                None => within.env_remove(key),
            };
        }
        within
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A shuntd, which ends with this.
pub(crate) struct Daemon(Child);

impl Daemon {
    /// Starts it by a command, and waits until it listens at the socket file that this names.
    pub(crate) fn start(mut command: Command, socket: &Path) -> Result<Self> {
        command.arg("--socket").arg(socket);
        let daemon = Self(command.spawn().context("cannot start shuntd")?);
        let deadline = Instant::now() + PATIENCE;
        while !socket.exists() {
            if Instant::now() > deadline {
                bail!("shuntd does not listen at {}", socket.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
