//! One experiment: a server and its clients, each natively or under Shunt, in a
//! temporary directory, bounded in time.

use crate::build::artifact;
use crate::process::{Job, comm, descendants, signal_pid};
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Who runs under Shunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Variant {
    /// Nobody.
    Native,
    /// Server and clients.
    Both,
    /// Only the clients.
    Client,
    /// Only the server.
    Server,
    /// Both, and shuntd is killed in the middle of each load.
    Kill,
}

impl Variant {
    pub(crate) const ALL: [Self; 5] = [
        Self::Native,
        Self::Both,
        Self::Client,
        Self::Server,
        Self::Kill,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Both => "both",
            Self::Client => "client",
            Self::Server => "server",
            Self::Kill => "kill",
        }
    }

    fn shunts(self, side: Side) -> bool {
        match side {
            Side::Server => matches!(self, Self::Both | Self::Server | Self::Kill),
            Side::Client => matches!(self, Self::Both | Self::Client | Self::Kill),
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Server,
    Client,
}

/// See the module.
pub(crate) struct Lab {
    pub(crate) variant: Variant,
    pub(crate) directory: PathBuf,
    /// How long shuntd lives into a load in [`Variant::Kill`].
    pub(crate) kill_after: Duration,
    upgrade: &'static str,
    server: Option<Job>,
    clients: u32,
}

impl Lab {
    pub(crate) fn new(variant: Variant) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("shunt-lab.{}.{number}", std::process::id()));
        fs::create_dir_all(&directory)
            .with_context(|| format!("create {}", directory.display()))?;
        // Servers that give up root must still reach their files.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        Ok(Self {
            variant,
            directory,
            kill_after: Duration::from_millis(500),
            upgrade: "adaptive",
            server: None,
            clients: 0,
        })
    }

    /// Pairs connections at once instead of when they have shown that they live.
    pub(crate) fn eager(mut self) -> Self {
        self.upgrade = "eager";
        self
    }

    fn statistics(&self, side: Side) -> PathBuf {
        self.directory.join(match side {
            Side::Server => "server.stats",
            Side::Client => "client.stats",
        })
    }

    fn command(&self, side: Side, words: &[&str]) -> Command {
        // A shell that runs us in the background makes its children ignore
        // SIGINT, which Python's servers need.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT");
        if self.variant.shunts(side) {
            command
                .arg(artifact("shunt"))
                .arg("run")
                .arg(format!("--upgrade={}", self.upgrade));
            command.arg("--stats").arg(self.statistics(side)).arg("--");
        }
        command
            .args(words)
            .current_dir(&self.directory)
            .env("LC_ALL", "C.UTF-8");
        command
    }

    /// Starts the server and waits until it listens on `port`.
    pub(crate) fn serve(&mut self, port: u16, words: &[&str]) -> Result<()> {
        let mut job = Job::spawn(
            "server",
            &self.directory,
            &mut self.command(Side::Server, words),
        )?;
        let end = Instant::now() + Duration::from_secs(20);
        while !listening(port) {
            if let Some(status) = job.finished()? {
                bail!("{} did not start ({status})\n{}", words[0], job.tail());
            }
            if Instant::now() > end {
                job.wait(Duration::ZERO, &[])?;
            }
            sleep(Duration::from_millis(10));
        }
        self.server = Some(job);
        Ok(())
    }

    /// The server's process; 0 before there is one.
    pub(crate) fn server_pid(&self) -> u32 {
        self.server.as_ref().map_or(0, Job::pid)
    }

    /// Runs a client to its end and returns what it printed; it must succeed.
    pub(crate) fn client(&mut self, seconds: u64, words: &[&str]) -> Result<String> {
        self.start_client(words)?
            .1
            .finish(seconds, self.server_pid())
    }

    /// Like [`Self::client`], for a load that must survive the end of shuntd.
    pub(crate) fn load(&mut self, seconds: u64, words: &[&str]) -> Result<String> {
        let (name, mut client) = self.start_client(words)?;
        if self.variant == Variant::Kill {
            sleep(self.kill_after);
            if client.0.finished()?.is_some() {
                bail!(
                    "{name} was over before shuntd could be killed\n{}",
                    client.0.tail()
                );
            }
            kill_daemon()?;
        }
        client.finish(seconds, self.server_pid())
    }

    fn start_client(&mut self, words: &[&str]) -> Result<(String, Running)> {
        self.clients += 1;
        let program = Path::new(words[0])
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let name = format!("client{}-{program}", self.clients);
        let job = Job::spawn(
            &name,
            &self.directory,
            &mut self.command(Side::Client, words),
        )?;
        Ok((name, Running(job)))
    }

    /// Ends the server, which must go when asked to, and sums the statistics.
    pub(crate) fn finish(&mut self, signal: Signal) -> Result<Stats> {
        if let Some(server) = self.server.take() {
            server.stop(signal)?;
        }
        let mut stats = Stats::read(&self.statistics(Side::Server))?;
        if self.variant.shunts(Side::Server) && stats.processes == 0 {
            bail!("the server left no statistics");
        }
        let clients = Stats::read(&self.statistics(Side::Client))?;
        if self.variant.shunts(Side::Client) && clients.processes == 0 {
            bail!("the clients left no statistics");
        }
        stats += &clients;
        Ok(stats)
    }

    /// What the server has written so far.
    pub(crate) fn server_output(&self) -> String {
        self.server.as_ref().map(Job::output).unwrap_or_default()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.server.take());
        if std::env::var_os("XTASK_KEEP").is_some() {
            println!("           kept {}", self.directory.display());
        } else {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

struct Running(Job);

impl Running {
    fn finish(mut self, seconds: u64, server: u32) -> Result<String> {
        let others: Vec<u32> = (server != 0).then_some(server).into_iter().collect();
        let status = self.0.wait(Duration::from_secs(seconds), &others)?;
        if !status.success() {
            bail!("{} failed ({status})\n{}", self.0.name, self.0.tail());
        }
        Ok(self.0.output())
    }
}

/// Kills the shuntd that our programs started; nobody else's.
fn kill_daemon() -> Result<()> {
    let Some(pid) = daemon() else {
        bail!("none of our processes is a shuntd: is another one serving this user?");
    };
    signal_pid(pid, Signal::KILL);
    let end = Instant::now() + Duration::from_secs(5);
    while daemon() == Some(pid) {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let _ = waitpid(raw, WaitOptions::NOHANG);
        if Instant::now() > end {
            bail!("shuntd {pid} did not die");
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The shuntd among our descendants (also one that made itself a daemon: we are
/// a subreaper).
pub(crate) fn daemon() -> Option<u32> {
    descendants(std::process::id())
        .into_iter()
        .find(|&pid| comm(pid) == "shuntd")
}

/// A port on which nobody listens.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether somebody listens, by the kernel's table (a probe by `connect` would
/// be a connection more).
pub(crate) fn listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .any(|table| {
            fs::read_to_string(table)
                .unwrap_or_default()
                .lines()
                .any(|line| {
                    let mut words = line.split_whitespace().skip(1);
                    words.next().is_some_and(|local| local.ends_with(&wanted))
                        && words.nth(1) == Some("0A")
                })
        })
}
