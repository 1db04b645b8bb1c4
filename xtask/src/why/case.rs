//! The cases, and where their programs run.

use crate::build::artifact;
use crate::process::{Job, check, wait_until};
use anyhow::{Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Both ends of one connection.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// The words that start each end, but those that say what it does.
    pub(super) server: &'static [&'static str],
    pub(super) client: &'static [&'static str],
    /// What the client does.
    pub(super) how: &'static str,
    world: World,
    /// What `shunt why` is asked about.
    pub(super) about: About,
    /// What it says.
    pub(super) said: &'static [&'static str],
    /// A command that succeeds where the case can be tried, and what is missing elsewhere.
    pub(super) needs: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy)]
pub(super) enum About {
    Connection,
    Server,
}

#[derive(Clone, Copy, PartialEq)]
enum World {
    /// This network namespace, with its daemon.
    Here,
    /// The server in another network namespace.
    Apart,
    /// No daemon answers.
    Alone,
    /// A network namespace whose daemon denies everything.
    Denied,
    /// A network namespace in which only a daemon of another version answers.
    Older,
}

impl World {
    /// Whether it has a network namespace of its own.
    fn has_namespace(self) -> bool {
        matches!(self, Self::Apart | Self::Denied | Self::Older)
    }
}

const RUN: &[&str] = &["shunt", "run", "--", "peer"];
const ROOT: Option<(&str, &str)> = Some(("test $(id -u) = 0", "only root makes set-id programs"));
const NETNS: Option<(&str, &str)> = Some(("unshare --net true", "no network namespaces"));
const RING: &str = "python3 -c 'import ctypes; b = (ctypes.c_uint * 30)(0, 0, 2); \
                    raise SystemExit(ctypes.CDLL(None).syscall(425, 8, b) < 0)'";

/// A connection of two programs under Shunt.
pub(super) const BOTH: Case = Case {
    name: "",
    server: RUN,
    client: RUN,
    how: "lines",
    world: World::Here,
    about: About::Connection,
    said: &[],
    needs: None,
};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "shared memory",
        said: &["Its bytes move through shared memory"],
        ..BOTH
    },
    Case {
        name: "plain client",
        client: &["peer"],
        said: &[
            "which has the other end, does not run under Shunt",
            "-> start it by `shunt run`",
        ],
        ..BOTH
    },
    Case {
        name: "plain server",
        server: &["peer"],
        said: &[
            "which has the other end, does not run under Shunt",
            "-> start it by `shunt run`",
        ],
        ..BOTH
    },
    Case {
        name: "static",
        client: &["shunt", "run", "--", "peer-static"],
        said: &["which has the other end, is statically linked"],
        ..BOTH
    },
    Case {
        name: "Go",
        // A stand-in, which would load the library.
        client: &["peer-go"],
        said: &["which has the other end, is a Go program"],
        ..BOTH
    },
    Case {
        name: "setuid",
        client: &["setpriv", "--reuid=65534", "--clear-groups", "peer-setuid"],
        said: &["which has the other end, was started with more rights than its user has"],
        needs: ROOT,
        ..BOTH
    },
    Case {
        name: "policy",
        world: World::Denied,
        said: &["POLICY: ", "-> see shunt.toml(5)"],
        needs: NETNS,
        ..BOTH
    },
    Case {
        name: "other namespace",
        world: World::Apart,
        said: &["OTHER_NAMESPACE: ", "-> let root run `shuntd --system`"],
        needs: NETNS,
        ..BOTH
    },
    Case {
        name: "stdio",
        how: "stdio",
        said: &["STDIO: "],
        ..BOTH
    },
    Case {
        name: "io_uring",
        how: "ring",
        said: &["IO_URING: ", "-> `shunt run --io-uring=deny`"],
        needs: Some((RING, "io_uring is refused")),
        ..BOTH
    },
    Case {
        name: "out of memory",
        how: "memory",
        said: &["NO_RESOURCES: ", "-> raise the limits of memory"],
        ..BOTH
    },
    Case {
        name: "kernel TLS",
        how: "tls",
        said: &["SOCKET_OPTION: "],
        ..BOTH
    },
    Case {
        name: "not yet",
        how: "few",
        said: &["PENDING: ", "-> wait: "],
        ..BOTH
    },
    Case {
        name: "no daemon",
        world: World::Alone,
        said: &["runs under Shunt.", "no shuntd answers at /nonexistent"],
        ..BOTH
    },
    Case {
        name: "daemon of another version",
        world: World::Older,
        about: About::Server,
        said: &[
            "runs under Shunt.",
            "speaks version 7, this is version ",
            ": restart it",
        ],
        needs: NETNS,
        ..BOTH
    },
];

/// Where a case is tried.
pub(super) struct Place {
    world: World,
    /// Who keeps another network namespace.
    holder: Option<Job>,
    /// The daemon of another version.
    _older: Option<Job>,
    /// Where a user's own configuration is.
    configuration: PathBuf,
}

const PATIENCE: Duration = Duration::from_secs(15);
/// Listens where a daemon of this version would, and welcomes whoever comes as one of another: a message begins with
/// its kind and the version.
const OLDER: &str = "
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind('\\0' + sys.argv[1])
s.listen()
print('ready', flush=True)
while True:
    client = s.accept()[0]
    hello = client.recv(4096)
    client.send(struct.pack('HH', 2, 7) + hello[4:])
    client.close()
";

impl Place {
    pub(super) fn new(case: &Case, directory: &Path) -> Result<Self> {
        let mut place = Self {
            world: case.world,
            holder: None,
            _older: None,
            configuration: directory.join("config"),
        };
        if case.world == World::Denied {
            let directory = place.configuration.join("shunt");
            fs::create_dir_all(&directory)?;
            let rule = "[[policy.rule]]\naction = \"deny\"\n";
            fs::write(directory.join("shunt.toml"), rule)?;
        }
        if case.world.has_namespace() {
            place.holder = Some(namespace(directory)?);
        }
        if case.world == World::Apart {
            let pid = place.holder.as_ref().map_or(0, Job::pid);
            script(&format!(
                "ip link add shunt-why type veth peer name eth0 netns {pid}
                 ip addr add 10.77.0.1/24 dev shunt-why
                 ip link set shunt-why up
                 nsenter --net=/proc/{pid}/ns/net sh -e -c '
                     ip addr add 10.77.0.2/24 dev eth0; ip link set eth0 up'"
            ))?;
        }
        if case.world == World::Older {
            let mut command = place.enter(true);
            let user = rustix::process::geteuid().as_raw();
            let name = shunt_abi::control_name(Some(user));
            let older = Job::spawn(
                "why-older",
                directory,
                command.args(["python3", "-c", OLDER, &name]),
            )?;
            if !wait_until(PATIENCE, || older.output().contains("ready")) {
                bail!("it does not listen:\n{}", older.tail());
            }
            place._older = Some(older);
        }
        Ok(place)
    }

    pub(super) fn address(&self) -> &'static str {
        match self.world {
            World::Apart => "10.77.0.2",
            _ => "127.0.0.1",
        }
    }

    /// What starts a program where an end is.
    fn enter(&self, server: bool) -> Command {
        let mut command = match &self.holder {
            Some(holder) if server || self.world != World::Apart => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{}/ns/net", holder.pid()));
                command
            }
            _ => Command::new("env"),
        };
        if self.world == World::Denied {
            command.env("XDG_CONFIG_HOME", &self.configuration);
        }
        if self.world == World::Alone {
            command.env("SHUNT_SOCKET", "/nonexistent/shunt");
        }
        command
    }

    /// The same with the words of an end.
    pub(super) fn command(&self, server: bool, words: Vec<PathBuf>) -> Command {
        let mut command = self.enter(server);
        if self.world == World::Older {
            // `shunt run` would start a daemon of this version.
            command.arg("env");
            let library = artifact("libshunt.so");
            command.arg(format!("LD_PRELOAD={}", library.display()));
            command.args(words.last());
        } else {
            command.args(words);
        }
        command
    }

    /// The command that is asked, where the client is.
    pub(super) fn shunt(&self) -> Command {
        let mut command = self.enter(false);
        command.arg(artifact("shunt"));
        command
    }
}

/// A network namespace with a loopback device.
fn namespace(directory: &Path) -> Result<Job> {
    let mut command = Command::new("unshare");
    let holder = Job::spawn(
        "why-place",
        directory,
        command.args(["--net", "sleep", "100"]),
    )?;
    let id = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let pid = holder.pid().to_string();
    if !wait_until(PATIENCE, || id(&pid) != id("self")) {
        bail!("no network namespace: {}", holder.tail());
    }
    script(&format!(
        "nsenter --net=/proc/{pid}/ns/net ip link set lo up"
    ))?;
    Ok(holder)
}

fn script(text: &str) -> Result<()> {
    check(Command::new("sh").args(["-e", "-c", text]))
}
