//! One experiment: a server and its clients, each natively or under Shunt, in a
//! temporary directory, bounded in time.

mod daemon;
mod variant;

pub(crate) use shunt_harness::port::{free_port, free_ports, listens};
pub(crate) use variant::{Side, Variant};

use crate::build::artifact;
use crate::process::Job;
use crate::stats::Stats;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to listen: RabbitMQ needs ten seconds on two cores that others use as well.
const LIMIT: Duration = Duration::from_secs(60);

/// When connections are moved, if that was chosen for all experiments.
static UPGRADE: OnceLock<String> = OnceLock::new();

/// See the module.
pub(crate) struct Lab {
    pub(crate) variant: Variant,
    pub(crate) directory: PathBuf,
    /// How long shuntd lives into a load in [`Variant::Kill`].
    pub(crate) kill_after: Duration,
    upgrade: &'static str,
    /// Whom everyone runs as, if not as us.
    user: Option<&'static str>,
    server: Option<Job>,
    /// Servers beside the server, and the signals that end them.
    beside: Vec<(Job, Signal)>,
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
            user: None,
            server: None,
            beside: Vec::new(),
            clients: 0,
        })
    }

    /// Pairs connections at once instead of when they have shown that they live.
    pub(crate) fn eager(mut self) -> Self {
        self.upgrade = "eager";
        self
    }

    /// When connections are moved in all experiments from here on, whatever each would choose.
    pub(crate) fn set_upgrade(mode: String) {
        let _ = UPGRADE.set(mode);
    }

    /// Runs everyone as `user` if we are root: for servers that refuse root.
    /// They need not be able to reach our build directory.
    pub(crate) fn run_as(mut self, user: &'static str) -> Result<Self> {
        if rustix::process::geteuid().is_root() {
            for name in ["shunt", "shuntd", "libshunt.so"] {
                fs::copy(artifact(name), self.directory.join(name))
                    .with_context(|| format!("copy {name}"))?;
            }
            self.user = Some(user);
        }
        Ok(self)
    }

    fn statistics(&self, side: Side) -> PathBuf {
        self.directory.join(match side {
            Side::Server => "server.stats",
            Side::Client => "client.stats",
        })
    }

    /// The words before those of a program on this side: `shunt run` and its
    /// options, or none.
    pub(crate) fn runner(&self, side: Side) -> Vec<OsString> {
        if !self.variant.shunts(side) {
            return Vec::new();
        }
        let shunt = match self.user {
            Some(_) => self.directory.join("shunt"),
            None => artifact("shunt"),
        };
        vec![
            shunt.into(),
            "run".into(),
            format!(
                "--upgrade={}",
                UPGRADE.get().map_or(self.upgrade, String::as_str)
            )
            .into(),
            "--stats".into(),
            self.statistics(side).into(),
            "--".into(),
        ]
    }

    /// `side` says who runs it under Shunt; none: nobody does.
    fn command(&self, side: Option<Side>, words: &[&str]) -> Command {
        // A shell that runs us in the background makes its children ignore
        // SIGINT, which Python's servers need.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT");
        if let Some(user) = self.user {
            command
                .args(["setpriv", "--clear-groups"])
                .arg(format!("--reuid={user}"))
                .arg(format!("--regid={user}"))
                .arg("--");
        }
        command
            .args(side.map_or_else(Vec::new, |side| self.runner(side)))
            .args(words)
            .current_dir(&self.directory)
            .env("LC_ALL", "C.UTF-8");
        command
    }

    /// Starts the server and waits until it listens on `port`.
    pub(crate) fn serve(&mut self, port: u16, words: &[&str]) -> Result<()> {
        let command = self.command(Some(Side::Server), words);
        self.server = Some(self.listener("server", port, words[0], command)?);
        Ok(())
    }

    /// Starts one more server, on the given side, that ends by `signal`.
    pub(crate) fn serve_beside(
        &mut self,
        side: Side,
        port: u16,
        signal: Signal,
        words: &[&str],
    ) -> Result<()> {
        let name = format!("beside{}", self.beside.len() + 1);
        let command = self.command(Some(side), words);
        let job = self.listener(&name, port, words[0], command)?;
        self.beside.push((job, signal));
        Ok(())
    }

    fn listener(&self, name: &str, port: u16, program: &str, mut command: Command) -> Result<Job> {
        let mut job = Job::spawn(name, &self.directory, &mut command)?;
        let end = Instant::now() + LIMIT;
        while !listens(port) {
            if let Some(status) = job.finished()? {
                bail!("{program} did not start ({status})\n{}", job.tail());
            }
            if Instant::now() > end {
                job.wait(Duration::ZERO, &[])?;
            }
            sleep(Duration::from_millis(10));
        }
        Ok(job)
    }

    /// Runs what has to be done before, natively, and returns what it printed.
    pub(crate) fn prepare(&mut self, seconds: u64, words: &[&str]) -> Result<String> {
        self.start(None, words)?.1.finish(seconds, 0)
    }

    /// The server's process; 0 before there is one.
    pub(crate) fn server_pid(&self) -> u32 {
        self.server.as_ref().map_or(0, Job::pid)
    }

    /// Runs a client to its end and returns what it printed; it must succeed.
    pub(crate) fn client(&mut self, seconds: u64, words: &[&str]) -> Result<String> {
        self.client_as(Side::Client, seconds, words)
    }

    /// Like [`Self::client`], for one that stands on the given side.
    pub(crate) fn client_as(&mut self, side: Side, seconds: u64, words: &[&str]) -> Result<String> {
        let server = self.server_pid();
        self.start(Some(side), words)?.1.finish(seconds, server)
    }

    /// Like [`Self::client`], with something done while it runs.
    pub(crate) fn client_meanwhile(
        &mut self,
        seconds: u64,
        words: &[&str],
        action: fn(&Self) -> Result<()>,
    ) -> Result<String> {
        let (_, client) = self.start(Some(Side::Client), words)?;
        action(self)?;
        client.finish(seconds, self.server_pid())
    }

    /// Like [`Self::client`], for a load that must survive the end of shuntd.
    pub(crate) fn load(&mut self, seconds: u64, words: &[&str]) -> Result<String> {
        let (name, mut client) = self.start(Some(Side::Client), words)?;
        if self.variant == Variant::Kill {
            sleep(self.kill_after);
            if client.0.finished()?.is_some() {
                bail!(
                    "{name} was over before shuntd could be killed\n{}",
                    client.0.tail()
                );
            }
            daemon::kill()?;
        }
        client.finish(seconds, self.server_pid())
    }

    fn start(&mut self, side: Option<Side>, words: &[&str]) -> Result<(String, Running)> {
        self.clients += 1;
        let program = Path::new(words[0])
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let name = format!("client{}-{program}", self.clients);
        let job = Job::spawn(&name, &self.directory, &mut self.command(side, words))?;
        Ok((name, Running(job)))
    }

    /// Ends the server, which must go when asked to, and sums the statistics.
    pub(crate) fn finish(&mut self, signal: Signal) -> Result<Stats> {
        if let Some(server) = self.server.take() {
            server.stop(signal)?;
        }
        for (job, signal) in self.beside.drain(..) {
            job.stop(signal)?;
        }
        let mut stats = Stats::read(&self.statistics(Side::Server))?;
        if self.variant.shunts(Side::Server) && stats.processes == 0 {
            bail!("the server left no statistics");
        }
        stats += &self.finish_clients()?;
        Ok(stats)
    }

    /// Sums the statistics where there is no server.
    pub(crate) fn finish_clients(&self) -> Result<Stats> {
        let clients = Stats::read(&self.statistics(Side::Client))?;
        if self.variant.shunts(Side::Client) && clients.processes == 0 {
            bail!("the clients left no statistics");
        }
        Ok(clients)
    }

    /// What the server has written so far.
    pub(crate) fn server_output(&self) -> String {
        self.server.as_ref().map(Job::output).unwrap_or_default()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        drop(self.server.take());
        self.beside.clear();
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
