//! Where a program of a test runs: in network namespaces made here, or in containers of Docker's or podman's.

use super::podman;
use crate::build::artifact;
use crate::process::{Job, check, wait_until};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A network namespace, which a sleeping process keeps.
pub(super) struct Namespace {
    holder: Job,
}

impl Namespace {
    pub(super) fn new(name: &str, directory: &Path) -> Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let holder = Job::spawn(name, directory, &mut command)?;
        let id = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let pid = holder.pid().to_string();
        if !wait_until(Duration::from_secs(5), || id(&pid) != id("self")) {
            bail!("no network namespace: {}", holder.tail());
        }
        let namespace = Self { holder };
        namespace.run("ip link set lo up")?;
        Ok(namespace)
    }

    /// Runs a shell script in it.
    pub(super) fn run(&self, script: &str) -> Result<()> {
        let mut command = self.command();
        check(command.args(["sh", "-e", "-c", script]))
    }

    /// A process in it.
    pub(super) fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// What a command in it begins with.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.pid()));
        command
    }

    /// Connects it to a bridge of another one's by a pair of devices, `name` and `eth0`.
    pub(super) fn join(&self, host: &Self, bridge: &str, name: &str, address: &str) -> Result<()> {
        host.run(&format!(
            "ip link add {name} type veth peer name eth0 netns {}
             ip link set {name} master {bridge} up",
            self.holder.pid()
        ))?;
        let gateway = address.rsplit_once('.').context("an address")?.0;
        self.run(&format!(
            "ip addr add {address}/24 dev eth0
             ip link set eth0 up
             ip route add default via {gateway}.1"
        ))
    }
}

/// How a program is started.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// In a network namespace.
    Namespace(&'a Namespace),
    /// The same with PID, mount and user namespaces of its own; without `/proc` and `/dev/shm`, and
    /// nothing that could be written but where its statistics go. Its root is one of the host's users.
    Bare(&'a Namespace),
    /// On the host itself.
    Host,
    /// In a container of Docker's, started with these options besides those that `shunt container print` says.
    Container(&'a [&'a str]),
    /// In a container of podman's, started with these options and one that names Shunt's device.
    Podman(&'a [&'a str]),
}

impl Place<'_> {
    /// A program under Shunt, with this library, which finds the daemon at that socket, and with its
    /// statistics.
    pub(super) fn command(self, library: &Path, socket: &Path, stats: &Path) -> Result<Command> {
        let mut command = match self {
            Self::Namespace(namespace) => namespace.command(),
            Self::Bare(namespace) => bare(namespace, stats)?,
            Self::Host => Command::new("env"),
            Self::Container(options) => {
                let words = print("docker", socket)?;
                let words: Vec<&str> = words.split_whitespace().collect();
                return container("docker", &[&words[..], options].concat(), stats);
            }
            Self::Podman(options) => {
                let device = [podman::EVERYWHERE, &["--device", podman::DEVICE]].concat();
                return container("podman", &[&device[..], options].concat(), stats);
            }
        };
        let variable = |name, path: &Path| format!("{name}={}", path.display());
        command
            .arg("env")
            .arg(variable("LD_PRELOAD", library))
            .arg(variable("SHUNT_SOCKET", socket))
            .arg(variable("SHUNT_STATS", stats));
        Ok(command)
    }

    /// A program without Shunt.
    pub(super) fn plain(self) -> Command {
        match self {
            Self::Namespace(namespace) | Self::Bare(namespace) => namespace.command(),
            Self::Host => Command::new("env"),
            Self::Container(options) => {
                let mut command = image("docker");
                command.args(options).arg(IMAGE);
                command
            }
            Self::Podman(options) => {
                let mut command = image("podman");
                command.args(options).arg(IMAGE);
                command
            }
        }
    }
}

fn bare(namespace: &Namespace, stats: &Path) -> Result<Command> {
    // Mounts that are another user's come in one piece.
    const SCRIPT: &str = "mount --rbind / /mnt
        mount -o remount,bind,ro /mnt
        mount --rbind \"$0\" /mnt/\"$0\"
        mount -t tmpfs -o ro none /mnt/dev
        mount -t tmpfs -o ro none /mnt/proc
        exec chroot /mnt \"$@\"";
    const USER: &str = "100000";
    let mut command = namespace.command();
    command
        .args([
            "setpriv",
            "--reuid",
            USER,
            "--regid",
            USER,
            "--clear-groups",
        ])
        .args([
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
        ])
        .args(["--kill-child", "sh", "-e", "-c", SCRIPT])
        .arg(stats.parent().context("a directory")?);
    Ok(command)
}

/// The image's name: directories, and links into the host's `/usr`, which is mounted there.
const IMAGE: &str = "shunt-containers";

/// What `shunt container print` says for such a tool.
pub(super) fn print(tool: &str, socket: &Path) -> Result<String> {
    let output = Command::new(artifact("shunt"))
        .args(["container", "print", tool])
        .env("SHUNT_SOCKET", socket)
        .output()
        .context("run shunt")?;
    let words = String::from_utf8(output.stdout)?;
    if !output.status.success() || !output.stderr.is_empty() {
        bail!("shunt: {words}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(words)
}

/// A container with such options, the image's, and a directory for its statistics.
fn container(tool: &str, options: &[&str], stats: &Path) -> Result<Command> {
    let (directory, name) = (stats.parent().context("a directory")?, stats.file_name());
    let name = name.context("a name")?.display();
    let mut command = image(tool);
    command
        .arg("--volume")
        .arg(format!("{}:/statistics", directory.display()))
        .arg(format!("--env=SHUNT_STATS=/statistics/{name}"))
        .args(options)
        .arg(IMAGE);
    Ok(command)
}

/// What a command in a container begins with, before its own options and the image's name.
fn image(tool: &str) -> Command {
    let mut command = Command::new(tool);
    command.args(["run", "--rm", "--volume", "/usr:/usr:ro"]);
    command
}

/// Makes the image, unless it is there. `Err`: there is no such tool (Docker, podman), or it says why not.
pub(super) fn prepare_image(tool: &str) -> Result<()> {
    const SCRIPT: &str = "
        \"$1\" image inspect \"$0\" && exit
        at=$(mktemp -d)
        trap 'rm -r \"$at\"' EXIT
        mkdir -p \"$at\"/etc \"$at\"/proc \"$at\"/sys \"$at\"/dev \"$at\"/run \"$at\"/tmp \"$at\"/usr \"$at\"/var/lib
        for link in bin sbin lib lib64; do ln -s usr/$link \"$at\"/$link; done
        cp /etc/passwd /etc/group /etc/ld.so.cache \"$at\"/etc
        tar -C \"$at\" -c . | \"$1\" import - \"$0\"";
    let output = Command::new("sh")
        .args(["-e", "-c", SCRIPT, IMAGE, tool])
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{}", said.lines().last().unwrap_or("it says nothing"));
    }
    Ok(())
}
