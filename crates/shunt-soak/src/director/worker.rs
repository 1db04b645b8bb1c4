//! Worker processes: how they begin and how they are ended.

use super::{Director, PATIENCE};
use rustix::process::Signal;
use shunt_harness::process::{descendants, signal};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LOOPBACK: &str = "127.0.0.1";

/// A worker process.
pub(super) struct Worker {
    pub(super) child: Child,
    /// Its own process id (`child` may be a wrapper).
    pub(super) pid: u32,
    /// Ends a server when dropped.
    pub(super) stdin: Option<ChildStdin>,
    pub(super) server: bool,
    pub(super) ports: Vec<u16>,
    /// Of a client: the servers that it talks to.
    pub(super) targets: Vec<u64>,
    pub(super) users: usize,
    pub(super) retires: Instant,
    /// By when it must be gone.
    pub(super) due: Option<Instant>,
    pub(super) connections: u64,
    pub(super) bytes: u64,
}

impl Director<'_> {
    fn command(&mut self, server: bool) -> Result<Command, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        // One in eight stays plain, so that mixed pairs occur.
        let wrap = self
            .options
            .common
            .shunt
            .as_ref()
            .filter(|_| self.next < 2 || !self.random.one_in(8));
        let apart = self.options.apart.as_ref();
        let in_place = |program: &Path| match apart {
            None => Command::new(program),
            Some(apart) => {
                let process = if server { apart.servers } else { apart.clients };
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{process}/ns/net"));
                command.arg(program);
                command
            }
        };
        let Some(shunt) = wrap else {
            return Ok(in_place(&program));
        };
        let mut command = in_place(shunt);
        if let Some(daemon) = &self.daemon {
            command.env("SHUNT_SOCKET", daemon.socket());
        }
        let upgrade = if self.random.one_in(2) {
            "eager"
        } else {
            "adaptive"
        };
        command
            .arg("run")
            .arg(format!("--upgrade={upgrade}"))
            .arg("--stats")
            .arg(self.directory.join("stats"));
        command.arg("--").arg(program);
        Ok(command)
    }

    pub(super) fn start_server(&mut self) -> Result<(), String> {
        let mut command = self.command(true)?;
        command.arg("server").arg(self.random.next().to_string());
        command.arg(if self.options.apart.is_some() {
            "0.0.0.0"
        } else {
            LOOPBACK
        });
        let life = Duration::from_millis(self.random.magnitude(3000, 30_000));
        self.start(command, true, Vec::new(), life)
    }

    pub(super) fn start_client(&mut self, count: usize) -> Result<(), String> {
        let now = Instant::now();
        let servers: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.server && worker.pid != 0 && worker.retires > now)
            .map(|(&id, _)| id)
            .collect();
        if servers.is_empty() {
            return Ok(());
        }
        let mut targets: Vec<u64> = (0..2)
            .map(|_| servers[self.random.below(servers.len())])
            .collect();
        targets.dedup();
        let mut command = self.command(false)?;
        let apart = self.options.apart.as_ref();
        command
            .arg("client")
            .arg(self.random.next().to_string())
            .arg(count.to_string())
            .arg(apart.map_or(LOOPBACK, |apart| &apart.addresses));
        for id in &targets {
            if let Some(server) = self.workers.get_mut(id) {
                server.users += 1;
                let ports: Vec<String> = server.ports.iter().map(u16::to_string).collect();
                command.arg(format!("{}:{}", server.pid, ports.join(":")));
            }
        }
        self.start(command, false, targets, PATIENCE)
    }

    fn start(
        &mut self,
        mut command: Command,
        server: bool,
        targets: Vec<u64>,
        life: Duration,
    ) -> Result<(), String> {
        let mut child = command
            .stdin(if server {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("start {:?}: {error}", command.get_program()))?;
        let id = self.next;
        self.next += 1;
        self.started += 1;
        if let Some(out) = child.stdout.take() {
            let says = self.says.clone();
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if says.send((id, line)).is_err() {
                        return;
                    }
                }
            });
        }
        let retires = Instant::now() + life;
        let worker = Worker {
            stdin: child.stdin.take(),
            child,
            pid: 0,
            server,
            ports: Vec::new(),
            targets,
            users: 0,
            retires,
            due: (!server).then_some(retires),
            connections: 0,
            bytes: 0,
        };
        self.workers.insert(id, worker);
        Ok(())
    }

    /// Kills a random worker in the middle of whatever it does, or the daemon.
    pub(super) fn kill_one(&mut self) -> Result<(), String> {
        if let Some(daemon) = &mut self.daemon
            && daemon.is_there()
            && self.random.one_in(6)
        {
            let pause = self.random.magnitude(1, 500);
            daemon.kill(Duration::from_millis(pause))?;
            self.kills += 1;
            return Ok(());
        }
        let alive: Vec<u64> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.pid != 0)
            .map(|(&id, _)| id)
            .collect();
        if let Some(&id) = alive.get(self.random.below(alive.len())) {
            let Some(worker) = self.workers.get(&id) else {
                return Ok(());
            };
            self.kills += 1;
            self.killed.insert(worker.pid);
            self.killed_client |= !worker.server;
            signal(worker.pid, Signal::KILL);
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, id: u64) {
        if let Some(worker) = self.workers.get_mut(&id) {
            self.killed.insert(worker.pid);
            for pid in descendants(worker.child.id()) {
                signal(pid, Signal::KILL);
            }
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
        self.gone(id, None);
    }

    /// Forgets a worker; one that was not killed must have succeeded.
    pub(super) fn gone(&mut self, id: u64, status: Option<ExitStatus>) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        for target in &worker.targets {
            if let Some(server) = self.workers.get_mut(target) {
                server.users -= 1;
            }
        }
        let Some(status) = status else { return };
        let unexpected = worker.server && worker.due.is_none();
        if !self.killed.contains(&worker.pid) && (unexpected || !status.success()) {
            let kind = if worker.server { "server" } else { "client" };
            self.fail(format!("{kind} {} ended: {status}", worker.pid));
        }
    }
}
