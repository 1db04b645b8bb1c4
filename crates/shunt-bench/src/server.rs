//! Real servers: started, loaded by their usual load generators, stopped.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use shunt_harness::port::listens;

use crate::child::Watched;
use crate::process::cpu_of_families;
use crate::side::{Lab, Upgrade};
use crate::sys;

/// No server takes longer to start, and no load to end.
const LIMIT: Duration = Duration::from_secs(60);

/// How servers and load generators of one measurement are run.
pub(crate) struct Run<'a> {
    lab: &'a Lab,
    /// Where the statistics are, under Shunt.
    pub(crate) statistics: Option<PathBuf>,
    servers: Vec<Watched>,
    cores: [Option<usize>; 2],
    /// What ends the servers in good order.
    end: Signal,
    /// For servers that refuse to run as root.
    user: Option<&'static str>,
}

/// What a load has cost, and printed.
pub(crate) struct Load {
    pub(crate) printed: String,
    pub(crate) seconds: f64,
    /// Processor seconds of load generator (all of it) and servers (during the load).
    pub(crate) cpu: [f64; 2],
    /// Those of both that were spent outside the kernel.
    pub(crate) user: f64,
}

impl<'a> Run<'a> {
    pub(crate) fn new(lab: &'a Lab, shunted: bool, cores: [Option<usize>; 2], end: Signal) -> Self {
        Self {
            lab,
            statistics: shunted.then(|| lab.fresh("statistics")),
            servers: Vec::new(),
            cores,
            end,
            user: None,
        }
    }

    /// From now on as another user, if this one is root.
    pub(crate) fn become_user(&mut self, user: &'static str) {
        self.user = rustix::process::geteuid().is_root().then_some(user);
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn serve(&mut self, words: &[&str], port: u16) -> Result<()> {
        let mut server = self.start(words, self.cores[0])?;
        let until = Instant::now() + Duration::from_secs(20);
        while !listens(port) {
            sys::go_on()?;
            ensure!(
                server.is_alive(),
                "{} did not start{}",
                words[0],
                server.complaint()
            );
            ensure!(Instant::now() < until, "{} does not listen", words[0]);
            sleep(Duration::from_millis(5));
        }
        self.servers.push(server);
        Ok(())
    }

    /// Runs a load to its end.
    pub(crate) fn load(&self, words: &[&str]) -> Result<Load> {
        let (begin, children) = (Instant::now(), sys::cpu_of_children());
        let before = self.cpu_of_servers();
        let printed = self.start(words, self.cores[1])?.finish()?;
        let (now, servers) = (sys::cpu_of_children(), self.cpu_of_servers());
        let [all, user] = [0, 1].map(|n| now[n] - children[n]);
        Ok(Load {
            printed,
            seconds: begin.elapsed().as_secs_f64(),
            cpu: [all, servers[0] - before[0]],
            user: user + servers[1] - before[1],
        })
    }

    /// Stops the servers, so that they leave their statistics.
    pub(crate) fn stop(&mut self) -> Result<()> {
        for server in self.servers.drain(..).rev() {
            server.stop(self.end)?;
        }
        Ok(())
    }

    fn start(&self, words: &[&str], core: Option<usize>) -> Result<Watched> {
        let program = find(words[0]).with_context(|| format!("there is no {}", words[0]))?;
        let under = self.statistics.as_deref();
        let under = under.map(|file| (Upgrade::Adaptive, Some(file)));
        let mut command = self.lab.command(&program, under);
        command.args(&words[1..]);
        if let Some(user) = self.user {
            let inner = std::mem::replace(&mut command, Command::new("setpriv"));
            command.arg(format!("--reuid={user}"));
            command.arg(format!("--regid={user}"));
            // Another user's process forgets whose death was to end it.
            command.args(["--clear-groups", "--pdeathsig", "KILL", "--"]);
            command.arg(inner.get_program()).args(inner.get_args());
            command.env_remove("LD_PRELOAD");
        }
        command.current_dir(&self.lab.directory);
        if let Some(core) = core {
            sys::pin(&mut command, core);
        }
        Watched::start(words[0], &mut command, LIMIT)
    }

    fn cpu_of_servers(&self) -> [f64; 2] {
        let roots: Vec<u32> = self.servers.iter().map(Watched::id).collect();
        cpu_of_families(&roots)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // After an error: what a killed server has started might go on.
        let _ = self.stop();
    }
}

/// A program on `PATH`, or where servers lie.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let postgres = versions.flatten().map(|entry| entry.path().join("bin"));
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .chain(postgres)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// The number after a word in what a program printed.
pub(crate) fn number_after(printed: &str, word: &str) -> Result<f64> {
    let after = printed
        .split_once(word)
        .map(|(_, after)| after.trim_start());
    let digits: String = after
        .unwrap_or_default()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    match digits.parse() {
        Ok(number) => Ok(number),
        Err(_) => bail!("no number after {word:?} in {printed:?}"),
    }
}
