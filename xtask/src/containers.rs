//! Programs in containers, and in network namespaces as containers have them, that talk through shared
//! memory: one `shuntd --system` serves them all by its socket file.
//!
//! ```text
//!            ┌─────────── host: shuntd --system ───────────┐
//!            │  bridge 10.77.0.1   :8080 ─DNAT─> .3:7000   │   a second bridge has the same
//!            └───┬──────────────┬──────────────────────────┘   addresses, for other namespaces
//!          10.77.0.2        10.77.0.3
//!           client           server
//! ```

mod change;
mod crowd;
mod docker;
mod hosts;
mod listed;
mod place;
mod podman;
mod program;
mod rates;

use crate::build::artifact;
use crate::process::{Job, reap_leftovers, wait_until};
use crate::report::Report;
use crate::stats::Stats;
use crate::test;
use anyhow::{Result, bail, ensure};
use place::{Namespace, Place};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const ECHO: &str = include_str!("containers/echo.py");
/// Debian's own, as images made of the host's `/usr` have it.
const PYTHON: &str = "/usr/bin/python3";
/// How many messages of 1,000 bytes are sent: those that go by TCP before a connection has shown
/// that it will live are no more than some in a thousand.
const MESSAGES: &str = "20000";
/// The least share of bytes by ring where nothing keeps a connection from it.
const MOST: f64 = 0.99;
/// The kernel's choice.
const ANY_PORT: &str = "0";
/// The longest that a pair may take, also where ten other programs want each core.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only in network namespaces, not in containers
    #[arg(long, conflicts_with = "rates")]
    namespaces: bool,
    /// Only programs in containers, and of these only such tests or loads as have one of these words in their names
    #[arg(long, value_delimiter = ',', conflicts_with = "namespaces")]
    only: Vec<String>,
    #[command(flatten)]
    rates: rates::Rates,
}

/// The task.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.rates.rates {
        let done = rates::run(&options.rates, &options.only);
        reap_leftovers();
        return done.map(|()| true);
    }
    let mut report = Report::new();
    if options.only.is_empty() {
        steps(&mut report)?;
    }
    if !options.namespaces {
        docker::steps(&mut report, &options.only)?;
        podman::steps(&mut report, &options.only)?;
    }
    reap_leftovers();
    Ok(report.finish())
}

/// Runs a command in the network namespace of a host. It is given two processes: in the namespace of the first one are
/// servers, at 10.77.0.3 and, translated, at 10.77.0.1; and in that of the second one clients.
pub(crate) fn between<T>(run: impl FnOnce(Command, [u32; 2]) -> Result<T>) -> Result<T> {
    let lab = Lab::new("between")?;
    let net = Net::new(&lab.directory)?;
    net.host.run(
        "nft add rule ip test arriving ip daddr 10.77.0.1 tcp dport 9000-65535 dnat to 10.77.0.3",
    )?;
    run(net.host.command(), [net.server.pid(), net.client.pid()])
}

/// Pairs in network namespaces.
pub(crate) fn steps(report: &mut Report) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        report.skip("namespaces", "shuntd --system needs root");
        return Ok(());
    }
    let lab = Lab::new("namespaces")?;
    if let Err(error) = Namespace::new("first", &lab.directory) {
        report.skip("namespaces", &format!("{error:#}"));
        return Ok(());
    }
    let mut made = None;
    report.step("namespaces / network", || {
        made = Some(Net::new(&lab.directory)?);
        Ok(String::new())
    });
    let Some(net) = made else {
        return Ok(());
    };
    let daemon = lab.daemon(net.host.command())?;
    if !daemon.output().contains("mirrored sequence numbers") {
        report.skip("namespaces", daemon.tail().trim());
        return Ok(());
    }
    let [client, server] = [&net.client, &net.server].map(Place::Namespace);
    let host = Place::Namespace(&net.host);
    let bare = [&net.client, &net.server].map(Place::Bare);
    let far = ("10.77.0.3", 7000);
    let published = ("10.77.0.1", 8080);
    for (name, [client, server], to) in [
        ("namespaces / one bridge", [client, server], far),
        ("namespaces / published port", [client, server], published),
        (
            "namespaces / host to published port",
            [host, server],
            published,
        ),
        ("namespaces / host to namespace", [host, server], far),
        ("namespaces / one namespace", [server, server], far),
        ("namespaces / bare", bare, far),
        ("namespaces / bare, published port", bare, published),
    ] {
        report.step(name, || lab.pair("pair", client, server, to));
    }
    report.step("namespaces / the same addresses twice", || {
        let [client, server] = [&net.other_client, &net.other_server].map(Place::Namespace);
        lab.two_pairs([
            [Place::Namespace(&net.client), Place::Namespace(&net.server)],
            [client, server],
        ])
    });
    report.step("namespaces / many threads at once", || {
        let [client, server] = [&net.client, &net.server].map(Place::Namespace);
        lab.crowd(client, server)
    });
    report.step("namespaces / handed on, and asleep in crowds", apart);
    report.step("namespaces / a new policy", || {
        lab.after_a_new_policy(&daemon, &net)
    });
    report.step(
        "namespaces / a server that had another shuntd before",
        || lab.after_a_restart(daemon, &net),
    );
    report.step("namespaces / the list of another shuntd", || {
        lab.list_after_a_restart(&net)
    });
    hosts::steps(report, &net);
    Ok(())
}

/// Cases of differential programs where a peer elsewhere must be acted for, or cannot be called, or where TCP takes less.
fn apart() -> Result<String> {
    const CASES: [(&str, &str); 6] = [
        ("journey", "execs"),
        ("journey", "passes"),
        ("uring", "moves"),
        ("fork_ends", "daemonised"),
        ("poll", "room_for_many"),
        ("sndbuf", "grown"),
    ];
    for (program, case) in CASES {
        let words = ["--each", "--apart", "--modes", "both"];
        let which = ["--filter", program, "--case", case];
        test::run_differential(&[words, which].concat())?;
    }
    Ok(format!("{} cases", CASES.len()))
}

/// Network namespaces, connected.
struct Net {
    host: Namespace,
    client: Namespace,
    server: Namespace,
    other_client: Namespace,
    other_server: Namespace,
}

impl Net {
    fn new(directory: &Path) -> Result<Self> {
        let new = |name| Namespace::new(name, directory);
        let net = Self {
            host: new("host")?,
            client: new("client")?,
            server: new("server")?,
            other_client: new("other-client")?,
            other_server: new("other-server")?,
        };
        net.host.run(
            "ip link add near type bridge
             ip addr add 10.77.0.1/24 dev near
             ip link set near up
             ip link add far type bridge
             ip link set far up
             echo 1 > /proc/sys/net/ipv4/ip_forward",
        )?;
        net.host.run(TRANSLATE)?;
        net.client.join(&net.host, "near", "client", "10.77.0.2")?;
        net.server.join(&net.host, "near", "server", "10.77.0.3")?;
        net.other_client
            .join(&net.host, "far", "client2", "10.77.0.2")?;
        net.other_server
            .join(&net.host, "far", "server2", "10.77.0.3")?;
        Ok(net)
    }
}

/// What Docker does for a published port: another destination, and another source for who is on the
/// same bridge.
const TRANSLATE: &str = "nft -f - <<'END'
table ip test {
    chain arriving {
        type nat hook prerouting priority dstnat;
        ip daddr 10.77.0.1 tcp dport 8080 dnat to 10.77.0.3:7000
    }
    chain own {
        type nat hook output priority -100;
        ip daddr 10.77.0.1 tcp dport 8080 dnat to 10.77.0.3:7000
    }
    chain leaving {
        type nat hook postrouting priority srcnat;
        ip saddr 10.77.0.0/24 ct status dnat masquerade
    }
}
END";

/// A directory of its own, and in it the library and the daemon's file.
struct Lab {
    directory: PathBuf,
    library: PathBuf,
    socket: PathBuf,
}

impl Lab {
    fn new(name: &str) -> Result<Self> {
        // Every user gets to it, and the address of the socket is short.
        let directory = PathBuf::from(format!("/tmp/shunt-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let library = directory.join("libshunt.so");
        fs::copy(artifact("libshunt.so"), &library)?;
        let socket = directory.join("run/socket");
        let lab = Self {
            directory,
            library,
            socket,
        };
        fs::write(lab.config(), "")?;
        Ok(lab)
    }

    /// The configuration of its daemons.
    fn config(&self) -> PathBuf {
        self.directory.join("shunt.toml")
    }

    /// Starts shuntd, and waits until it listens.
    fn daemon(&self, mut command: Command) -> Result<Job> {
        command
            .arg(artifact("shuntd"))
            .args(["--system", "--verbose", "--socket"])
            .arg(&self.socket)
            .arg("--config")
            .arg(self.config());
        let daemon = Job::spawn("shuntd", &self.directory, &mut command)?;
        let says_how = || daemon.output().contains("ends are paired by");
        ensure!(
            wait_until(Duration::from_secs(5), says_how),
            "{}",
            daemon.tail()
        );
        Ok(daemon)
    }

    /// A client and a server talk; both must have done so through rings.
    fn pair(&self, name: &str, client: Place, server: Place, to: (&str, u16)) -> Result<String> {
        self.start(name, client, server, to, ANY_PORT)?.finish(MOST)
    }

    /// Two pairs at the same time whose addresses and ports are the same.
    fn two_pairs(&self, pairs: [[Place; 2]; 2]) -> Result<String> {
        let (to, own) = (("10.77.0.3", 7000), "40000");
        let [one, other] = pairs;
        let one = self.start("one", one[0], one[1], to, own)?;
        let other = self.start("other", other[0], other[1], to, own)?;
        Ok(format!("{}; {}", one.finish(MOST)?, other.finish(MOST)?))
    }

    /// Starts a program without Shunt.
    fn spawn_plain(&self, name: &str, place: Place, words: &[&str]) -> Result<Job> {
        let mut command = place.plain();
        Job::spawn(name, &self.directory, command.args(words))
    }

    /// Starts a program under Shunt, and says where its statistics will be.
    fn spawn(&self, name: &str, place: Place, words: &[&str]) -> Result<(Job, PathBuf)> {
        let directory = self.directory.join(format!("{name}.stats"));
        let stats = directory.join("lines");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory)?;
        fs::write(&stats, "")?;
        // Whoever the program is there.
        open_to_all(&directory, 0o777)?;
        open_to_all(&stats, 0o666)?;
        let mut command = place.command(&self.library, &self.socket, &stats)?;
        command.args(words);
        Ok((Job::spawn(name, &self.directory, &mut command)?, stats))
    }

    /// A server goes on while another daemon takes the place of its own, and has one client before that and
    /// one after.
    fn after_a_restart(&self, daemon: Job, net: &Net) -> Result<String> {
        let [client, server] = [&net.client, &net.server].map(Place::Namespace);
        let (server, server_stats) = self.server("lasting", server, "2")?;
        let ask = || self.client("lasting", client, ("10.77.0.3", 7000), ANY_PORT);
        let (mut first, _) = ask()?;
        let status = first.wait(LIMIT, &[])?;
        ensure!(status.success(), "{status}\n{}", first.tail());
        daemon.stop(Signal::TERM)?;
        let daemon = self.daemon(net.host.command())?;
        let (second, second_stats) = ask()?;
        let pair = Pair {
            jobs: [second, server],
            stats: [second_stats, server_stats],
        };
        let shares = pair.finish(MOST)?;
        daemon.stop(Signal::TERM)?;
        Ok(shares)
    }

    fn start(
        &self,
        name: &str,
        client: Place,
        server: Place,
        to: (&str, u16),
        own_port: &str,
    ) -> Result<Pair> {
        let (server, server_stats) = self.server(name, server, "1")?;
        let (client, client_stats) = self.client(name, client, to, own_port)?;
        Ok(Pair {
            jobs: [client, server],
            stats: [client_stats, server_stats],
        })
    }

    /// Starts a server for `clients` clients, and waits until it listens.
    fn server(&self, name: &str, place: Place, clients: &str) -> Result<(Job, PathBuf)> {
        self.server_at(name, place, "7000", clients)
    }

    fn server_at(
        &self,
        name: &str,
        place: Place,
        port: &str,
        clients: &str,
    ) -> Result<(Job, PathBuf)> {
        self.listening("server", name, place, [port, name, clients])
    }

    /// Starts a server of such a role, and waits until it listens.
    fn listening(
        &self,
        role: &str,
        name: &str,
        place: Place,
        words: [&str; 3],
    ) -> Result<(Job, PathBuf)> {
        let (mut server, stats) = self.end(role, name, place, &words)?;
        let mut ended = false;
        let starts = || {
            ended = !matches!(server.finished(), Ok(None));
            ended || server.output().contains("listening")
        };
        let started = wait_until(LIMIT, starts) && !ended;
        ensure!(started, "no server: {}", server.tail());
        Ok((server, stats))
    }

    fn client(
        &self,
        name: &str,
        place: Place,
        (address, port): (&str, u16),
        own_port: &str,
    ) -> Result<(Job, PathBuf)> {
        let words = [address, &port.to_string(), name, MESSAGES, own_port];
        self.end("client", name, place, &words)
    }

    fn end(&self, role: &str, name: &str, place: Place, words: &[&str]) -> Result<(Job, PathBuf)> {
        let words = [&[PYTHON, "-c", ECHO, role], words].concat();
        self.spawn(&format!("{name}-{role}"), place, &words)
    }
}

fn open_to_all(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::env::var_os("XTASK_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Two programs at work.
struct Pair {
    /// The client, the server.
    jobs: [Job; 2],
    stats: [PathBuf; 2],
}

impl Pair {
    /// Waits for both, and looks whether at least such a share of their bytes has travelled by ring.
    fn finish(mut self, least: f64) -> Result<String> {
        let mut shares = Vec::new();
        for (job, stats) in self.jobs.iter_mut().zip(&self.stats) {
            let status = job.wait(LIMIT, &[])?;
            ensure!(
                status.success(),
                "{} ended with {status}\n{}",
                job.name,
                job.tail()
            );
            shares.push(share(&job.name, stats, least)?);
        }
        Ok(format!("by ring: {}", shares.join(", ")))
    }
}

/// Whether a name has one of these words in it, or there are none.
fn is_wanted(name: &str, only: &[String]) -> bool {
    only.is_empty() || only.iter().any(|word| name.contains(word.as_str()))
}

/// The share of a program's bytes that have travelled by ring; `Err`: it is less than it should be.
fn share(name: &str, stats: &Path, least: f64) -> Result<String> {
    let stats = Stats::read(stats)?;
    if stats.ring_share() < least {
        bail!("{name}: {}", stats.summary());
    }
    Ok(format!("{:.2} %", 100.0 * stats.ring_share()))
}
