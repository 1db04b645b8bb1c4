//! Starts workers, kills some, listens to all, and compares what is left at the
//! end with what there was at the beginning.

use crate::random::Random;
use crate::system::checked;
use rustix::process::Signal;
use shunt_harness::process::{comm, descendants, signal};
use shunt_harness::stacks;
use shunt_harness::stats::Stats;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

mod adopted;
mod daemon;
mod footprint;
mod options;
mod report;
mod worker;

use daemon::Daemon;
use footprint::{Footprint, leaks};
pub(crate) use options::Options;
use worker::Worker;

/// How long a worker may take to end once it should.
const PATIENCE: Duration = Duration::from_secs(90);

struct Director<'a> {
    options: &'a Options,
    directory: PathBuf,
    random: Random,
    daemon: Option<Daemon>,
    workers: BTreeMap<u64, Worker>,
    next: u64,
    lines: Receiver<(u64, String)>,
    says: Sender<(u64, String)>,
    killed: BTreeSet<u32>,
    /// Of workers, and of shuntd.
    kills: u64,
    /// Of the user's shuntd.
    daemon_kills: u64,
    killed_client: bool,
    broken: u64,
    connections: u64,
    bytes: u64,
    started: u64,
    failures: Vec<String>,
}

/// The whole soak.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    // Daemons that outlive their parents become our children.
    // SAFETY: integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) })
        .map_err(|error| error.to_string())?;
    let directory = std::env::temp_dir().join(format!("shunt-soak.{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let (says, lines) = channel();
    let mut director = Director {
        options,
        directory: directory.clone(),
        random: Random::new(options.common.seed),
        daemon: options
            .system
            .as_ref()
            .map(|program| Daemon::new(program, &directory))
            .transpose()?,
        workers: BTreeMap::new(),
        next: 0,
        lines,
        says,
        killed: BTreeSet::new(),
        kills: 0,
        daemon_kills: 0,
        killed_client: false,
        broken: 0,
        connections: 0,
        bytes: 0,
        started: 0,
        failures: Vec::new(),
    };
    println!("seed {}", options.common.seed);
    let result = director.soak();
    let workers: Vec<u64> = director.workers.keys().copied().collect();
    for id in workers {
        director.kill(id);
    }
    drop(director.daemon.take());
    let stats = Stats::count(&directory.join("stats"));
    let _ = fs::remove_dir_all(&directory);
    if let Some(pid) = descendants(std::process::id())
        .into_iter()
        .find(|&pid| comm(pid) == "shuntd")
    {
        signal(pid, Signal::TERM);
    }
    let (begin, end) = result?;
    director.summary(&begin, &end, &stats)
}

impl Director<'_> {
    fn soak(&mut self) -> Result<(Footprint, Footprint), String> {
        // A short run brings shuntd to life; what it holds then is the beginning.
        self.start_server()?;
        self.until("the first server", |this| {
            this.workers.values().all(|worker| worker.pid != 0)
        })?;
        self.start_client(3)?;
        self.drain()?;
        sleep(Duration::from_secs(1));
        let begin = self.footprint();

        let start = Instant::now();
        let mut report = start + Duration::from_secs(10);
        let mut kill = start + Duration::from_secs(2);
        let mut restart = self.options.restarts.map(|every| start + every);
        let (shortest, longest) = if self.options.kills.is_some() {
            (50, 1500)
        } else {
            (100, 4000)
        };
        while start.elapsed() < self.options.common.time
            && self.options.kills.is_none_or(|kills| self.kills < kills)
            && self.failures.is_empty()
        {
            if let Some(daemon) = &mut self.daemon {
                daemon.start_if_due()?;
            }
            self.look()?;
            self.replace()?;
            let now = Instant::now();
            if now >= kill {
                self.kill_one()?;
                kill = now + Duration::from_millis(self.random.magnitude(shortest, longest));
            }
            if let (Some(due), Some(every)) = (&mut restart, self.options.restarts)
                && now >= *due
            {
                *due = now + every;
                self.kill_users_daemon();
            }
            if now >= report {
                report += Duration::from_secs(10);
                self.progress(start);
            }
            sleep(Duration::from_millis(20));
        }
        self.progress(start);
        if let Some(daemon) = &mut self.daemon {
            daemon.start()?;
        }
        if self.options.restarts.is_some() {
            // Its `shunt run` starts the shuntd that is compared with the one of the beginning.
            self.start_server()?;
        }
        if self.failures.is_empty() {
            self.drain()?;
        }
        // What ended must be cleaned up soon.
        let limit = Instant::now() + Duration::from_secs(10);
        let mut end = self.footprint();
        while Instant::now() < limit && leaks(&begin, &end, self.daemon_is_hosts()).is_some() {
            sleep(Duration::from_millis(200));
            end = self.footprint();
        }
        Ok((begin, end))
    }

    /// Keeps the numbers of servers and clients up; retires old servers.
    fn replace(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let fresh = self
            .workers
            .values()
            .filter(|worker| worker.server && worker.retires > now)
            .count();
        for _ in fresh..self.options.servers {
            self.start_server()?;
        }
        let clients = self
            .workers
            .values()
            .filter(|worker| !worker.server)
            .count();
        for _ in clients..self.options.clients {
            let count = 4 + self.random.below(24);
            self.start_client(count)?;
        }
        for worker in self.workers.values_mut() {
            if worker.server
                && worker.retires <= now
                && worker.users == 0
                && worker.pid != 0
                && worker.stdin.is_some()
            {
                worker.stdin = None;
                worker.due = Some(now + PATIENCE);
            }
        }
        Ok(())
    }

    /// Hears what workers say and notices who has ended.
    fn look(&mut self) -> Result<(), String> {
        while let Ok((id, line)) = self.lines.try_recv() {
            self.hear(id, &line);
        }
        let mut ended: Vec<(u64, ExitStatus)> = Vec::new();
        let mut late = Vec::new();
        for (&id, worker) in &mut self.workers {
            match worker.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) => ended.push((id, status)),
                None if worker.due.is_some_and(|due| Instant::now() > due) => late.push(id),
                None => {}
            }
        }
        for (id, status) in ended {
            // Its last lines may still be under way; they are heard later by number.
            sleep(Duration::from_millis(1));
            while let Ok((id, line)) = self.lines.try_recv() {
                self.hear(id, &line);
            }
            self.gone(id, Some(status));
        }
        for id in late {
            if let Some(worker) = self.workers.get(&id) {
                let kind = if worker.server { "server" } else { "client" };
                self.failures
                    .push(format!("{kind} {} did not end in time", worker.pid));
                println!("{}", stacks::of(&[worker.pid]));
            }
            self.kill(id);
        }
        Ok(())
    }

    fn hear(&mut self, id: u64, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (kind, pid) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (pid, rest): (u64, &str) = (pid.parse().unwrap_or(0), words.next().unwrap_or(""));
        let peer = u32::try_from(pid).unwrap_or(0);
        let speaker = self.workers.get(&id).map_or(0, |worker| worker.pid);
        match kind {
            "HELLO" => {
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.pid = peer;
                    worker.ports = rest
                        .split(' ')
                        .filter_map(|word| word.parse().ok())
                        .collect();
                }
            }
            "TICK" => {
                let bytes = rest.parse().unwrap_or(0);
                if let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.server) {
                    self.connections += pid.saturating_sub(worker.connections);
                    self.bytes += u64::saturating_sub(bytes, worker.bytes);
                    (worker.connections, worker.bytes) = (pid, bytes);
                }
            }
            "BROKEN" => {
                self.broken += 1;
                let explained = self.killed.contains(&peer) || (peer == 0 && self.killed_client);
                if !explained {
                    self.fail(format!("{speaker} lost living {peer}: {rest}"));
                }
            }
            "HANG" => {
                self.fail(format!("{speaker} hangs on {peer}: {rest}"));
                println!("{}", stacks::of(&[speaker, peer]));
            }
            _ => self.fail(format!("{speaker}: {line}")),
        }
    }

    fn fail(&mut self, text: String) {
        println!("FAILED: {text}");
        self.failures.push(text);
    }

    /// Lets the clients finish, then ends the servers.
    fn drain(&mut self) -> Result<(), String> {
        self.until("clients to end", |this| {
            this.workers.values().all(|worker| worker.server)
        })?;
        self.until("servers to say hello", |this| {
            this.workers.values().all(|worker| worker.pid != 0)
        })?;
        for worker in self.workers.values_mut() {
            worker.stdin = None;
            worker.due = Some(Instant::now() + PATIENCE);
        }
        self.until("servers to end", |this| this.workers.is_empty())
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let limit = Instant::now() + PATIENCE * 2;
        while !done(self) {
            self.look()?;
            if Instant::now() > limit {
                return Err(format!("waited too long for {what}"));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn daemon_is_hosts(&self) -> bool {
        self.options.system.is_some()
    }

    fn footprint(&mut self) -> Footprint {
        self.reap_adopted();
        Footprint::take(self.options.is_native())
    }
}
