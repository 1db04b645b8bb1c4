//! Pairs of programs in containers of Docker's.
//!
//! ```text
//!            ┌───── host: shuntd --system, also clients ─────┐
//!            │          :PORT ──DNAT──> .3:PORT              │   two pairs of *pods*, networks with one
//!            └───┬────────────────┬──────────────────────────┘   cable each and the same addresses:
//!            10.78.0.2        10.78.0.3                              10.79.0.2 ══════ 10.79.0.3
//!             client           server ── a client in its network     10.79.0.2 ══════ 10.79.0.3
//! ```

use super::place::{self, Place};
use super::program::{PROGRAMS, Program};
use super::{ANY_PORT, LIMIT, Lab, MOST, is_wanted, share};
use crate::image::succeeds;
use crate::process::{Job, check, wait_until};
use crate::report::Report;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const CLIENT: &str = "10.78.0.2";
pub(super) const SERVER: &str = "10.78.0.3";
/// The host, where ports are published.
pub(super) const GATEWAY: &str = "10.78.0.1";
/// Seconds: what goes by TCP before connections are paired is little of what goes by them in this time, also beside
/// much other work.
const LONG: u32 = 8;
const LOOPBACK: &str = "127.0.0.1";
const POD: [&str; 2] = ["10.79.0.2", "10.79.0.3"];

/// What docs/containers.md advises where containers run as different users.
const POLICY: &str = "[policy]
cross_user = true

[[policy.rule]]
action = \"allow\"
user = [\"root\", \"nobody\", \"postgres\"]

[[policy.rule]]
action = \"deny\"
across = \"user\"
";

/// The tests in containers; of programs only those with such names.
pub(super) fn steps(report: &mut Report, only: &[String]) -> Result<()> {
    let Some(docker) = Docker::begin(report)? else {
        return Ok(());
    };
    if only.is_empty() {
        docker.echoes(report);
    }
    let list = "docker / the host's list";
    if is_wanted(list, only) {
        report.step(list, || docker.list());
    }
    for program in &PROGRAMS {
        for way in Way::ALL {
            let name = format!("docker / {} / {}", program.name, way.name());
            if is_wanted(&name, only) {
                report.step(&name, || {
                    docker.telling_waits(|| docker.serve(program, way))
                });
            }
        }
    }
    for program in &PROGRAMS {
        let name = format!("docker / {} / the same addresses twice", program.name);
        if is_wanted(&name, only) {
            report.step(&name, || {
                docker.telling_waits(|| docker.serve_twice(program))
            });
        }
    }
    docker.daemon.stop(Signal::TERM)?;
    Ok(())
}

/// A daemon, and a network for containers. They go in this order.
pub(super) struct Docker {
    pub(super) daemon: Job,
    network: Network,
    pub(super) lab: Lab,
}

impl Docker {
    /// `None`: there is no Docker, or no eBPF, which the report has.
    pub(super) fn begin(report: &mut Report) -> Result<Option<Self>> {
        if let Err(error) = place::prepare_image("docker") {
            report.skip("docker", &format!("{error:#}"));
            return Ok(None);
        }
        let lab = Lab::new("docker")?;
        fs::write(lab.config(), POLICY)?;
        let daemon = lab.daemon(Command::new("env"))?;
        if !daemon.output().contains("mirrored sequence numbers") {
            report.skip("docker", daemon.tail().trim());
            return Ok(None);
        }
        let network = Network::new("shunt-containers", "10.78.0.0/24")?;
        Ok(Some(Self {
            daemon,
            network,
            lab,
        }))
    }

    /// Options of a container that has such an address.
    pub(super) fn at(&self, address: &'static str) -> [&'static str; 4] {
        ["--network", self.network.0, "--ip", address]
    }

    /// What a test says, and how long shuntd was ready to run and had no processor meanwhile: until it has answered,
    /// connections stay on TCP.
    fn telling_waits(&self, test: impl FnOnce() -> Result<String>) -> Result<String> {
        let before = waited(self.daemon.pid())?;
        let result = test();
        let waited = waited(self.daemon.pid())?.saturating_sub(before);
        let waited = format!(
            "shuntd waited {:.1} s for a processor",
            waited.as_secs_f64()
        );
        match result {
            Ok(said) => Ok(format!("{said} ({waited})")),
            Err(error) => Err(error.context(waited)),
        }
    }

    /// The two ends of the test's own, which compare every byte, in each place.
    fn echoes(&self, report: &mut Report) {
        let lab = &self.lab;
        let (client, server) = (self.at(CLIENT), self.at(SERVER));
        let published = [&server[..], &["--publish", "10.78.0.1:8080:7000"]].concat();
        let read_only = [&server[..], &["--read-only", "--user", "65534"]].concat();
        let reader = [&client[..], &["--read-only", "--user", "65534"]].concat();
        let client = Place::Container(&client);
        let (far, port) = ((SERVER, 7000), (GATEWAY, 8080));
        let reader = Place::Container(&reader);
        for (name, client, server, to) in [
            ("docker / one network", client, &server[..], far),
            (
                "docker / host to published port",
                Place::Host,
                &published,
                port,
            ),
            ("docker / host to container", Place::Host, &server, far),
            ("docker / read-only, as nobody", reader, &read_only, far),
        ] {
            report.step(name, || {
                lab.pair("pair", client, Place::Container(server), to)
            });
        }
        // From the same bridge Docker translates nothing: its proxy accepts, and connects anew.
        report.step("docker / published port, relayed", || {
            let server = Place::Container(&published);
            lab.start("relayed", client, server, port, ANY_PORT)?
                .finish(0.0)
        });
        report.step("docker / one namespace", || {
            let name = Name::new("pair");
            let server = [&server[..], &["--name", &name.0]].concat();
            let shared = format!("container:{}", name.0);
            let client = ["--network", &shared];
            let (client, server) = (Place::Container(&client), Place::Container(&server));
            lab.pair("pair", client, server, (LOOPBACK, 7000))
        });
    }

    /// A program's loads and its check, all under Shunt.
    fn serve(&self, program: &Program, way: Way) -> Result<String> {
        let published = format!("{GATEWAY}:{0}:{0}", program.port);
        let options = [&self.at(SERVER)[..], &["--publish", &published]].concat();
        let (server, stats) = Server::under_shunt(&self.lab, "server", program, &options)?;
        let shared = format!("container:{}", server.name.0);
        let (bridge, own) = (self.at(CLIENT), ["--network", &shared]);
        let place = match way {
            Way::Bridge => Place::Container(&bridge),
            Way::Published | Way::Direct => Place::Host,
            Way::Shared => Place::Container(&own),
        };
        let client = Client::start(&self.lab, "client", program, place, way.address())?;
        let client = client.finish()?;
        Ok(format!("by ring: {client}, {}", server.finish(stats)?))
    }

    /// The same by two pairs at the same time that have the same addresses and ports.
    fn serve_twice(&self, program: &Program) -> Result<String> {
        let pods = [Pods::new("one")?, Pods::new("other")?];
        let mut pairs = Vec::new();
        for (pods, client, server) in [
            (&pods[0], "client", "server"),
            (&pods[1], "client2", "server2"),
        ] {
            let network = format!("container:{}", pods.names[1].0);
            let options = ["--network", &network];
            let (server, stats) = Server::under_shunt(&self.lab, server, program, &options)?;
            let network = format!("container:{}", pods.names[0].0);
            pairs.push((client, network, server, stats));
        }
        let mut clients = Vec::new();
        for (name, network, ..) in &pairs {
            let options = ["--network", network];
            let place = Place::Container(&options);
            clients.push(Client::start(&self.lab, name, program, place, POD[1])?);
        }
        let mut shares = Vec::new();
        for (client, (_, _, server, stats)) in clients.into_iter().zip(pairs) {
            let client = client.finish()?;
            shares.push(format!("by ring: {client}, {}", server.finish(stats)?));
        }
        Ok(shares.join("; "))
    }
}

/// How long a process's first thread has been ready to run without a processor (`/proc/PID/schedstat`).
fn waited(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanoseconds = text.split_whitespace().nth(1).context("no such figure")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

/// By which way a client asks a server in a container.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From another container of its network.
    Bridge,
    /// From the host, at a published port: the kernel translates the address.
    Published,
    /// From the host, at the container's own address.
    Direct,
    /// From another container that has the same network namespace.
    Shared,
}

impl Way {
    const ALL: [Self; 4] = [Self::Bridge, Self::Published, Self::Direct, Self::Shared];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bridge => "one network",
            Self::Published => "host to published port",
            Self::Direct => "host to container",
            Self::Shared => "one namespace",
        }
    }

    fn address(self) -> &'static str {
        match self {
            Self::Bridge | Self::Direct => SERVER,
            Self::Published => GATEWAY,
            Self::Shared => LOOPBACK,
        }
    }
}

/// A container's name. The container goes with it, whatever has become of the command that started it.
pub(super) struct Name(pub(super) String);

impl Name {
    pub(super) fn new(what: &str) -> Self {
        Self(format!("shunt-containers-{what}-{}", std::process::id()))
    }

    /// The process that it runs; `None`: none yet.
    fn pid(&self) -> Option<u32> {
        let output = Command::new("docker")
            .args(["inspect", "--format", "{{.State.Pid}}", &self.0])
            .output();
        let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
        text.trim().parse().ok().filter(|&pid| pid != 0)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        succeeds(&["rm", "--force", &self.0]);
    }
}

/// A server in a container, which is ready.
pub(super) struct Server {
    job: Job,
    pub(super) name: Name,
}

impl Server {
    /// One under Shunt. Its statistics are there when it has ended.
    pub(super) fn under_shunt(
        lab: &Lab,
        name: &str,
        program: &Program,
        options: &[&str],
    ) -> Result<(Self, PathBuf)> {
        let spawn = |place: Place, words: &[&str]| lab.spawn(name, place, words);
        Self::start(name, program, options, &[], spawn)
    }

    /// One without Shunt, run by such a command (`taskset`).
    pub(super) fn plain(
        lab: &Lab,
        name: &str,
        program: &Program,
        options: &[&str],
        runner: &[&str],
    ) -> Result<Self> {
        let spawn = |place: Place, words: &[&str]| {
            let job = lab.spawn_plain(name, place, words)?;
            Ok((job, ()))
        };
        let (server, ()) = Self::start(name, program, options, runner, spawn)?;
        Ok(server)
    }

    fn start<T>(
        name: &str,
        program: &Program,
        options: &[&str],
        runner: &[&str],
        spawn: impl FnOnce(Place, &[&str]) -> Result<(Job, T)>,
    ) -> Result<(Self, T)> {
        let name = Name::new(name);
        let options = [options, program.options, &["--name", &name.0]].concat();
        let port = format!("PORT={}", program.port);
        let words = ["env", &port, "sh", "-e", "-c", program.server];
        let words = [runner, &words].concat();
        let (job, rest) = spawn(Place::Container(&options), &words)?;
        let server = Self { job, name };
        server.prepare(program)?;
        Ok((server, rest))
    }

    /// Waits until it listens, and prepares it.
    fn prepare(&self, program: &Program) -> Result<()> {
        let mut pid = None;
        let wanted = format!(":{:04X} 00000000:0000 0A", program.port);
        let listens = || {
            pid = pid.or_else(|| self.name.pid());
            let table = pid.map(|pid| format!("/proc/{pid}/net/tcp"));
            let table = table.and_then(|table| fs::read_to_string(table).ok());
            table.is_some_and(|table| table.contains(&wanted))
        };
        ensure!(
            wait_until(LIMIT, listens),
            "no {}: {}",
            program.name,
            self.job.tail()
        );
        let Some(script) = program.prepare else {
            return Ok(());
        };
        let variables = environment(LOOPBACK, program.port);
        let mut command = Command::new("docker");
        command.args(["exec", "--env", "LD_PRELOAD=", &self.name.0, "env"]);
        let output = command
            .args(&variables)
            .args(["sh", "-e", "-c", script])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", program.name);
        Ok(())
    }

    /// Ends it; the share of its bytes by ring.
    fn finish(self, stats: PathBuf) -> Result<String> {
        self.job.stop(Signal::TERM)?;
        share("server", &stats, MOST)
    }
}

/// How long a load is that takes a time, as the shell's variable.
pub(super) fn lasting(seconds: u32) -> String {
    format!("SECONDS_LONG={seconds}")
}

/// The address and the port that a client is to ask, as the shell's variables.
pub(super) fn environment(address: &str, port: u16) -> [String; 2] {
    [format!("ADDRESS={address}"), format!("PORT={port}")]
}

/// A client under Shunt.
struct Client {
    job: Job,
    stats: PathBuf,
}

impl Client {
    /// Starts all loads of a program, and its check, one after the other.
    fn start(
        lab: &Lab,
        name: &str,
        program: &Program,
        place: Place,
        address: &str,
    ) -> Result<Self> {
        let [address, port] = environment(address, program.port);
        let loads = program.loads.iter().map(|load| load.client);
        let script: Vec<&str> = loads.chain([program.check]).collect();
        let script = script.join("\n");
        let time = lasting(LONG);
        let words = ["env", &address, &port, &time, "sh", "-e", "-c", &script];
        let words = [&words[..], &[program.source]].concat();
        let (job, stats) = lab.spawn(name, place, &words)?;
        Ok(Self { job, stats })
    }

    /// Waits until it is done; the share of its bytes by ring.
    fn finish(mut self) -> Result<String> {
        let status = self.job.wait(LIMIT, &[])?;
        ensure!(status.success(), "{status}\n{}", self.job.tail());
        share("client", &self.stats, MOST)
    }
}

/// Two networks of containers, connected by one cable: a client's and a server's.
struct Pods {
    names: [Name; 2],
}

impl Pods {
    fn new(what: &str) -> Result<Self> {
        let names = ["client", "server"].map(|end| Name::new(&format!("{what}-{end}")));
        let mut pids = Vec::new();
        for name in &names {
            let options = ["--detach", "--network", "none", "--name", &name.0];
            let mut command = Place::Container(&options).plain();
            let output = command.args(["sleep", "infinity"]).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{said}");
            pids.push(name.pid().context("a container that has no process")?);
        }
        check(&mut shell(&format!(
            "ip link add eth0 netns {} type veth peer name eth0 netns {}",
            pids[0], pids[1]
        )))?;
        for (pid, address) in pids.into_iter().zip(POD) {
            check(&mut shell(&format!(
                "nsenter --net=/proc/{pid}/ns/net sh -e -c '
                    ip addr add {address}/24 dev eth0
                    ip link set eth0 up'"
            )))?;
        }
        Ok(Self { names })
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", script]);
    command
}

/// A network of Docker's, as long as this lives.
struct Network(&'static str);

impl Network {
    fn new(name: &'static str, subnet: &str) -> Result<Self> {
        let mut command = Command::new("docker");
        let output = command
            .args(["network", "create", "--subnet", subnet, name])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        // One that an interrupted run has left serves as well.
        ensure!(
            output.status.success() || said.contains("already exists"),
            "{said}"
        );
        Ok(Self(name))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        succeeds(&["network", "rm", self.0]);
    }
}
